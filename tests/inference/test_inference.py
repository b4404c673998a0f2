"""The SVI engine and the methods, against conjugate models, quadrature and identities."""

from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
from jax.tree_util import Partial
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

import pp_testbed as pt
from pp_testbed.inference.map_ensemble import BOOTSTRAPS, SCHEDULES, delta_guide
from pp_testbed.inference.registry import METHODS, method
from pp_testbed.inference.svi import Training, fit, minibatch
from pp_testbed.models.base import Task, observe, sample_latents
from pp_testbed.models.networks import MLP, BayesianNetwork

KEY = jax.random.key(3)


def linear_task(num=40, padded=None):
    """Bayesian linear regression: theta ~ N(0, I_3), y ~ N(x theta, 0.5²); posterior in closed form."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 1.0]])
    y = x @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=num)
    rows = np.arange(padded or num) % num
    to_jax = [jnp.asarray(a, dtype=jnp.float32) for a in (x[rows], y[rows])]
    precision = np.eye(3) + x.T @ x / 0.25
    covariance = np.linalg.inv(precision)
    return Task(linear_model, *to_jax, num), covariance @ x.T @ y / 0.25, covariance


def linear_model(x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand((3,)).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ theta, 0.5), obs=y)


def fit_linear(guide, task, steps=6000, rate=3e-2, **options):
    schedule = optax.cosine_decay_schedule(rate, steps)
    options = {"loss": Trace_ELBO(10), **options}
    training = Training(linear_model, guide, optax.adam(schedule), **options)
    return jax.jit(lambda key: fit(key, training, task, steps))(KEY)


def test_full_rank_guide_is_the_exact_posterior():
    task, mean, covariance = linear_task()
    params = fit_linear(AutoMultivariateNormal, task).params
    np.testing.assert_allclose(params["auto_loc"], mean, atol=1e-2)
    scale = np.asarray(params["auto_scale_tril"])
    np.testing.assert_allclose(scale @ scale.T, covariance, atol=1e-3)


def test_mean_field_guide_is_the_closed_form_optimum():
    """The best independent normals have the posterior's mean and precision 1 / diag(precision)."""
    task, mean, covariance = linear_task()
    sd = 1 / np.sqrt(np.diag(np.linalg.inv(covariance)))
    for loss in (Trace_ELBO(10), TraceMeanField_ELBO(10)):
        params = fit_linear(AutoNormal, task, loss=loss).params
        np.testing.assert_allclose(params["theta_auto_loc"], mean, atol=1e-2)
        np.testing.assert_allclose(params["theta_auto_scale"], sd, rtol=0.05)


def test_padding_changes_nothing():
    task, mean, _ = linear_task(padded=64)
    params = fit_linear(AutoDelta, task, batch_size=100, loss=Trace_ELBO()).params
    np.testing.assert_allclose(params["theta_auto_loc"], mean, atol=2e-3)


def test_minibatches_have_the_same_optimum():
    task, mean, covariance = linear_task(num=400, padded=1000)
    result = fit_linear(AutoMultivariateNormal, task, batch_size=50, rate=1e-2)
    np.testing.assert_allclose(result.params["auto_loc"], mean, atol=4e-2)
    scale = np.asarray(result.params["auto_scale_tril"])
    np.testing.assert_allclose(scale @ scale.T, covariance, atol=1e-3)
    assert result.losses.shape == (6000,)
    assert result.losses[-500:].mean() < result.losses[:500].mean()


def test_row_weights_are_repetitions():
    task, _, _ = linear_task(num=20)
    twice = Task(linear_model, jnp.tile(task.x, (2, 1)), jnp.tile(task.y, 2), 40)
    one = fit_linear(AutoDelta, task, loss=Trace_ELBO(), row_weights=jnp.full(20, 2.0))
    other = fit_linear(AutoDelta, twice, loss=Trace_ELBO())
    np.testing.assert_allclose(one.params["theta_auto_loc"], other.params["theta_auto_loc"], atol=1e-3)


def test_a_factor_is_not_a_row():
    """Rows are weighted, a `numpyro.factor` of the model counts once."""

    def model(x, y=None):
        linear_model(x, y)
        numpyro.factor("penalty", -3.0)

    task, _, _ = linear_task(num=20)
    guide = delta_guide({"theta": jnp.zeros(3)})
    options = {"optimizer": optax.sgd(0.0), "loss": Trace_ELBO()}
    losses = [
        float(fit(KEY, Training(m, guide, row_weights=jnp.full(20, w), **options), task, 1).losses[0])
        for m in (linear_model, model)
        for w in (1.0, 0.5)
    ]
    assert losses[2] - losses[0] == pytest.approx(3.0, rel=1e-4)
    assert losses[3] - losses[1] == pytest.approx(3.0, rel=1e-4)


@pytest.mark.parametrize(("num", "padded", "size"), [(7, 10, 100), (7, 10, 5), (7, 30, 8), (7, 7, 7)])
def test_minibatch_weights_add_up_to_the_data(num, padded, size):
    task, _, _ = linear_task(num, padded)
    x, _, weights = minibatch(KEY, task, jnp.ones(padded), size)
    assert float(weights.sum()) == pytest.approx(num)
    assert len(x) == min(padded, size)
    if size >= num:
        np.testing.assert_array_equal(np.asarray(weights)[:num], 1.0)


def one_weight_model(x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    logit = theta * x[:, 0]
    return observe(jnp.stack([jnp.zeros_like(logit), logit], axis=1), y)


def test_logistic_regression_with_one_weight_by_quadrature():
    """Best normal approximation of a one-dimensional posterior: its ELBO maximised by quadrature."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 1)).astype(np.float32)
    y = (rng.random(12) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(np.int32)
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(60)

    def negative_elbo(params):
        mean, log_sd = params
        theta = mean + np.exp(log_sd) * nodes
        logit = theta[:, None] * x[:, 0]
        log_joint = (y * logit - np.logaddexp(0, logit)).sum(axis=1) - theta**2 / 8
        return -(node_weights @ log_joint / np.sqrt(2 * np.pi) + log_sd)

    best = scipy.optimize.minimize(negative_elbo, [0.0, 0.0]).x
    svi = pt.SVI(AutoNormal, one_weight_model, loss=Trace_ELBO(20), num_steps=4000, learning_rate=5e-3)
    task = pt.task(pt.LogisticRegression(input_dim=1), x, y)
    posterior = svi.fit(KEY, task)
    theta = np.asarray(jax.vmap(posterior.sampler)(jax.random.split(KEY, 20_000))["theta"])
    assert theta.mean() == pytest.approx(best[0], abs=0.05)
    assert theta.std() == pytest.approx(np.exp(best[1]), rel=0.06)
    logits = posterior.logits(KEY, np.ones((1, 1)), num_draws=5)
    assert logits.shape == (5, 1, 2)


def test_best_of_several_starts_is_kept():
    def guide(x, y=None):
        start = numpyro.param("start", lambda key: jax.random.normal(key) * 50.0)
        numpyro.sample("theta", dist.Delta(start))

    task = pt.task(pt.LogisticRegression(input_dim=1), np.ones((3, 1)), [0, 1, 1])
    run = partial(pt.SVI, guide, one_weight_model, num_steps=10)
    one, many = (run(num_starts=num).fit(KEY, task) for num in (1, 20))
    assert many.losses.mean() < one.losses.mean()


def test_guide_with_the_wrong_sites():
    def extra(x, y=None):
        numpyro.sample("thta", dist.Normal(0, 1))

    def wrong_shape(x, y=None):
        numpyro.sample("theta", dist.Normal(0, 1).expand((2,)).to_event(1))

    task = pt.task(pt.LogisticRegression(input_dim=1), np.ones((3, 1)), [0, 1, 1])
    for guide, words in [
        (extra, "the guide samples thta, which the model does not have; it has theta"),
        (lambda x, y=None: None, "the guide does not sample the model's theta"),
        (wrong_shape, r"site theta has shape \(2,\); the model's has \(\)"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            pt.SVI(guide, one_weight_model).fit(KEY, task)
    with pytest.raises(pt.UsageError, match="pass the autoguide's class, AutoNormal"):
        pt.SVI(AutoNormal(one_weight_model))


def test_mlp_loss_is_cross_entropy_and_weight_decay():
    """T · (mean cross-entropy + l2 √rho d / T ‖θ‖²), up to a constant: the published loss."""
    task = pt.problem("2d/T30-rho0.1-s0").task
    ensemble = method("mlp", l2=0.7)
    agent = ensemble.agent(task)
    points = [agent.start(key) for key in jax.random.split(KEY, 2)]
    losses, published = [], []
    for point in points:
        svi = numpyro.infer.SVI(agent, delta_guide(point), optax.sgd(0.0), Trace_ELBO())
        losses.append(float(svi.evaluate(svi.init(KEY, task.x, task.y), task.x, task.y)))
        log_p = jax.nn.log_softmax(agent.network(point, task.x))
        cross_entropy = -log_p[jnp.arange(30), task.y].mean()
        norm = sum((leaf**2).sum() for leaf in point.values())
        published.append(float(30 * (cross_entropy + 0.7 * np.sqrt(0.1) * 2 / 30 * norm)))
    # The losses hold the normalising constants of 2802 normals, in float32.
    resolution = 4 * float(np.finfo(np.float32).eps) * abs(losses[0])
    assert losses[0] - losses[1] == pytest.approx(published[0] - published[1], abs=resolution)
    assert abs(published[0] - published[1]) > 50 * resolution


RATES = {
    "constant": lambda place: 1.0,
    "cosine": lambda place: 0.01 + 0.99 * 0.5 * (1.0 + np.cos(np.pi * place)),
}


@pytest.mark.parametrize("schedule", RATES)
def test_sgd_on_the_whole_data_is_a_loop(schedule):
    """v <- μ v + g, θ <- θ - η_t v, of logistic regression, g of the mean loss + c ‖θ‖²."""
    task = pt.problem("2d/T30-rho0.5-s0").task
    method = pt.method(
        "logistic", optimizer="sgd", momentum=0.8, schedule=schedule, num_steps=20, learning_rate=0.5
    )
    posterior = method.fit(KEY, task)
    x, y = np.asarray(task.x, np.float64)[:30], np.asarray(task.y)[:30]
    start = pt.method("logistic", optimizer="sgd", num_steps=1, learning_rate=1e-20).fit(KEY, task)
    theta = {name: np.asarray(leaf[0], np.float64) for name, leaf in start.draws.items()}
    decay = method.l2 * float(task.decay) / 30
    velocity = dict.fromkeys(theta, 0.0)
    for step in range(20):
        weight, bias = theta["w0"], theta["b0"]
        gap = scipy.special.softmax(x @ weight + bias, axis=-1) - np.eye(2)[y]
        slopes = {"w0": x.T @ gap / 30 + 2 * decay * weight, "b0": gap.mean(0) + 2 * decay * bias}
        velocity = {name: 0.8 * velocity[name] + slopes[name] for name in theta}
        theta = {name: theta[name] - 0.5 * RATES[schedule](step / 20) * velocity[name] for name in theta}
    for name, leaf in theta.items():
        np.testing.assert_allclose(posterior.draws[name][0], leaf, rtol=1e-4, atol=1e-5)


def test_one_cycle_rises_for_three_tenths_and_falls():
    rates = np.asarray(jax.vmap(SCHEDULES["one-cycle"](1.0, 1000))(jnp.arange(1001)))
    assert rates.argmax() == 300
    np.testing.assert_allclose(rates[[0, 150, 300, 1000]], [0.04, 0.52, 1.0, 0.04 / 1e4], rtol=1e-3)


def test_mlp_is_an_ensemble_of_one_and_members_do_not_depend_on_size():
    task = pt.problem("2d/T10-rho0.1-s0").task
    one = method("mlp", num_steps=50).fit(KEY, task)
    five = method("ensemble", size=5, num_steps=50).fit(KEY, task)
    assert five.losses.shape == (5, 50)
    np.testing.assert_allclose(one.draws["w1"][0], five.draws["w1"][0], atol=1e-5)
    assert not np.allclose(five.draws["w1"][0], five.draws["w1"][1])


def test_trained_network_is_the_map():
    """One weight per class, no hidden layer: the optimum by SciPy."""
    task = pt.problem("2d/T30-rho0.5-s2").task
    fitted = method("logistic", num_steps=6000, learning_rate=3e-3).fit(KEY, task).draws
    decay = np.sqrt(0.5) * 2 / 30
    x, y = np.asarray(task.x, dtype=np.float64), np.asarray(task.y)

    def loss(theta):
        logits = x @ theta[:4].reshape(2, 2) + theta[4:]
        log_p = logits - np.logaddexp(logits[:, :1], logits[:, 1:])
        return -log_p[np.arange(30), y].mean() + decay * (theta**2).sum()

    best = scipy.optimize.minimize(loss, np.zeros(6)).x
    np.testing.assert_allclose(np.ravel(fitted["w0"]), best[:4], atol=2e-3)
    np.testing.assert_allclose(np.ravel(fitted["b0"]), best[4:], atol=2e-3)


def test_ensemble_plus_without_prior_is_an_ensemble():
    task = pt.problem("2d/T10-rho0.1-s0").task
    x = task.model.inputs(KEY, 20)
    plus = method("ensemble+", size=3, num_steps=100, prior_scale=0.0).fit(KEY, task)
    plain = method("ensemble", size=3, num_steps=100).fit(KEY, task)
    np.testing.assert_allclose(plus.values(x), plain.values(x), atol=1e-4)


def test_ensemble_plus_without_data_is_its_prior():
    """Strong decay and no data to fit leave the frozen functions, at scale prior_scale / √rho."""
    task = pt.problem("2d/T1-rho0.1-s0").task
    empty = Task(task.model, task.x, task.y, task.num_train)
    options = {"size": 4, "num_steps": 3000, "l2": 1e4, "learning_rate": 1e-2, "preset": "paper"}
    posterior = method("ensemble+", **options).fit(KEY, empty)
    x = task.model.inputs(KEY, 50)
    frozen = pt.Finite.equal(jax.tree_util.Partial(_prior_logits, task.model), posterior.draws["frozen"])
    expected = 3.0 / np.sqrt(0.1) * 0.1 * np.asarray(frozen.values(x))
    np.testing.assert_allclose(posterior.values(x), expected, atol=0.02)
    assert np.std(expected) > 1


def _prior_logits(model, latents, x):
    from pp_testbed.models.base import read_outputs

    return read_outputs(model, latents, x)


def test_prior_function_must_be_undone_by_the_network():
    """With much data and little decay the sum fits the data, whatever the prior function."""
    task = pt.problem("2d/T100-rho0.5-s0").task
    options = {"size": 3, "l2": 1e-3}
    plus = method("ensemble+", **options).fit(KEY, task).values(task.x)
    plain = method("ensemble", **options).fit(KEY, task).values(task.x)
    rows = np.arange(100)
    hits = [(np.asarray(v).argmax(-1)[:, rows] == np.asarray(task.y)).mean() for v in (plus, plain)]
    assert min(hits) > 0.85


def test_bootstraps_have_mean_one():
    for name, draw in BOOTSTRAPS.items():
        weights = np.asarray(draw(KEY, 40_000))
        assert abs(weights.mean() - 1) < 4 / np.sqrt(40_000)
        assert weights.std() == pytest.approx(0.0 if name == "none" else 1.0, abs=0.05)
    with pytest.raises(pt.UsageError, match="did you mean 'bernoulli'"):
        method("ensemble+", bootstrap="bernouli")


@pytest.mark.slow
def test_padded_and_unpadded_fits_agree():
    problem = pt.problem("2d/T3-rho0.1-s0")
    for name in ("mlp", "ensemble+"):
        made = method(name, size=2, num_steps=200)
        one, other = made.fit(KEY, problem.task), made.fit(KEY, problem.draw()[0])
        x = problem.model.inputs(KEY, 20)
        np.testing.assert_allclose(one.values(x), other.values(x), atol=2e-3)


def test_hyperparameters_are_data():
    """A grid of weight decays is one program, vmapped over the method itself."""
    task = pt.problem("2d/T10-rho0.1-s0").task
    grid = [method("mlp", l2=l2, num_steps=100) for l2 in (0.01, 1.0, 100.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *grid)
    together = jax.jit(jax.vmap(lambda made: made.fit(KEY, task)))(stacked)
    for i, made in enumerate(grid):
        alone = made.fit(KEY, task)
        np.testing.assert_allclose(together.draws["w1"][i], alone.draws["w1"], atol=1e-4)
    assert np.abs(together.draws["w1"][2]).mean() < np.abs(together.draws["w1"][0]).mean()


def test_prior_and_uniform():
    task = pt.problem("2d/T10-rho0.1-s0").task
    x = task.model.inputs(KEY, 5)
    assert not method("uniform").fit(KEY, task).logits(KEY, x).any()
    draws = np.asarray(method("prior").fit(KEY, task).logits(KEY, x, num_draws=4000))
    gap = draws[..., 1] - draws[..., 0]
    # The prior is symmetric between classes.
    assert (np.abs(gap.mean(axis=0)) < 4 * gap.std(axis=0) / np.sqrt(4000)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_fits_and_is_a_pytree(name):
    made = method(name)
    small = {"size": 2, "num_steps": 5, "svi_steps": 5, "paths": 2, "max_iterations": 5, "trees": 3}
    if hasattr(made, "burn_in"):
        small = {"num_steps": 200, "burn_in": 100, "thinning": 10, "num_cycles": 2, "draws_per_cycle": 2}
    elif hasattr(made, "warmup"):
        small |= {"num_chains": 2, "warmup": 20, "num_draws": 2, "thinning": 1}
    made = method(name, **{f.name: small[f.name] for f in fields(made) if f.name in small})
    problem = pt.problem("2d/T3-rho0.1-s0")
    posterior = made.fit(KEY, problem.task)
    logits = posterior.logits(KEY, problem.task.x, num_draws=7)
    assert logits.shape[1:] == (3, 2)
    assert np.isfinite(logits).all()


def test_fit_is_compiled_once_for_problems_of_one_shape():
    """Calls of the model's Python are traces of it: a second problem, and other rates, need none."""
    calls = []

    def counted(x, y=None):
        calls.append(x.shape)
        return linear_model(x, y)

    (first, *_), (second, *_) = (linear_task(num, padded=6) for num in (5, 6))
    first, second = (replace(task, model=Partial(counted)) for task in (first, second))
    made = method("mean-field", num_steps=5)
    made.fit(KEY, first)
    num_traced = len(calls)
    made.fit(KEY, second)
    replace(made, learning_rate=0.02).fit(KEY, first)
    assert len(calls) == num_traced > 0


def test_every_method_that_is_mapped_is_compiled():
    for name in METHODS:
        made = method(name)
        assert hasattr(type(made).fit, "lower") == bool(getattr(made, "problems_at_once", 0)), name


def test_options_are_checked():
    assert method("ensemble", size="30").size == 30
    assert method("mlp", l2="10").l2 == 10.0
    assert method("mlp", hidden="20,20").hidden == (20, 20)
    assert method("mlp", adaptive_l2="false").adaptive_l2 is False
    for name, options, words in [
        ("ensembel", {}, "did you mean 'ensemble'"),
        ("ensemble", {"sise": 3}, "unknown option of ensemble 'sise'; did you mean 'size'"),
        ("ensemble", {"size": "many"}, "ensemble.size=many: expected int, as in 100"),
        ("mlp", {"hidden": "a,b"}, "expected numbers like 50,50"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            method(name, **options)


def test_agent_prior():
    agent = BayesianNetwork(MLP(2, (5,), 2), prior_sd=0.3)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(agent, 0)).get_trace(jnp.ones((1, 2)))
    assert trace["w0"]["value"].shape == (2, 5)
    for site in ("w0", "b0", "w1", "b1"):
        np.testing.assert_allclose(trace[site]["fn"].variance, 0.09, rtol=1e-5)


def conjugate_model(x, y=None):
    """The data say nothing of w, so that its posterior is N(0, I)."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    observe(jnp.zeros((x.shape[0], 2)) + 0.0 * w[0], y)


def shared_scale(x, y=None):
    """Independent weights, given a scale that they share, whose distribution is learned."""
    shape = numpyro.param("shape", 0.3, constraint=dist.constraints.positive)
    scale = numpyro.sample(
        "scale", dist.LogNormal(numpyro.param("loc", 0.0), shape), infer={"is_auxiliary": True}
    )
    numpyro.sample("w", dist.Normal(numpyro.param("mean", jnp.ones(3)), scale).to_event(1))


def rearranged(x, y=None):
    """One normal for all weights, taken apart: its density is that of the weights."""
    scale = numpyro.param("scale", 0.3, constraint=dist.constraints.positive)
    flat = dist.Normal(numpyro.param("mean", jnp.ones(3)), scale).to_event(1)
    z = numpyro.sample("z", flat, infer={"is_auxiliary": True})
    numpyro.sample("w", dist.Delta(z[::-1], event_dim=1))


@pytest.mark.parametrize("guide", [shared_scale, rearranged])
def test_auxiliary_sites_leave_a_bound_of_the_evidence(guide):
    """-log p(y) = 10 log 2 is reached; with the density of `scale` in log q there would be no bound."""
    task = pt.problem("2d/T10-rho0.1-s0").task
    made = pt.SVI(guide, model=conjugate_model, num_steps=6000, learning_rate=3e-3, loss=Trace_ELBO(10))
    posterior = made.fit(KEY, task)
    draws = np.asarray(posterior.draw(KEY, 4000).draws["w"])
    np.testing.assert_allclose(draws.std(axis=0), 1.0, atol=0.1)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=0.15)
    assert posterior.losses[-1000:].mean() == pytest.approx(10 * np.log(2.0), abs=0.05)


def test_a_task_weighs_its_rows():
    problem = pt.problem("2d/T3-rho0.1-s0")
    padded, plain = problem.draw()[0], problem.task
    latents = sample_latents(problem.model, plain.x, plain.y, KEY)
    exact = numpyro.infer.util.log_density(problem.model, (plain.x, plain.y), {}, latents)[0]
    np.testing.assert_allclose(plain.log_density(latents), exact, rtol=1e-6)
    np.testing.assert_allclose(padded.log_density(latents), exact, rtol=1e-5)


def positive_model(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    w = numpyro.sample("w", dist.Normal(0, scale).expand([3, 2]).to_event(2))
    observe(x[:, :2] @ w[:2], y)


def guide_of(scale, to_event=2):
    def guide(x, y=None):
        numpyro.sample("scale", scale)
        numpyro.sample("w", dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(to_event))

    return guide


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (guide_of(dist.Normal(0, 1)), "site scale can have any value; the model's is HalfNormal"),
        (
            guide_of(dist.LogNormal(0, 1), 0),
            r"an event of 0 dimensions, the model's of 2: .*\.to_event\(2\)",
        ),
    ],
)
def test_a_guide_of_another_support_or_event_is_answered_in_words(guide, words):
    task = pt.problem("2d/T3-rho0.1-s0").task
    with pytest.raises(pt.UsageError, match=words):
        pt.SVI(guide, model=positive_model, num_steps=1).fit(KEY, task)
    for fine in (dist.LogNormal(0, 1), dist.Gamma(1.0, 1.0), dist.Delta(1.0)):
        pt.SVI(guide_of(fine), model=positive_model, num_steps=1).fit(KEY, task)


def test_probabilities_are_no_logits():
    problem = pt.problem("2d/T3-rho0.1-s0")

    def score(posterior):
        return pt.evaluate(posterior, problem, key=KEY, num_batches=2, num_draws=10)

    def shares(x, slope=1.0):
        p = 1.0 / (1.0 + np.exp(-slope * np.asarray(x)[:, 0]))
        return np.stack([p, 1 - p], axis=-1)

    class Users:
        def logits(self, key, x, num_draws):
            return jnp.asarray(shares(x))[None].repeat(num_draws, axis=0)

    for wrong in (pt.finite(lambda x: shares(x)[None]), pt.sampled(lambda x, rng: shares(x)), Users()):
        with pytest.raises(pt.UsageError, match="look like probabilities, as they sum to 1"):
            score(wrong)
    assert (
        score(pt.finite(lambda x: shares(x, 0.0)[None])).kl_joint > 0
    )  # equal everywhere, they may be logits


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mlp", {"l2": None}, "mlp.l2=None: expected float, as in"),
        ("mlp", {"l2": [1]}, r"mlp.l2=\[1\]: expected float"),
        ("mlp", {"num_steps": 1.5}, "mlp.num_steps=1.5: expected int"),
        ("mlp", {"hidden": 5}, "mlp.hidden=5: expected numbers like 50,50"),
        ("mlp", {"adaptive_l2": 1}, "mlp.adaptive_l2=1: expected bool"),
        ("mlp", {"name": "mine"}, "unknown option of mlp 'name'"),
    ],
)
def test_odd_options_are_answered_in_words(name, options, words):
    with pytest.raises(pt.UsageError, match=words):
        method(name, **options)
    with pytest.raises(pt.UsageError, match=r"SVI.num_steps=1.5: expected a whole number"):
        pt.SVI(AutoNormal, num_steps=1.5)
