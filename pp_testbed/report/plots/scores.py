"""Pictures of results: what the paper of the Neural Testbed shows about its agents, and what they cost.

Each takes a frame, as `pt.run` returns it or `pandas.read_parquet` reads it, and returns axes. Tables are in
`report.leaderboard`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pp_testbed.engine.store import OK
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.aggregate import lead_of, mean_score, paired_difference, paired_ratio
from pp_testbed.evaluation.scores import OF_TRUTH, SYMBOLS
from pp_testbed.report.leaderboard import exact_cells, method_labels, without_superseded
from pp_testbed.report.plots.style import DIVERGING, EXACT, PALETTE, log_ticks, panels, plain, style, styles


def complete_cells(frame: pd.DataFrame, references: pd.DataFrame | None = None) -> pd.DataFrame:
    """Results that did not fail, under distinct names, and the exact posterior on their problems."""
    frame = without_superseded(frame)
    good = frame[frame.status == OK]
    if good.empty:
        raise UsageError("the results have no cell that ended well")
    good = good.assign(label=method_labels(good))
    exact = exact_cells(good, references)
    exact = exact.assign(label=EXACT, fit_seconds=exact.seconds)
    return pd.concat([good, exact], ignore_index=True) if len(exact) else good


@style()
def agents(
    frame: pd.DataFrame, baseline: str = "mlp", ax: Any = None, references: pd.DataFrame | None = None
) -> np.ndarray:
    """d¹, d¹⁰ and d¹⁰,² of each method, relative to the baseline's on the same problems: three panels.

    A hollow point is over fewer problems than the others, and does not compare with them.

    Args:
        frame: results.
        baseline: the method that others are relative to.
        ax: three axes to draw on.
        references: the table of `pt.references()`, read if this is None.

    Examples:
        >>> [axis.get_xlabel() for axis in agents(frame)]
        ['d¹ / mlp', 'd¹⁰ / mlp', 'd¹⁰,² / mlp']
    """
    frame = complete_cells(frame, references)
    base, lead = cells_of(frame, baseline), lead_of(frame)
    relative, sign, one = (paired_ratio, "/", 1.0) if lead is OF_TRUTH else (paired_difference, "−", 0.0)
    ratios = {
        method: [relative(cells, base, score)[:2] for score in lead]
        for method, cells in frame.groupby("label")
    }
    names = sorted(ratios, key=lambda method: -ratios[method][1][0])
    shared = {name: cells_of(frame, name).problem.isin(base.problem).sum() for name in names}
    labels = {name: with_infinity(name, cells_of(frame, name)[lead.joint]) for name in names}
    partial = {name for name in names if shared[name] < frame.problem.nunique()}
    labels |= {name: f"{labels[name]} ({shared[name]} problems)" for name in partial}
    made = panels(len(lead), 2.7, ax, height=1.0 + 0.24 * len(names))
    for i, (axis, label) in enumerate(zip(made.axes, lead.symbols.values(), strict=True)):
        values = np.array([ratios[name][i] for name in names])
        axis.axvline(one, color="0.8", lw=1)
        for place, (name, (value, error)) in enumerate(zip(names, values, strict=True)):
            fill = "white" if name in partial else PALETTE[0]
            axis.errorbar(value, place, xerr=error, fmt="o", color=PALETTE[0], mfc=fill)
        axis.set_xlabel(f"{label} {sign} {plain(baseline)}")
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.set_yticks(range(len(names)), [plain(labels[name]) for name in names])
        axis.tick_params(labelleft=i == 0)
    return made.axes


@style()
def marginal_joint(frame: pd.DataFrame, ax: Any = None, references: pd.DataFrame | None = None) -> Axes:
    """d¹ against d¹⁰, a point per method: those that are equal in the one differ in the other.

    Args:
        frame: results.
        ax: the axes to draw on.
        references: the table of `pt.references()`, read if this is None.
    """
    frame = shared_problems(complete_cells(frame, references))
    lead = lead_of(frame)
    points = {
        name: (mean_score(cells, lead.marginal)[:2], mean_score(cells, lead.joint)[:2])
        for name, cells in frame.groupby("label")
    }
    axis = scatter(points, ax)
    axis.set(xlabel=SYMBOLS[lead.marginal], ylabel=SYMBOLS[lead.joint])
    axis.set_title(f"means over {words_on_problems(frame)}")
    axis.xaxis.set_major_locator(MaxNLocator(4))
    return axis


@style()
def cost(frame: pd.DataFrame, ax: Any = None, references: pd.DataFrame | None = None) -> Axes:
    """d¹⁰ against the seconds that fitting a problem takes: who is below and left of others is better.

    The seconds of NUTS are those of the table of references, of the machine that made it.

    Args:
        frame: results.
        ax: the axes to draw on.
        references: the table of `pt.references()`, read if this is None.
    """
    frame = shared_problems(complete_cells(frame, references))
    timed, joint = frame[frame.fit_seconds.notna()], lead_of(frame).joint
    points = {
        name: ((cells.fit_seconds.mean(), None), mean_score(cells, joint)[:2])
        for name, cells in timed.groupby("label")
    }
    axis = scatter(points, ax)
    axis.set(xscale="log", xlabel="seconds to fit a problem", ylabel=SYMBOLS[joint])
    log_ticks(axis.xaxis)
    axis.set_title(f"means over {words_on_problems(frame)}")
    return axis


def scatter(points: dict[str, Any], ax: Any = None) -> Axes:
    """A point with error bars for each method: ((x, error), (y, error)) by label."""
    made, looks = panels(1, 4.2, ax), styles(points)
    (axis,) = made.axes
    for name, ((x, x_error), (y, y_error)) in points.items():
        label = plain(with_infinity(name, [x, y]))
        axis.errorbar(x, y, xerr=x_error, yerr=y_error, lw=0.6, label=label, **looks[name])
    made.legend()
    return axis


@style()
def data(frame: pd.DataFrame, ax: Any = None, references: pd.DataFrame | None = None) -> np.ndarray:
    """d¹ and d¹⁰ against the number of data.

    Args:
        frame: results.
        ax: two axes to draw on.
        references: the table of `pt.references()`, read if this is None.
    """
    return over_problems(complete_cells(frame, references), "num_train", "training data T", ax)


@style()
def temperature(frame: pd.DataFrame, ax: Any = None, references: pd.DataFrame | None = None) -> np.ndarray:
    """d¹ and d¹⁰ against the temperature.

    Args:
        frame: results.
        ax: two axes to draw on.
        references: the table of `pt.references()`, read if this is None.
    """
    return over_problems(complete_cells(frame, references), "temperature", "temperature ρ", ax)


def over_problems(frame: pd.DataFrame, column: str, words: str, ax: Any) -> np.ndarray:
    """Mean scores of each method as curves over a property of problems."""
    frame = shared_problems(frame, column)
    if frame[column].nunique() < 2:
        value = f"{frame[column].iloc[0]:g}"
        raise UsageError(f"the problems that all methods have are of one {column} only, {value}")
    made, looks = panels(2, 3.8, ax, sharey=False), styles(frame.label)
    made.titles(f"means over {words_on_problems(frame[frame.label != EXACT])}")
    lead, scale = lead_of(frame), "log" if lead_of(frame) is OF_TRUTH else "linear"
    for axis, score in zip(made.axes, (lead.marginal, lead.joint), strict=True):
        for method, cells in frame.groupby("label"):
            curve = {value: mean_score(group, score)[:2] for value, group in cells.groupby(column)}
            means, errors = np.array(list(curve.values())).T
            label = plain(with_infinity(method, means))
            axis.errorbar(list(curve), means, errors, label=label, **looks[method])
        axis.set(xscale="log", yscale=scale, xlabel=words, ylabel=SYMBOLS[score])
        places = sorted(frame[column].unique())
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.set_xticks([], minor=True)
        if lead is OF_TRUTH:
            log_ticks(axis.yaxis)
    made.legend()
    return made.axes


@style()
def regimes(
    frame: pd.DataFrame, baseline: str = "mlp", ax: Any = None, references: pd.DataFrame | None = None
) -> np.ndarray:
    """d¹⁰ relative to the baseline for each number of data and temperature: where a method is better.

    Args:
        frame: results.
        baseline: the method that others are relative to.
        ax: as many axes as there are other methods.
        references: the table of `pt.references()`, read if this is None.
    """
    frame = complete_cells(frame, references)
    if lead_of(frame) is not OF_TRUTH:
        raise UsageError("regimes are ratios of divergences from known truths; these results are of data")
    base = cells_of(frame, baseline)
    others = [method for method in dict.fromkeys(frame.label) if method != baseline]
    if not others:
        raise UsageError(f"the results have no method but {baseline}")
    made = panels(len(others), 2.6, ax, height=1.4, columns=min(3, len(others)))
    for axis, method in zip(made.axes, others, strict=False):
        columns = ["problem", "temperature", "num_train", "kl_joint"]
        both = frame.loc[frame.label == method, columns].merge(base[["problem", "kl_joint"]], on="problem")
        means = [
            both.pivot_table(index="temperature", columns="num_train", values=column)
            for column in ("kl_joint_x", "kl_joint_y")
        ]
        ratio = means[0] / means[1]
        axis.imshow(np.log2(ratio), cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto")
        axis.set_xticks(range(len(ratio.columns)), ratio.columns)
        axis.set_yticks(range(len(ratio.index)), ratio.index)
        for (row, column), value in np.ndenumerate(ratio.to_numpy()):
            colour = "white" if abs(np.log2(value)) > 0.7 else "black"
            axis.text(
                column,
                row,
                f"{value:.2f}".replace("inf", "∞"),
                ha="center",
                va="center",
                fontsize=6,
                color=colour,
            )
        axis.set_title(plain(method))
    made.titles(f"d¹⁰ / {plain(baseline)}", "training data T", "temperature ρ")
    return made.axes[: len(others)]


@style()
def size(frame: pd.DataFrame, ax: Any = None) -> np.ndarray:
    """Scores against the number of members of an ensemble: a panel per method of several sizes.

    Args:
        frame: results with several configurations of a method.
        ax: as many axes as there are panels.
    """
    return profile(frame, "size", ax, ["size"])


@style()
def prior(frame: pd.DataFrame, ax: Any = None) -> np.ndarray:
    """Scores against the scale of additive prior functions, and by bootstrap: a panel per method and option.

    Args:
        frame: results with several configurations of a method.
        ax: as many axes as there are panels.
    """
    return profile(frame, "prior", ax, ["prior_scale", "bootstrap"])


@style()
def sweep(frame: pd.DataFrame, ax: Any = None) -> np.ndarray:
    """Scores against every hyperparameter of which there are several values: a panel per method and option.

    Args:
        frame: results with several configurations of a method.
        ax: as many axes as there are panels.
    """
    return profile(frame, "sweep", ax)


def profile(frame: pd.DataFrame, name: str, ax: Any, wanted: list[str] | None = None) -> np.ndarray:
    """The best mean score for each value of an option, over the other options, relative to the best of all.

    One panel per method and option; from results with several configurations of a method, such as those
    that `pp-testbed tune` leaves. Configurations that have not all of a method's problems are left out.
    """
    varied = []
    frame = without_superseded(frame)
    for method, cells in frame[frame.status == OK].groupby("method"):
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
    made = panels(len(varied), 2.5, ax, height=1.9, columns=min(4, len(varied)), sharey=False)
    for axis, (method, option, values, cells) in zip(made.axes, varied, strict=False):
        _draw_profile(axis, values, cells)
        axis.set_title(f"{plain(method)}: {option}, {cells.problem.nunique()} problems", fontsize=8)
    made.axes[0].legend()
    made.titles(y="mean score / lowest mean score")
    return made.axes[: len(varied)]


def _draw_profile(axis: Axes, values: pd.Series, cells: pd.DataFrame) -> None:
    """Profiles of all scores over the values of an option, which configurations have: values by config."""
    symbols = lead_of(cells).symbols
    for (score, label), look in zip(symbols.items(), styles(symbols).values(), strict=False):
        means = cells.groupby("config")[score].mean()
        best = means.groupby(values.reindex(means.index)).min()
        places = list(best.index)
        is_scale = all(isinstance(value, float | int) and not isinstance(value, bool) for value in places)
        x = places if is_scale else range(len(places))
        # Values that a sampler drew are points: no two share the other options.
        look = look if len(places) <= 10 else look | {"ls": ""}
        axis.plot(x, best / means.min(), ms=3, label=label, **look)
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


def words_on_problems(frame: pd.DataFrame) -> str:
    """How many problems a picture is of."""
    number = frame.problem.nunique()
    return f"{number} problems that all have" if number > 1 else "one problem"


def with_infinity(method: str, values: Any) -> str:
    """A method's name, with ∞ where a score of it is infinite and no axis can show it."""
    return f"{method} (∞)" if np.isinf(values).any() else method
