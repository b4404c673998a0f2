"""Curves of confidence against brute force over orders, and against the scores that they are drawn beside."""

from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.calibration import calibration_curve

import pp_testbed as pt
from pp_testbed.engine.store import read_results
from pp_testbed.evaluation.scores import NUM_BINS
from pp_testbed.evaluation.selective import COVERAGES, NUM_LEVELS, reliability, risk_at
from pp_testbed.studies.scoring import RESULTS


def test_risk_is_the_mean_over_orders_of_equal_confidence():
    """The mean over all orders in which no surer input comes later; of a part of one, a part of its loss."""
    confidence, loss = np.array([0.9, 0.5, 0.5, 0.5, 0.2]), np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    orders = [order for order in permutations(range(5)) if (np.diff(confidence[list(order)]) <= 0).all()]
    assert len(orders) == 6
    covered = COVERAGES * 5
    totals = [np.interp(covered, range(6), np.cumsum([0.0, *loss[list(order)]])) for order in orders]
    exact = np.mean(totals, axis=0) / covered
    np.testing.assert_allclose(
        risk_at(jnp.asarray(confidence), jnp.asarray(loss)), exact, rtol=1e-5, atol=1e-6
    )


def test_at_full_coverage_risk_is_the_share_of_errors():
    rng = np.random.default_rng(0)
    confidence, loss = rng.uniform(size=300).round(2), rng.integers(2, size=300).astype(float)
    assert float(risk_at(jnp.asarray(confidence), jnp.asarray(loss))[-1]) == pytest.approx(
        loss.mean(), rel=1e-5
    )


def test_reliability_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    confidence = rng.uniform(size=500).astype(np.float32)
    correct = (rng.uniform(size=500) < confidence**2).astype(np.float32)
    sums = np.asarray(reliability(jnp.asarray(confidence), jnp.asarray(correct)))
    accuracy, mean = calibration_curve(correct, confidence, n_bins=NUM_BINS)
    np.testing.assert_allclose(sums[2] / sums[0], accuracy, rtol=1e-4)
    np.testing.assert_allclose(sums[1] / sums[0], mean, rtol=1e-4)


@pytest.mark.slow
def test_results_of_data_have_curves_that_agree_with_their_scores(tmp_path):
    problems = [pt.problem(f"{name}/T50-s0") for name in ("iris", "diabetes")]
    pt.run(problems, ["mlp"], tmp_path / "r", progress=False)
    frame = read_results(tmp_path / "r", RESULTS).set_index("model")
    of_classes, of_numbers = frame.loc["iris"], frame.loc["diabetes"]
    counts, confidence, correct = np.reshape(of_classes.reliability, (3, NUM_BINS))
    assert counts.sum() == 30
    assert np.abs(confidence - correct).sum() / 30 == pytest.approx(of_classes.ece, rel=1e-4)
    assert of_classes.risk[-1] == pytest.approx(1 - of_classes.accuracy, rel=1e-4, abs=1e-6)
    assert len(of_classes.uncertainty) == NUM_LEVELS
    assert np.sum(of_classes.uncertainty) == pytest.approx(1.0, rel=1e-5)
    middles = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS * np.log(3)
    half = 0.5 / NUM_LEVELS * np.log(3)  # of a level
    assert abs(middles @ of_classes.uncertainty - of_classes.total_uncertainty) < half
    gaps = np.abs(np.asarray(of_numbers.pit) - np.arange(1, 10) / 10)
    assert gaps.mean() == pytest.approx(of_numbers.pit_error, rel=1e-4)
    assert of_numbers.reliability is None
    frame.reset_index().to_parquet(tmp_path / "kept.parquet")
    again = read_results(tmp_path / "kept.parquet", RESULTS)
    assert len(again.reliability.dropna()) == 1
    axis = pt.plots.reliability(frame.loc[["iris"]].reset_index())
    assert axis.get_xlabel() == "confidence"
    with pytest.raises(pt.UsageError, match=r"have no risk: .* and numbers have none"):
        pt.plots.risk(frame.loc[["diabetes"]].reset_index())
