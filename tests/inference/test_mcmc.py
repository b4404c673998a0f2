"""Samplers against posteriors that are known exactly, within Monte Carlo standard errors of theirs."""

from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.linalg import solve_discrete_lyapunov

import pp_testbed as pt
from pp_testbed.inference.arviz import arviz
from pp_testbed.inference.mcmc import NUTS, Chains, EllipticalSlice, Target, normal_prior
from pp_testbed.inference.sgmcmc import SGLD
from pp_testbed.models.base import Task, pytree_dataclass

NOISE = 0.7


@pytree_dataclass
class Linear:
    """y ~ N(θ·x, 0.7²), θ ~ N(1, 2²): conjugate."""

    input_dim: int = 3
    num_classes: int = 2
    temperature: float = 1.0

    def __call__(self, x, y=None, num_train=None):
        theta = numpyro.sample("theta", dist.Normal(1.0, 2.0).expand([self.input_dim]).to_event(1))
        mean = x @ theta
        numpyro.deterministic("logits", jnp.stack([jnp.zeros_like(mean), mean], axis=-1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, NOISE), obs=y)


def linear_task(num_train=8):
    x = jax.random.normal(jax.random.key(0), (num_train, 3)) * jnp.array([1.0, 0.5, 2.0])
    y = x @ jnp.array([1.0, -2.0, 0.5]) + NOISE * jax.random.normal(jax.random.key(1), (num_train,))
    return Task(Linear(), x, y, num_train)


def exact_linear(task, power=1.0):
    x, y = np.asarray(task.x, np.float64), np.asarray(task.y, np.float64)
    precision = power * x.T @ x / NOISE**2 + np.eye(3) / 4
    mean = np.linalg.solve(precision, power * x.T @ y / NOISE**2 + np.ones(3) / 4)
    return mean, precision


def assert_moments(theta, mean, sd, slack=0.0):
    """Mean and sd of theta [chains, draws, ...] within 4 MCSE (plus a relative slack on the sd)."""
    data = arviz().convert_to_dataset(np.asarray(theta, np.float64))
    error_mean = arviz().mcse(data, method="mean")["x"].values
    error_sd = arviz().mcse(data, method="sd")["x"].values
    assert arviz().ess(data)["x"].values.min() > 400  # else its own errors would excuse anything
    found = np.asarray(theta, np.float64)
    assert (np.abs(found.mean((0, 1)) - mean) < 4 * error_mean + slack * sd).all()
    assert (np.abs(found.std((0, 1)) - sd) < 4 * error_sd + slack * sd).all()


FULL_BATCH = {
    "nuts": {},
    "hmc": {"num_leapfrog": 10},
    "hmc, untuned": {"num_leapfrog": 10, "adapts": False, "step_size": 0.12, "warmup": 50},
    "mala": {"thinning": 10},
    "mclmc": {"thinning": 20},
    "elliptical-slice": {"thinning": 10},
}


def fit(method, task, key=3):
    return jax.jit(lambda k, t: method.fit(k, t))(jax.random.key(key), task)


def by_chain(posterior, name="theta"):
    return posterior.draws[name].reshape(posterior.num_chains, -1, *posterior.draws[name].shape[1:])


@pytest.mark.parametrize("name", FULL_BATCH)
def test_full_batch_samplers_on_the_gaussian_linear_model(name):
    task = linear_task()
    posterior = fit(pt.method(name.partition(",")[0], num_draws=2000, **FULL_BATCH[name]), task)
    mean, precision = exact_linear(task)
    assert_moments(by_chain(posterior), mean, np.sqrt(np.diag(np.linalg.inv(precision))))


@pytest.mark.parametrize(
    "name", [name for name in FULL_BATCH if name != "mclmc"]
)  # which needs two dimensions
def test_full_batch_samplers_on_logistic_regression_with_one_weight(name):
    model = pt.LogisticRegression(input_dim=1, temperature=0.3)
    task = pt.task(model, [[-1.0], [0.3], [0.5], [2.0]], [0, 1, 0, 1])
    x, sign = np.asarray(task.x)[:, 0], 2.0 * np.asarray(task.y) - 1.0

    def density(theta):
        return np.exp(-0.5 * theta**2 - np.log1p(np.exp(-sign * theta * x / 0.3)).sum())

    total = quad(density, -10, 10)[0]
    mean = quad(lambda t: t * density(t), -10, 10)[0] / total
    sd = np.sqrt(quad(lambda t: (t - mean) ** 2 * density(t), -10, 10)[0] / total)
    posterior = fit(pt.method(name.partition(",")[0], num_draws=2000, **FULL_BATCH[name]), task)
    assert_moments(by_chain(posterior), np.array([mean]), np.array([sd]))


def test_a_tempered_likelihood_has_the_tempered_posterior():
    task = linear_task()
    posterior = fit(NUTS(num_draws=2000, likelihood_power=0.3), task)
    mean, precision = exact_linear(task, power=0.3)
    assert_moments(by_chain(posterior), mean, np.sqrt(np.diag(np.linalg.inv(precision))))


def test_padding_does_not_change_the_density():
    problem = pt.problem(num_train=3)
    padded, plain = problem.draw()[0], problem.task
    assert padded.x.shape[0] > plain.x.shape[0]
    target = Target(problem.model, plain)
    position = jax.jit(target.start)(jax.random.key(0))
    values = [jax.jit(Target(problem.model, task).log_density)(position) for task in (plain, padded)]
    np.testing.assert_allclose(*values, rtol=1e-5)


def test_constrained_sites_are_sampled_on_the_real_line():
    """y ~ N(0, s²) with s² of an inverse gamma prior: conjugate."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.InverseGamma(3.0, 2.0))
        numpyro.deterministic("logits", jnp.zeros((x.shape[0], 2)))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(variance)), obs=y)

    y = jnp.array([0.5, -1.0, 2.0, 0.1, -0.7])
    posterior = fit(NUTS(num_draws=2000, model=model), Task(Linear(), jnp.zeros((5, 3)), y, 5))
    shape, rate = 3.0 + 2.5, 2.0 + float((y**2).sum()) / 2
    exact = dist.InverseGamma(shape, rate)
    assert_moments(by_chain(posterior, "variance"), float(exact.mean), float(exact.variance) ** 0.5)


def test_elliptical_slice_sampling_says_which_prior_it_cannot_do():
    def model(x, y=None):
        numpyro.sample("scale", dist.HalfNormal(1.0))

    task = linear_task()
    with pytest.raises(pt.UsageError, match="site scale is HalfNormal"):
        EllipticalSlice(model=model).fit(jax.random.key(0), task)
    mean, variance = normal_prior(Target(Linear(), task))
    np.testing.assert_allclose(mean, 1.0)
    np.testing.assert_allclose(variance, 4.0)


def test_sgld_has_the_stationary_variance_of_its_step():
    """With the full batch, θ ← θ - ε Λ θ + √(2ε) n has covariance (Λ (1 - ε Λ / 2))⁻¹ exactly."""
    task = linear_task()
    mean, precision = exact_linear(task)
    rate = 0.5 / np.linalg.eigvalsh(precision).max()  # so large that the discretisation shows
    sampler = SGLD(
        network="generative", learning_rate=rate, num_steps=200_000, burn_in=20_000, thinning=50, num_chains=4
    )
    covariance = np.linalg.inv(precision @ (np.eye(3) - rate * precision / 2))
    assert np.diag(covariance)[2] > 1.05 / precision[2, 2]
    assert_moments(by_chain(fit(sampler, task)), mean, np.sqrt(np.diag(covariance)))


SMALL_STEPS = {
    "sgld": {"learning_rate": 2e-3, "thinning": 100},
    "sgld, momentum": {"learning_rate": 5e-4, "momentum": 0.9, "thinning": 100},
    "sgld, cold": {"learning_rate": 5e-4, "momentum": 0.9, "thinning": 100, "cold": True},
    "sghmc": {"learning_rate": 1e-4, "thinning": 20},
    "sgnht": {"learning_rate": 1e-5, "thinning": 400, "num_steps": 800_000, "burn_in": 80_000},
}


@pytest.mark.parametrize("name", SMALL_STEPS)
def test_stochastic_gradient_samplers_with_small_steps_and_the_whole_batch(name):
    task = linear_task()
    options = {"num_steps": 100_000, "burn_in": 20_000, "num_chains": 4, "network": "generative"}
    sampler = pt.method(name.partition(",")[0], **options | SMALL_STEPS[name])
    mean, precision = exact_linear(task)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)) / (task.num_train if "cold" in name else 1))
    # A step of these sizes widens the posterior by a few percent.
    assert_moments(by_chain(fit(sampler, task)), mean, sd, slack=0.05)


def test_sgld_with_momentum_is_the_sghmc_of_ursabench():
    """v ← (1 - α) v - η g + √(2 α η) / T n; θ ← θ + v, with g of the mean loss, at temperature 1 / T."""
    num, rate, friction, keys = 10, 0.05, 0.2, jax.random.split(jax.random.key(0), 5)
    slope = jnp.array([3.0, 4.0])
    sampler = SGLD(learning_rate=rate, steady=1.0, momentum=1.0 - friction, cold=True)
    step = sampler.kernel(lambda theta, batch: -num * slope * theta, num)
    theta, velocity = jnp.array([0.5, -1.0]), jnp.zeros(2)
    state = sampler.init(keys[0], theta)
    for key in keys:
        state = step(key, state, None, sampler.rate(num), jnp.ones(()))
        noise = np.sqrt(2 * friction * rate) / num * jax.random.normal(key, (2,))
        velocity = (1.0 - friction) * velocity - rate * slope * theta + noise
        theta = theta + velocity
    np.testing.assert_allclose(state.position, theta, rtol=1e-5)


def test_sgld_without_momentum_is_blackjax_sgld():
    sampler, position, key = SGLD(), jnp.array([0.5, -1.0]), jax.random.key(2)
    gradient = lambda theta, batch: -batch[0] * theta  # noqa: E731
    batch = (jnp.array([3.0, 4.0]), None, None)
    step = sampler.kernel(gradient, 10)
    ours = step(key, sampler.init(key, position), batch, jnp.asarray(1e-2), jnp.ones(()))
    theirs = blackjax.sgmcmc.sgld.build_kernel()(key, position, gradient, batch, 1e-2)
    np.testing.assert_allclose(ours.position, theirs, rtol=1e-6)


def test_cyclical_schedule_explores_without_noise_then_samples():
    sampler = pt.method(
        "csgld", num_steps=1000, thinning=10, num_cycles=4, draws_per_cycle=3, exploration=0.5
    )
    rates, noise = map(np.asarray, jax.vmap(sampler.step_size, (0, None))(jnp.arange(1000), sampler.rate(10)))
    np.testing.assert_allclose(rates[[0, 250, 500]], sampler.learning_rate, rtol=1e-6)
    np.testing.assert_allclose(rates[125], sampler.learning_rate / 2, rtol=1e-2)
    assert rates[249] < 1e-3 * sampler.learning_rate
    assert (noise[[0, 124, 250, 374]] == 0).all()
    assert (noise[[126, 249, 376]] == 1).all()
    assert sampler.kept() == [22, 23, 24, 47, 48, 49, 72, 73, 74, 97, 98, 99]


def test_steps_fall_where_data_are_many():
    """Like 1 / T for a chain of first order, like its square for Euler's of second order, which it heats."""
    for name, power in (("sgld", 1.0), ("sghmc", 2.0), ("sgnht", 2.0)):
        sampler = pt.method(name)
        rates = np.array([float(sampler.rate(num)) for num in (1, sampler.steady, 10 * sampler.steady)])
        np.testing.assert_allclose(
            rates, sampler.learning_rate * np.array([1.0, 1.0, 10.0**-power]), rtol=1e-6
        )
    published = pt.method("sgmcmc", preset="paper")
    assert published.momentum == 0.9
    np.testing.assert_allclose(float(published.rate(100)), 1e-4 / 100, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_steps"), [("sghmc", 20_000), ("sgnht", 100_000)])
def test_many_data_do_not_heat_a_chain(name, num_steps):
    """At T = 1000 and the default step: the spread of logistic regression's posterior is that by quadrature.

    Some 600 draws know a variance to 6 %, and what heating is left adds less than 10 %; at the step of few
    data it was four times too large.
    """
    task = pt.problem(model="logistic", input_dim=2, num_train=1000, temperature=0.3).task
    sampler = pt.method(name, network="generative", num_chains=4, num_steps=num_steps, burn_in=num_steps // 5)
    draws = np.asarray(jax.jit(sampler.fit)(jax.random.key(0), task).draws["theta"])
    axis = np.linspace(-4.0, 4.0, 801)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_joint = jax.lax.map(
        lambda theta: task.log_density({"theta": theta}), jnp.asarray(grid), batch_size=2000
    )
    weights = np.exp(np.asarray(log_joint, dtype=np.float64) - float(log_joint.max()))
    weights /= weights.sum()
    mean = weights @ grid
    variance = weights @ (grid - mean) ** 2
    assert (np.abs(draws.mean(axis=0) - mean) < 0.25 * np.sqrt(variance)).all()
    np.testing.assert_allclose(draws.var(axis=0) / variance, 1.0, atol=0.3)


def test_polynomial_schedule_decays():
    sampler = pt.method("sgld", schedule="polynomial", burn_in=100)
    rates = jax.vmap(sampler.step_size, (0, None))(jnp.array([0, 100, 700]), sampler.rate(10))[0]
    np.testing.assert_allclose(rates / rates[0], [1.0, 2**-0.33, 8**-0.33], rtol=1e-5)


def test_cosine_schedule_falls_to_half():
    sampler = pt.method("sgld", schedule="cosine", num_steps=300, burn_in=100, thinning=10)
    rates = jax.vmap(sampler.step_size, (0, None))(jnp.array([0, 100, 150, 300]), sampler.rate(10))[0]
    np.testing.assert_allclose(rates / rates[0], [1.0, 0.875, 0.75, 0.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sgld", {"burn_in": 600_000}, "sgld keeps no draws"),
        ("sgld", {"schedule": "cosin"}, "unknown schedule 'cosin'"),
        ("sgld", {"network": "agnet"}, "did you mean 'agent'"),
        ("sgld", {"preconditioner": "adam"}, "unknown preconditioner"),
        ("sgld", {"momentum": 1.5}, "sgld.momentum=1.5: expected a number between 0 and 1"),
        ("sgld", {"learning_rate": -1.0}, "expected a number above 0"),
        ("csgld", {"exploration": 2.0}, "expected a number between 0 and 1"),
        ("csgld", {"draws_per_cycle": 30}, "the sampling phase of a cycle has 25"),
        ("sghmc", {"schedule": "cyclical"}, "cycles are for sgld"),
        ("nuts", {"num_chains": 1, "num_draws": 97}, "nuts: 97 draws in all; expected a multiple"),
        ("nuts", {"num_chains": 0}, "nuts.num_chains=0: expected a whole number, at least 1"),
        ("nuts", {"warmup": -1}, "expected 0 or more"),
        ("mclmc", {"warmup": 1}, "expected at least 20"),
    ],
)
def test_wrong_options_of_samplers_are_answered_in_words(method, options, message):
    with pytest.raises(pt.UsageError, match=message):
        pt.method(method, **options)


def test_chains_are_a_sample_whose_bias_is_estimated():
    problem = pt.problem(num_train=3)
    posterior = fit(NUTS(num_chains=2, warmup=20, num_draws=25, max_depth=3), problem.task)
    assert isinstance(posterior, Chains)
    assert posterior.num_groups == 10
    assert posterior.stats["lp"].shape == (2, 25)
    assert posterior.num_chains == 2
    scores = pt.evaluate(posterior, problem, key=jax.random.key(0), num_batches=10)
    assert scores.num_draws == 50
    assert scores.kl_joint_bias != 0.0


def test_the_agent_of_sgld_has_the_prior_of_the_paper():
    task = pt.problem(num_train=10, temperature=0.01).task
    target, start = SGLD().target(task)
    assert float(target.model.prior_sd) ** 2 == pytest.approx(0.1 / (2 * 0.1 * 2))
    assert start(jax.random.key(0)).shape == (2 * 50 + 50 + 50 * 50 + 50 + 50 * 2 + 2,)


@pytest.mark.slow
def test_minibatches_widen_the_posterior_by_their_noise():
    """Σ = (I - εΛ) Σ (I - εΛ) + 2εI + ε²C, with C = T²/B Cov(g_i) the noise of B of T rows, at the mean."""
    task = linear_task(200)
    mean, precision = exact_linear(task)
    options = {
        "num_steps": 200_000,
        "burn_in": 20_000,
        "thinning": 100,
        "num_chains": 4,
        "learning_rate": 5e-5,
    }
    posterior = fit(SGLD(network="generative", batch_size=20, **options), task)
    x, y, rate = np.asarray(task.x, float), np.asarray(task.y, float), options["learning_rate"]
    gradients = x * ((y - x @ mean) / NOISE**2)[:, None]
    kept, noise = np.eye(3) - rate * precision, 200**2 / 20 * np.cov(gradients.T, ddof=0)
    covariance = solve_discrete_lyapunov(kept, 2 * rate * np.eye(3) + rate**2 * noise)
    sd, exact = np.sqrt(np.diag(covariance)), np.sqrt(np.diag(np.linalg.inv(precision)))
    assert (sd / exact).max() > 1.15
    assert_moments(by_chain(posterior), mean, sd, slack=0.02)  # C depends a little on where the chain is


def test_statistics_of_a_thinned_draw_are_of_all_its_transitions():
    sampler = NUTS(thinning=3)
    stats = {
        name: jnp.array(v)
        for name, v in {"diverging": [1, 0, 0], "n_steps": [3, 7, 1], "lp": [1.0, 2.0, 5.0]}.items()
    }
    found = sampler._of_draw(stats | {"energy": jnp.zeros(3)})
    assert found == {"diverging": True, "n_steps": 11, "lp": 5.0}


def test_rmsprop_scales_the_noise_as_its_square_root():
    sampler, gradient = SGLD(preconditioner="rmsprop"), jnp.array([0.3, 300.0])
    step = sampler.kernel(lambda theta, batch: gradient, 10)
    state = sampler.init(jax.random.key(0), jnp.zeros(2))._replace(square=(gradient / 10) ** 2)
    moved = jax.vmap(lambda key: step(key, state, None, jnp.asarray(1e-4), jnp.ones(())).position)(
        jax.random.split(jax.random.key(1), 20_000)
    )
    exact = 2e-4 / (1e-5 + np.asarray(gradient) / 10)  # the variance 2 ε G
    np.testing.assert_allclose(np.asarray(moved).var(axis=0), exact, rtol=4 * np.sqrt(2 / 20_000))


def test_rmsprop_divides_by_the_root_mean_square():
    """With a constant gradient g, G tends to 1 / (1e-5 + |g| / T), so that ε G g tends to ε T."""
    sampler = SGLD(preconditioner="rmsprop")
    step = partial(sampler.kernel(lambda theta, batch: jnp.array([3.0, 3000.0]), 10))
    state, start = sampler.init(jax.random.key(0), jnp.zeros(2)), None
    for i in range(600):
        start = state.position
        state = step(jax.random.key(i), state, None, jnp.asarray(1e-3), jnp.zeros(()))
    np.testing.assert_allclose(state.position - start, 1e-3 * 10, rtol=2e-2)


def test_chains_of_many_data_have_no_log_densities_which_would_cost_more_than_they_do():
    task = pt.problem("2d/T1000-rho0.1-s0").task
    for batch_size, names in ((2, []), (100, ["lp"])):
        sampler = SGLD(num_chains=2, num_steps=200, burn_in=100, thinning=2, batch_size=batch_size)
        chains = sampler.fit(jax.random.key(0), task)
        assert (list(chains.stats), chains.num_chains) == (names, 2)
        assert np.isfinite(pt.diagnose(chains).rhat)
