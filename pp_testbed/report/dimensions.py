"""Tables behind the figures of the dyadic paper: scores against dimensions, and testbed against data.

Osband et al., 2022, "Evaluating High-Order Predictive Distributions in Deep Learning". Means, ratios and
their errors are those of `evaluation.aggregate`; correlations those of `decisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pp_testbed.engine.store import OK
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.aggregate import lead_of, mean_score, paired_difference, paired_ratio
from pp_testbed.evaluation.scores import OF_LABELS, OF_TRUTH, SYMBOLS
from pp_testbed.report.decisions import BOUNDS, common_agents, log_correlation
from pp_testbed.report.leaderboard import method_labels, without_superseded


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """Results that ended well, with a `label` for each method and `per_dimension`, T / d."""
    frame = without_superseded(frame)
    good = frame[frame.status == OK]
    if good.empty:
        raise UsageError("the results have no cell that ended well")
    return good.assign(label=method_labels(good), per_dimension=good.num_train / good.input_dim)


def by_dimension(frame: pd.DataFrame, baseline: str = "mlp") -> pd.DataFrame:
    """One row per input dimension and method: its mean scores, and their ratios to the baseline's, paired.

    Examples:
        >>> list(by_dimension(frame).columns)[:4]
        ['input_dim', 'method', 'problems', 'kl_marginal']
    """
    frame = labelled(frame)
    check_label(frame, baseline)
    check_of_truth(frame)
    rows = []
    for (dim, method), cells in frame.groupby(["input_dim", "label"]):
        base = frame[(frame.label == baseline) & (frame.input_dim == dim)]
        row: dict[str, Any] = {"input_dim": dim, "method": method, "problems": len(cells)}
        for score in OF_TRUTH:
            row[score], row[f"{score}_stderr"], _ = mean_score(cells, score)
            ratio = paired_ratio(cells, base, score)
            row[f"{score}_ratio"], row[f"{score}_ratio_stderr"] = ratio.value, ratio.stderr
        rows.append(row)
    return pd.DataFrame(rows)


def advantage(
    frame: pd.DataFrame,
    method: str = "ensemble+",
    baseline: str = "ensemble",
    score: str = "kl_dyadic",
    by: Sequence[str] = ("input_dim", "per_dimension"),
) -> pd.DataFrame:
    """By how much a method is better than another, for each value of some columns: below 0 is better.

    `difference` is the mean of paired differences of a score on `problems` common problems, `low` and `high`
    its interval of 95 %, `ratio` that of the means.
    """
    frame = labelled(frame)
    for label in (method, baseline):
        check_label(frame, label)
    if score not in frame or frame[score].isna().all():
        raise UsageError(f"these results have no {score}; name another score")
    rows = []
    for values, cells in frame.groupby(list(by)):
        one, other = (cells[cells.label == label] for label in (method, baseline))
        found, ratio = paired_difference(one, other, score), paired_ratio(one, other, score)
        low, high = found.interval()
        common = len(set(one.problem) & set(other.problem))
        row = dict(zip(by, values, strict=True)) | {"problems": common, "difference": found.value}
        rows.append(row | {"low": low, "high": high, "ratio": ratio.value, "ratio_stderr": ratio.stderr})
    return pd.DataFrame(rows)


def check_of_truth(frame: pd.DataFrame) -> None:
    """Raise a UsageError unless results are of known truths."""
    if lead_of(frame) is not OF_TRUTH:
        raise UsageError("dimensions are of known truths; these results are of held-out labels")


def check_label(frame: pd.DataFrame, label: str) -> None:
    """Raise a UsageError unless a method is among these results."""
    if label not in set(frame.label):
        raise unknown("method of these results", label, sorted(set(frame.label)))


def relative(frame: pd.DataFrame, score: str, baseline: str = "mlp") -> pd.DataFrame:
    """A score divided by the baseline's on the same problem: agents as rows, (seed, problem) as columns."""
    check_label(frame, baseline)
    if not (frame[score] > 0).all():
        raise UsageError(
            f"{score} is not above 0 everywhere, as it is not of densities: it has no ratio; expected classes"
        )
    table = frame[~frame.label.isin(BOUNDS)].pivot_table(
        index="label", columns=["seed", "problem"], values=score
    )
    return table / table.loc[baseline]


def transfer(testbed: pd.DataFrame, data: pd.DataFrame, baseline: str = "mlp") -> pd.DataFrame:
    """Do scores of the testbed say which agents are good on data? A row for each of the scores that lead.

    `correlation` is that over agents of the logarithms of means of scores relative to the baseline's on the
    same problem, with an interval of 95 % as for `decisions.correlations`: of divergences on the testbed, of
    negative log likelihoods on data.
    """
    testbed, data = labelled(testbed), labelled(data)
    if lead_of(testbed) is not OF_TRUTH or lead_of(data) is not OF_LABELS:
        raise UsageError(
            "transfer is from results of known truths to results of held-out labels, in this order"
        )
    rows = []
    for known, held_out in zip(OF_TRUTH, OF_LABELS, strict=True):
        tables = common_agents([relative(testbed, known, baseline), relative(data, held_out, baseline)])
        value, low, high = log_correlation(tables)
        names = {"testbed": SYMBOLS[known], "data": SYMBOLS[held_out], "agents": len(tables[0])}
        rows.append(names | {"correlation": value, "low": low, "high": high})
    return pd.DataFrame(rows)
