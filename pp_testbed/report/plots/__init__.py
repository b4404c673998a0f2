"""`pt.plots`: pictures. Each function takes a frame or posteriors and an optional `ax`, and returns axes.

    axes = pt.plots.agents(frame)           # a figure of its own, shown by a notebook
    pt.plots.cost(frame, ax=my_axes)        # or into yours
    pt.plots.save(axes, "agents.pdf")       # .png, .pdf or .svg

Of results (`pt.run`): agents, marginal_joint, data, temperature, regimes, cost, size, prior, sweep,
dimensions, per_dimension; of held-out labels reliability, risk, uncertainty; of both, transfer. Of
posteriors: predictive_fields, tau_growth, calibration_ranks. Of decisions: regret, correlation, robustness,
learning.
`FIGURES` are those that `pp-testbed figure` draws. Figures of chains (trace, rank, energy) are ArviZ's own,
on `posterior.to_arviz()`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from pp_testbed.engine.store import write_whole
from pp_testbed.errors import UsageError
from pp_testbed.report.plots.decisions import correlation, learning, regret, robustness
from pp_testbed.report.plots.dimensions import dimensions, per_dimension, transfer
from pp_testbed.report.plots.held_out import reliability, risk, uncertainty
from pp_testbed.report.plots.posteriors import calibration_ranks, predictive_fields, tau_growth
from pp_testbed.report.plots.scores import (
    agents,
    cost,
    data,
    marginal_joint,
    prior,
    regimes,
    size,
    sweep,
    temperature,
)
from pp_testbed.report.plots.style import STYLE, style, styles

FORMATS = (".png", ".pdf", ".svg")


class Picture(NamedTuple):
    """A figure of the command line: what draws it, what it shows, and of which directory."""

    draw: Callable[..., Any]
    summary: str
    source: str = "results"


FIGURES = {
    "agents": Picture(agents, "d¹, d¹⁰ and d¹⁰,² of each method relative to a baseline"),
    "marginal-joint": Picture(marginal_joint, "one label's score against ten labels'"),
    "data": Picture(data, "scores against the number of data"),
    "temperature": Picture(temperature, "scores against the temperature"),
    "regimes": Picture(regimes, "d¹⁰ relative to a baseline, by data and temperature"),
    "cost": Picture(cost, "d¹⁰ against the seconds that fitting takes (the paper's Figure 15)"),
    "size": Picture(size, "scores against the size of ensembles"),
    "prior": Picture(prior, "scores against the scale of prior functions, and bootstraps"),
    "sweep": Picture(sweep, "scores against every hyperparameter that was varied"),
    "dimensions": Picture(dimensions, "scores against the dimension of inputs (the dyadic paper's Figure 3)"),
    "per-dimension": Picture(per_dimension, "ensemble+ against ensemble, by data per dimension (Figure 5)"),
    "reliability": Picture(reliability, "accuracy against confidence, of held-out labels"),
    "risk": Picture(risk, "errors among the most confident, of held-out labels"),
    "uncertainty": Picture(uncertainty, "uncertainty of inputs that were held out, and from elsewhere"),
    "regret": Picture(regret, "cumulative regret against time", "bandits"),
    "learning": Picture(learning, "scores against the number of labels asked for", "active"),
}


def save(axes: Any, path: str | Path) -> None:
    """Write the figure of some axes to a .png, .pdf or .svg file, whole or not at all, and close it.

    Args:
        axes: what a function of `pt.plots` returned.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: expected a name that ends in .png, .pdf or .svg")
    figure = np.array(axes, dtype=object).flat[0].figure
    with style():
        try:
            write_whole(path, lambda file: figure.savefig(file, format=path.suffix[1:]))
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
    plt.close(figure)


__all__ = [
    "FIGURES",
    "STYLE",
    "agents",
    "calibration_ranks",
    "correlation",
    "cost",
    "data",
    "dimensions",
    "learning",
    "marginal_joint",
    "per_dimension",
    "predictive_fields",
    "prior",
    "regimes",
    "regret",
    "reliability",
    "risk",
    "robustness",
    "save",
    "size",
    "style",
    "styles",
    "sweep",
    "tau_growth",
    "temperature",
    "transfer",
    "uncertainty",
]
