"""Tables of decisions: regrets, what active learning gained, and whether scores predict them.

Frames are those of `pt.bandit`, `pt.active` and `pt.run`. Correlations are between logarithms of agents'
means; their intervals are Fisher's, over agents, widened by what seeds leave to chance.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm, quantile_test

from pp_testbed.engine.store import OK
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.aggregate import mean_score, paired_ratio
from pp_testbed.evaluation.scores import HEADLINES
from pp_testbed.report.leaderboard import check_baseline, method_labels, without_superseded

BOUNDS = ("oracle", "uniform", "prior")  # which do not learn: no correlation is about them
LEVEL = 0.95  # of intervals of correlations
FEWEST_AGENTS = 4  # of which a correlation says anything


def at_horizon(frame: pd.DataFrame, step: int | None = None) -> pd.DataFrame:
    """The regret of each run after one step: if none is given, the last that all runs of its bandit have."""
    frame = frame.assign(label=method_labels(frame))
    good = frame[frame.status == OK]
    if good.empty:
        raise UsageError("there is no bandit run that ended well")
    parts = []
    for (model, _), group in good.groupby(["model", "temperature"]):
        common = common_steps(group)
        wanted = max(common, default=0) if step is None else step
        if wanted not in common:
            some = f"they share {', '.join(map(str, common[-5:]))}" if common else "they share none"
            raise UsageError(f"not all runs of {model} have a regret after step {wanted}; {some}")
        parts.append(group[group.step == wanted])
    return pd.concat(parts)


def common_steps(runs: pd.DataFrame) -> list[int]:
    """The logged steps that all of these runs have."""
    number = len(runs.drop_duplicates(["label", "problem"]))
    counts = runs.groupby("step").size()
    return sorted(int(step) for step in counts.index[counts == number])


def regrets(frame: pd.DataFrame, baseline: str = "mlp", step: int | None = None) -> pd.DataFrame:
    """One row per bandit and method, least regret first.

    `regret` is the mean over seeds, `ratio` that over the baseline's on the same seeds, each with its
    standard error. Regrets are heavy-tailed, and of twenty seeds the interval of two errors around a mean
    misses it in up to a third of cases: see `median`, and the ends of its 95 % interval, which assumes no
    distribution. Runs that failed are in none of them, and `failed` says how many: what fails is seldom a
    seed like the others.

    Args:
        frame: as `pt.bandit` returns it.
        step: the horizon; the last one that all runs have if None.
    """
    cells = at_horizon(frame, step)
    named = frame.assign(label=method_labels(frame))
    tried = named.groupby(["model", "temperature", "label"]).problem.nunique()
    check_baseline(baseline, cells.label)
    rows = []
    for (model, rho), group in cells.groupby(["model", "temperature"]):
        base = group[group.label == baseline]
        for label, runs in group.groupby("label"):
            regret, ratio = mean_score(runs, "regret"), paired_ratio(runs, base, "regret")
            middle = quantile_test(runs.regret, p=0.5).confidence_interval(LEVEL)
            rows.append(
                {
                    "model": model,
                    "temperature": rho,
                    "num_actions": runs.num_actions.iloc[0],
                    "step": runs.step.iloc[0],
                    "method": label,
                    "seeds": len(runs),
                    "failed": tried[model, rho, label] - len(runs),
                    "regret": regret.value,
                    "regret_stderr": regret.stderr,
                    "ratio": ratio.value,
                    "ratio_stderr": ratio.stderr,
                    "median": runs.regret.median(),
                    "median_low": middle.low,
                    "median_high": middle.high,
                    "seconds": runs.seconds.mean(),
                }
            )
    order = ["num_actions", "model", "temperature", "regret"]
    return pd.DataFrame(rows).sort_values(order, ignore_index=True)


def agents_by_problem(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column with agents as rows and `(seed, problem)` as columns; NaN where an agent lacks the problem."""
    return frame.pivot_table(index="label", columns=["seed", "problem"], values=column)


def log_correlation(tables: Sequence[pd.DataFrame]) -> tuple[float, float, float]:
    """The correlation over agents of two logarithms of means over seeds, and its 95 % interval.

    With z = atanh(r) the interval is tanh(z ± 1.96 s), s² = 1 / (n - 3) + the jackknife's variance of z over
    the seeds of each table. The first term is that of n agents from a bivariate normal distribution (Fisher,
    1921, "On the Probable Error of a Coefficient of Correlation"): among few agents, quantiles of a bootstrap
    over them are too narrow. What is estimated is the correlation of the means as they are, over so many
    seeds: noise in means makes it smaller than that of noiseless ones.

    Args:
        tables: two, of values of the same agents as rows, with seeds as columns.
    """
    values = [table.to_numpy() for table in tables]

    def z_of(*values: np.ndarray) -> float:
        means = [np.log(value.mean(axis=1)) for value in values]
        with np.errstate(divide="ignore", invalid="ignore"):  # agents on a line, or all equal
            return float(np.arctanh(np.clip(np.corrcoef(*means)[0, 1], -1.0, 1.0)))

    z, variance = z_of(*values), 1.0 / (len(values[0]) - 3)
    if np.isnan(z):
        raise UsageError("these agents are all equal in a score or in regret: there is no correlation")
    if np.isinf(z):
        return (float(np.sign(z)),) * 3
    for place, value in enumerate(values):
        num = value.shape[1]
        rest = [np.delete(value, seed, axis=1) for seed in range(num)]
        variance += (num - 1) * np.var([z_of(*values[:place], one, *values[place + 1 :]) for one in rest])
    reach = norm.ppf(0.5 + LEVEL / 2) * np.sqrt(variance)
    return float(np.tanh(z)), float(np.tanh(z - reach)), float(np.tanh(z + reach))


def tables_of_models(
    results: pd.DataFrame | None,
    bandits: pd.DataFrame | None,
    methods: Sequence[str] = (),
    step: int | None = None,
) -> dict[str, dict[str, pd.DataFrame]]:
    """Scores and regrets of agents, as of `agents_by_problem`: by score, by generative model.

    An agent is known by its name or, where there are several configurations of one, by what they differ in.

    Args:
        results: as `pt.run` returns them.
        bandits: as `pt.bandit` returns them.
        methods: only these; if none are given, all but the bounds.
        step: see `at_horizon`.
    """
    parts = []
    if results is not None:
        good = without_superseded(results)
        good = _of_methods(good[good.status == OK], methods)
        good = good.assign(label=method_labels(good))
        parts += [(good, score) for score in HEADLINES]
    if bandits is not None:
        parts.append((at_horizon(_of_methods(bandits, methods), step), "regret"))
    tables: dict[str, dict[str, pd.DataFrame]] = {}
    for frame, score in parts:
        by_place = frame.groupby(places(frame))
        tables[score] = {str(place): agents_by_problem(group, score) for place, group in by_place}
    return tables


def place(model: str, temperature: float) -> str:
    """What people call a generative model at a temperature."""
    return f"{model}, ρ = {temperature}"


def places(frame: pd.DataFrame) -> pd.Series:
    """That of each row."""
    return pd.Series(list(map(place, frame.model, frame.temperature)), index=frame.index)


def _of_methods(frame: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """The rows of some methods, or of all but the bounds."""
    known = sorted(set(frame.method))
    for method in methods:
        if method not in known:
            raise unknown("method", method, known)
    wanted = list(methods) or [method for method in known if method not in BOUNDS]
    return frame[frame.method.isin(wanted)]


def correlations(
    bandits: pd.DataFrame,
    results: pd.DataFrame,
    methods: Sequence[str] = (),
    step: int | None = None,
    testbed: str | None = None,
) -> pd.DataFrame:
    """Do scores predict regret? One row per generative model and score.

    `correlation` is that of log mean regret with log mean score over agents; `low` and `high` are the ends of
    its 95 % interval: see `log_correlation`.

    Args:
        bandits: as `pt.bandit` returns them.
        results: as `pt.run` returns them, on problems of the same models and temperatures.
        methods: only these; if none are given, all that both have but oracle, uniform and prior.
        step: after which regrets count; if none is given, the last that all these runs have.
        testbed: of which model the scores are, such as "2d"; if none is given, of the bandit's own. In many
            dimensions ten random inputs have little in common, and kl_joint says no more than kl_marginal.
    """
    tables = tables_of_models(results, bandits, methods, step)
    horizons = at_horizon(_of_methods(bandits, methods), step)
    by_model = horizons.sort_values(["num_actions", "model"]).groupby(["model", "temperature"], sort=False)
    rows = []
    for (model, temperature), runs in by_model:
        regret = tables["regret"][place(model, temperature)]
        for score in HEADLINES:
            scored = place(testbed or model, temperature)  # another one's scores are of the same temperature
            if scored not in tables[score]:
                continue
            both = common_agents([regret, tables[score][scored]])
            value, low, high = log_correlation(both)
            rows.append(
                {
                    "model": place(model, temperature),
                    "step": runs.step.max(),
                    "testbed": scored,
                    "score": score,
                    "agents": len(both[0]),
                    "bandit_seeds": both[0].shape[1],
                    "problem_seeds": both[1].shape[1],
                    "correlation": value,
                    "low": low,
                    "high": high,
                }
            )
    if not rows:
        models = ", ".join(tables["regret"]), ", ".join(tables["kl_joint"])
        raise UsageError(f"the bandits are of {models[0]}; the results of {models[1]}: none in common")
    return pd.DataFrame(rows)


def across_models(
    results: pd.DataFrame | None = None, bandits: pd.DataFrame | None = None, methods: Sequence[str] = ()
) -> pd.DataFrame:
    """Do generative models agree on agents? One row per score and pair of models.

    `correlation` is that of the agents' log mean scores under one and the other, with its interval as for
    `correlations`.
    """
    rows = []
    for score, by_model in tables_of_models(results, bandits, methods).items():
        for one, other in combinations(by_model, 2):
            both = common_agents([by_model[one], by_model[other]])
            value, low, high = log_correlation(both)
            names = {"score": score, "model": one, "other": other, "agents": len(both[0])}
            rows.append(names | {"correlation": value, "low": low, "high": high})
    if not rows:
        raise UsageError(
            "these results are of one generative model; expected several, as in suite activations"
        )
    return pd.DataFrame(rows)


def common_agents(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Means of the agents that all tables have, in one order, with seeds as columns: [agents, seeds] each.

    Those of a table are over the problems that all of these agents have, whatever others lack.
    """
    common = sorted(set.intersection(*(set(table.index) for table in tables)))
    if len(common) < FEWEST_AGENTS:
        raise UsageError(
            f"{len(common)} agents in common ({', '.join(common)}); a correlation needs {FEWEST_AGENTS}"
        )
    found = [table.loc[common].dropna(axis=1).T.groupby(level="seed").mean().T for table in tables]
    if any(table.shape[1] < 2 for table in found):
        raise UsageError("these agents share fewer than two seeds: there is no interval")
    if any((table.mean(axis=1) <= 0).any() for table in found):
        raise UsageError("an agent has regret 0 or a score of 0 on average: it has no logarithm")
    return found


def learning(frame: pd.DataFrame, score: str = "kl_joint") -> pd.DataFrame:
    """What active learning gained: one row per method and priority, one column per budget.

    The mean score over pools, and the paired ratio to that of `uniform` at the largest budget. Runs that
    failed, at whatever budget, are in none of it; `failed` says how many.
    """
    frame = of_learning(frame)
    good = frame[frame.ended]
    failed = frame[~frame.ended].groupby(["label", "priority"]).problem.nunique()
    rows = []
    for (method, priority), runs in good.groupby(["label", "priority"]):
        row: dict[str, Any] = {"method": method, "priority": priority, "pools": runs.problem.nunique()}
        row["failed"] = failed.get((method, priority), 0)
        for budget, cells in runs.groupby("num_labelled"):
            row[f"{score} at {budget}"] = cells[score].mean()
        last = runs[runs.num_labelled == runs.num_labelled.max()]
        base = good[(good.label == method) & (good.priority == "uniform")]
        base = base[base.num_labelled == runs.num_labelled.max()]
        row["ratio"], row["ratio_stderr"], _ = paired_ratio(last, base, score)
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["method", "ratio"], ignore_index=True)


def of_learning(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs of active learning, with their `label`, and whether they `ended` well, at all of their budgets.

    Labels are by all that runs of a method differ in but the priority.
    """
    parts = frame.config.map(lambda config: json.dumps(json.loads(config) | {"priority": ""}, sort_keys=True))
    ended = (frame.status == OK).groupby([frame.problem, frame.config_hash]).transform("all")
    if not ended.any():
        raise UsageError("there is no run of active learning that ended well")
    return frame.assign(label=method_labels(frame.assign(config=parts, config_hash=parts)), ended=ended)
