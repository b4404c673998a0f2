"""Tuning: a method's hyperparameters, by their mean score on problems that are never reported.

Each trial is a method with some options, scored by `studies.scoring` like any other, many trials together,
so that numbers are batched into one compiled program and cells that are done are not run again. A grid is no
more than that. What a sampler has tried is in `trials`.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from sklearn.model_selection import ParameterGrid

import pp_testbed
from pp_testbed.engine.identity import config_hash, describe
from pp_testbed.engine.jobs import Executor
from pp_testbed.engine.local import Local
from pp_testbed.engine.progress import Progress
from pp_testbed.engine.store import OK, create_directory, write_whole
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.aggregate import mean_score
from pp_testbed.evaluation.scores import METRICS
from pp_testbed.evaluation.terms import Evaluation
from pp_testbed.inference.options import method_name, option_value, options_of, with_options
from pp_testbed.inference.registry import METHODS, read_presets
from pp_testbed.inference.specs import MethodSpec, resolve
from pp_testbed.problems.suites import Suite, tuning_suite
from pp_testbed.problems.suites import suite as named_suite
from pp_testbed.studies.cells import facts_of
from pp_testbed.studies.scoring import configuration, run
from pp_testbed.studies.trials import (
    COLUMNS,
    SAMPLERS,
    STUDIES,
    Options,
    SharedTrials,
    as_text,
    open_trials,
    options_text,
)

SECONDS_BETWEEN_LOOKS = 0.5  # at what other processes do
NUM_TRIALS = 30  # of a study whose sampler has no end


@dataclass(frozen=True)
class Tuning:
    """What a study has found so far.

    Attributes:
        method, suite, metric, sampler: what was tuned, on which problems, by which mean score (less is
            better), and how.
        held: options that were held at other values than the defaults.
        defaults: the values of the options that were varied where a trial does not change them.
        trials: one row per trial that ended: the options that it changed, `score`, `stderr`, `error`.
        elsewhere: trials that other processes are at.
        groups: the best of each group of problems that was asked for: its `facts`, `options`, `score` and
            `stderr`.
    """

    method: str
    suite: str
    metric: str
    sampler: str
    held: Options
    defaults: Options
    trials: pd.DataFrame
    elsewhere: int = 0
    groups: tuple[dict[str, Any], ...] = ()

    @property
    def best(self) -> dict[str, Any]:
        """The trial with the lowest score: `options`, `score`, `stderr`."""
        words = f"no trial of {self.method} has ended well"
        return best_of(self.trials, words, f"{self.elsewhere} are with other processes")

    def __str__(self) -> str:
        if self.groups:
            return (
                f"the best on {self.suite} for each of {len(self.groups)} groups; {len(self.trials)} trials"
            )
        best = self.best
        options = ", ".join(
            f"{option}={value}" for option, value in (self.defaults | best["options"]).items()
        )
        score = f"{self.metric} {best['score']:.4f} ± {best['stderr']:.4f}"
        elsewhere = f"; {self.elsewhere} more are with other processes" if self.elsewhere else ""
        return f"best on {self.suite}: {options} with {score}; {len(self.trials)} trials{elsewhere}"

    def table(self) -> pd.DataFrame:
        """The trials with a column for each option, best first; or the best trial of each group."""
        if self.groups:
            rows = [group["facts"] | self.defaults | group["options"] for group in self.groups]
            scores = [{name: group[name] for name in ("score", "stderr")} for group in self.groups]
            return pd.concat([pd.DataFrame(rows), pd.DataFrame(scores)], axis=1)
        rows = [self.defaults | options for options in self.trials.options]
        options = pd.DataFrame(rows, index=self.trials.index)
        columns = [self.trials.trial, options, self.trials[["score", "stderr", "error"]]]
        return pd.concat(columns, axis=1).sort_values("score", ignore_index=True)

    def entry(self, with_held: bool = False) -> dict[str, Any]:
        """The best trial as an entry of a file of presets, such as `tuned.json`.

        With `with_held`, the options that were held are part of the preset.
        """
        held = self.held if with_held else {}
        best = {"options": {}, "score": None, "stderr": None} if self.groups else self.best
        default = self.trials.score[~self.trials.options.astype(bool)]
        where = [group | {"options": held | group["options"]} for group in self.groups]
        return {
            **best,
            "options": held | best["options"],
            **({"where": where} if where else {}),
            "metric": self.metric,
            "suite": self.suite,
            "sampler": self.sampler,
            "held": self.held,
            "default_score": float(default.iloc[0]) if len(default) else None,
            "trials": len(self.trials),
            "version": pp_testbed.__version__,
        }

    def save(self, path: str | os.PathLike[str], with_held: bool = False) -> None:
        """Put the best trial into a file of presets, next to those of other methods and other groups."""
        path = Path(path)
        entries = read_presets(path) if path.exists() else {}
        entry = self.entry(with_held)
        if self.groups:
            known = entries.get(self.method, {}).get("where", [])
            entry["where"] += [one for one in known if one["facts"] not in [g["facts"] for g in self.groups]]
        entries = entries | {self.method: entry}
        text = json.dumps(_known(dict(sorted(entries.items()))), indent=1) + "\n"
        write_whole(path, lambda file: file.write(text.encode()))


def tune(
    method: Any,
    *,
    suite: Suite | str = "2d",
    sampler: str = "grid",
    trials: int | None = None,
    metric: str = "",
    by: Sequence[str] = (),
    study: str | os.PathLike[str] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
    jobs: int = 0,
    executor: Executor | None = None,
    progress: bool = True,
    config: Evaluation | None = None,
) -> Tuning:
    """Find the options of a method with the lowest mean score; a study goes on where it was.

    Args:
        method: a name, `file.py:NAME`, a `MethodSpec` or a dataclass; options that are given are held.
        suite: what is reported: methods are tuned on problems of its kinds with the seeds 1000 and 1001, or,
            of data, on a part of the training data that is held out.
        sampler: one of `SAMPLERS`.
        trials: different options that are tried in all; the whole grid, or 30, if None.
        metric: one of `METRICS`; kl_aggregate, of data nll_joint, if none is given.
        by: facts of problems, such as ("input_dim", "num_train") or ("model", "num_train", "seed"): options
            are chosen for each group of problems that are alike in them. Of a grid.
        study: of a sampler, a journal file, or SQLite where it ends in .db; `tuning/METHOD-SAMPLER.journal`
            if None. Cells are kept in the directory `cells` beside it.
        grid: values of options instead of the method's own `sweep`, as in {"l2": [0.1, 1, 10]}.
        seed: of the sampler; the others are as for `run`.

    Examples:
        >>> len(tune("knn", suite="smoke", grid={"k": [1, 10]}, progress=False).table())  # and the default
        3
    """
    reported = named_suite(suite) if isinstance(suite, str) else suite
    metric = metric or ("nll_joint" if any(one.is_of_data for one in reported) else "kl_aggregate")
    _check_words(sampler, metric, by)
    (spec, made), evaluation = _to_be_tuned(method), config or Evaluation()
    problems, space = tuning_suite(reported), sweep_of(spec, made, grid)
    path = Path(study or Path("tuning") / f"{method_name(made)}-{sampler}.journal")
    if path.suffix not in STUDIES:
        raise UsageError(f"the study {path}: expected a name that ends in {', '.join(STUDIES)}")
    create_directory(path.parent, "a study")
    where: dict[str, Any] = {"executor": executor or Local(jobs), "progress": progress}
    score = partial(run, problems, out=path.parent / "cells", config=evaluation, **where)
    runs = Trials(spec, made, evaluation, metric, score, Progress(progress).line)
    elsewhere, groups = 0, tuple[dict[str, Any], ...]()
    if sampler == "grid":
        ended = runs.grid(distinct_points(made, space)[:trials])
        found, groups = ended.table(metric), ended.best_by_group(metric, groups_of(reported, by))
    else:
        opened = _open(runs, path, problems, sampler, space)
        shared = SharedTrials(opened, sampler, seed, space, trials or NUM_TRIALS)
        runs.sampled(shared)
        found, elsewhere = shared.table(), shared.elsewhere()
    held = dict(getattr(spec, "options", ()))
    defaults = {option: as_text(options_of(made)[option]) for one in space for option in one}
    return Tuning(method_name(made), problems.name, metric, sampler, held, defaults, found, elsewhere, groups)


def _known(described: Any) -> Any:
    """What JSON can say: an error that is not known, of a single problem, is null."""
    if isinstance(described, dict):
        return {name: _known(item) for name, item in described.items()}
    if isinstance(described, list):
        return [_known(item) for item in described]
    return None if isinstance(described, float) and math.isnan(described) else described


def _to_be_tuned(method: Any) -> tuple[Any, Any]:
    """A method in words, if it is given so, and itself, as it is before it is tuned."""
    spec = MethodSpec(method) if isinstance(method, str) else method
    if isinstance(spec, MethodSpec):
        spec = replace(spec, preset="paper")
    made = resolve(spec)
    if not is_dataclass(made):
        raise UsageError(f"{method_name(made)} is not a dataclass: it has no options to tune")
    return spec, made


def _check_words(sampler: str, metric: str, by: Sequence[str]) -> None:
    for kind, value, known in [("sampler", sampler, SAMPLERS), ("metric", metric, METRICS)]:
        if value not in known:
            raise unknown(kind, value, known)
    if by and sampler != "grid":
        raise UsageError(f"sampler {sampler} has one study for all problems; expected grid, with by")


Groups = list[tuple[dict[str, Any], set[str]]]  # facts, and names of problems


def groups_of(reported: Suite, by: Sequence[str]) -> Groups:
    """The facts that groups of problems share, and on which problems each is tuned; none of no facts."""
    groups: dict[tuple[Any, ...], set[str]] = {}
    for problem in reported if by else ():
        facts = facts_of(problem)
        for fact in by:
            if fact not in facts:
                raise unknown("fact of problems", fact, facts)
        groups.setdefault(tuple(facts[fact] for fact in by), set()).update(
            one.name for one in problem.tuned_on
        )
    return [(dict(zip(by, values, strict=True)), names) for values, names in groups.items()]


def best_of(trials: pd.DataFrame, words: str, otherwise: str = "") -> dict[str, Any]:
    """The trial with the lowest score: `options`, `score`, `stderr`; or a UsageError that says the words."""
    done = trials[trials.error == ""]
    if done.empty:
        raise UsageError(f"{words}: {[*trials.error, otherwise][0]}")
    row = done.loc[done.score.idxmin()]
    return {"options": row.options, "score": float(row.score), "stderr": float(row.stderr)}


def _open(runs: Trials, path: Path, suite: Suite, sampler: str, space: tuple[Options, ...]) -> Any:
    """The study of a file, if it has this purpose."""
    purpose = {"suite": suite.name, "metric": runs.metric, "sampler": sampler}
    if of_data := {problem.revision for problem in suite if problem.is_of_data}:
        purpose["revision"] = str(max(of_data))
    purpose["configuration"] = config_hash(configuration(runs.made, runs.evaluation))
    purpose["sweep"] = config_hash(options_text({"space": describe(space)}))
    return open_trials(path, method_name(runs.made), purpose)


@dataclass(frozen=True)
class Trials:
    """How the trials of a method are run.

    Attributes:
        spec: the method, made: what it is without changes.
        score: `methods -> frame`.
        say: tells the user something.
    """

    spec: Any
    made: Any
    evaluation: Evaluation
    metric: str
    score: Callable[[list[Any]], pd.DataFrame]
    say: Callable[[str], None]

    def grid(self, points: list[Options]) -> Ended:
        """All points."""
        return Ended(points, *self._run(dict(enumerate(points))))

    def sampled(self, study: SharedTrials) -> None:
        """Run trials of a study until there is none left, here or in another process of this machine."""
        seen: set[str] | None = None  # options that were taken when there was nothing left to claim
        while True:
            study.release_lost()
            claimed = [] if study.taken() == seen else study.claim()
            if not claimed and not study.is_shared():
                return
            if not claimed:
                if seen is None:
                    self.say(f"waiting for {study.elsewhere()} trials of other processes")
                seen = study.taken()
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            trials = {trial.number: trial for trial, _ in claimed}
            errors, cells = self._run({trial.number: options for trial, options in claimed})
            for number, error in errors.items():
                study.tell_error(trials[number], error)
            for number, frame in cells.items():
                study.tell(trials[number], outcome(frame, self.metric))

    def _run(self, points: dict[int, Options]) -> tuple[dict[int, str], dict[int, pd.DataFrame]]:
        """The errors of points that are no methods, and the cells of the others."""
        errors, texts, variants = {}, {}, {}
        for number, options in points.items():
            try:
                variant = _with(self.spec, self.made, options)
                texts[number] = configuration(resolve(variant), self.evaluation)
            except UsageError as error:
                errors[number] = str(error)
            else:
                variants[texts[number]] = variant
        if not variants:
            return errors, {}
        frame = self.score(list(variants.values()))
        return errors, {number: frame[frame.config == text] for number, text in texts.items()}


class Ended(NamedTuple):
    """The points of a grid, the errors of those that are no methods, and the cells of the others."""

    points: list[Options]
    errors: dict[int, str]
    cells: dict[int, pd.DataFrame]

    def table(self, metric: str, problems: Collection[str] | None = None) -> pd.DataFrame:
        """A row per point, of all problems or of some."""
        rows = []
        for number, options in enumerate(self.points):
            if number in self.errors:
                result = _failed(self.errors[number])
            else:
                cells = self.cells[number]
                result = outcome(cells if problems is None else cells[cells.problem.isin(problems)], metric)
            rows.append({"trial": number, "options": options} | result)
        return pd.DataFrame(rows, columns=COLUMNS)

    def best_by_group(self, metric: str, groups: Groups) -> tuple[dict[str, Any], ...]:
        """The best point of each group: its `facts`, `options`, `score` and `stderr`."""
        found = []
        for facts, names in groups:
            try:
                found.append(
                    {"facts": facts, **best_of(self.table(metric, names), f"{facts}: no trial ended well")}
                )
            except UsageError as error:  # the other groups have theirs
                warnings.warn(str(error), stacklevel=2)
        return tuple(found)


def outcome(cells: pd.DataFrame, metric: str) -> dict[str, Any]:
    """The mean of a score over problems, its standard error, and the error of a cell that failed."""
    errors = cells.error[cells.status != OK]
    if len(errors):
        return _failed(errors.iloc[0])
    score, stderr, _ = mean_score(cells, metric)
    if not math.isfinite(score):
        return _failed(f"{metric} is {score}")
    return {"score": float(score), "stderr": float(stderr), "error": ""}


def _failed(error: str) -> dict[str, Any]:
    return {"score": float("nan"), "stderr": float("nan"), "error": error}


def sweep_of(spec: Any, made: Any, grid: Mapping[str, Sequence[Any]] | None) -> tuple[Options, ...]:
    """The grids of a method, without the options that its name or the user holds."""
    if grid:
        return (
            {option: tuple(option_value(made, option, v) for v in values) for option, values in grid.items()},
        )
    sweep = getattr(made, "sweep", ())
    held = set()
    if isinstance(spec, MethodSpec):
        held = {option for option, _ in spec.options}
        held |= set(METHODS[spec.text].options) if spec.text in METHODS else set()
    grids = tuple({option: v for option, v in one.items() if option not in held} for one in sweep)
    grids = tuple(one for one in grids if one)
    if not grids:
        raise UsageError(f"{method_name(made)} has no sweep: say what to vary, as in --grid OPTION=1,10,100")
    return grids


def parse_grid(items: Sequence[str]) -> dict[str, list[str]]:
    """A grid from a command line: `l2=0.1,1,10`, or `hidden=50,50;100,100` where values have commas."""
    grid = {}
    for item in items:
        option, equals, values = item.partition("=")
        if not (equals and option and values):
            raise UsageError(f"--grid {item}: expected OPTION=VALUES, as in l2=0.1,1,10")
        grid[option] = values.split(";" if ";" in values else ",")
    return grid


def distinct_points(made: Any, space: tuple[Options, ...]) -> list[Options]:
    """The points of all grids as text, the method as it is first, each method once."""
    points: dict[str, Options] = {_key(made): {}}
    for point in ParameterGrid([{o: list(map(as_text, v)) for o, v in grid.items()} for grid in space]):
        points.setdefault(_key(with_options(made, point)), dict(point))
    return list(points.values())


def _with(spec: Any, made: Any, point: Options) -> Any:
    """The method with other options, in a form that workers can resolve."""
    if isinstance(spec, MethodSpec):
        return replace(spec, options=(*spec.options, *point.items()))
    return with_options(made, point)


def _key(made: Any) -> str:
    """What two equal methods have in common."""
    return json.dumps(describe(made), sort_keys=True)
