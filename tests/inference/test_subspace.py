"""Laplace's method, subspaces, flows and functional inference, against normals that are known exactly."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoIAFNormal
from scipy.optimize import minimize_scalar

import pp_testbed as pt
from pp_testbed.inference.functional_vi import FunctionalVI, stein_score
from pp_testbed.inference.laplace import best_precision, eigen, normal_at
from pp_testbed.inference.mcmc import EllipticalSlice, Target
from pp_testbed.inference.pathfinder import Pathfinder
from pp_testbed.inference.registry import method
from pp_testbed.inference.subspace import Subspace, last_layer, principal_directions
from pp_testbed.inference.svgd import SVGD
from pp_testbed.inference.svi import FullRank, Training, fit
from pp_testbed.models.base import pytree_dataclass
from pp_testbed.models.likelihoods import Normal, multinomial_root
from pp_testbed.models.networks import MLP, BayesianNetwork
from pp_testbed.models.regression import RegressionMLP
from tests.inference.test_mcmc import Linear, assert_moments, by_chain, exact_linear, linear_task

KEY = jax.random.key(3)
TASK = linear_task()
TARGET = Target(TASK.model, TASK)
MEAN, PRECISION = exact_linear(TASK)
COVARIANCE = np.linalg.inv(PRECISION)
SD = np.sqrt(np.diag(COVARIANCE))


def assert_normal(draws, mean, covariance, slack=0.0):
    """Moments of independent draws [n, d] within 4.5 standard errors of a normal's, plus slack · sd."""
    draws, sd = np.asarray(draws, np.float64), np.sqrt(np.diag(covariance))
    error = np.sqrt((np.outer(sd, sd) ** 2 + np.asarray(covariance) ** 2) / len(draws))
    assert (np.abs(draws.mean(0) - mean) < 4.5 * sd / np.sqrt(len(draws)) + slack * sd).all()
    assert (np.abs(np.cov(draws.T) - covariance) < 4.5 * error + slack * np.outer(sd, sd)).all()


def test_laplace_is_the_exact_posterior_of_a_gaussian_linear_model():
    normal = normal_at(TARGET, jnp.asarray(MEAN, jnp.float32))
    scale = normal.eigenvalues / (normal.precision * (normal.precision + normal.eigenvalues))
    inner = np.eye(3) / normal.precision - normal.directions @ jnp.diag(scale) @ normal.directions.T
    found = np.outer(normal.root_prior, normal.root_prior) * inner
    np.testing.assert_allclose(found, COVARIANCE, atol=1e-2 * COVARIANCE.max())
    draws = jax.vmap(normal.draw)(jax.random.split(KEY, 20_000))
    assert_normal(draws, MEAN, COVARIANCE, slack=1e-3)


def test_full_rank_vi_is_the_exact_posterior_of_a_gaussian_linear_model():
    schedule = partial(optax.cosine_decay_schedule, decay_steps=6000)
    made = FullRank(
        model=TASK.model,
        optimizer=lambda rate: optax.adam(schedule(rate)),
        learning_rate=3e-2,
        num_steps=6000,
        loss=Trace_ELBO(10),
    )
    posterior = made.fit(KEY, TASK)
    params = posterior.sampler.args[1]
    scale = np.asarray(params["auto_scale_tril"])
    np.testing.assert_allclose(params["auto_loc"], MEAN, atol=1e-2)
    np.testing.assert_allclose(scale @ scale.T, COVARIANCE, atol=1e-2)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_eigen_by_either_side(shape):
    root = jax.random.normal(KEY, shape)
    values, directions = eigen(root)
    np.testing.assert_allclose(directions * values @ directions.T, root.T @ root, atol=1e-4)
    kept = directions[:, values > 1e-5]
    np.testing.assert_allclose(kept.T @ kept, np.eye(5), atol=1e-4)


@pytest.mark.parametrize("p", [[0.3, 0.7], [0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.1] * 10])
def test_multinomial_root(p):
    root = multinomial_root(jnp.asarray(p))
    np.testing.assert_allclose(root.T @ root, np.diag(p) - np.outer(p, p), atol=1e-6)


def test_evidence_is_that_of_the_normal_and_has_its_maximum_where_it_should():
    """log Z(δ) by determinants of [P, P] in double precision, maximised by SciPy."""
    root, offset = np.asarray(jax.random.normal(KEY, (4, 6)), np.float64), np.linspace(-1, 2, 6)

    def negative(log_delta):
        delta = np.exp(log_delta)
        log_det = np.linalg.slogdet(delta * np.eye(6) + root.T @ root)[1]
        return 0.5 * (delta * offset @ offset + log_det - 6 * log_delta)

    best = np.exp(minimize_scalar(negative, bounds=(-9, 9), method="bounded").x)
    found = best_precision(eigen(jnp.asarray(root, jnp.float32))[0], jnp.asarray(offset))
    assert float(found) == pytest.approx(best, rel=0.03)  # a grid of 801 points over eight decades


@pytest.mark.parametrize("shape", [(30, 50), (80, 50)])
def test_curvatures_far_below_the_largest_are_known(shape):
    """From 1e8 to 1 in units of the prior's precision: those that a product in float32 would lose."""
    rng, rank = np.random.default_rng(0), min(shape)
    left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0][:, :rank] for size in shape)
    expected = np.logspace(8, 0, rank)
    values, directions = eigen(jnp.asarray((left * np.sqrt(expected)) @ right.T, jnp.float32))
    order = np.argsort(-np.asarray(values))
    # The root of the least is 1e-4 of that of the largest, which float32 holds to about 1e-3 of itself.
    np.testing.assert_allclose(np.asarray(values)[order], expected, rtol=0.02)
    variance = 1.0 - ((np.asarray(directions) ** 2) * (1.0 - 1.0 / (1.0 + np.asarray(values)))).sum(axis=1)
    exact = 1.0 - (right**2 * (1.0 - 1.0 / (1.0 + expected))).sum(axis=1)
    np.testing.assert_allclose(variance, exact, rtol=0.02, atol=1e-4)


def test_laplace_is_nowhere_less_certain_of_a_function_than_its_noise_where_it_has_data():
    """The variance of a linearised function at a row, J (δ + JᵀJ / s²)⁻¹ Jᵀ, is at most s²."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = np.sin(2.0 * x @ [0.6, 0.8]) + 0.01 * rng.normal(size=300)
    model = BayesianNetwork(MLP(2, (50,), 1), 1.0, likelihood=Normal(scale=0.01))
    task = pt.task(RegressionMLP(2), x, y)
    target = Target(model, task)
    point = ravel_pytree(model.start(KEY))[0]
    draws = jax.vmap(normal_at(target, point).draw)(jax.random.split(KEY, 2000))
    change = jax.vmap(
        lambda p: jax.jvp(lambda q: model.network(target.latents(q), x)[:, 0], (point,), (p - point,))[1]
    )
    spread = np.asarray(change(draws)).std(axis=0)
    assert spread.max() < 0.01 * (1.0 + 4.5 / np.sqrt(2 * 2000))


def agent_task():
    return pt.problem("2d/T30-rho0.5-s1000").task


@pytest.mark.slow
def test_laplace_of_a_linear_network_by_the_hessian():
    """Without hidden layers Gauss-Newton is Newton: the covariance is the inverse Hessian of the loss."""
    task = agent_task()
    made = method("laplace", hidden=(), num_steps=5000, learning_rate=3e-3, preset="paper")
    posterior = made.fit(KEY, task)
    target, point = posterior.function.args
    hessian = -jax.hessian(target.log_density)(point)
    draws = jax.vmap(posterior.sampler)(jax.random.split(KEY, 20_000))
    assert_normal(draws, np.asarray(point), np.linalg.inv(np.asarray(hessian, np.float64)), slack=1e-2)
    network = method("laplace", hidden=(), num_steps=5000, learning_rate=3e-3, predictive="network")
    x = task.model.inputs(KEY, 10)
    linearised, plain = (p.logits(KEY, x, 5) for p in (posterior, network.fit(KEY, task)))
    np.testing.assert_allclose(linearised, plain, atol=1e-4)


@pytest.mark.slow
def test_laplace_on_the_last_layer_of_a_linear_network_is_laplace():
    task, options = agent_task(), {"hidden": (), "num_steps": 2000, "preset": "paper"}
    x = task.model.inputs(KEY, 3)
    whole = method("laplace", **options).fit(KEY, task).logits(KEY, x, 20_000)
    last = method("laplace-last-layer", **options).fit(KEY, task).logits(jax.random.key(5), x, 20_000)
    flat = np.asarray(whole, np.float64).reshape(20_000, -1)
    covariance = np.cov(flat.T)
    # Both are samples: errors of sqrt(2) standard errors.
    assert_normal(np.asarray(last).reshape(20_000, -1), flat.mean(0), covariance, slack=0.03)


@pytest.mark.slow
def test_padding_does_not_change_laplace():
    problem = pt.problem("2d/T3-rho0.1-s1000")
    made = method("laplace", hidden=(5,), num_steps=300, preset="paper")
    x = problem.model.inputs(KEY, 5)
    draws = [np.asarray(made.fit(KEY, t).logits(KEY, x, 4000)) for t in (problem.task, problem.draw()[0])]
    error = draws[0].std(0) * np.sqrt(2 / 4000)
    assert (np.abs(draws[0].mean(0) - draws[1].mean(0)) < 4.5 * error + 1e-3).all()
    assert (np.abs(draws[0].std(0) / draws[1].std(0) - 1) < 4.5 / np.sqrt(4000)).all()


def test_other_observations_have_no_laplace():
    def model(x, y=None):
        theta = numpyro.sample("theta", dist.Normal(0, 1).expand((3,)).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ theta)), obs=y)

    with pytest.raises(pt.UsageError, match="labels y are Poisson; expected one of Categorical"):
        normal_at(Target(model, TASK), jnp.zeros(3))


def test_a_subspace_has_the_density_of_the_model_on_it():
    point, directions = jnp.array([0.3, -1.0, 0.7]), jnp.array([[1.0, 0.2], [0.0, 1.0], [2.0, -1.0]])
    subspace = Subspace.through(TARGET, point, directions)
    inside = Target(subspace, TASK)
    zs = jax.random.normal(KEY, (5, 2))
    whole = jax.vmap(lambda z: TARGET.log_density(subspace.origin + subspace.basis @ z))(zs)
    own = jax.vmap(inside.log_density)(zs)
    np.testing.assert_allclose(whole - whole[0], own - own[0], atol=1e-4)
    z = jnp.array([0.4, -2.0])
    np.testing.assert_allclose(subspace.coordinates(subspace.origin + subspace.basis @ z), z, atol=1e-5)
    # The point is in it.
    back = subspace.origin + subspace.basis @ subspace.coordinates(point)
    np.testing.assert_allclose(back, point, atol=1e-5)


def test_slice_sampling_in_the_whole_space_is_exact():
    subspace = Subspace.through(TARGET, jnp.zeros(3), jnp.array([[1.0, 0.2, 0], [0, 1, 0.5], [2, -1, 1]]))
    sampler = EllipticalSlice(num_draws=2000, thinning=10)
    chains = jax.jit(lambda key: sampler.sample(key, Target(subspace, TASK)))(KEY)
    z = by_chain(chains, "z")
    theta = subspace.origin + z @ subspace.basis.T
    assert_moments(theta, MEAN, SD)


def test_last_layer_and_principal_directions():
    agent = BayesianNetwork(MLP(2, (4,), 3), 1.0)
    target = Target(agent, pt.task(pt.GenerativeMLP(num_classes=3), [[0.0, 1.0]], [1]))
    start = agent.start(KEY)
    flat, unravel = ravel_pytree(start)
    changed = unravel(flat + last_layer(target) @ jnp.ones(15))
    for name, value in start.items():
        expected = 1.0 if name in ("w1", "b1") else 0.0
        np.testing.assert_allclose(changed[name] - value, expected, atol=1e-6)
    path = jnp.outer(jnp.linspace(-1, 1, 20), jnp.array([3.0, 4.0, 0.0])) + 1.0
    direction = principal_directions(path, 1)[:, 0]
    np.testing.assert_allclose(np.abs(direction), [0.6, 0.8, 0.0], atol=1e-5)


def plane_model(x, y=None):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
    with numpyro.plate("data", 1):
        numpyro.sample("y", dist.Normal(z[0] ** 2 - z[1], 0.3), obs=y)


@pytest.mark.slow
def test_the_density_of_the_flow_integrates_to_one():
    """A curved posterior in the plane: the fitted flow's density on a grid, by the trapezoid rule."""
    task = pt.task(pt.LogisticRegression(input_dim=1), np.ones((1, 1)), [1])
    guide = partial(AutoIAFNormal, num_flows=2)
    training = Training(plane_model, guide, optax.adam(3e-3), Trace_ELBO(4))
    fitted = jax.jit(lambda key: fit(key, training, task, 1500))(KEY)
    assert fitted.losses[-200:].mean() < fitted.losses[:200].mean() - 0.3
    made = guide(plane_model)
    numpyro.handlers.seed(made, KEY)(task.x, task.y)
    axis = jnp.linspace(-8.0, 8.0, 401)
    points = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1)
    with numpyro.handlers.substitute(data=fitted.params), numpyro.handlers.block():
        density = np.exp(np.asarray(made.get_posterior(fitted.params).log_prob(points), np.float64))
    total = np.trapezoid(np.trapezoid(density, axis, axis=1), axis)
    assert total == pytest.approx(1.0, abs=5e-3)


def test_stein_score_of_a_normal():
    """The estimator is consistent: its error falls with the number of samples."""
    root = jnp.array([[1.0, 0.0], [0.8, 0.6]])
    at = jax.random.normal(KEY, (200, 2)) @ root.T * 0.7
    exact = -np.asarray(jnp.linalg.solve(root @ root.T, at.T).T)
    errors = []
    for num in (50, 1000):
        samples = jax.random.normal(jax.random.key(1), (num, 2)) @ root.T
        errors.append(
            np.sqrt(((np.asarray(stein_score(samples, at)) - exact) ** 2).mean() / (exact**2).mean())
        )
    assert errors[1] < 0.15 < errors[0]


@pytree_dataclass
class LinearWithInputs(Linear):
    def inputs(self, key, num):
        return jax.random.normal(key, (num, 3))


@pytest.mark.slow
def test_functional_vi_of_a_linear_model_is_mean_field_vi():
    """Functions at three inputs are the weights in other coordinates: the KL is the same."""
    made = FunctionalVI(points=6, num_draws=50, num_steps=1500, learning_rate=1e-2)
    task = replace(TASK, model=LinearWithInputs())
    params = made.fit(KEY, task).sampler.args[1]
    sd = 1 / np.sqrt(np.diag(PRECISION))  # of the best independent normals
    # The scores are estimates: a tenth of an sd, and of the sd itself.
    assert (np.abs(params["theta_auto_loc"] - MEAN) < 0.15 * sd).all()
    np.testing.assert_allclose(params["theta_auto_scale"], sd, rtol=0.15)


def test_pathfinder_of_a_gaussian_linear_model():
    posterior = Pathfinder(model=TASK.model, paths=3).fit(KEY, TASK)
    draws = jax.vmap(posterior.sampler)(jax.random.split(KEY, 20_000))["theta"]
    assert_normal(draws, MEAN, COVARIANCE, slack=0.05)


@pytest.mark.slow
def test_svgd_of_a_gaussian_linear_model():
    made = SVGD(model=TASK.model, particles=100, num_steps=3000, learning_rate=1e-2)
    theta = np.asarray(made.fit(KEY, TASK).draws["theta"])
    assert (np.abs(theta.mean(0) - MEAN) < 0.05 * SD).all()
    assert (np.abs(theta.std(0) / SD - 1) < 0.15).all()
