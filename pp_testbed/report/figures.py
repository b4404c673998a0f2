"""Pictures: predictive fields in two dimensions, and calibration ranks. Each returns a figure of matplotlib.

Figures of chains (trace, rank, energy) are ArviZ's own, on `posterior.to_arviz()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.experiments.sbc import LEVEL, QUANTITIES, Calibration, band, ecdf_gap
from pp_testbed.inference.base import log_weights_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXTENT, RESOLUTION = 3.0, 81  # of the square of inputs that is shown, and its pixels per side


def predictive_fields(problem: Any, posteriors: Mapping[str, Any]) -> Figure:
    """p(y = 1 | x) over two-dimensional inputs: the truth's and each posterior's predictive mean.

    Args:
        problem: a problem with two inputs. posteriors: by their titles.

    Example:
        >>> predictive_fields(problem, {"mine": posterior, "NUTS": reference.posterior})  # doctest: +SKIP
    """
    if problem.input_dim != 2:
        raise UsageError(f"{problem.name} has {problem.input_dim} inputs; a field needs two")
    axis = np.linspace(-EXTENT, EXTENT, RESOLUTION)
    x = jnp.asarray(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2), dtype=jnp.float32)
    fields = {"truth": jax.nn.softmax(problem.environment.logits(x))[:, 1]}
    for title, posterior in posteriors.items():
        logits = posterior.logits(jax.random.key(0), x, 500)
        weights = jnp.exp(log_weights_of(posterior, len(logits)))
        fields[title] = jnp.einsum("m,mn->n", weights, jax.nn.softmax(logits)[..., 1])
    figure, axes = panels(len(fields), 2.6)
    x_data, y_data = np.asarray(problem.task.x), np.asarray(problem.task.y)
    for panel, (title, field) in zip(axes, fields.items(), strict=True):
        image = panel.imshow(
            np.asarray(field).reshape(RESOLUTION, RESOLUTION),
            origin="lower",
            extent=(-EXTENT, EXTENT) * 2,
            cmap="RdBu_r",
            vmin=0.0,
            vmax=1.0,
        )
        colours = np.where(y_data == 1, "tab:red", "tab:blue")
        panel.scatter(*x_data.T, c=colours, s=14, edgecolors="white", linewidths=0.7)
        panel.set(
            title=title, xlim=(-EXTENT, EXTENT), ylim=(-EXTENT, EXTENT), xticks=[-2, 0, 2], yticks=[-2, 0, 2]
        )
    figure.colorbar(image, ax=axes, label="p(y = 1 | x)", shrink=0.8)
    figure.suptitle(problem.name, fontsize=10)
    return figure


def calibration_ranks(calibrations: Sequence[Calibration]) -> Figure:
    """ECDF of the normalised ranks minus the uniform's, in the simultaneous band, per method."""
    figure, axes = panels(len(calibrations), 2.9)
    for panel, calibration in zip(axes, calibrations, strict=True):
        # All quantities together stay inside their bands with probability LEVEL.
        z, lower, upper = band(len(calibration.ranks), 1.0 - (1.0 - LEVEL) / len(QUANTITIES))
        panel.fill_between(z, lower, upper, color="0.85", step="mid", label=f"{LEVEL:.0%} band")
        for name, ranks in zip(QUANTITIES, calibration.ranks.T, strict=True):
            emphasis = (
                {"color": "tab:orange", "lw": 1.6} if name == "log likelihood" else {"color": "tab:blue"}
            )
            panel.step(*ecdf_gap(ranks), where="mid", **{"lw": 0.9, **emphasis}, label=name.rstrip(" 1234"))
        verdict = "calibrated" if calibration.passed else "not calibrated"
        panel.set_title(
            f"{calibration.method}, T = {calibration.num_train}\n{verdict}, p = {calibration.p_value:.2g}",
            fontsize=9,
        )
        panel.set_xlabel("normalised rank")
    axes[0].set_ylabel("ECDF − uniform")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes[0].legend(unique.values(), unique.keys(), fontsize=7)
    return figure


def panels(
    number: int, side: float, height: float | None = None, columns: int | None = None, sharey: bool = True
) -> tuple[Figure, Any]:
    """A figure of so many panels, `side` inches wide and `height` high, in rows of `columns`: [panels]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = columns or number
    rows = -(-number // columns)
    size = side * columns + 0.8, (height or side) * rows + 0.5
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, sharey=sharey, squeeze=False).ravel()
