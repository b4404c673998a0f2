"""The enumerated KLs against brute force, and against labels that are sampled."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from pp_testbed.evaluation import joint

# A KL is a difference of sums of logs of a few nats each, which float32 holds to 6e-8 relative.
FLOAT32 = {"rtol": 1e-5, "atol": 2e-7}


def random_log_probs(seed, *shape, scale=2.0):
    logits = scale * np.random.default_rng(seed).normal(size=shape)
    return logits - logsumexp(logits, axis=-1, keepdims=True)


def kl(outcomes, log_truth, log_probs, log_weights=None, num_groups=1, is_sampled=False):
    """As the package has it, with its bias, from log_probs [n, M, inputs, K]."""
    m = log_probs.shape[1]
    weights = np.full(m, -np.log(m)) if log_weights is None else log_weights
    probs = np.moveaxis(log_probs, 1, -1)
    to_jax = [jnp.asarray(a, dtype=jnp.float32) for a in (log_truth, probs, weights)]
    whole, without = joint.kl_of_outcomes(outcomes, *to_jax, num_groups, is_sampled)
    bias, _ = joint.jackknife(without.T - whole)
    return [np.asarray(value, dtype=np.float64) for value in (whole, bias)]


def brute_force(log_truth, log_probs, log_weights=None, anchors=None):
    """KL of one batch over all label sequences, inputs anchors[t] for label t: float64 and plain."""
    tau, num_classes = len(anchors), log_truth.shape[-1]
    m = log_probs.shape[0]
    log_weights = np.full(m, -np.log(m)) if log_weights is None else log_weights
    labels = np.array(list(product(range(num_classes), repeat=tau)))
    log_true = sum(log_truth[anchor, labels[:, t]] for t, anchor in enumerate(anchors))
    each = sum(log_probs[:, anchor][:, labels[:, t]] for t, anchor in enumerate(anchors))
    log_mixture = logsumexp(each + log_weights[:, None], axis=0)
    weight = np.exp(log_true)
    return np.sum(np.where(weight > 0, weight * (log_true - log_mixture), 0.0))


def brute_force_resampled(log_truth, log_probs, tau):
    kappa = len(log_truth)
    assignments = list(product(range(kappa), repeat=tau))
    return np.mean([brute_force(log_truth, log_probs, anchors=a) for a in assignments])


@pytest.mark.parametrize(
    ("tau", "num_classes", "m"), [(10, 2, 7), (1, 2, 3), (3, 4, 5), (5, 3, 20), (1, 5, 1)]
)
def test_iid_equals_brute_force(tau, num_classes, m):
    truth = random_log_probs(0, 4, tau, num_classes)
    probs = random_log_probs(1, 4, m, tau, num_classes)
    exact = kl(joint.label_sequences(tau, num_classes), truth, probs)[0]
    expected = [brute_force(t, p, anchors=range(tau)) for t, p in zip(truth, probs, strict=True)]
    np.testing.assert_allclose(exact, expected, **FLOAT32)


@pytest.mark.parametrize(("tau", "kappa", "num_classes"), [(10, 2, 2), (4, 3, 2), (3, 2, 3), (4, 1, 3)])
def test_polyadic_equals_brute_force(tau, kappa, num_classes):
    """For (10, 2, 2), a sum over all 1024 assignments of inputs times all 1024 label sequences."""
    truth = random_log_probs(2, 2, kappa, num_classes)
    probs = random_log_probs(3, 2, 6, kappa, num_classes)
    exact = kl(joint.label_counts(tau, kappa, num_classes), truth, probs)[0]
    expected = [brute_force_resampled(t, p, tau) for t, p in zip(truth, probs, strict=True)]
    np.testing.assert_allclose(exact, expected, **FLOAT32)


@pytest.mark.parametrize("scale", [50.0, 500.0])
def test_large_logits_are_exact(scale):
    """Where every product of ten probabilities underflows, and functions disagree on everything."""
    truth = random_log_probs(4, 20, 10, 2, scale=scale)
    probs = random_log_probs(5, 20, 30, 10, 2, scale=scale)
    exact = kl(joint.label_sequences(10, 2), truth, probs)[0]
    expected = [brute_force(t, p, anchors=range(10)) for t, p in zip(truth, probs, strict=True)]
    assert np.mean(expected) > 10
    np.testing.assert_allclose(exact, expected, **FLOAT32)
    pair = kl(joint.label_counts(10, 2, 2), truth[:2, :2], probs[:2, :, :2])[0]
    expected = [brute_force_resampled(t[:2], p[:, :2], 10) for t, p in zip(truth[:2], probs[:2], strict=True)]
    np.testing.assert_allclose(pair, expected, rtol=1e-5)


def test_fast_and_exact_path_agree(monkeypatch):
    truth, probs = random_log_probs(6, 5, 10, 2), random_log_probs(7, 5, 40, 10, 2)
    fast = kl(joint.label_sequences(10, 2), truth, probs, num_groups=10)
    monkeypatch.setattr(joint, "_SMALLEST_SUM", np.inf)
    exact = kl(joint.label_sequences(10, 2), truth, probs, num_groups=10)
    np.testing.assert_allclose(fast, exact, rtol=2e-5, atol=2e-5)
    assert not np.array_equal(fast, exact), "both ran the same path"


def test_impossible_prediction_is_infinite():
    truth = np.log(np.full((1, 2, 2), 0.5))
    with np.errstate(divide="ignore"):
        never = np.log(np.array([[[[1.0, 0.0], [0.5, 0.5]]] * 3]))[0][None]
        certain = np.log(np.array([[[1.0, 0.0], [1.0, 0.0]]]))
    assert kl(joint.label_sequences(2, 2), truth, never)[0] == np.inf
    assert kl(joint.label_counts(2, 2, 2), truth, never)[0] == np.inf
    # What the truth gives no probability may be predicted to be impossible.
    assert kl(joint.label_sequences(2, 2), certain, never)[0] == pytest.approx(np.log(2.0))


def test_weights_are_multiplicities():
    truth, probs = random_log_probs(8, 3, 4, 2), random_log_probs(9, 3, 2, 4, 2)
    repeated = np.concatenate([probs[:, :1]] * 3 + [probs[:, 1:]], axis=1)
    outcomes = joint.label_sequences(4, 2)
    weighted = kl(outcomes, truth, probs, log_weights=np.log([0.75, 0.25]))[0]
    np.testing.assert_allclose(weighted, kl(outcomes, truth, repeated)[0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("resampled", [False, True])
def test_sampled_labels_agree_with_exact_over_200_posteriors(resampled):
    """Both estimate the same number: standardised differences have mean 0 and variance 1."""
    n, num = 200, 400
    inputs = 2 if resampled else 10
    truth, probs = random_log_probs(10, n, inputs, 2), random_log_probs(11, n, 5, inputs, 2)
    outcomes = joint.label_counts(10, 2, 2) if resampled else joint.label_sequences(10, 2)
    exact = kl(outcomes, truth, probs)[0]
    draws = []
    for key in jax.random.split(jax.random.key(0), 20):
        labels = joint.sampled_outcomes(key, jnp.asarray(truth), 10, num, resampled)
        draws.append(kl(labels, truth, probs, is_sampled=True)[0])
    z = (np.mean(draws, axis=0) - exact) / (np.std(draws, axis=0, ddof=1) / np.sqrt(20))
    # z is Student's t with 19 degrees of freedom: variance 19/17, fourth moment 3 · 19² / (17 · 15).
    assert abs(z.mean()) < 4 * np.sqrt(19 / 17 / n)
    spread = np.sqrt((3 * 19**2 / (17 * 15) - (19 / 17) ** 2) / n)
    assert abs((z**2).mean() - 19 / 17) < 4 * spread


def test_jackknife_measures_the_bias_of_finitely_many_draws():
    """Functions are drawn from a known mixture of two, so the bias of M draws is known by simulation."""
    rng = np.random.default_rng(12)
    truth, components = random_log_probs(13, 1, 5, 2), random_log_probs(14, 2, 5, 2)
    outcomes, m, repeats = joint.label_sequences(5, 2), 20, 40_000
    limit = kl(outcomes, truth, components[None])[0][0]
    chosen = components[rng.integers(2, size=(repeats, m))]
    found, bias = kl(outcomes, np.repeat(truth, repeats, axis=0), chosen, num_groups=10)
    remaining = found - bias - limit
    true_bias = (found - limit).mean()
    assert true_bias > 20 * (found - limit).std() / np.sqrt(repeats), "no bias to measure"
    # The jackknife removes the bias of order 1/M; what remains is of order 1/M².
    assert abs(remaining.mean()) < 4 * remaining.std() / np.sqrt(repeats) + true_bias / 10
    assert bias.mean() == pytest.approx(
        true_bias, abs=4 * (found - limit - bias).std() / np.sqrt(repeats) + true_bias / 10
    )


def test_without_a_group_is_the_mixture_of_the_others():
    """Of unequal weights too, and of neighbours: the second group is functions 2 and 3."""
    truth, probs = random_log_probs(15, 2, 3, 2), random_log_probs(16, 2, 6, 3, 2)
    log_weights = np.log(np.array([0.1, 0.2, 0.25, 0.05, 0.3, 0.1]))
    to_jax = [jnp.asarray(a, dtype=jnp.float32) for a in (truth, np.moveaxis(probs, 1, -1), log_weights)]
    _, without = joint.kl_of_outcomes(joint.label_sequences(3, 2), *to_jax, 3, False)
    others = [0, 1, 4, 5]
    rest = log_weights[others] - np.log(0.7)
    expected = [brute_force(t, p[others], rest, range(3)) for t, p in zip(truth, probs, strict=True)]
    np.testing.assert_allclose(without[:, 1], expected, **FLOAT32)


def test_jackknife_is_tukeys_for_a_mean():
    """Of a mean it is the variance of the mean, and there is no bias."""
    values = np.random.default_rng(17).normal(size=10)
    deviations = np.array([np.delete(values, g).mean() for g in range(10)]) - values.mean()
    bias, variance = joint.jackknife(jnp.asarray(deviations))
    assert float(variance) == pytest.approx(values.var(ddof=1) / 10, rel=1e-5)
    assert float(bias) == pytest.approx(0.0, abs=1e-6)


def test_number_of_outcomes_is_what_is_enumerated():
    for tau, num_classes in [(10, 2), (3, 4), (1, 2)]:
        shape = joint.label_sequences(tau, num_classes).weight.shape
        assert joint.num_outcomes(tau, num_classes, tau, resampled=False) == shape[0] * shape[1]
    for tau, kappa, num_classes in [(10, 2, 2), (4, 3, 2), (5, 1, 3)]:
        outcomes = joint.label_counts(tau, kappa, num_classes)
        assert joint.num_outcomes(kappa, num_classes, tau, resampled=True) == outcomes.weight.size
        uniform = float(num_classes) ** -tau
        assert (outcomes.weight * uniform).sum() == pytest.approx(1.0, rel=1e-5)
