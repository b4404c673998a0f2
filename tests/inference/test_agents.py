"""The agents of the paper and their relatives, against identities, closed forms and one another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.stats import norm

import pp_testbed as pt
from pp_testbed.evaluation.bandit import Counts
from pp_testbed.inference.bbb import WeightPrior
from pp_testbed.inference.deep_kernel import draw_linear, normalised_features
from pp_testbed.inference.epistemic import draw_index
from pp_testbed.inference.hypermodel import FACTOR, QUANTILES, frozen_factors
from pp_testbed.inference.ntk import tangent_logits
from pp_testbed.inference.registry import method
from pp_testbed.inference.swag import draw_normal, moments
from pp_testbed.models.base import observe
from pp_testbed.models.likelihoods import StudentT
from pp_testbed.models.networks import MLP, BayesianNetwork
from pp_testbed.models.regression import RegressionMLP

KEY = jax.random.key(3)
MEMBER = jax.random.split(KEY, 1)[0]  # the key of the first member of an ensemble that is given KEY
TASK = pt.problem("2d/T10-rho0.1-s1000").task
X = TASK.model.inputs(jax.random.key(4), 20)


def assert_covariance(draws, expected):
    """Sample covariance of draws [n, d], of known mean 0, within 4 standard errors of the normal's."""
    draws, expected = np.asarray(draws, np.float64), np.asarray(expected, np.float64)
    found = draws.T @ draws / len(draws)
    diagonal = np.diag(expected)
    error = np.sqrt((np.outer(diagonal, diagonal) + expected**2) / len(draws))
    # 4.5: the largest of some hundred entries.
    assert (np.abs(found - expected) < 4.5 * error + 1e-6).all()


def test_dropout_without_dropout_is_mlp():
    """Step by step; over many, differences of rounding grow."""
    options = {"hidden": (100, 100), "num_steps": 30, "preset": "paper"}
    plain = method("mlp", **options).fit(KEY, TASK).values(X)[0]
    masked = method("dropout", rate=0.0, **options).fit(MEMBER, TASK).logits(KEY, X, 3)
    np.testing.assert_allclose(masked, np.broadcast_to(plain, masked.shape), atol=2e-5)


def test_dropout_is_unbiased_layer_by_layer_and_drops_its_share():
    """With one hidden layer the mean over masks is the network without masks."""
    made = method("dropout", rate=0.3, hidden=(30,), num_steps=50, preset="paper")
    posterior = made.fit(KEY, TASK)
    draws = np.asarray(posterior.logits(KEY, X, 4000))
    enn, params = posterior.function.args
    plain = np.asarray(enn.agent.network(params, X))
    assert (np.abs(draws.mean(0) - plain) < 4.5 * draws.std(0) / np.sqrt(4000)).all()
    masks = jax.vmap(lambda key: draw_index(enn, key))(jax.random.split(KEY, 1000))
    kept = np.asarray(masks["mask1"] >= 0.3).mean()
    assert abs(kept - 0.7) < 4 * np.sqrt(0.21 / 30_000)
    assert set(masks) == {"mask1"}
    assert "mask0" in draw_index(method("dropout", mask_inputs=True).epistemic(KEY, TASK), KEY)


def test_dropout_penalises_the_weights_before_the_mask():
    """Up to a constant: T (mean cross-entropy of the masked network + l2 √rho d / T ‖θ‖²)."""
    enn = method("dropout", rate=0.3, l2=0.7, hidden=(5,), preset="paper").epistemic(KEY, TASK)
    index = draw_index(enn, KEY)

    def joint(params):
        def model():
            theta, masks = enn.params(), enn.index()
            observe(enn.network(theta, masks, TASK.x), TASK.y)

        return float(log_density(model, (), {}, {**params, **index})[0])

    def published(params):
        log_p = jax.nn.log_softmax(enn.network(params, index, TASK.x))[jnp.arange(10), TASK.y]
        norms = sum((leaf**2).sum() for leaf in params.values())
        return float(log_p.sum() - 0.7 * np.sqrt(0.1) * 2 * norms)

    one, other = (enn.start(jax.random.key(seed)) for seed in (0, 1))
    assert joint(one) - joint(other) == pytest.approx(published(one) - published(other), rel=1e-4)


def test_bbb_without_kl_and_scale_is_mlp_without_decay():
    options = {"num_steps": 100, "learning_rate": 1e-3, "preset": "paper"}
    plain = method("mlp", l2=1e-30, **options).fit(KEY, TASK).values(X)[0]
    bbb = method("bbb", kl_weight=0.0, start_scale=1e-9, particles=1, **options).fit(MEMBER, TASK)
    logits = bbb.logits(KEY, X, 3)
    np.testing.assert_allclose(logits, np.broadcast_to(plain, logits.shape), rtol=1e-4, atol=1e-3)
    assert np.abs(plain).max() > 0.5


def test_bbb_without_data_is_its_prior():
    """A KL weight that drowns the likelihood leaves N(0, σ²), sampled or in closed form."""
    options = {"sigma": 0.5, "kl_weight": 1e4, "num_steps": 3000, "learning_rate": 1e-2}
    for prior in ("gaussian", "mixture"):
        made = method("bbb", prior=prior, hidden=(), preset="paper", **options)
        draws = jax.vmap(made.fit(KEY, TASK).sampler)(jax.random.split(KEY, 4000))
        flat = np.concatenate([np.reshape(leaf, (4000, -1)) for leaf in draws.values()], axis=1)
        np.testing.assert_allclose(flat.mean(0), 0.0, atol=0.05)
        np.testing.assert_allclose(flat.std(0), 0.5, rtol=0.1)


@pytest.mark.parametrize("kind", ["gaussian", "mixture"])
def test_bbb_has_the_prior_of_noise_that_all_have(kind):
    network = BayesianNetwork(MLP(2, (5,), 1), 1.0, likelihood=StudentT())
    prior = WeightPrior(network, 0.7, 0.3, 0.5, 1.0, kind)
    for name, (mean, sd) in StudentT().noise.items():
        found = float(prior.distribution(name, ()).log_prob(jnp.array(0.3)))
        assert found == pytest.approx(norm.logpdf(0.3, mean, sd), rel=1e-5)


def test_bbb_mixture_prior_is_a_mixture():
    options = {"prior": "mixture", "sigma": 2.0, "sigma_2": 0.5, "mixture_weight": 0.3}
    made = method("bbb", preset="paper", **options)
    prior = WeightPrior(
        BayesianNetwork(MLP(2, (50, 50), 2), 1.0),
        made.sigma,
        made.sigma_2,
        made.mixture_weight,
        1.0,
        "mixture",
    )
    values = np.array([-3.0, 0.1, 0.7])
    expected = np.log(0.3 * norm.pdf(values, scale=2.0) + 0.7 * norm.pdf(values, scale=0.5)).sum()
    found = prior.distribution("w0", (3,)).log_prob(jnp.asarray(values, jnp.float32))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_hypermodel_is_linear_in_its_index():
    options = {"hidden": (), "prior_hidden": (), "num_steps": 20, "index_dim": 3, "preset": "paper"}
    posterior = method("hypermodel", **options).fit(KEY, TASK)
    one, other = jnp.array([1.0, -2.0, 0.5]), jnp.array([0.3, 0.7, -1.0])
    at = {
        name: np.asarray(posterior.function({"z": z}, X))
        for name, z in [("0", 0 * one), ("1", one), ("2", other), ("sum", one + other)]
    }
    np.testing.assert_allclose(at["1"] + at["2"], at["sum"] + at["0"], atol=1e-5)
    assert np.abs(at["1"] - at["0"]).max() > 0.1


def test_hypermodel_declares_decay_on_both_parts_and_starts_like_a_network():
    enn = method("hypermodel", index_dim=4, preset="paper").epistemic(KEY, TASK)
    trace = handlers.trace(handlers.seed(enn.params, KEY)).get_trace()
    variances = [np.unique(np.asarray(site["fn"].variance)) for site in trace.values()]
    np.testing.assert_allclose(np.concatenate(variances), 1 / (2 * np.sqrt(0.1) * 2), rtol=1e-5)
    assert {name + FACTOR for name in enn.agent.start(KEY)} < set(trace)
    start = enn.start(KEY)
    weights = start["w1" + FACTOR] @ jax.random.normal(KEY, (4, 500))
    # The sd of a normal that is cut at 2 sd is 0.8796 of it.
    assert float(weights.std()) == pytest.approx(0.8796 / np.sqrt(50), rel=0.15)


def test_hypermodel_prior_has_the_scale_of_a_network():
    def weights(key):
        key_factors, key_index = jax.random.split(key)
        factors = frozen_factors(key_factors, [(2, 10), (10, 2)], 4)
        z = jax.random.normal(key_index, (4,))
        return {name: factor @ z for name, factor in factors.items()}

    draws = jax.vmap(weights)(jax.random.split(KEY, 4000))
    for name, fan_in in [("w0", 2), ("b0", 2), ("w1", 10)]:
        # Products of two normals over m = 4: the kurtosis of a weight is 3 + 6 / m.
        error = np.sqrt((2 + 6 / 4) / 4000)
        per_weight = np.asarray(draws[name]).reshape(4000, -1).var(axis=0) * fan_in
        assert (np.abs(per_weight - 1) < 4.5 * error).all()


@pytest.mark.parametrize(("kind", "sd"), [("bernoulli", 1.0), ("exponential", 1.0)])
def test_bootstrap_weights_of_an_index(kind, sd):
    enn = method("hypermodel", bootstrap=kind, preset="paper").epistemic(KEY, TASK)
    indices = jax.vmap(lambda key: draw_index(enn, key))(jax.random.split(KEY, 20_000))
    weights = np.asarray(jax.vmap(lambda index: enn.row_weights(index, TASK.x))(indices))  # [draws, T]
    assert (np.abs(weights.mean(0) - 1) < 4.5 * sd / np.sqrt(20_000)).all()
    assert weights.std(0) == pytest.approx(sd, abs=0.05)
    # A datum is weighed alike wherever it stands in a batch, two data are not.
    one = enn.row_weights({"z": indices["z"][0]}, TASK.x)
    other = enn.row_weights({"z": indices["z"][0]}, TASK.x[::-1])
    np.testing.assert_array_equal(one, other[::-1])
    assert np.abs(np.corrcoef(weights.T)[0, 1:]).max() < 0.999


def test_exponential_bootstrap_weights_are_finite_far_out():
    """-log(1 - Φ(c)), where Φ(c) is 1 in float32."""
    far = np.array([-8.0, 0.0, 5.0, 8.0])
    found = QUANTILES["exponential"](jnp.asarray(far, jnp.float32))
    np.testing.assert_allclose(found, -norm.logsf(far), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_bootstrap_reaches_the_likelihood():
    none, some = (
        method("hypermodel", bootstrap=kind, num_steps=30, preset="paper").fit(KEY, TASK).losses
        for kind in ("none", "exponential")
    )
    assert not np.allclose(none, some)


def test_epinet_adds_to_its_base_and_leaves_it_its_gradient():
    enn = method("epinet", prior_scale=1.0, preset="paper").epistemic(KEY, TASK)
    params = enn.start(KEY)
    base = {name: value for name, value in params.items() if not name.startswith("head_")}
    at_zero = enn.network(params, {"z": jnp.zeros(8)}, X)
    np.testing.assert_allclose(at_zero, enn.base.network(base, X), atol=1e-5)
    index = draw_index(enn, KEY)
    whole = jax.grad(lambda p: enn.network(p, index, X)[:, 0].sum())(params)
    alone = jax.grad(lambda p: enn.base.network(p, X)[:, 0].sum())(base)
    for name, value in alone.items():
        np.testing.assert_allclose(whole[name], value, atol=1e-4)
    assert any(np.abs(value).max() > 0 for name, value in whole.items() if name.startswith("head_"))


def test_deep_kernel_draws_have_the_covariance_of_bayesian_regression():
    made = method("deep-kernel", hidden=(4,), num_steps=200, preset="paper")
    posterior = made.fit(KEY, TASK)
    agent, params = posterior.function.args
    root, like = posterior.sampler.args
    draws = jax.vmap(lambda key: draw_linear(root, like, key))(jax.random.split(KEY, 20_000))
    features = np.asarray(normalised_features(agent, params, TASK.x), np.float64)
    noise, scale = 4.0 * 0.1, 2.0 / np.sqrt(0.1 * 10)
    covariance = scale**2 * noise * np.linalg.inv(noise * np.eye(4) + features.T @ features)
    assert_covariance(draws[:, :, 1], covariance)
    padded = made.fit(KEY, pt.problem("2d/T3-rho0.1-s1000").draw()[0])
    plain = made.fit(KEY, pt.problem("2d/T3-rho0.1-s1000").task)
    np.testing.assert_allclose(padded.sampler.args[0], plain.sampler.args[0], atol=1e-3)


def test_deep_kernel_counts_a_row_as_often_as_its_weight_says():
    made = method("deep-kernel", hidden=(4,), num_steps=50, preset="paper")
    posterior = made.fit(KEY, Counts(TASK.model, TASK.x, TASK.y, 40, jnp.full(10, 4.0)))
    root, features = posterior.sampler.args[0], normalised_features(*posterior.function.args, TASK.x)
    noise, scale = 4.0 * 0.1, 2.0 / np.sqrt(0.1 * 40)
    precision = (noise * np.eye(4) + 4.0 * features.T @ features) / (scale**2 * noise)
    np.testing.assert_allclose(root @ root.T, precision, rtol=1e-4, atol=1e-4)


def test_tangent_functions_have_the_tangent_kernel():
    agent = BayesianNetwork(MLP(2, (20,), 2), 1.0)
    made = method("ensemble-ntk", hidden=(20,), preset="paper")
    drawn = made.draw_prior(KEY, TASK, agent)
    x = X[:4]

    def function(tangent):
        return tangent_logits(agent, {"start": drawn["start"], "tangent": tangent}, x)[:, 0]

    tangents = jax.vmap(lambda key: made.draw_prior(key, TASK, agent)["tangent"])(
        jax.random.split(KEY, 20_000)
    )
    assert not np.asarray(tangents["w1"]).any()
    jacobian = jax.jacobian(lambda params: agent.network(params, x)[:, 0])(drawn["start"])
    # Weights of the start have variance 0.7737 / fan_in: cut at 2 sd; its biases are 0.
    first = np.asarray(jacobian["w0"]).reshape(4, -1)
    draws = np.asarray(jax.vmap(function)(tangents))
    found, expected = draws.T @ draws / len(draws), 0.7737 / 2 * first @ first.T
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / len(draws))
    assert (np.abs(found - expected) < 4.5 * error + 1e-4 * np.abs(expected)).all()


def test_mile_without_steps_is_the_ensemble():
    options = {"size": 3, "num_steps": 50, "preset": "paper"}
    chains = method("mile", warmup=0, thinning=0, num_draws=4, **options).fit(KEY, TASK).values(X)
    members = method("ensemble", **options).fit(KEY, TASK).values(X)
    np.testing.assert_allclose(chains, np.repeat(members, 4, axis=0), atol=1e-5)  # rounding: two programs


@pytest.mark.slow
def test_mile_is_a_sample_of_its_posterior():
    options = {"size": 2, "num_steps": 20, "warmup": 20, "thinning": 1, "num_draws": 5, "preset": "paper"}
    posterior = method("mile", **options).fit(KEY, TASK)
    assert (posterior.num_groups, posterior.num_chains) == (10, 2)
    assert posterior.to_arviz().posterior.sizes["chain"] == 2
    assert len(np.unique(np.asarray(posterior.values(X[:1])[:, 0, 0]))) == 10
    with pytest.raises(pt.UsageError, match="need thinning=0"):
        method("mile", warmup=0)


def test_swag_moments_are_those_of_the_path():
    path = jax.random.normal(KEY, (50, 6)) * jnp.arange(1.0, 7.0)
    found = moments(path, 20)
    reference = np.asarray(path, np.float64)
    np.testing.assert_allclose(found.mean, reference.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.variance, reference.var(0), rtol=1e-5)
    np.testing.assert_allclose(found.deviations, reference[-20:] - reference.mean(0), atol=1e-5)


@pytest.mark.parametrize("rank", [0, 20])
def test_swag_draws_have_the_covariance_of_the_paper(rank):
    path = jax.random.normal(KEY, (50, 4)) @ jax.random.normal(jax.random.key(1), (4, 4))
    found = moments(path, rank)
    normals = jax.tree.map(lambda leaf: leaf[None], found)
    draws = jax.vmap(lambda key: draw_normal(normals, 1.5, key))(jax.random.split(KEY, 20_000))
    diagonal = np.diag(np.asarray(found.variance, np.float64))
    deviations = np.asarray(found.deviations, np.float64)
    low_rank = deviations.T @ deviations / (rank - 1)
    covariance = 1.5 * ((diagonal + low_rank) / 2 if rank else diagonal)
    assert_covariance(draws - found.mean, covariance)


def test_multi_swag_draws_from_all_its_normals():
    normals = jax.vmap(lambda center: moments(center + jnp.zeros((5, 2)), 3))(jnp.array([-1.0, 0.0, 1.0]))
    draws = jax.vmap(lambda key: draw_normal(normals, 1.0, key))(jax.random.split(KEY, 3000))
    shares = np.unique(np.round(np.asarray(draws[:, 0])), return_counts=True)[1] / 3000
    assert (np.abs(shares - 1 / 3) < 4 * np.sqrt(2 / 9 / 3000)).all()


def test_knn_is_the_share_among_the_nearest():
    task, x = TASK, np.asarray(X)
    nearest = np.argsort(((x[:, None] - np.asarray(task.x)) ** 2).sum(-1), axis=1)[:, :3]
    share = np.asarray(task.y)[nearest].mean(axis=1)
    logits = np.asarray(method("knn", k=3, weights="uniform").fit(KEY, task).logits(KEY, x))
    expected = np.log(np.clip(np.stack([1 - share, share], axis=-1), 0.01, 0.99))
    np.testing.assert_allclose(logits[0], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["knn", "random-forest"])
def test_predictors_know_classes_that_they_have_not_seen(name):
    task = pt.task(pt.GenerativeMLP(num_classes=3), [[0.0, 0.0], [1.0, 1.0]], [1, 1])
    logits = np.asarray(method(name).fit(KEY, task).logits(KEY, X))
    np.testing.assert_allclose(np.exp(logits[0]), np.tile([0.005, 0.99, 0.005], (20, 1)), rtol=1e-5)


@pytest.mark.parametrize("trees", [5, 10])
def test_a_forest_knows_how_far_it_is_off_where_all_trees_have_seen_a_row(trees):
    """Without noise its errors are small, and so is the spread that it states, at any number of trees."""
    x = np.random.default_rng(0).uniform(-1.0, 1.0, size=(400, 2)).astype(np.float32)
    task = pt.task(RegressionMLP(2), x[:300], 2.0 * x[:300, 0])
    outputs = np.asarray(method("random-forest", trees=trees).fit(KEY, task).logits(KEY, x[300:]))[0]
    error = np.sqrt(np.mean((outputs[:, 0] - 2.0 * x[300:, 0]) ** 2))
    assert 0.5 < np.exp(outputs[0, 1]) / error < 3.0  # trees that have not seen a row are fewer, and worse


def test_options_of_agents_are_checked():
    for name, options, words in [
        ("dropout", {"rate": 1.0}, "dropout.rate=1.0: expected at least 0 and below 1"),
        ("bbb", {"prior": "gausian"}, "did you mean 'gaussian'"),
        ("hypermodel", {"bootstrap": "bernouli"}, "did you mean 'bernoulli'"),
        ("hypermodel", {"index_dim": 0}, "expected a whole number, at least 1"),
        ("laplace", {"predictive": "linear"}, "did you mean 'linearised'"),
        ("flow", {"subspace": "last"}, "unknown subspace 'last'"),
        ("knn", {"weights": "distances"}, "did you mean 'distance'"),
        ("low-rank", {"rank": 0}, "expected a whole number, at least 1"),
        ("mlp", {"l2": -1.0}, "mlp.l2=-1.0: expected a number above 0"),
        ("dropout", {"hidden": ()}, "expected a layer whose units can be dropped"),
        ("flow", {"num_flows": 0}, "expected a whole number, at least 1"),
        ("flow", {"subspace": "pca", "dimensions": 1}, "a flow needs at least 2"),
        ("svgd", {"particles": 1}, "expected at least 2"),
        ("swag", {"rank": 1}, "expected 0, or 2 to 50"),
        ("swag", {"scale": -1.0}, "expected a number above 0"),
        ("bbb", {"mixture_weight": 3.0}, "expected a number between 0 and 1"),
        ("bbb", {"kl_weight": -1.0}, "expected a number of at least 0"),
        ("bbb", {"l2": 1.0}, "unknown option of bbb 'l2'"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            method(name, **options)
    with pytest.raises(pt.UsageError, match="unknown preset 'papers'; did you mean 'paper'"):
        method("mlp", preset="papers")
