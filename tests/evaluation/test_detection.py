"""Scores of how doubt ranks errors, against brute force, scikit-learn and each other."""

from dataclasses import replace
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.metrics import average_precision_score, roc_auc_score

import pp_testbed as pt
from pp_testbed.evaluation.detection import augrc, aurc, auroc, average_precision, linearised
from pp_testbed.evaluation.selective import NUM_LEVELS
from pp_testbed.models.likelihoods import Categorical
from tests.evaluation.test_held_out import KEY, classes, posterior_of, truth_of

SCORES = (auroc, average_precision, aurc, augrc)
# Sums of some hundred numbers below one.
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}


def marks_and_doubt(seed, num=200, levels=5):
    """With ties where there are few levels of doubt."""
    rng = np.random.default_rng(seed)
    mark = (rng.random(num) < 0.2).astype(float)
    return mark, np.round(rng.random(num) * levels + mark) / levels


def of(score, doubt, mark):
    return float(score(jnp.ones(len(mark)), jnp.asarray(doubt), jnp.asarray(mark)))


@pytest.mark.parametrize("levels", [3, 1000])
def test_areas_are_those_of_scikit_learn_and_of_pairs(levels):
    mark, doubt = marks_and_doubt(levels, levels=levels)
    gaps = doubt[mark == 1][:, None] - doubt[mark == 0][None]
    pairs = ((gaps > 0) + 0.5 * (gaps == 0)).mean()
    assert of(auroc, doubt, mark) == pytest.approx(pairs, rel=1e-6)
    assert of(auroc, doubt, mark) == pytest.approx(roc_auc_score(mark, doubt), rel=1e-6)
    assert of(average_precision, doubt, mark) == pytest.approx(average_precision_score(mark, doubt), rel=1e-6)


def test_selective_risks_are_means_over_all_orders_of_equal_doubts():
    doubt, loss = np.array([0.1, 0.1, 0.5, 0.5, 0.5, 0.9]), np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    orders = [order for order in permutations(range(6)) if (np.diff(doubt[list(order)]) >= 0).all()]
    covered = np.arange(1, 7)
    risks = np.mean([np.cumsum(loss[list(order)]) for order in orders], axis=0)
    assert of(aurc, doubt, loss) == pytest.approx((risks / covered).mean(), rel=1e-6)
    # Between two inputs the curve is straight: the trapezoidal rule is exact.
    area = np.trapezoid(np.concatenate([[0.0], risks]) / 6, dx=1 / 6)
    assert of(augrc, doubt, loss) == pytest.approx(area, rel=1e-6)


@pytest.mark.parametrize("levels", [3, 1000])
def test_augrc_follows_from_the_area_and_the_accuracy(levels):
    mark, doubt = marks_and_doubt(levels + 1, levels=levels)
    error = mark.mean()
    expected = (1.0 - of(auroc, doubt, mark)) * error * (1.0 - error) + 0.5 * error**2
    assert of(augrc, doubt, mark) == pytest.approx(expected, rel=1e-5)


def test_the_best_the_worst_and_the_indifferent():
    mark = np.array([0.0, 0.0, 0.0, 1.0])
    for doubt, area, precision in ((mark, 1.0, 1.0), (-mark, 0.0, 0.25), (0 * mark, 0.5, 0.25)):
        assert of(auroc, doubt, mark) == area
        assert of(average_precision, doubt, mark) == precision


@pytest.mark.parametrize("mark", [np.zeros(5), np.ones(5)])
def test_without_errors_or_without_successes_there_is_no_area(mark):
    assert np.isnan(of(auroc, np.arange(5.0), mark))
    assert of(aurc, np.arange(5.0), mark) == mark.mean()
    assert of(augrc, np.arange(5.0), mark) == 0.5 * mark.mean()


@pytest.mark.parametrize("score", SCORES)
def test_terms_have_the_score_as_their_mean(score):
    mark, doubt = marks_and_doubt(5)
    terms = linearised(lambda w: score(w, jnp.asarray(doubt), jnp.asarray(mark)), len(mark))
    assert terms.mean() == pytest.approx(of(score, doubt, mark), rel=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_errors_are_the_spread_over_samples(score):
    """Over 400 samples of 500 inputs the spread is known to 1 / √800, 3.5 %; the mean of errors far better.

    The linearisation leaves terms of the order 1 / 500 of the variance, and what of AP is not smooth: 3 %.
    """

    def one(key):
        keys = jax.random.split(key)
        mark = jax.random.bernoulli(keys[0], 0.2, (500,)).astype(float)
        doubt = jax.random.normal(keys[1], (500,)) + mark
        terms = linearised(lambda w: score(w, doubt, mark), 500)
        return terms.mean(), terms.std() / jnp.sqrt(500.0)

    values, errors = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 400))
    ratio = float(jnp.sqrt((errors**2).mean()) / values.std())
    assert abs(ratio - 1.0) < 4 * 0.035 + 0.03


def test_delongs_error_of_an_area():
    mark, doubt = marks_and_doubt(8)
    gaps = doubt[mark == 1][:, None] - doubt[mark == 0][None]
    pairs = (gaps > 0) + 0.5 * (gaps == 0)
    area = pairs.mean()
    sums = ((pairs.mean(axis=1) - area) ** 2).sum(), ((pairs.mean(axis=0) - area) ** 2).sum()
    variance = sums[0] / len(pairs) ** 2 + sums[1] / pairs.shape[1] ** 2
    terms = linearised(lambda w: auroc(w, jnp.asarray(doubt), jnp.asarray(mark)), len(mark))
    assert float(terms.var()) / len(mark) == pytest.approx(variance, rel=1e-4)


def test_uncertainties_and_detection_of_a_posterior_equal_brute_force():
    outputs, y, weights = classes(3, num=60)
    scores = pt.evaluate(posterior_of(outputs, weights), truth_of(y, Categorical(), 10), key=KEY)
    probs = softmax(outputs, axis=-1)
    mean = np.einsum("m,mnk->nk", weights, probs)
    total = -(mean * np.log(mean)).sum(axis=-1)
    each = -(probs * (outputs - logsumexp(outputs, axis=-1, keepdims=True))).sum(axis=-1)
    knowledge = total - weights @ each
    picks = outputs.argmax(axis=-1)
    pairs = np.einsum("m,k,mkn->n", weights, weights, (picks[:, None] != picks[None]).astype(float))
    np.testing.assert_allclose(scores.total_uncertainty, total.mean(), **FLOAT32)
    np.testing.assert_allclose(scores.knowledge_uncertainty, knowledge.mean(), **FLOAT32)
    np.testing.assert_allclose(scores.disagreement, pairs.mean(), **FLOAT32)
    errors = mean.argmax(axis=-1) != y
    for name, doubt in (("confidence", -mean.max(axis=-1)), ("total", total), ("knowledge", knowledge)):
        area, precision = roc_auc_score(errors, doubt), average_precision_score(errors, doubt)
        np.testing.assert_allclose(scores.values["auroc_" + name], area, **FLOAT32)
        np.testing.assert_allclose(scores.values["precision_" + name], precision, **FLOAT32)


@pytest.mark.parametrize("certainty", [1.0, 10.0])
def test_one_function_disagrees_with_nobody_and_has_no_knowledge_to_gain(certainty):
    """Also where it is nearly certain, and the rounding of its probabilities is much of their entropy."""
    outputs, y, _ = classes(4, functions=1)
    scores = pt.evaluate(posterior_of(certainty * outputs), truth_of(y, Categorical(), 10), key=KEY)
    assert scores.disagreement == 0.0
    assert scores.knowledge_uncertainty == 0.0
    assert scores.auroc_knowledge == pytest.approx(0.5, rel=1e-5)  # all inputs are tied


@pytest.mark.slow
def test_biases_of_few_draws_are_estimated():
    """Of functions that guess at random: two of M draws differ with probability (1 - 1/K) (1 - 1/M)."""
    rng = np.random.default_rng(0)
    outputs = 5.0 * rng.normal(size=(10, 3000, 4))
    y = rng.integers(4, size=3000)
    scores = pt.evaluate(posterior_of(outputs, num_groups=10), truth_of(y, Categorical(), 4), key=KEY)
    assert abs(scores.disagreement - 0.75 * 0.9) < 4 * scores.disagreement_stderr
    without_bias = scores.disagreement - scores.disagreement_bias
    assert abs(without_bias - 0.75) < 4 * scores.disagreement_stderr


def judged(num_functions=5, num_groups=1):
    """A posterior, and a truth with two other sets and costs: 40 rows, 30 and 20 inputs from elsewhere."""
    outputs, y, weights = classes(6, num=90, num_classes=4, functions=num_functions)
    outputs[:, 70:] *= 0.1  # of the second set little is known
    truth = truth_of(y[:40], Categorical(), 4)
    rows = jnp.arange(90.0)[:, None]
    costs = np.random.default_rng(0).random((4, 4)) * (1 - np.eye(4))
    truth = replace(truth, elsewhere={"near": rows[40:70], "far": rows[70:]}, costs=jnp.asarray(costs))
    weights = None if num_groups > 1 else weights
    return outputs, y[:40], posterior_of(outputs, weights, num_groups), truth, costs


def test_inputs_from_elsewhere_and_decisions_are_judged_as_brute_force_does():
    outputs, y, posterior, truth, costs = judged()
    scores = pt.evaluate(posterior, truth, key=KEY)
    probs, weights = softmax(outputs, axis=-1), np.exp(np.asarray(posterior.log_weights, float))
    mean = np.einsum("m,mnk->nk", weights, probs)
    total = -(mean * np.log(mean)).sum(axis=-1)
    doubts = {"total": total, "knowledge": total - weights @ -(probs * np.log(probs)).sum(axis=-1)}
    for place, (name, doubt) in enumerate(doubts.items()):
        areas = [
            roc_auc_score([0] * 40 + [1] * len(one), np.concatenate([doubt[:40], one]))
            for one in (doubt[70:], doubt[40:70])  # far, near: by name
        ]
        np.testing.assert_allclose(scores.values["elsewhere_" + name], np.mean(areas), **FLOAT32)
        np.testing.assert_allclose(scores.curves["elsewhere"][place::2], areas, **FLOAT32)
    of_sets = np.reshape(scores.curves["uncertainty"], (3, NUM_LEVELS))
    for share, some in zip(of_sets, (total[:40], total[70:], total[40:70]), strict=True):
        expected = np.histogram(some / np.log(4), NUM_LEVELS, (0.0, 1.0))[0] / len(some)
        np.testing.assert_allclose(share, expected, atol=1e-6)
    paid = []
    for row, label in zip(mean, y, strict=False):
        expected = [sum(row[true] * costs[true, decision] for true in range(4)) for decision in range(4)]
        paid.append(costs[label, int(np.argmin(expected))])
    np.testing.assert_allclose(scores.cost, np.mean(paid), rtol=1e-5)
    np.testing.assert_allclose(scores.cost_stderr, np.std(paid, ddof=1) / np.sqrt(40), rtol=1e-4)
    alone = pt.evaluate(posterior_of(outputs[:, :40], weights), truth_of(y, Categorical(), 4), key=KEY)
    for name, value in alone.values.items():  # no other score knows of them
        np.testing.assert_allclose(scores.values[name], value, rtol=1e-6, err_msg=name)
    plain = pt.finite(lambda x: outputs[:, x[:, 0].astype(int)], weights)
    theirs = pt.evaluate(plain, truth, key=KEY)
    for name, value in scores.values.items():
        np.testing.assert_allclose(theirs.values[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(scores.curves["elsewhere"], theirs.curves["elsewhere"], rtol=1e-5)


@pytest.mark.slow
def test_draws_left_out_have_areas_of_their_own():
    """The jackknife's errors are larger than those over inputs alone."""
    _, _, sample, truth, _ = judged(10, num_groups=10)
    whole = replace(sample, num_groups=1)
    ours, alone = (pt.evaluate(one, truth, key=KEY) for one in (sample, whole))
    for name in ("elsewhere_total", "auroc_confidence", "cost"):
        assert ours.values[name] == pytest.approx(alone.values[name], rel=1e-5)
        assert ours.values[name + "_stderr"] > alone.values[name + "_stderr"]
