"""Pictures of posteriors: predictive fields in two dimensions, growth with τ, and calibration ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.evaluator import evaluate
from pp_testbed.evaluation.ranks import LEVEL, QUANTITIES, Calibration, band, ecdf_gap
from pp_testbed.inference.posterior import log_weights_of
from pp_testbed.report.plots.style import FIELD, PALETTE, panels, plain, style, styles

EXTENT, RESOLUTION = 3.0, 81  # of the square of inputs that is shown, and its pixels per side
NUM_DRAWS = 500  # of which a field is the mean
TAUS = (1, 2, 5, 10)


@style()
def predictive_fields(
    problem: Any, posteriors: Mapping[str, Any], draws: int = 0, ax: Any = None
) -> np.ndarray:
    """p(y = 1 | x) over two-dimensional inputs: the truth's, each posterior's mean, and some single draws.

    Data are triangles where y = 0, and circles where y = 1.

    Args:
        problem: a problem with two inputs.
        posteriors: by their titles.
        draws: how many single draws to show of each posterior, which then has a row of its own.
        ax: 1 + len(posteriors) axes or, with draws, len(posteriors) · (2 + draws).

    Examples:
        >>> fields = {"mlp": posterior, "NUTS": reference.posterior}
        >>> [axis.get_title() for axis in predictive_fields(problem, fields)]
        ['truth', 'mlp', 'NUTS']
    """
    check_field(problem)
    grid = np.linspace(-EXTENT, EXTENT, RESOLUTION)
    x = jnp.asarray(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2), dtype=jnp.float32)
    truth = ("truth", jax.nn.softmax(problem.environment.logits(x))[:, 1])
    rows = [_fields_of(posterior, title, x, draws) for title, posterior in posteriors.items()]
    shown = [field for row in rows for field in (truth, *row)] if draws else [truth, *chain(*rows)]
    made = panels(len(shown), 2.1, ax, columns=2 + draws if draws else None)
    for axis, (title, field) in zip(made.axes, shown, strict=True):
        axis.set_title(plain(title))
        if field is None:
            axis.set_axis_off()
        else:
            image = _draw_field(axis, problem, np.asarray(field))
    made.figure.colorbar(image, ax=list(made.axes), label="p(y = 1 | x)", shrink=0.8)
    if made.is_own:
        made.titles(problem.name)
    return made.axes


def check_field(problem: Any) -> None:
    """Raise a UsageError unless a problem has a field: two inputs, two classes."""
    if problem.input_dim != 2 or problem.num_classes != 2:
        has = f"{problem.input_dim} inputs and {problem.num_classes} classes"
        raise UsageError(f"{problem.name} has {has}; a field needs two of each")


def _fields_of(posterior: Any, title: str, x: Any, draws: int) -> list[tuple[str, Any]]:
    """Titles and fields [N] of a posterior's mean and of its first draws."""
    logits = posterior.logits(jax.random.key(0), x, NUM_DRAWS)
    weights = jnp.exp(log_weights_of(posterior, len(logits)))
    probs = jax.nn.softmax(logits)[..., 1]
    single: list[tuple[str, Any]] = [
        (f"{title}, draw {i + 1}", probs[i]) for i in range(min(draws, len(probs)))
    ]
    single += [(f"{title} has no draw {i + 1}", None) for i in range(len(single), draws)]
    return [(title, jnp.einsum("m,mn->n", weights, probs)), *single]


def _draw_field(axis: Axes, problem: Any, field: np.ndarray) -> Any:
    square = (-EXTENT, EXTENT)
    image = axis.imshow(
        field.reshape(RESOLUTION, RESOLUTION),
        origin="lower",
        extent=square * 2,
        cmap=FIELD,
        vmin=0.0,
        vmax=1.0,
    )
    x, y = np.asarray(problem.task.x), np.asarray(problem.task.y)
    for label, marker in enumerate("^o"):
        left, up = x[y == label].T
        axis.scatter(left, up, marker=marker, c="white", s=16, edgecolors="black", linewidths=0.7)
    axis.set(xlim=square, ylim=square, xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    return image


@style()
def tau_growth(
    problem: Any, posteriors: Mapping[str, Any], taus: Sequence[int] = TAUS, ax: Any = None
) -> np.ndarray:
    """d^τ against τ, for τ i.i.d. inputs and for τ resampled from two.

    Both are d¹ at τ = 1. A posterior whose draws differ as they should is penalised little for more labels.

    Args:
        problem: which is evaluated on its own key.
        posteriors: by their labels.
        taus: numbers of labels.
        ax: two axes.

    Examples:
        >>> axes = tau_growth(problem, {"mlp": posterior}, taus=[1, 10])
    """
    made, looks = panels(2, 3.4, ax), styles(posteriors)
    for label, posterior in posteriors.items():
        scores = [evaluate(posterior, problem, key=problem.keys.evaluate, tau=tau) for tau in taus]
        for axis, score in zip(made.axes, ("kl_joint", "kl_dyadic"), strict=True):
            means = [getattr(each, score) for each in scores]
            errors = [getattr(each, score + "_stderr") for each in scores]
            axis.errorbar(taus, means, errors, label=plain(label), **looks[label])
    for axis, kind in zip(made.axes, ("i.i.d. inputs", "inputs resampled from two"), strict=True):
        axis.set(xlabel="labels τ", xticks=taus, title=f"{problem.name}\n{kind}")
    made.axes[0].set_ylabel("KL divergence of τ labels")
    made.legend()
    return made.axes


@style()
def calibration_ranks(calibrations: Sequence[Calibration], ax: Any = None) -> np.ndarray:
    """ECDF of the normalised ranks minus the uniform's, in the simultaneous band: a panel per method.

    Args:
        calibrations: as `pt.sbc` returns them.
        ax: as many axes.
    """
    if not calibrations:
        raise UsageError("there are no calibrations to draw")
    made = panels(len(calibrations), 2.9, ax, columns=min(3, len(calibrations)))
    for axis, calibration in zip(made.axes, calibrations, strict=True):
        # All quantities together stay inside their bands with probability LEVEL.
        z, lower, upper = band(len(calibration.ranks), 1.0 - (1.0 - LEVEL) / len(QUANTITIES))
        axis.fill_between(z, lower, upper, color="0.85", step="mid", label=f"{LEVEL:.0%} band")
        for name, ranks in zip(QUANTITIES, calibration.ranks.T, strict=True):
            is_main = name == "log likelihood"
            look: dict[str, Any] = {"color": PALETTE[1], "lw": 1.8, "ls": "--"} if is_main else {"lw": 0.8}
            look = {"color": PALETTE[0]} | look
            axis.step(*ecdf_gap(ranks), where="mid", label=name.rstrip(" 1234"), **look)
        verdict = "calibrated" if calibration.passed else "not calibrated"
        kind = f"{plain(calibration.method)}, T = {calibration.num_train}, ρ = {calibration.temperature:g}"
        title = f"{kind}\n{verdict}, p = {calibration.p_value:.2g}"
        axis.set(title=title, xlabel="normalised rank")
    made.axes[0].set_ylabel("ECDF − uniform")
    made.legend()
    return made.axes[: len(calibrations)]
