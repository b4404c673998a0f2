"""Pictures of decisions: regret against time and scores, generative models compared, active learning.

The numbers behind them are in `report.decisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pp_testbed.engine.store import OK
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.scores import HEADLINES
from pp_testbed.report.decisions import (
    across_models,
    common_agents,
    common_steps,
    correlations,
    of_learning,
    places,
    tables_of_models,
)
from pp_testbed.report.leaderboard import method_labels
from pp_testbed.report.plots.style import DIVERGING, log_ticks, panels, plain, style, styles


@style()
def regret(frame: pd.DataFrame, ax: Any = None) -> np.ndarray:
    """Cumulative regret against time, means over seeds with their standard errors; a panel per bandit.

    Args:
        frame: as `pt.bandit` returns it or `pt.read_bandits` reads it.
        ax: as many axes as bandits.
    """
    good = frame[(frame.status == OK) & (frame.method != "oracle")]
    if good.empty:
        raise UsageError("there is no regret to draw")
    good = good.assign(label=method_labels(good), place=places(good))
    looks, shown = styles(good.label), list(dict.fromkeys(good.sort_values("input_dim").place))
    made = panels(len(shown), 3.4, ax, height=3.2, columns=min(3, len(shown)), sharey=False)
    for axis, place in zip(made.axes, shown, strict=False):
        here = good[good.place == place]
        here = here[here.step.isin(common_steps(here))]
        means = here.groupby(["label", "step"]).regret.mean()
        lowest = min(means[means > 0], default=1.0)
        for label, runs in here.groupby("label"):
            curve = runs.groupby("step").regret.agg(["mean", "sem"])
            axis.plot(curve.index, curve["mean"], label=plain(label), markevery=0.15, **looks[label])
            low, high = curve["mean"] - curve["sem"], curve["mean"] + curve["sem"]
            axis.fill_between(curve.index, low, high, color=looks[label]["color"], alpha=0.15, lw=0)
        seeds, actions = here.seed.nunique(), here.num_actions.iloc[0]
        axis.set(xscale="log", yscale="log", xlabel="step", ylim=(0.8 * lowest, None))
        axis.set_title(f"{place}\n{actions} actions, {seeds} seeds")
    made.axes[0].set_ylabel("cumulative regret")
    made.legend()
    return made.axes[: len(shown)]


@style()
def correlation(
    bandits: pd.DataFrame,
    results: pd.DataFrame,
    methods: Sequence[str] = (),
    step: int | None = None,
    testbed: str | None = None,
    ax: Any = None,
) -> np.ndarray:
    """Mean regret against mean scores, a point per agent with standard errors; three panels per bandit.

    Args:
        bandits: as `pt.bandit` returns them.
        results: as `pt.run` returns them.
        methods: only these; see `pt.correlations`.
        step: after which regrets count.
        testbed: of which model the scores are.
        ax: as many axes.
    """
    table = correlations(bandits, results, methods, step, testbed)
    tables, models = tables_of_models(results, bandits, methods, step), _models(results, bandits)
    looks = styles(agent for by_model in tables["regret"].values() for agent in by_model.index)
    made = panels(len(table), 2.7, ax, height=2.4, columns=len(HEADLINES), sharey=False)
    for axis, row in zip(made.axes, table.itertuples(), strict=True):
        pair = common_agents([tables[str(row.score)][str(row.testbed)], tables["regret"][str(row.model)]])
        for agent in pair[0].index:
            (x, x_error), (y, y_error) = ((t.loc[agent].mean(), t.loc[agent].sem()) for t in pair)
            axis.errorbar(x, y, xerr=x_error, yerr=y_error, lw=0.6, label=plain(agent), **looks[agent])
        axis.set(
            xscale="log",
            yscale="log",
            xlabel=f"{HEADLINES[str(row.score)]} ({models[str(row.testbed)]})",
        )
        interval = f"r = {row.correlation:.2f} [{row.low:.2f}, {row.high:.2f}]"
        axis.set_title(f"{row.model}, step {row.step}\n{interval}")
        axis.minorticks_off()
        log_ticks(axis.xaxis)
        log_ticks(axis.yaxis)
    for axis in made.axes[:: len(HEADLINES)]:
        axis.set_ylabel("regret")
    made.legend()
    return made.axes


@style()
def robustness(
    results: pd.DataFrame | None = None,
    bandits: pd.DataFrame | None = None,
    methods: Sequence[str] = (),
    ax: Any = None,
) -> np.ndarray:
    """Whether generative models agree on agents: correlations between them as matrices, a panel per score.

    Args:
        results: as `pt.run` returns them.
        bandits: as `pt.bandit` returns them.
        methods: only these; see `pt.across_models`.
        ax: as many axes as scores.
    """
    table = across_models(results, bandits, methods)
    scores = list(dict.fromkeys(table.score))
    matrices = [correlation_matrix(table[table.score == score]) for score in scores]
    models = _models(results, bandits)
    are_distinct = len(set(models.values())) == len(models)  # all of one temperature
    side = 1.2 + 0.32 * max(map(len, matrices))
    made = panels(len(scores), side, ax, height=side, sharey=False)
    before: list[str] = []
    for axis, score, matrix in zip(made.axes, scores, matrices, strict=True):
        names = [models[place] if are_distinct else place for place in matrix]
        image = axis.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1)
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(names)), [""] * len(names) if names == before else names)
        before = names
        for (i, j), value in np.ndenumerate(matrix.to_numpy()):
            colour = "white" if abs(value) > 0.7 else "black"
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
        axis.set_title(HEADLINES.get(score, score))
    made.figure.colorbar(image, ax=list(made.axes), shrink=0.7, label="correlation over agents")
    return made.axes


def _models(*frames: pd.DataFrame | None) -> dict[str, str]:
    """The generative models of frames, by the names of their places."""
    there = [frame for frame in frames if frame is not None]
    return {key: model for frame in there for key, model in zip(places(frame), frame.model, strict=True)}


def correlation_matrix(pairs: pd.DataFrame) -> pd.DataFrame:
    """The correlations of one score as a matrix of the models that have that score."""
    models = list(dict.fromkeys([*pairs.model, *pairs.other]))
    matrix = pd.DataFrame(np.eye(len(models)), models, models)
    for row in pairs.itertuples():
        matrix.loc[row.model, row.other] = matrix.loc[row.other, row.model] = row.correlation
    return matrix


@style()
def learning(frame: pd.DataFrame, score: str = "kl_joint", ax: Any = None) -> np.ndarray:
    """The score against the number of labels, means over pools with standard errors; a panel per method.

    Args:
        frame: as `pt.active` returns it.
        score: a column of it.
        ax: as many axes as methods.
    """
    good = of_learning(frame)
    good = good[good.ended]
    methods, priorities = list(dict.fromkeys(good.label)), list(dict.fromkeys(good.priority))
    looks = styles(priorities)
    made = panels(len(methods), 3.4, ax, columns=min(3, len(methods)))
    for axis, method in zip(made.axes, methods, strict=False):
        for priority in priorities:
            runs = good[(good.label == method) & (good.priority == priority)]
            curve = runs.groupby("num_labelled")[score].agg(["mean", "sem"])
            axis.errorbar(curve.index, curve["mean"], curve["sem"], label=priority, **looks[priority])
        axis.set(xscale="log", yscale="log", xlabel="labels")
        axis.set_title(f"{plain(method)}, {good.problem.nunique()} pools")
        budgets = sorted(set(good.num_labelled))
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.set_xticks([], minor=True)
        log_ticks(axis.yaxis)
    made.axes[0].set_ylabel(HEADLINES.get(score, score))
    made.legend()
    return made.axes[: len(methods)]
