"""Models against what is known of their distributions."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

import pp_testbed as pt
from benchmarks import dyadic
from pp_testbed.models.base import no_labels, read_outputs, sample_latents
from pp_testbed.models.mlp import ACTIVATIONS, truncate


def latents(model, seed=0):
    x = jnp.zeros((1, model.input_dim))
    return sample_latents(model, x, no_labels(x), jax.random.key(seed))


def test_truncate_is_the_quantile_function():
    z = np.linspace(-4, 4, 101)
    expected = stats.truncnorm.ppf(stats.norm.cdf(z), -2, 2)
    np.testing.assert_allclose(truncate(jnp.asarray(z, dtype=jnp.float32)), expected, atol=3e-5)


def test_weights_have_the_stated_distribution():
    """True sd 0.8796 / sqrt(fan_in), cut at 2 / sqrt(fan_in); 500 matrices of 50 x 50."""
    model = pt.GenerativeMLP()
    keys = jax.random.split(jax.random.key(0), 500)
    x = jnp.zeros((1, 2))
    base = jax.vmap(lambda key: sample_latents(model, x, no_labels(x), key))(keys)
    assert {name: value.shape[1:] for name, value in base.items()} == {
        "w0_base": (2, 50),
        "b0_base": (50,),
        "w1_base": (50, 50),
        "w2_base": (50, 2),
    }
    w1 = np.asarray(truncate(base["w1_base"])).ravel()
    assert stats.kstest(w1[:20_000], stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
    kurtosis = stats.truncnorm(-2, 2).stats("k") + 3
    variance = stats.truncnorm(-2, 2).var()
    assert abs(w1.var() - variance) < 4 * variance * np.sqrt((kurtosis - 1) / w1.size)


def test_logits_are_the_network_by_hand():
    model = pt.GenerativeMLP(input_dim=3, hidden=(7, 5), num_classes=4, temperature=0.2)
    base = latents(model)
    x = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
    w = [np.asarray(truncate(base[f"w{i}_base"])) / np.sqrt(n) for i, n in enumerate((3, 7, 5))]
    hidden = np.maximum(x @ w[0] + np.asarray(base["b0_base"]) / np.sqrt(3), 0)
    expected = np.maximum(hidden @ w[1], 0) @ w[2] / 0.2
    np.testing.assert_allclose(read_outputs(model, base, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_change_the_function(activation):
    x = jnp.ones((2, 2))
    logits = read_outputs(pt.GenerativeMLP(activation=activation), latents(pt.GenerativeMLP()), x)
    assert logits.shape == (2, 2)
    assert np.isfinite(logits).all()
    if activation != "relu":
        assert not np.allclose(logits, read_outputs(pt.GenerativeMLP(), latents(pt.GenerativeMLP()), x))


def test_labels_have_the_probabilities_of_the_logits():
    environment = pt.problem(temperature=0.5).environment
    x = jnp.repeat(jnp.array([[0.3, -1.2]]), 20_000, axis=0)
    p = float(jax.nn.softmax(environment.logits(x[:1]))[0, 1])
    share = float(environment.labels(jax.random.key(1), x).mean())
    assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / 20_000)


@pytest.mark.parametrize("model", [pt.GenerativeMLP(), pt.LogisticRegression(input_dim=2)])
def test_minibatch_likelihood_is_unbiased(model):
    """The mean over all disjoint minibatches of the scaled log joint is that of the whole data."""
    x = model.inputs(jax.random.key(0), 30)
    y = jnp.arange(30) % 2
    params = latents(model)
    whole = log_density(model, (x, y), {}, params)[0]
    parts = [log_density(model, (x[i : i + 6], y[i : i + 6], 30), {}, params)[0] for i in range(0, 30, 6)]
    assert float(np.mean(parts)) == pytest.approx(float(whole), rel=1e-5)


def test_model_runs_under_numpyro_as_it_is():
    task = pt.problem("2d/T10-rho0.1-s0").task
    trace = handlers.trace(handlers.seed(task.model, 0)).get_trace(task.x, task.y)
    assert trace["logits"]["value"].shape == (10, 2)
    assert trace["y"]["is_observed"]
    drawn = numpyro.infer.Predictive(task.model, num_samples=3)(jax.random.key(0), task.x)
    assert drawn["y"].shape == (3, 10)


def test_logistic_regression():
    model = pt.LogisticRegression(input_dim=5, temperature=0.01)
    theta = latents(model)["theta"]
    x = model.inputs(jax.random.key(1), 4)
    logits = read_outputs(model, {"theta": theta}, x)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], x @ theta / 0.01, rtol=1e-5)


def test_mistakes_are_answered_in_one_line():
    with pytest.raises(pt.UsageError, match="did you mean 'relu'"):
        pt.GenerativeMLP(activation="rellu")
    model = pt.GenerativeMLP()
    with pytest.raises(pt.UsageError, match=r"label 2 at row 1 is outside the classes 0\.\.1"):
        pt.task(model, np.zeros((2, 2)), [0, 2])
    with pytest.raises(pt.UsageError, match="NaN or infinity, first at row 1"):
        pt.task(model, [[0.0, 0.0], [np.nan, 0.0]], [0, 1])
    with pytest.raises(pt.UsageError, match=r"shape \(2, 3\); expected \[N, 2\]"):
        pt.task(model, np.zeros((2, 3)), [0, 1])
    with pytest.raises(pt.UsageError, match="one per input"):
        pt.task(model, np.zeros((2, 2)), [0])
    with pytest.raises(pt.UsageError, match="there are no data"):
        pt.task(model, np.zeros((0, 2)), [])
    with pytest.raises(pt.UsageError, match="no arrays of numbers"):
        pt.task(model, [[0.0, 1.0], [0.0]], [0, 1])


def test_inputs_far_from_unit_scale_are_warned_of():
    x = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.warns(UserWarning, match="methods expect about 1: standardise the columns"):
        pt.task(pt.GenerativeMLP(), 100.0 * x, np.zeros(50, int))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pt.task(pt.GenerativeMLP(), x, np.zeros(50, int))


@pytest.mark.slow
def test_a_bag_of_coins_has_the_scores_of_its_closed_forms():
    """Without data, over 40 bags of two coins: the mean score of the prior is that of *posterior*."""
    problems = [pt.problem(model="coins", input_dim=2, num_train=1, seed=seed) for seed in range(40)]
    assert problems[0].name == "coins-2d/T1-s0"
    assert pt.problem(problems[0].name) == problems[0]
    x = np.asarray(problems[0].model.inputs(jax.random.key(0), 1000))
    assert (x.sum(axis=1) == 1).all()
    assert abs(x[:, 0].mean() - 0.5) < 4 * 0.5 / np.sqrt(1000)
    prior = pt.method("prior").fit(jax.random.key(0), problems[0].task)
    found = [
        pt.evaluate(prior, one, key=one.keys.evaluate, num_batches=30, num_draws=2000) for one in problems
    ]
    for name, kappa in (("kl_joint", 0), ("kl_dyadic", 2)):
        scores = np.array([getattr(one, name) - getattr(one, name + "_bias") for one in found])
        exact = dyadic.coins(10, 2, kappa)["posterior"]
        assert abs(scores.mean() - exact) < 4 * scores.std(ddof=1) / np.sqrt(len(scores)), name
    with pytest.raises(pt.UsageError, match="'tanh' is no option of coins"):
        pt.problem("coins-2d-tanh/T1-s0")
