"""Likelihoods of numbers: one or many, with noise that is known, learnt, or depends on inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.tree_util import Partial
from scipy.stats import norm

import pp_testbed as pt
from pp_testbed.evaluation.evaluator import score_inputs
from pp_testbed.models.base import HeldOut
from pp_testbed.models.likelihoods import Normal, outputs_of

KEY = jax.random.key(0)


@pytest.mark.parametrize("targets", [1, 3])
def test_outputs_are_what_a_distribution_is_made_of(targets):
    likelihood = Normal(targets)
    outputs = jax.random.normal(KEY, (5, 2 * targets))
    made = likelihood.distribution(outputs)
    assert made.batch_shape == (5,)
    again, found = outputs_of(made)
    assert again == likelihood
    np.testing.assert_allclose(found, outputs, rtol=1e-5, atol=1e-6)
    y = jax.random.normal(jax.random.key(1), (5, *likelihood.event_shape))
    exact = norm.logpdf(
        np.asarray(y).reshape(5, -1), np.asarray(outputs[:, :targets]), np.exp(outputs[:, targets:])
    ).sum(axis=1)
    np.testing.assert_allclose(made.log_prob(y), exact, rtol=2e-5)


@pytest.mark.parametrize("targets", [1, 2])
def test_curvature_is_the_fisher_information(targets):
    """The Hessian of KL(p_o ‖ p_u) in u at u = o."""
    likelihood = Normal(targets)
    at = jax.random.normal(jax.random.key(2), (2 * targets,))

    def kl(other):
        m, s, n, t = at[:targets], at[targets:], other[:targets], other[targets:]
        return (t - s + (jnp.exp(2 * s) + (m - n) ** 2) / (2 * jnp.exp(2 * t)) - 0.5).sum()

    root = likelihood.curvature_root(at)
    np.testing.assert_allclose(root.T @ root, jax.hessian(kl)(at), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("scale", "values"), [("learned", 2), ("inputs", 4), (0.3, 2)])
def test_a_network_computes_all_but_its_noise(scale, values):
    likelihood = Normal(targets=2, scale=scale)
    assert likelihood.num_values(0) == values
    params = {name: jnp.asarray(mean) for name, (mean, _) in likelihood.noise.items()}
    outputs = likelihood.with_noise(jnp.ones((5, values)), params)
    assert outputs.shape == (5, 4)
    np.testing.assert_array_equal(likelihood.without_noise(outputs), jnp.ones((5, values)))
    expected = {"learned": -1.0, "inputs": 1.0, 0.3: np.log(0.3)}[scale]
    np.testing.assert_allclose(outputs[:, 2:], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Normal(scale="input"), "did you mean 'inputs'"),
        (lambda: Normal(scale=0.0), "the scale is 0.0; expected a number above 0"),
        (lambda: Normal(targets=0), "targets is 0; expected a whole number"),
        (lambda: outputs_of(dist.Categorical(logits=jnp.zeros((3, 4, 2))).to_event(1)), "an event of shape"),
        (lambda: outputs_of(dist.Normal(jnp.zeros((3, 4, 2))).to_event(2)), "an event of shape"),
    ],
)
def test_what_is_no_likelihood_is_said(make, words):
    with pytest.raises(pt.UsageError, match=words):
        make()


def test_scores_of_vectors_are_those_of_their_numbers():
    """NLL adds up; squared errors, CRPS and shares are means; an error bar is over rows, not numbers."""
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(6, 40, 6)), rng.normal(size=(40, 3)).astype(np.float32)
    weights = jnp.log(jnp.asarray(rng.dirichlet(np.ones(6)), dtype=jnp.float32))
    rows = jnp.arange(40, dtype=jnp.float32)[:, None]

    def score(columns, y, likelihood):
        values = jnp.asarray(outputs[..., columns], dtype=jnp.float32)
        posterior = pt.Finite(Partial(lambda v, x: v[x[:, 0].astype(int)]), values, weights)
        truth = HeldOut(rows, jnp.asarray(y), likelihood, 0)
        terms = score_inputs(posterior, truth, KEY, config=pt.Evaluation(num_batches=10))
        return pt.evaluate(posterior, truth, key=KEY, num_batches=10), terms

    together, terms = score(list(range(6)), y, Normal(3))
    each = [score([k, k + 3], y[:, k], Normal())[0] for k in range(3)]
    for name in ("crps", "coverage"):
        assert getattr(together, name) == pytest.approx(
            np.mean([getattr(one, name) for one in each]), rel=1e-5
        )
    squares = np.mean([one.rmse**2 for one in each])
    assert together.rmse == pytest.approx(np.sqrt(squares), rel=1e-5)
    logs = norm.logpdf(y, outputs[..., :3], np.exp(outputs[..., 3:])).sum(axis=2)
    exact = -np.log(np.exp(np.asarray(weights, dtype=np.float64)) @ np.exp(logs))
    np.testing.assert_allclose(terms.whole["nll"][:, 0], exact, rtol=2e-5)
    crps = np.asarray(terms.whole["crps"]).mean(axis=1)
    assert together.crps_stderr == pytest.approx(crps.std(ddof=1) / np.sqrt(40), rel=1e-4)


def test_the_divergence_of_vectors_of_an_environment_is_in_closed_form():
    """A function that is off by δ in each of two locations: KL of one label is Σ δ² / 2 σ²."""
    problem = pt.problem(model="regression", num_train=10, targets=2)
    assert problem.name == "regression-2d-y2/T10-s0"
    assert pt.problem(problem.name) == problem
    assert problem.task.y.shape == (10, 2)
    truth, shift = problem.environment, jnp.array([0.1, -0.3, 0.0, 0.0])
    posterior = pt.Finite.equal(Partial(lambda d, x: truth.logits(x) + d), shift[None])
    scores = pt.evaluate(posterior, problem, key=KEY)
    variance = np.exp(2 * np.asarray(truth.latents["log_scale"]))
    exact = float((np.asarray(shift[:2]) ** 2 / (2 * variance)).sum())
    assert abs(scores.kl_marginal - exact) < 4 * scores.kl_marginal_stderr
    assert abs(scores.kl_joint - 10 * exact) < 4 * scores.kl_joint_stderr


def widening(x, y=None):
    """Noise that grows with the input."""
    slope, growth = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("slope", "growth"))
    numpyro.sample("y", dist.Normal(slope * x[:, 0], jnp.exp(-1.0 + growth * x[:, 0])), obs=y)


widening.input_dim, widening.likelihood = 1, Normal(scale="inputs")


LEARN = {"num_steps": 3000, "l2": 0.1}
WIDENING = {
    "mlp": LEARN,
    "ensemble+": LEARN | {"size": 3},
    "bbb": {"num_steps": 3000},
    "laplace": LEARN,
    "dropout": LEARN,
    "epinet": {"num_steps": 6000, "num_index_samples": 2},
    "deep-kernel": LEARN,
    "sgld": {"num_steps": 20_000, "burn_in": 10_000, "thinning": 100},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDENING)
def test_agents_learn_noise_that_depends_on_inputs(name):
    """From one end of the data to the other the log scale changes by 1.6; agents learn half of that."""
    problem = pt.problem(model=widening, num_train=300, seed=3)
    change = 2 * float(problem.environment.latents["growth"])
    posterior = pt.method(name, **WIDENING[name]).fit(problem.keys.fit, problem.task)
    outputs = np.asarray(posterior.logits(KEY, jnp.array([[-1.0], [1.0]]), 200))
    assert outputs.shape[2] == 2
    found = float(np.diff(outputs[..., 1].mean(axis=0))[0])
    assert change == pytest.approx(1.6066, abs=1e-3)
    assert abs(found - change) < 0.5 * change


def test_what_a_program_says_of_its_likelihood_must_be_so():
    def other(x, y=None):
        numpyro.sample("y", dist.Normal(x[:, 0] * numpyro.sample("slope", dist.Normal()), 1.0), obs=y)

    other.input_dim, other.likelihood = 1, Normal(targets=2)
    with pytest.raises(pt.UsageError, match="says that its likelihood is Normal"):
        pt.problem(model=other)


def pair(x, y=None):
    """Two numbers that share a slope, with noise that is known: its posterior is normal."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
    means = jnp.stack([x @ slope, 2.0 * x @ slope], axis=-1)
    numpyro.sample("y", dist.Normal(means, 0.5).to_event(1), obs=y)


pair.input_dim = 2


@pytest.mark.parametrize("name", ["laplace", "nuts"])
def test_linear_regression_of_several_targets_has_its_exact_posterior(name):
    """Precision I + Σ_t a_t² XᵀX / σ² with a = (1, 2)."""
    problem = pt.problem(model=pair, num_train=12, seed=1)
    x, y = (np.asarray(part, dtype=np.float64) for part in (problem.task.x, problem.task.y))
    precision = np.eye(2) + 5.0 * x.T @ x / 0.25
    mean = np.linalg.solve(precision, x.T @ (y @ [1.0, 2.0]) / 0.25)
    if name == "nuts":
        chains = pt.method("nuts", num_draws=1000).fit(problem.keys.fit, problem.task)
        draws = np.asarray(chains.draws["slope"], dtype=np.float64)
    else:
        from pp_testbed.inference.laplace import normal_at
        from pp_testbed.inference.mcmc import Target

        normal = normal_at(Target(problem.model, problem.task), jnp.asarray(mean, dtype=jnp.float32))
        draws = np.asarray(jax.vmap(normal.draw)(jax.random.split(KEY, 4000)), dtype=np.float64)
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    slack = 4.5 / np.sqrt(400)  # of 4000 draws that are worth at least 400 independent ones
    assert (abs(draws.mean(axis=0) - mean) < slack * spread).all()
    assert (abs(draws.std(axis=0) / spread - 1) < slack).all()


def test_data_of_several_targets_are_judged():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 3))
    y = np.stack([x @ [1.0, 0.0, 1.0], 5.0 + x[:, 0]], axis=1) + 0.1 * rng.normal(size=(100, 2))
    problem = pt.problem(data=(x, y))
    np.testing.assert_allclose(problem.task.y.mean(axis=0), 0.0, atol=1e-5)
    for name in ("mlp", "knn"):
        posterior = pt.method(name).fit(problem.keys.fit, problem.task)
        scores = pt.evaluate(posterior, problem, key=problem.keys.evaluate)
        assert scores.rmse < 0.6  # of the spread of labels
