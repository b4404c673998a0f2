"""Pictures of labels that were held out: whether confidence is right, and what it is worth.

Each takes a frame of results and returns axes. The curves are those of `evaluation.selective`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.aggregate import lead_of
from pp_testbed.evaluation.scores import DECILES, NUM_BINS, OF_LABELS
from pp_testbed.evaluation.selective import COVERAGES, NUM_LEVELS
from pp_testbed.report.doubt import names_of_sets
from pp_testbed.report.plots.scores import complete_cells, shared_problems, words_on_problems
from pp_testbed.report.plots.style import panels, plain, style, styles

LEAST = 0.005  # of all inputs; a bin with fewer is not drawn


def cells_with(frame: pd.DataFrame, *curves: str) -> pd.DataFrame:
    """The cells of problems that all methods have, with one of these curves."""
    frame = complete_cells(frame)
    known = [frame[name].notna() for name in curves if name in frame]
    if not (known and np.any(known)):
        why = "versions before 0.5.0 kept none" + (", and numbers have none" if curves == ("risk",) else "")
        why = why if lead_of(frame) is OF_LABELS else "labels are not held out"
        raise UsageError(f"these results have no {' or '.join(curves)}: {why}")
    return shared_problems(frame[np.any(known, axis=0)])


@style()
def reliability(frame: pd.DataFrame, ax: Any = None) -> Axes:
    """Accuracy against confidence, over all rows of all problems; of numbers, shares below predicted deciles.

    On the diagonal a method is right as often as it says.

    Args:
        frame: results of held-out labels.
        ax: the axes to draw on.
    """
    frame = cells_with(frame, "reliability", "pit")
    made, looks = panels(1, 3.6, ax), styles(frame.label)
    (axis,) = made.axes
    axis.plot([0, 1], [0, 1], color="0.7", lw=1)
    is_of_classes = frame.reliability.notna().any() if "reliability" in frame else False
    for method, cells in frame.groupby("label"):
        if is_of_classes:
            sums = np.stack(cells.reliability.dropna().to_list()).sum(axis=0).reshape(3, NUM_BINS)
            there = sums[0] >= LEAST * sums[0].sum()
            x, y = sums[1:, there] / sums[0, there]
        else:
            x, y = DECILES, np.stack(cells.pit.dropna().to_list()).mean(axis=0)
        axis.plot(x, y, ms=4, label=plain(method), **looks[method])
    words = ("confidence", "accuracy") if is_of_classes else ("predicted decile", "share of labels below")
    axis.set(xlabel=words[0], ylabel=words[1], title=words_on_problems(frame))
    made.legend()
    return axis


@style()
def risk(frame: pd.DataFrame, ax: Any = None) -> Axes:
    """The share of errors among the most confident predictions, against how many are kept: risk and coverage.

    Args:
        frame: results of held-out classes.
        ax: the axes to draw on.
    """
    frame = cells_with(frame, "risk")
    made, looks = panels(1, 3.6, ax), styles(frame.label)
    (axis,) = made.axes
    for method, cells in frame.groupby("label"):
        mean = np.stack(cells.risk.dropna().to_list()).mean(axis=0)
        axis.plot(COVERAGES, mean, label=plain(method), **looks[method] | {"marker": ""})
    axis.set(xlabel="share of inputs that are answered", ylabel="errors among them", ylim=(0, None))
    axis.set_title(f"means over {words_on_problems(frame)}")
    made.legend()
    return axis


@style()
def uncertainty(frame: pd.DataFrame, ax: Any = None) -> np.ndarray:
    """How much of a guess predictions are: of inputs that were held out, and of sets from elsewhere.

    There is a panel for each method, with the total uncertainty next to log K, that of a guess. Shares of
    inputs are means over problems.

    Args:
        frame: results of held-out classes, all of problems with the same sets.
        ax: as many axes as there are methods.
    """
    frame = cells_with(frame, "uncertainty")
    if frame.uncertainty.map(len).nunique() > 1:
        raise UsageError("these problems have different sets from elsewhere: draw those of one data set")
    methods = list(dict.fromkeys(frame.label))
    made = panels(len(methods), 2.4, ax, columns=min(len(methods), 4))
    levels = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
    for axis, method in zip(made.axes, methods, strict=False):
        cells = frame[frame.label == method]
        shares = np.stack(cells.uncertainty.to_list()).mean(axis=0).reshape(-1, NUM_LEVELS)
        names = ["held out", *names_of_sets(cells.model.iloc[0], len(shares) - 1)]
        looks = styles(names)
        for name, share in zip(names, shares, strict=True):
            axis.plot(levels, share, drawstyle="steps-mid", label=plain(name), **looks[name] | {"marker": ""})
        axis.set(title=plain(method), yscale="log", xlim=(0, 1))
    made.titles(words_on_problems(frame), "uncertainty next to that of a guess", "share of inputs")
    made.legend()
    return made.axes
