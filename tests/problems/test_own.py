"""Models of users as problems: what is known of them, where they travel, what methods make of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import pp_testbed as pt
from pp_testbed.evaluation.evaluator import score_inputs
from tests import models_for_tests as own

FILE = str(Path(own.__file__))
PROGRAMS = {"groups": 2, "waves": 2, "heavy": 0}
KEY = jax.random.key(0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_a_problem(name):
    problem = pt.problem(model=f"{FILE}:{name}", num_train=20, seed=1)
    assert problem.name.startswith(f"models_for_tests.py:{name}@")
    assert problem.name.endswith("/T20-s1")
    assert problem.facts["num_classes"] == PROGRAMS[name]
    assert problem.task.x.shape == (20, problem.input_dim)
    again = cloudpickle.loads(cloudpickle.dumps(problem))
    assert again.name == problem.name
    np.testing.assert_array_equal(again.task.y, problem.task.y)
    assert cloudpickle.loads(cloudpickle.dumps(again)).model is again.model  # and is compiled once


def test_a_file_and_an_import_and_a_name_are_the_same_problem(monkeypatch):
    monkeypatch.chdir(Path(FILE).parent)
    problem = pt.problem(model="models_for_tests.py:line", num_train=20)
    assert pt.problem(problem.name).name == problem.name
    imported = pt.problem(model=own.line, num_train=20)
    assert problem.name.rpartition("@")[2] == imported.name.rpartition("@")[2]
    with pytest.raises(pt.UsageError, match="has changed"):
        pt.problem("models_for_tests.py:line@00000000/T20-s0")


def test_inputs_are_those_that_are_said():
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    task = pt.problem(model=own.heavy, x=x, num_train=50).task
    assert {tuple(row) for row in np.asarray(task.x).tolist()} == {tuple(row) for row in x.tolist()}
    groups = pt.problem(model=own.groups, num_train=200).task.x[:, 0]
    assert set(np.asarray(groups).tolist()) == {0.0, 1.0, 2.0, 3.0}
    standard = np.asarray(pt.problem(model=own.heavy, num_train=1000).task.x)
    assert abs(standard.mean()) < 4.5 / np.sqrt(3000)


def test_the_divergence_of_numbers_is_that_of_normals():
    """KL(N(0, 1) ‖ N(m, s²)) in closed form, from labels that are drawn."""

    def truth(x, y=None):
        numpyro.sample("unused", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.zeros(len(x)), 1.0), obs=y)

    environment = pt.problem(model=truth, input_dim=2, num_train=10).environment
    m, s = 0.7, 1.5
    posterior = pt.finite(lambda x: np.broadcast_to([m, np.log(s)], (1, len(x), 2)))
    exact = np.log(s) + (1 + m**2) / (2 * s**2) - 0.5
    scores = pt.evaluate(posterior, environment, key=KEY)
    for value, error, number in (
        (scores.kl_marginal, scores.kl_marginal_stderr, 1),
        (scores.kl_joint, scores.kl_joint_stderr, 10),
        (scores.kl_dyadic, scores.kl_dyadic_stderr, 10),
    ):
        assert abs(value - number * exact) < 4.5 * error
        assert error < 0.05 * number * exact


def test_joint_divergence_of_a_line_is_the_gaussian_one():
    """Of the prior: y at ten inputs is N(0, X Xᵀ + σ² I), against N(f, σ² I) of the truth."""
    problem = pt.problem(model=own.line, num_train=5, seed=3)
    config = pt.Evaluation(num_batches=30, num_draws=4000)
    posterior = pt.method("prior").fit(problem.keys.fit, problem.task)
    terms = score_inputs(posterior, problem.environment, problem.keys.evaluate, config=config)
    key = jax.random.split(problem.keys.evaluate, 3)[0]
    x = np.asarray(problem.model.inputs(key, 300), dtype=np.float64).reshape(30, 10, 2)
    mean = np.asarray(problem.environment.logits(x.reshape(-1, 2)))[:, 0].reshape(30, 10)
    exact = []
    for at, f in zip(x, mean, strict=True):
        covariance = at @ at.T + 0.25 * np.eye(10)
        inverse = np.linalg.inv(covariance)
        log_ratio = np.linalg.slogdet(covariance)[1] - 10 * np.log(0.25)
        exact.append(0.5 * (0.25 * np.trace(inverse) + f @ inverse @ f - 10 + log_ratio))
    difference = np.asarray(terms.whole["kl_joint"], dtype=np.float64) - exact
    # Over batches labels are independent; 4000 draws of two slopes add little, and that is allowed for.
    assert abs(difference.mean()) < 4.5 * difference.std(ddof=1) / np.sqrt(30) + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nuts", "full-rank", "laplace"])
def test_methods_reach_the_exact_posterior_of_a_line(name):
    """Of a program that is no network: slopes have a normal posterior, known in closed form."""
    problem = pt.problem(model=own.line, num_train=20, seed=2)
    x, y = (np.asarray(part, dtype=np.float64) for part in (problem.task.x, problem.task.y))
    covariance = np.linalg.inv(np.eye(2) + x.T @ x / 0.25)
    mean = covariance @ x.T @ y / 0.25
    if name == "laplace":
        from pp_testbed.inference.laplace import normal_at
        from pp_testbed.inference.mcmc import Target

        normal = normal_at(Target(problem.model, problem.task), jnp.asarray(mean, dtype=jnp.float32))
        draws = np.asarray(jax.vmap(normal.draw)(jax.random.split(KEY, 4000)))
        number, bias = 4000, 0.0
    else:
        options = {"num_steps": 5000} if name == "full-rank" else {}
        posterior = pt.method(name, **options).fit(problem.keys.fit, problem.task)
        draws = np.asarray(posterior.draw(KEY, 4000).draws["slope"])
        number, bias = 400, 0.15 if name == "full-rank" else 0.0  # Adam of a constant rate stays near
    spread = np.sqrt(np.diag(covariance))
    assert (abs(draws.mean(axis=0) - mean) < (4.5 / np.sqrt(number) + bias) * spread).all()
    assert (abs(draws.std(axis=0) / spread - 1) < 4.5 / np.sqrt(2 * number) + bias).all()


@pytest.mark.slow
def test_networks_fit_numbers():
    """On data that a network can learn, agents beat the prior by far, with noise that they learn too."""
    problem = pt.problem(model="regression", input_dim=2, num_train=300, seed=1)
    scores = {}
    for name in (
        "mlp",
        "dropout",
        "bbb",
        "hypermodel",
        "epinet",
        "swag",
        "deep-kernel",
        "random-forest",
        "prior",
    ):
        posterior = pt.method(name).fit(problem.keys.fit, problem.task)
        scores[name] = pt.evaluate(posterior, problem, key=problem.keys.evaluate, num_batches=50).kl_marginal
    assert max(value for name, value in scores.items() if name != "prior") < 0.5 * scores["prior"], scores
    with pytest.raises(pt.UsageError, match="uniform is of classes"):
        pt.method("uniform").fit(problem.keys.fit, problem.task)


def no_labels(x, y=None):
    numpyro.sample("slope", dist.Normal())


def other_name(x, y=None):
    numpyro.sample("obs", dist.Normal(x[:, 0] * numpyro.sample("slope", dist.Normal()), 1.0), obs=y)


def discrete(x, y=None):
    which = numpyro.sample("which", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(x[:, 0] * which, 1.0), obs=y)


def per_row(x, y=None):
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(numpyro.sample("local", dist.Normal()), 1.0), obs=y)


def site_per_row(x, y=None):
    means = jnp.stack([numpyro.sample(f"z{row}", dist.Normal()) for row in range(len(x))])
    numpyro.sample("y", dist.Normal(means, 1.0), obs=y)


def counts(x, y=None):
    numpyro.sample("y", dist.Poisson(jnp.exp(x[:, 0] * numpyro.sample("slope", dist.Normal()))), obs=y)


def broken(x, y=None):
    numpyro.sample("y", dist.Normal(x @ numpyro.sample("slope", dist.Normal().expand((7,))), 1.0), obs=y)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (no_labels, "observes nothing; expected its labels at a site y"),
        (other_name, "observes obs; expected its labels at a site y"),
        (discrete, "latent site which of discrete is discrete: sum it out"),
        (per_row, "latent site local of per_row has a value for every row"),
        (site_per_row, "site_per_row has a site z2 or not, by how many inputs there are"),
        (counts, "labels y are Poisson; expected one of Categorical"),
        (broken, r"broken cannot be run on inputs \[2, 1\]"),
        (3, "the model is 3; expected a NumPyro program"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(program, words):
    with pytest.raises(pt.UsageError, match=words) as error:
        pt.problem(model=program, input_dim=1)
    assert "\n" not in str(error.value)


def test_other_mistakes():
    with pytest.raises(pt.UsageError, match="does not say how many inputs it has: say it, as input_dim=2"):
        pt.problem(model=discrete)
    with pytest.raises(pt.UsageError, match="has no temperature"):
        pt.problem(model=own.line, temperature=0.1)
    with pytest.raises(pt.UsageError, match=r"there is no file nowhere\.py"):
        pt.problem(model="nowhere.py:MODEL")


def skewed(x, y=None):
    numpyro.sample("y", dist.LogNormal(x[:, 0] * numpyro.sample("slope", dist.Normal()), 1.0), obs=y)


def in_one_event(x, y=None):
    slope = numpyro.sample("slope", dist.Normal())
    numpyro.sample("y", dist.Normal(x[:, 0] * slope, 1.0).to_event(1), obs=y)


def with_parameter(x, y=None):
    slope = numpyro.param("slope", lambda key: jax.random.normal(key))
    numpyro.sample("y", dist.Normal(x[:, 0] * slope, 1.0), obs=y)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (skewed, "labels y are LogNormal; expected one of"),
        (in_one_event, r"its batch \(\), for 2 inputs; expected \(2,\) of both, a plate"),
        (with_parameter, "has a parameter slope: give it a prior"),
    ],
)
def test_what_cannot_be_judged_is_said(program, words):
    with pytest.raises(pt.UsageError, match=words):
        pt.problem(model=program, input_dim=1)


def tempered(x, y=None):
    """A site `logits` that is not what y's distribution has."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand((2, 2)).to_event(2))
    logits = numpyro.deterministic("logits", x @ slope)
    numpyro.sample("y", dist.Categorical(logits=10.0 * logits), obs=y)


def latent_logits(x, y=None):
    logits = numpyro.sample("logits", dist.Normal().expand((4, 2)).to_event(2))
    numpyro.sample("y", dist.Categorical(logits=logits[(x[:, 0] > 0).astype(int)]), obs=y)


def test_a_latent_that_is_called_logits_is_none_of_the_outputs():
    environment = pt.problem(model=latent_logits, input_dim=1, num_train=5).environment
    x = jnp.linspace(-1.0, 1.0, 6)[:, None]
    expected = environment.latents["logits"][(x[:, 0] > 0).astype(int)]
    np.testing.assert_allclose(environment.logits(x), expected, rtol=1e-6)


def threshold(x, y=None):
    sign = jnp.sign(numpyro.sample("slope", dist.Normal()) * x[:, 0])
    numpyro.sample("y", dist.Bernoulli(probs=(1.0 + sign) / 2.0), obs=y)


def test_what_a_truth_excludes_is_infinitely_wrong_and_not_clipped():
    truth = pt.problem(model=threshold, input_dim=1, num_train=5).environment
    other = replace(truth, latents={"slope": -truth.latents["slope"]})
    for environment, expected in ((truth, 0.0), (other, np.inf)):
        posterior = pt.finite(lambda x, one=environment: one.logits(x)[None])
        scores = pt.evaluate(posterior, truth, key=jax.random.key(0), num_batches=5)
        assert scores.kl_marginal == scores.kl_joint == expected


@pytest.mark.parametrize(
    ("columns", "said", "words"),
    [
        (3, 2, "is said to have 2 inputs; those that it draws have 3"),
        (0, None, r"inputs\(key, 2\) has shape \(2,\); expected \[2, d\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(columns, said, words):
    program = partial(own.line)
    program.inputs = lambda key, num: jnp.zeros((num, columns) if columns else num)
    with pytest.raises(pt.UsageError, match=words):
        pt.problem(model=program, input_dim=said)
    with pytest.raises(pt.UsageError, match="is said to have 3 inputs; those that it draws have 2"):
        pt.problem(model=own.line, x=np.zeros((5, 2)) + 0.1, input_dim=3)


def test_outputs_are_those_of_the_labels_and_not_of_another_site():
    environment = pt.problem(model=tempered, input_dim=2, num_train=5).environment
    x = jnp.ones((3, 2))
    expected = 10.0 * x @ environment.latents["slope"]
    np.testing.assert_allclose(environment.logits(x), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_file_that_is_edited_after_the_problem_was_made_is_not_run_under_its_name(tmp_path):
    path = tmp_path / "edited.py"
    text = Path(FILE).read_text()
    path.write_text(text)
    problem = pt.problem(model=f"{path}:heavy", num_train=10)
    path.write_text(text.replace("StudentT(3.0", "StudentT(30.0"))
    scores = pt.run([problem], ["prior"], tmp_path / "out", jobs=1, progress=False)
    again = pt.problem(model=f"{path}:heavy", num_train=10)
    assert again.name != problem.name
    here = pt.run([problem], ["prior"], tmp_path / "here", progress=False)
    np.testing.assert_allclose(scores.kl_joint, here.kl_joint, rtol=1e-4)  # what it was, as its name says


def test_a_program_that_has_changed_in_memory_does_not_travel_under_its_old_name(monkeypatch):
    problem = pt.problem(model=own.waves, num_train=10)
    parts = problem.model.__reduce__()
    with pytest.raises(pt.UsageError, match="has changed since the problem was made"):
        parts[0]("waves@00000000", *parts[1][1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["groups", "heavy"])
def test_references_and_comparison(name, tmp_path):
    problem = pt.problem(model=f"{FILE}:{name}", num_train=15)
    nuts = pt.NUTS(warmup=100, num_draws=50)
    exact = pt.reference(problem, store=tmp_path, method=nuts, build=True, jobs=0)
    assert problem.name in repr(exact)
    again = pt.reference(problem, store=tmp_path, method=nuts)
    np.testing.assert_array_equal(exact.values, again.values)
    assert problem.name in set(pt.references(tmp_path).problem)
    from dataclasses import replace

    passed = replace(exact.diagnostics, rhat=1.0, ess_bulk=500.0, ess_tail=500.0, divergent=0.0)
    posterior = pt.method("prior").fit(problem.keys.fit, problem.task)
    comparison = pt.compare(posterior, replace(exact, diagnostics=passed))
    assert comparison.excess_kl_joint > 3 * comparison.excess_kl_joint_stderr


def test_a_program_of_a_script_is_the_same_in_a_worker(tmp_path, monkeypatch):
    """Also where the package is installed, so that a worker's own `__main__` is a file of site-packages."""
    from pp_testbed.engine.identity import is_library

    def program(x, y=None):
        numpyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)

    program.__module__ = "__main__"
    monkeypatch.setattr(
        __import__("sys").modules["__main__"], "__file__", "/site-packages/local.py", raising=False
    )
    assert not is_library(program)


def conjugate(x, y=None):
    """Linear regression with noise that is not known: normal and inverse gamma."""
    variance = numpyro.sample("variance", dist.InverseGamma(3.0, 1.0))
    base = numpyro.sample("base", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
    numpyro.sample("y", dist.Normal(x @ base * jnp.sqrt(variance), jnp.sqrt(variance)), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nuts", "hmc", "mala", "mclmc"])
def test_samplers_reach_the_exact_posterior_where_noise_is_not_known(name):
    """β = base · σ is Student t about its mean, σ² inverse gamma: their means in closed form."""
    problem = pt.problem(model=conjugate, input_dim=2, num_train=15, seed=4)
    x, y = (np.asarray(part, dtype=np.float64) for part in (problem.task.x, problem.task.y))
    precision = np.eye(2) + x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)
    shape, rate = 3.0 + 15 / 2, 1.0 + (y @ y - mean @ precision @ mean) / 2
    variance = rate / (shape - 1)
    spread = np.sqrt(np.diag(np.linalg.inv(precision)) * variance)
    chains = pt.method(name, num_draws=1000).fit(problem.keys.fit, problem.task)
    drawn = {site: np.asarray(leaf, dtype=np.float64) for site, leaf in chains.draws.items()}
    slopes = drawn["base"] * np.sqrt(drawn["variance"])[:, None]
    # Of 4000 draws at least 400 are worth independent ones; MCLMC has a bias of its own, of a few percent.
    slack = 4.5 / np.sqrt(400) + 0.05 * (name == "mclmc")
    assert (abs(slopes.mean(axis=0) - mean) < slack * spread).all()
    deviation = rate / (shape - 1) / np.sqrt(shape - 2)
    assert abs(drawn["variance"].mean() - variance) < slack * deviation


def test_elliptical_slice_sampling_says_what_it_needs():
    problem = pt.problem(model=conjugate, input_dim=2, num_train=15)
    with pytest.raises(pt.UsageError, match="needs independent normal priors; site variance is"):
        pt.method("elliptical-slice", warmup=1, num_draws=10, thinning=1).fit(problem.keys.fit, problem.task)


@pytest.mark.slow
def test_own_models_act_and_choose_their_data(tmp_path):
    regrets = pt.bandit(
        ["oracle", "mlp"], model=own.groups, steps=20, seeds=1, out=tmp_path / "b", progress=False
    )
    assert (regrets.status == "ok").all()
    assert regrets[regrets.method == "oracle"].regret.max() == 0.0
    pool = pt.Suite("own", (pt.problem(model=own.waves, num_train=40),))
    found = pt.active(["mlp"], pool, priorities=["bald"], budgets=[5, 10], out=tmp_path / "a", progress=False)
    assert (found.status == "ok").all()
    with pytest.raises(pt.UsageError, match="a reward is 0 or 1"):
        pt.bandit(["mlp"], model=own.heavy, out=tmp_path, progress=False)
