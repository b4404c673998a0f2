"""Active learning: priorities against brute force, and what a method is given to learn from."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import chisquare

import pp_testbed as pt
from pp_testbed.evaluation.acquisition import PRIORITIES, Candidates, reorder
from pp_testbed.problems.suites import Suite
from pp_testbed.studies.active import active

KEY = jax.random.key(0)
QUICK = {"config": pt.Evaluation(num_batches=10, num_draws=20), "progress": False}
POOL = pt.suite("2d").filter(num_train=100, temperature=0.1, seed=[0, 1])


def candidates(functions=4, inputs=6, classes=3):
    generator = np.random.default_rng(functions)
    logits = 2 * generator.normal(size=(functions, inputs, classes))
    weights = generator.dirichlet(np.ones(functions))
    labels = generator.integers(classes, size=inputs)
    log_probs = jax.nn.log_softmax(jnp.asarray(logits, dtype=jnp.float32))
    pool = Candidates(log_probs, jnp.log(jnp.asarray(weights)), jnp.asarray(labels), KEY)
    return softmax(logits, axis=-1), weights, labels, pool


def brute_force(name, probs, weights, labels):
    """The same in NumPy, input by input."""
    values = []
    for i, label in enumerate(labels):
        p = probs[:, i]
        mean = sum(w * row for w, row in zip(weights, p, strict=True))
        entropy = lambda row: -sum(q * np.log(q) for q in row)  # noqa: E731
        top = sorted(mean)
        values.append(
            {
                "variance": sum(weights[m] * ((p[m] - mean) ** 2).sum() for m in range(len(weights))),
                "entropy": entropy(mean),
                "margin": top[-2] - top[-1],
                "bald": entropy(mean) - sum(w * entropy(row) for w, row in zip(weights, p, strict=True)),
                "nll": -np.log(mean[label]),
                "joint-nll": -logsumexp(10 * np.log(p[:, label]), b=weights),
            }[name]
        )
    return values


@pytest.mark.parametrize("name", [name for name in PRIORITIES if name != "uniform"])
def test_priorities_are_what_they_say(name):
    probs, weights, labels, pool = candidates()
    np.testing.assert_allclose(
        PRIORITIES[name](pool), brute_force(name, probs, weights, labels), rtol=2e-5, atol=1e-6
    )


def test_one_function_has_nothing_to_disagree_about():
    """So that variance and BALD of a single network are ties, which the pool's random order breaks."""
    pool = candidates(functions=1)[3]
    for name in ("variance", "bald"):
        assert (PRIORITIES[name](pool) == 0.0).all()


def test_certain_predictions_have_finite_priorities():
    pool = Candidates(
        jax.nn.log_softmax(jnp.array([[[300.0, 0.0]], [[0.0, 300.0]]])),
        jnp.log(jnp.full(2, 0.5)),
        jnp.zeros(1, int),
        KEY,
    )
    assert float(PRIORITIES["bald"](pool)[0]) == pytest.approx(np.log(2))
    assert float(PRIORITIES["entropy"](pool)[0]) == pytest.approx(np.log(2))


def test_uniform_is_uniform():
    pool = candidates(inputs=4)[3]
    first = [
        int(PRIORITIES["uniform"](pool._replace(key=key)).argmax()) for key in jax.random.split(KEY, 2000)
    ]
    assert chisquare(np.bincount(first, minlength=4)).pvalue > 1e-3


def test_reorder_keeps_the_labelled_first():
    order = jnp.array([3, 0, 4, 1, 2])
    priorities = jnp.array([9.0, 1.0, 5.0, 9.0, 1.0])
    assert list(reorder(priorities, order, 2)) == [3, 0, 2, 4, 1]  # 4 and 1 tie, and stay in their order


class Recorder:
    """A method that remembers its tasks; its only function prefers inputs far from the origin."""

    def __init__(self):
        self.tasks = []

    def fit(self, key, task):
        self.tasks.append((np.asarray(task.x), np.asarray(task.y), int(task.num_train)))
        return pt.finite(lambda x: np.stack([np.zeros(len(x)), 5.0 - np.abs(x).sum(1)], axis=1)[None])


def test_a_method_sees_what_it_asked_for(tmp_path):
    """Entropy is largest where the logit is nearest 0: those are labelled next, and no other."""
    method, pool = Recorder(), pt.suite("2d").filter(num_train=100, temperature=0.1, seed=0)
    frame = active([method], pool, priorities=["entropy"], budgets=[5, 9], out=tmp_path, **QUICK)
    assert list(frame.num_labelled) == [5, 9]
    (x5, _, n5), (x9, y9, n9) = method.tasks
    assert (n5, n9) == (5, 9)
    inputs, labels = np.asarray(pool[0].task.x), np.asarray(pool[0].task.y)
    place = {tuple(row): i for i, row in enumerate(inputs)}
    chosen = [place[tuple(row)] for row in x9]
    assert len(set(chosen)) == 9
    assert list(y9) == list(labels[chosen])
    np.testing.assert_array_equal(x9[:5], x5)
    rest = [i for i in range(100) if i not in chosen[:5]]
    nearest = sorted(rest, key=lambda i: abs(5.0 - np.abs(inputs[i]).sum()))[:4]
    assert set(chosen[5:]) == set(nearest)


def test_methods_start_from_the_same_labels_and_runs_are_kept(tmp_path):
    options = {"priorities": ["uniform", "bald"], "budgets": [10, 20], "out": tmp_path, **QUICK}
    methods = [pt.method("mlp", num_steps=20), pt.method("ensemble", size=3, num_steps=20)]
    frame = active(methods, POOL, **options)
    assert len(frame) == 2 * 2 * 2 * 2
    assert set(frame.status) == {"ok"}
    first = frame[(frame.num_labelled == 10) & (frame.method == "mlp")].pivot(
        index="seed", columns="priority", values="kl_joint"
    )
    np.testing.assert_array_equal(first.uniform, first.bald)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = active(methods, POOL, **options)
    assert again.equals(frame)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    alone = active(methods[:1], POOL, **options | {"priorities": ["bald"], "out": tmp_path / "alone"})
    both = alone.merge(frame, on=["problem", "priority", "method", "num_labelled"])
    np.testing.assert_array_equal(both.kl_joint_x, both.kl_joint_y)  # whatever else is run with it


class Fails:
    def fit(self, key, task):
        raise ValueError("no luck")


class FailsLater(Recorder):
    """With more than five labels."""

    def fit(self, key, task):
        if task.num_train > 5:
            raise ValueError("too much")
        return lambda x, rng: rng.normal(size=(len(x), 2))  # a plain function is a posterior too


@pytest.mark.slow
def test_what_was_scored_before_a_failure_is_kept(tmp_path):
    options = {"priorities": ["uniform"], "budgets": [5, 9], "out": tmp_path, **QUICK}
    frame = active([FailsLater()], POOL, **options)
    assert list(frame.num_labelled) == [5, 9, 5, 9]
    assert list(frame.status) == ["ok", "error", "ok", "error"]
    good = active(["mlp"], POOL, **options | {"priorities": ["bald"]})
    path = next(path for path in tmp_path.iterdir() if "mlp" in path.name)
    pd.read_parquet(path).assign(status="error").iloc[1:].to_parquet(path.with_stem("other"), index=False)
    assert active(["mlp"], POOL, **options | {"priorities": ["bald"]}).equals(good)


@pytest.mark.slow
def test_pools_of_several_models_are_learnt_from_apart(tmp_path):
    pools = Suite(
        "both", tuple(pt.problem(num_train=10, input_dim=dim, seed=seed) for dim in (2, 3) for seed in (0, 1))
    )
    frame = active(["mlp"], pools, priorities=["uniform"], budgets=[5], out=tmp_path, **QUICK)
    assert list(frame.status) == ["ok"] * 4, frame.error.tolist()


def test_mistakes_are_named(tmp_path):
    frame = active([Fails()], POOL, priorities=["uniform"], budgets=[5], out=tmp_path, **QUICK)
    assert "no luck" in frame.error.iloc[0]
    for options, words in [
        ({"priorities": ["bold"]}, "did you mean 'bald'"),
        ({"budgets": [20, 10]}, "increasing"),
        ({"budgets": [10, 200]}, "the largest budget is 200"),
        ({"problems": "smoke"}, "no problem with 1000 data"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            active(["mlp"], **{"problems": POOL, "out": tmp_path, **options})
