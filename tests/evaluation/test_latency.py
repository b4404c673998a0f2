"""What predictions cost: counted by hand; and programs that are written and read back."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import pp_testbed as pt
from pp_testbed.evaluation.latency import latency, load_predictor, save_predictor
from pp_testbed.inference.posterior import Finite, predictive_mean
from pp_testbed.models.likelihoods import Categorical

KEY = jax.random.key(0)
SLOW = ("epinet",)
X = np.linspace(-1.0, 1.0, 10, dtype=np.float32).reshape(5, 2)


def mlp_posterior(size=3):
    problem = pt.problem("2d/T3-rho0.1-s0")
    method = pt.method("ensemble", size=size, num_steps=2, hidden=(4,))
    return method.fit(problem.keys.fit, problem.task), problem.task


def test_numbers_and_bytes_are_those_of_the_network():
    posterior, _ = mlp_posterior()
    found = latency(posterior, X, calls=20)
    assert found.num_draws == 3
    assert found.parameters == 2 * 4 + 4 + 4 * 2 + 2
    functions = 3 * 4 * (found.parameters + 1)  # and a weight
    shared = sum(leaf.nbytes for leaf in jax.tree.leaves(posterior.function))
    assert found.bytes == functions + shared
    assert 0 < found.median <= found.p99
    assert found.prediction == pytest.approx(3 * found.median)


def test_time_is_that_of_one_function():
    """A function that sleeps for 2 ms, of five: each call takes that, and a prediction five times."""

    class Slow:
        is_finite = True

        def logits(self, key, x, num_draws):
            time.sleep(5 * 0.002)
            return np.zeros((5, len(x), 2))

    found = latency(Slow(), X, calls=5)
    assert found.num_draws == 5
    assert 0.002 <= found.median < 0.02
    assert found.parameters is None


def test_what_is_predicted_is_the_weighted_mean():
    rng = np.random.default_rng(0)
    outputs, weights = rng.normal(size=(4, 5, 3)), rng.dirichlet(np.ones(4))
    function = Partial(lambda draw, x: draw[: x.shape[0]])
    functions = Finite(function, jnp.asarray(outputs), jnp.log(weights))
    expected = (weights[:, None, None] * np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)).sum(0)
    np.testing.assert_allclose(predictive_mean(functions, Categorical(), X), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["ensemble", *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)])
def test_a_program_that_is_written_predicts_the_same(tmp_path, name):
    problem = pt.problem("2d/T3-rho0.1-s0")
    posterior = pt.method(name, num_steps=2, **({"size": 3} if name == "ensemble" else {})).fit(
        problem.keys.fit, problem.task
    )
    file = save_predictor(posterior, problem.task, tmp_path / "it.jax", num_draws=10)
    again = load_predictor(file)
    functions = posterior.draw(KEY, 10)
    for rows in (1, 5):  # any number of inputs
        expected = predictive_mean(functions, problem.task.likelihood, X[:rows])
        np.testing.assert_allclose(again(X[:rows]), expected, rtol=1e-6)
    with pytest.raises(pt.UsageError, match="is there; give another name"):
        save_predictor(posterior, problem.task, file)


def test_numbers_are_predicted_by_their_location(tmp_path):
    data = (np.linspace(-1, 1, 40)[:, None], np.linspace(-2, 2, 40))
    problem = pt.problem(data=data)
    posterior = pt.method("mlp", num_steps=2).fit(problem.keys.fit, problem.task)
    again = load_predictor(save_predictor(posterior, problem.task, tmp_path / "it.jax"))
    outputs = posterior.logits(KEY, problem.task.x)[0]
    np.testing.assert_allclose(again(problem.task.x), problem.task.likelihood.margins(outputs).loc, rtol=1e-6)


def test_what_cannot_be_written_or_read_is_said(tmp_path):
    posterior, task = mlp_posterior()
    with pytest.raises(pt.UsageError, match="expected what JAX can compile"):
        save_predictor(pt.finite(lambda x: np.zeros((1, len(x), 2))), task, tmp_path / "it.jax")
    with pytest.raises(pt.UsageError, match="cannot write"):
        save_predictor(posterior, task, tmp_path / "no" / "it.jax")
    with pytest.raises(pt.UsageError, match="cannot read"):
        load_predictor(tmp_path / "it.jax")
    (tmp_path / "other").write_text("mine")
    with pytest.raises(pt.UsageError, match="not a program of jax"):
        load_predictor(tmp_path / "other")
