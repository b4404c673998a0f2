"""Figures of a results directory: what the paper of the Neural Testbed shows about its agents.

Each takes a frame of results and gives a figure; `FIGURES` names them for the command line. Tables are
in `leaderboard`, pictures of single posteriors in `figures`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from pp_testbed.errors import UsageError, unknown
from pp_testbed.experiments.aggregate import paired_ratio, stderr_of_mean, strata
from pp_testbed.experiments.store import OK
from pp_testbed.report.figures import panels
from pp_testbed.report.leaderboard import exact_cells, method_labels, without_superseded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORES = {"kl_marginal": "d¹", "kl_joint": "d¹⁰", "kl_dyadic": "d¹⁰,²"}
EXACT = "NUTS"
MARKERS = "osD^vPX"


class Picture(NamedTuple):
    """A figure of the command line: what draws it, and what it shows."""

    draw: Callable[..., Figure]
    summary: str


def complete_cells(frame: pd.DataFrame, references: pd.DataFrame | None = None) -> pd.DataFrame:
    """Results that did not fail, under distinct names, and the exact posterior on their problems."""
    frame = without_superseded(frame)
    good = frame[frame.status == OK]
    if good.empty:
        raise UsageError("the results have no cell that ended well")
    good = good.assign(label=method_labels(good))
    exact = exact_cells(good, references).assign(label=EXACT)
    return pd.concat([good, exact], ignore_index=True) if len(exact) else good


def agents(frame: pd.DataFrame, baseline: str) -> Figure:
    """Scores of one and of ten labels, each relative to the baseline's on the same problems.

    A hollow point is over fewer problems than the others, and does not compare with them.
    """
    base = cells_of(frame, baseline)
    ratios = {
        method: [paired_ratio(cells, base, score) for score in SCORES]
        for method, cells in frame.groupby("label")
    }
    names = sorted(ratios, key=lambda method: -ratios[method][1][0])
    figure, axes = panels(len(SCORES), 3.2, height=1.0 + 0.24 * len(names))
    for i, (axis, label) in enumerate(zip(axes, SCORES.values(), strict=True)):
        values = np.array([ratios[name][i] for name in names])
        axis.axvline(1.0, color="0.8", lw=1)
        for place, (name, (value, error)) in enumerate(zip(names, values, strict=True)):
            fill = "tab:blue" if (frame.label == name).sum() == frame.problem.nunique() else "white"
            axis.errorbar(value, place, xerr=error, fmt="o", ms=4, color="tab:blue", mfc=fill)
        axis.set_xlabel(f"{label} / {baseline}")
    axes[0].set_yticks(range(len(names)), [label_with_problems(frame, name) for name in names])
    return figure


def marginal_joint(frame: pd.DataFrame, _baseline: str) -> Figure:
    """Mean score of one label against that of ten: agents that are equal in the one differ in the other."""
    frame = shared_problems(frame)
    figure, (axis,) = panels(1, 4.6)
    for i, (method, cells) in enumerate(frame.groupby("label")):
        (x, x_error), (y, y_error) = (mean_and_error(cells, score) for score in ("kl_marginal", "kl_joint"))
        axis.errorbar(x, y, xerr=x_error, yerr=y_error, ms=5, lw=0.5, label=method, **style_of(i, method))
    axis.set(xlabel="d¹", ylabel="d¹⁰", title=f"means over {frame.problem.nunique()} problems")
    figure.legend(loc="outside right upper", fontsize=7)
    return figure


def data(frame: pd.DataFrame, _baseline: str) -> Figure:
    """d¹ and d¹⁰ against the number of data."""
    return over_problems(frame, "num_train", "training data T")


def temperature(frame: pd.DataFrame, _baseline: str) -> Figure:
    """d¹ and d¹⁰ against the temperature."""
    return over_problems(frame, "temperature", "temperature ρ")


def over_problems(frame: pd.DataFrame, column: str, label: str) -> Figure:
    """Mean scores of each method as curves over a property of problems."""
    frame = shared_problems(frame, column)
    if frame[column].nunique() < 2:
        raise UsageError(f"the results have one {column} only, {frame[column].iloc[0]:g}")
    figure, axes = panels(2, 4.2, sharey=False)
    for axis, score in zip(axes, ("kl_marginal", "kl_joint"), strict=True):
        for i, (method, cells) in enumerate(frame.groupby("label")):
            curve = {value: mean_and_error(group, score) for value, group in cells.groupby(column)}
            means, errors = np.array(list(curve.values())).T
            axis.errorbar(list(curve), means, errors, ms=4, lw=1, label=method, **style_of(i, method))
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel=SCORES[score])
        places = sorted(frame[column].unique())
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.set_xticks([], minor=True)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return figure


def mean_and_error(cells: pd.DataFrame, score: str) -> tuple[float, float]:
    """The mean of a score over problems, and its standard error across seeds."""
    return cells[score].mean(), stderr_of_mean(cells[score], strata(cells))


def style_of(number: int, method: str) -> dict[str, Any]:
    """Colour and marker of the n-th method; the exact posterior is black."""
    if method == EXACT:
        return {"color": "black", "marker": "*", "ls": "--"}
    return {"color": f"C{number % 10}", "marker": MARKERS[number // 10 % len(MARKERS)]}


def regimes(frame: pd.DataFrame, baseline: str) -> Figure:
    """d¹⁰ relative to the baseline for each number of data and temperature: where a method is better."""
    base = cells_of(frame, baseline)
    others = [method for method in dict.fromkeys(frame.label) if method != baseline]
    if not others:
        raise UsageError(f"the results have no method but {baseline}")
    figure, axes = panels(len(others), 2.6, height=1.4, columns=min(3, len(others)))
    for axis, method in zip(axes, others, strict=False):
        columns = ["problem", "temperature", "num_train", "kl_joint"]
        both = frame.loc[frame.label == method, columns].merge(base[["problem", "kl_joint"]], on="problem")
        means = [
            both.pivot_table(index="temperature", columns="num_train", values=column)
            for column in ("kl_joint_x", "kl_joint_y")
        ]
        ratio = means[0] / means[1]
        axis.imshow(np.log2(ratio), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        axis.set_xticks(range(len(ratio.columns)), ratio.columns, fontsize=7)
        axis.set_yticks(range(len(ratio.index)), ratio.index, fontsize=7)
        for (row, column), value in np.ndenumerate(ratio.to_numpy()):
            colour = "white" if abs(np.log2(value)) > 0.7 else "black"
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
        axis.set_title(method, fontsize=8)
    for axis in axes[len(others) :]:
        axis.set_visible(False)
    figure.supxlabel("training data T", fontsize=8)
    figure.supylabel("temperature ρ", fontsize=8)
    figure.suptitle(f"d¹⁰ / {baseline}", fontsize=9)
    return figure


def size(frame: pd.DataFrame, _baseline: str) -> Figure:
    """Scores against the number of members of an ensemble."""
    return profile(frame, "size", ["size"])


def prior(frame: pd.DataFrame, _baseline: str) -> Figure:
    """Scores against the scale of additive prior functions, and by bootstrap."""
    return profile(frame, "prior", ["prior_scale", "bootstrap"])


def sweep(frame: pd.DataFrame, _baseline: str) -> Figure:
    """Scores against every hyperparameter of which there are several values."""
    return profile(frame, "sweep")


def profile(frame: pd.DataFrame, name: str, wanted: list[str] | None = None) -> Figure:
    """The best mean score for each value of an option, over the other options, relative to the best of all.

    One panel per method and option; from results with several configurations of a method, such as those
    that `pp-testbed tune` leaves. Configurations that have not all of a method's problems are left out.
    """
    varied = []
    for method, cells in frame[frame.label != EXACT].groupby("method"):
        cells = cells.sort_values("version").drop_duplicates(["problem", "config"], keep="last")
        numbers = cells.groupby("config").problem.nunique()
        cells = cells[cells.config.map(numbers) == cells.problem.nunique()]
        settings = settings_of(cells)
        for option in settings.columns:
            if settings[option].nunique() > 1 and (wanted is None or option in wanted):
                varied.append((method, option, settings[option], cells))
    if not varied:
        what = " or ".join(wanted) if wanted else "any option"
        raise UsageError(
            f"figure {name}: no method of these results has several values of {what}; try the results "
            "directory of pp-testbed tune"
        )
    figure, axes = panels(len(varied), 2.5, height=1.9, columns=min(4, len(varied)), sharey=False)
    for axis, (method, option, values, cells) in zip(axes, varied, strict=False):
        _draw_profile(axis, values, cells)
        axis.set_title(f"{method}: {option}, {cells.problem.nunique()} problems", fontsize=7)
    for axis in axes[len(varied) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7)
    figure.supylabel("mean score / lowest mean score", fontsize=8)
    return figure


def _draw_profile(axis: Axes, values: pd.Series, cells: pd.DataFrame) -> None:
    """Profiles of all scores over the values of an option, which configurations have: values by config."""
    for score, label in SCORES.items():
        means = cells.groupby("config")[score].mean()
        best = means.groupby(values.reindex(means.index)).min()
        places = list(best.index)
        is_scale = all(isinstance(value, float | int) and not isinstance(value, bool) for value in places)
        x = places if is_scale else range(len(places))
        # Values that a sampler drew are points: no two share the other options.
        line = "-" if len(places) <= 10 else ""
        axis.plot(x, best / means.min(), marker="o", ms=3, lw=1, ls=line, label=label)
    if is_scale:
        positive = [value for value in places if value > 0]
        if max(positive) / min(positive) >= 10:
            axis.set_xscale("symlog", linthresh=min(positive))  # logarithmic, but for 0
    else:
        axis.set_xticks(range(len(places)), [str(value) for value in places], fontsize=6, rotation=30)
    if axis.get_ylim()[1] > 3.0:
        axis.set_yscale("log")
    axis.tick_params(labelsize=6, which="both")


def settings_of(cells: pd.DataFrame) -> pd.DataFrame:
    """The options of each configuration of one method, a row each, lists as text."""
    configs = cells.config.drop_duplicates()
    rows = [json.loads(config)["method"] for config in configs]
    flat = [{key: _shown(value) for key, value in row.items()} for row in rows]
    return pd.DataFrame(flat, index=configs).drop(columns=["class", "name"], errors="ignore")


def _shown(value: Any) -> Any:
    """A value of a configuration: lists as on the command line, what is no number or text as JSON."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else value


def cells_of(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """The cells of one method, which must be there."""
    if method not in set(frame.label):
        raise unknown("baseline", method, sorted(set(frame.label)))
    return frame[frame.label == method]


def shared_problems(frame: pd.DataFrame, by: str | None = None) -> pd.DataFrame:
    """The cells of problems that every method has, so that their means can be compared.

    The exact posterior is kept only if it has all of them, or all of those of a value of the column `by`.
    """
    others = frame[frame.label != EXACT]
    counts = others.groupby("problem").label.nunique()
    shared = counts[counts == others.label.nunique()].index
    if shared.empty:
        raise UsageError("there is no problem that all methods have")
    frame = frame[frame.problem.isin(shared)]
    group = frame[by] if by else pd.Series(0, index=frame.index)
    is_exact = frame.label == EXACT
    numbers = frame.problem.groupby(group).nunique()
    found = frame.problem[is_exact].groupby(group[is_exact]).nunique()
    is_whole = group.map(found.reindex(numbers.index) == numbers)
    return frame[~is_exact | is_whole]


def label_with_problems(frame: pd.DataFrame, method: str) -> str:
    """A method's name, with the number of its problems where it has not all."""
    number, total = (frame.label == method).sum(), frame.problem.nunique()
    return method if number == total else f"{method} ({number} problems)"


FIGURES = {
    "agents": Picture(agents, "d¹, d¹⁰ and d¹⁰,² of each method relative to a baseline"),
    "marginal-joint": Picture(marginal_joint, "one label's score against ten labels'"),
    "data": Picture(data, "scores against the number of data"),
    "temperature": Picture(temperature, "scores against the temperature"),
    "regimes": Picture(regimes, "d¹⁰ relative to a baseline, by data and temperature"),
    "size": Picture(size, "scores against the size of ensembles"),
    "prior": Picture(prior, "scores against the scale of prior functions, and bootstraps"),
    "sweep": Picture(sweep, "scores against every hyperparameter that was varied"),
}


def figure(
    name: str, frame: pd.DataFrame, baseline: str = "mlp", references: pd.DataFrame | None = None
) -> Figure:
    """One of `FIGURES` from results.

    Args:
        name: of the figure. frame: as `pt.run` returns it or `pandas.read_parquet` reads it.
        baseline: the method that others are relative to, where they are.
        references: the table of `pt.references()`, which is read if this is None.

    Example:
        >>> figure("agents", frame).savefig("agents.png")  # doctest: +SKIP
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name].draw(complete_cells(frame, references), baseline)
