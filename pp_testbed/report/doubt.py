"""What is doubted, in a table: whether it is the errors, and the inputs from elsewhere.

Each score is explained where it is declared, in `evaluation.scores`; here they are means over problems.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pp_testbed.engine.store import OK
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.aggregate import Estimate, mean_over, mean_score
from pp_testbed.evaluation.doubt import DOUBTS, OF_SETS
from pp_testbed.evaluation.scores import SCORES
from pp_testbed.problems.datasets import SETS
from pp_testbed.report.leaderboard import method_labels, without_superseded

COMPOSITES = {  # URSABench's: means of these
    "uncertainty": [f"auroc_{name}" for name in DOUBTS],
    "robustness": [f"elsewhere_{name}" for name in OF_SETS],
}
DETAILS = {score.name: score.symbol for score in SCORES if score.place == "detail"}


def detection(frame: pd.DataFrame) -> pd.DataFrame:
    """How well doubt finds errors and inputs from elsewhere: means over problems, with their errors.

    Besides the scores there is a column for each set from elsewhere and each doubt, such as
    `usps_28_total`: how often an input of that set is doubted more than one that was held out. URSABench's
    "uncertainty" is the mean of how errors are told by each doubt, its "robustness" of how the sets are.

    Args:
        frame: results of data of classes.

    Examples:
        >>> cell = {"status": "ok", "method": "mlp", "kind": "iris", "aurc": 0.1}
        >>> detection(pd.DataFrame([cell])).aurc.item()
        0.1
    """
    if "config" in frame:
        frame = without_superseded(frame)
        frame = frame.assign(method=method_labels(frame))  # a method is one configuration
    good = frame[frame.status == OK]
    names = [name for name in DETAILS if name in good and good[name].notna().any()]
    if not names:
        raise UsageError("these results say nothing of doubt: no labels of classes were held out")
    rows = []
    for method, cells in good.groupby("method", sort=False):
        found = {name: mean_score(cells, name) for name in names}
        for name, parts in COMPOSITES.items():
            if set(parts) <= set(names):
                found[name] = mean_over(cells[parts].mean(axis=1, skipna=False), cells.kind)
        found |= _of_sets(cells)
        row: dict[str, Any] = {"method": method, "problems": len(cells)}
        for name, estimate in found.items():
            row |= {name: estimate.value, name + "_stderr": estimate.stderr}
        rows.append(row)
    return pd.DataFrame(rows)


def heads_of(table: pd.DataFrame) -> dict[str, str]:
    """What the columns of such a table are called."""
    named = [name for name in table if name + "_stderr" in table]
    return {name: DETAILS.get(name, name.replace("_", " ")) for name in named}


def names_of_sets(model: str, number: int) -> list[str]:
    """What the sets from elsewhere are called: of one's own data they have numbers, in the order of names."""
    entry = SETS.get(model)
    return sorted(entry.judged.elsewhere if entry else ()) or [f"set {place + 1}" for place in range(number)]


def _of_sets(cells: pd.DataFrame) -> dict[str, Estimate]:
    """Of each set from elsewhere, where all cells have the same ones."""
    if "elsewhere" not in cells or cells.elsewhere.isna().any() or cells.model.nunique() > 1:
        return {}
    areas = np.stack(cells.elsewhere.to_list()).reshape(len(cells), -1, len(OF_SETS))
    known = names_of_sets(cells.model.iloc[0], areas.shape[1])
    return {
        f"{name}_{doubt}": mean_over(pd.Series(areas[:, i, j], cells.index), cells.kind)
        for i, name in enumerate(known)
        for j, doubt in enumerate(OF_SETS)
    }
