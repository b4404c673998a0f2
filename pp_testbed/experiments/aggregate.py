"""Means over problems: their standard errors across seeds, paired ratios and differences.

T, temperature and model are the benchmark's choice, the seeds are its sample: only variation between
problems that differ by nothing but their seed is chance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def strata(cells: pd.DataFrame) -> pd.Series:
    """What a problem is but for its seed."""
    return cells.problem.str.rsplit("-s", n=1).str[0]


def stderr_of_mean(values: pd.Series, stratum: pd.Series) -> float:
    """Standard error of the mean of values, where only variation within a stratum is chance.

    sqrt(sum_s n_s var_s) / n. A stratum of one value is given the mean variance of the others; where
    all are of one, the error is that of a simple sample, and NaN for a single value.
    """
    if len(values) < 2:
        return float("nan")
    groups = values.groupby(stratum)
    variances = groups.var()
    if variances.isna().all():
        return float(values.sem())
    variances = variances.fillna(variances.mean())
    return float(np.sqrt((groups.count() * variances).sum()) / len(values))


def paired_ratio(
    cells: pd.DataFrame, reference: pd.DataFrame, score: str = "kl_joint"
) -> tuple[float, float]:
    """Ratio of a mean score on common problems, r = mean a / mean b, and its standard error.

    The delta method: the error of r is that of mean(a - r b), divided by mean b. NaN where mean b is 0.
    """
    both = _both(cells, reference, score)
    base = both[score + "_baseline"].mean()
    if both.empty or base == 0 or not np.isfinite(both[score + "_baseline"]).all():
        return float("nan"), float("nan")
    ratio = both[score].mean() / base
    residual = both[score] - ratio * both[score + "_baseline"]
    return ratio, stderr_of_mean(residual, strata(both)) / base


def paired_difference(
    cells: pd.DataFrame, reference: pd.DataFrame, score: str = "kl_joint"
) -> tuple[float, float, int]:
    """Mean difference of a score on common problems, its standard error, and that one's degrees of freedom.

    NaN where there are none; the degrees of freedom are those of the variance within strata or, where each
    has one problem, between all.
    """
    both = _both(cells, reference, score)
    difference, kinds = both[score] - both[score + "_baseline"], strata(both)
    freedom = len(both) - kinds.nunique() or len(both) - 1
    return float(difference.mean()), stderr_of_mean(difference, kinds), freedom


def _both(cells: pd.DataFrame, reference: pd.DataFrame, score: str) -> pd.DataFrame:
    """The problems that both have, with the reference's score as `_baseline`."""
    columns = ["problem", score]
    return cells[columns].merge(reference[columns], on="problem", suffixes=("", "_baseline"))
