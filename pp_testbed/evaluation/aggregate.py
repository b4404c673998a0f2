"""Means over problems: their standard errors across seeds, paired ratios and differences.

T, temperature and model are the benchmark's choice, the seeds are its sample: only variation between
problems that differ by nothing but their seed is chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.scores import OF_LABELS, OF_TRUTH, Lead


class Estimate(NamedTuple):
    """A number, its standard error, and how many degrees of freedom that one has.

    Examples:
        >>> low, high = Estimate(1.0, 0.1, 4.0).interval()
        >>> round(low, 3), round(high, 3)
        (0.722, 1.278)
    """

    value: float
    stderr: float
    freedom: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Student's t interval."""
        from scipy.stats import t

        reach = t.ppf(0.5 + level / 2, self.freedom) * self.stderr
        return float(self.value - reach), float(self.value + reach)


UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"))


def mean_over(values: pd.Series, stratum: pd.Series) -> Estimate:
    """The mean of values, where only variation within a stratum is chance.

    The standard error is sqrt(Σ_s a_s) / n with a_s = n_s var_s. Strata differ in their variances, so that
    its degrees of freedom are not n minus their number but (Σ a_s)² / Σ a_s² / (n_s - 1): Satterthwaite,
    1946, "An Approximate Distribution of Estimates of Variance Components". A stratum of one value is given
    the mean variance of the others; where all are of one, the sample is taken as a simple one. A single value
    has no error, and neither has an infinite mean.
    """
    num, mean = len(values), float(values.mean())
    if values.isna().any():  # the difference of two infinite scores, say: nothing is left out of a mean
        return UNKNOWN
    if num < 2 or not np.isfinite(mean):
        return Estimate(mean, float("nan"), float("nan"))
    groups = values.groupby(stratum)
    counts, variances = groups.count(), groups.var()
    if variances.isna().all():
        return Estimate(mean, float(values.sem()), num - 1.0)
    known = variances.notna()
    stderr = float(np.sqrt((counts * variances.fillna(variances.mean())).sum()) / num)
    parts = (counts[known] + (~known).sum() / known.sum()) * variances[known]
    total = parts.sum() ** 2
    freedom = total / (parts**2 / (counts[known] - 1)).sum() if total > 0 else (counts[known] - 1).sum()
    return Estimate(mean, stderr, float(freedom))


def lead_of(frame: pd.DataFrame) -> Lead:
    """Which scores lead results: divergences from the truth, or likelihoods of labels that were held out."""
    is_of_truth = frame[OF_TRUTH.joint].notna() if OF_TRUTH.joint in frame else pd.Series(False, frame.index)
    is_of_labels = frame[OF_LABELS.joint].notna() if OF_LABELS.joint in frame else ~is_of_truth & False
    if is_of_truth.any() and is_of_labels.any():
        raise UsageError(
            "these results are of known truths and of held-out labels, whose scores do not compare: "
            "keep them in different directories"
        )
    return OF_LABELS if is_of_labels.any() else OF_TRUTH


def mean_score(cells: pd.DataFrame, score: str = "kl_joint") -> Estimate:
    """The mean of a score over problems."""
    return mean_over(cells[score], cells.kind)


def paired_ratio(cells: pd.DataFrame, reference: pd.DataFrame, score: str = "kl_joint") -> Estimate:
    """Ratio of a mean score on common problems, r = mean a / mean b.

    The delta method: the error of r is that of mean(a - r b), divided by mean b. Unknown
    unless mean b is above 0.
    """
    both = _both(cells, reference, score)
    base = both[score + "_baseline"].mean()
    if both.empty or base <= 0 or not np.isfinite(both[score + "_baseline"]).all():
        return UNKNOWN
    ratio = both[score].mean() / base
    residual = mean_over(both[score] - ratio * both[score + "_baseline"], both.kind)
    return Estimate(float(ratio), residual.stderr / base, residual.freedom)


def paired_difference(cells: pd.DataFrame, reference: pd.DataFrame, score: str = "kl_joint") -> Estimate:
    """Mean difference of a score on common problems; unknown where there are none."""
    both = _both(cells, reference, score)
    return mean_over(both[score] - both[score + "_baseline"], both.kind)


def _both(cells: pd.DataFrame, reference: pd.DataFrame, score: str) -> pd.DataFrame:
    """The problems that both have, with the reference's score as `_baseline`."""
    own, other = ["problem", "kind", score], ["problem", score]
    return cells[own].merge(reference[other], on="problem", suffixes=("", "_baseline"))
