"""Pictures of the dyadic paper: scores against the dimension of inputs, and the testbed against data.

The numbers are those of `report.dimensions`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pp_testbed.evaluation.scores import OF_LABELS, OF_TRUTH, SYMBOLS
from pp_testbed.report.decisions import common_agents
from pp_testbed.report.dimensions import advantage, by_dimension, check_of_truth, labelled, relative
from pp_testbed.report.plots.style import PALETTE, log_ticks, panels, plain, style, styles


@style()
def dimensions(frame: pd.DataFrame, baseline: str = "mlp", ax: Any = None) -> np.ndarray:
    """d¹, d¹⁰ and d¹⁰,² of each method relative to the baseline's, against the dimension of inputs.

    The paper's Figures 3 and 4: in many dimensions only the last tells methods apart.

    Args:
        frame: results, such as those of suite highdim.
        baseline: the method that others are relative to.
        ax: three axes.
    """
    table = by_dimension(frame, baseline)
    made, looks = panels(3, 2.9, ax), styles(table.method)
    for axis, score in zip(made.axes, OF_TRUTH, strict=True):
        for method, rows in table.groupby("method"):
            ratio = f"{score}_ratio"
            curve = rows.input_dim, rows[ratio], rows[f"{ratio}_stderr"]
            axis.errorbar(*curve, label=plain(str(method)), **looks[str(method)])
        axis.set(xscale="log", xlabel="input dimension d", title=f"{SYMBOLS[score]} / {plain(baseline)}")
        _say_dimensions(axis, table.input_dim)
    made.legend()
    return made.axes


@style()
def per_dimension(
    frame: pd.DataFrame, method: str = "ensemble+", baseline: str = "ensemble", ax: Any = None
) -> Axes:
    """d¹⁰,² of a method relative to another's, against data per dimension, a curve for each dimension.

    The paper's Figure 5: the advantage of prior functions is that of few data.

    Args:
        frame: results, such as those of suite highdim.
        method, baseline: which is compared to which.
        ax: the axes to draw on.
    """
    check_of_truth(frame)
    table = advantage(frame, method, baseline)
    made, looks = panels(1, 4.0, ax), styles(f"d = {dim}" for dim in table.input_dim)
    (axis,) = made.axes
    axis.axhline(1.0, color="0.8", lw=1)
    for dim, rows in table.groupby("input_dim"):
        label = f"d = {dim}"
        axis.errorbar(rows.per_dimension, rows.ratio, rows.ratio_stderr, label=label, **looks[label])
    words = f"{SYMBOLS[OF_TRUTH.dyadic]} of {plain(method)} / {plain(baseline)}"
    axis.set(xscale="log", xlabel="training data per dimension, T / d", ylabel=words)
    log_ticks(axis.xaxis)
    made.legend()
    return axis


@style()
def transfer(testbed: pd.DataFrame, data: pd.DataFrame, baseline: str = "mlp", ax: Any = None) -> np.ndarray:
    """Scores of agents on data against those on the testbed, relative to the baseline's on the same problems.

    The paper's Figures 6 and 7: a panel for one label, and one for ten labels at inputs resampled from two.

    Args:
        testbed: results of known truths, such as those of suite 2d.
        data: results of held-out labels, such as those of suite tables.
        baseline: the method that others are relative to.
        ax: two axes.
    """
    made = panels(2, 3.3, ax, sharey=False)
    testbed, data = labelled(testbed), labelled(data)
    pairs = [(OF_TRUTH.marginal, OF_LABELS.marginal), (OF_TRUTH.dyadic, OF_LABELS.dyadic)]
    for axis, (known, held_out) in zip(made.axes, pairs, strict=True):
        tables = common_agents([relative(testbed, known, baseline), relative(data, held_out, baseline)])
        means = [one.mean(axis=1) for one in tables]
        errors = [one.std(axis=1, ddof=1) / np.sqrt(one.shape[1]) for one in tables]
        axis.errorbar(*means, xerr=errors[0], yerr=errors[1], fmt="o", lw=0.6, color=PALETTE[0])
        for place, name in enumerate(means[0].sort_values().index):  # neighbours' names above and below
            at, offset = (means[0][name], means[1][name]), (4, -10 if place % 2 else 4)
            axis.annotate(plain(name), at, xytext=offset, textcoords="offset points", fontsize=7)
        label = f"{{}}: {{}} / {plain(baseline)}".format
        axis.set(xlabel=label("testbed", SYMBOLS[known]), ylabel=label("data", SYMBOLS[held_out]))
        axis.xaxis.set_major_locator(MaxNLocator(4))
    return made.axes


def _say_dimensions(axis: Axes, dims: pd.Series) -> None:
    places = sorted(set(dims))
    axis.set_xticks(places, [str(place) for place in places])
    axis.set_xticks([], minor=True)
