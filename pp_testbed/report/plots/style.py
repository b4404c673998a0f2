"""The one style of all pictures: colours, markers and dashes of methods, and the panels they are drawn in.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; as markers and dashes differ too,
pictures survive being printed in grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from pp_testbed.errors import UsageError

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#7A4B00")
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":")
EXACT = "NUTS"  # the exact posterior's label
FIXED: dict[str, dict[str, Any]] = {  # what others are seen against
    EXACT: {"color": "black", "marker": "*", "ls": "--"},
    "uniform": {"color": "#999999", "marker": "_", "ls": "-"},
    "prior": {"color": "#999999", "marker": "|", "ls": "--"},
}
FIELD = "cividis"  # probabilities: its lightness is monotone
DIVERGING = "RdBu_r"  # ratios and correlations, whose values are written beside

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=PALETTE),
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "figure.titlesize": 10,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "pp_testbed",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """The settings of `STYLE`, for a while; `@style()` decorates every function that draws.

    Not `matplotlib.rc_context`, which restores all settings: also that a notebook shows figures, which it
    sets when the first is made.
    """
    before = {name: rcParams[name] for name in STYLE}
    rcParams.update(STYLE)
    try:
        yield
    finally:
        rcParams.update(before)


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each label, the same for the same set of labels.

    Examples:
        >>> styles(["mlp", "bbb"])["bbb"]
        {'color': '#0072B2', 'marker': 'o', 'ls': '-'}
    """
    names = sorted(set(labels) - set(FIXED))
    looks: dict[str, dict[str, Any]] = {
        name: {
            "color": PALETTE[i % len(PALETTE)],
            "marker": MARKERS[i % len(MARKERS)],
            "ls": DASHES[i % len(DASHES)],
        }
        for i, name in enumerate(names)
    }
    return looks | FIXED


def plain(label: str) -> str:
    """A user's name as matplotlib shows it literally: it is neither mathematics, nor left out of legends."""
    escaped = label.replace("$", r"\$")
    return f"\u200b{escaped}" if escaped.startswith("_") else escaped


def log_ticks(axis: Axis) -> None:
    """Numbers of a logarithmic axis as they are said, 0.2 or 500: at least two of them, and few.

    Call it when all is drawn: how many there are depends on the axis' limits.
    """
    low, high = axis.get_view_interval()
    if high < 8 * low:
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    else:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Panels:
    """The axes that a picture is drawn on: of a figure of its own, or the user's.

    What is about a whole figure, such as the legend beside it, goes into the axes if they are the user's.
    """

    axes: np.ndarray  # of Axes, [panels]
    is_own: bool

    @property
    def figure(self) -> Figure:
        """The figure that the axes are in."""
        return self.axes[0].figure

    def legend(self) -> None:
        """One legend of all that is labelled, beside the figure or, on a user's axes, in the last one."""
        found = {
            label: handle
            for axis in self.axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if self.is_own:
            self.figure.legend(found.values(), found.keys(), loc="outside right upper")
        else:
            self.axes[-1].legend(found.values(), found.keys())

    def titles(self, title: str = "", x: str = "", y: str = "") -> None:
        """A title and labels of the whole figure, or of a user's single axes."""
        if self.is_own:
            self.figure.suptitle(title)
            self.figure.supxlabel(x)
            self.figure.supylabel(y)
        elif len(self.axes) == 1:
            axis = self.axes[0]
            axis.set_title(" ".join(filter(None, (title, axis.get_title()))))
            axis.set(xlabel=x or axis.get_xlabel(), ylabel=y or axis.get_ylabel())


def panels(
    number: int,
    side: float,
    ax: Any = None,
    *,
    height: float | None = None,
    columns: int | None = None,
    sharey: bool = True,
) -> Panels:
    """So many panels, `side` inches wide and `height` high, in rows of `columns`; or the user's axes.

    Args:
        ax: axes of matplotlib, or an array of as many as there are panels; None makes a figure.
    """
    if ax is not None:
        given = np.array(ax, dtype=object).ravel()
        if len(given) != number or not all(isinstance(axis, Axes) for axis in given):
            kinds = ", ".join(sorted({type(axis).__name__ for axis in given}))
            some = f"{number} axes, as of plt.subplots(1, {number})[1]"
            raise UsageError(
                f"ax: this figure has {number} panels and needs {some}; got {len(given)} ({kinds})"
            )
        return Panels(given, False)
    columns = columns or number
    rows = -(-number // columns)
    size = side * columns + 0.8, (height or side) * rows + 0.5
    _, axes = plt.subplots(rows, columns, figsize=size, sharey=sharey, squeeze=False, layout="constrained")
    for axis in axes.ravel()[number:]:  # of the grid, these have nothing to show
        axis.set_visible(False)
    return Panels(axes.ravel(), True)
