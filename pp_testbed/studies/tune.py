"""Tuning: a method's hyperparameters, by their mean score on problems that are never reported.

Each trial is a method with some options, run by `runner.run` like any other, many trials together, so that
numbers are batched into one compiled program and cells that are done are not run again. A grid is no more
than that. What a sampler has tried is a study of Optuna's: a journal (or SQLite) file that resumes and that
several processes may share, in which trials are known by their options, not by their numbers.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.model_selection import ParameterGrid

import pp_testbed
from pp_testbed.engine.identity import config_hash, describe
from pp_testbed.engine.progress import Progress
from pp_testbed.engine.store import OK, create_directory, write_whole
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.aggregate import mean_score
from pp_testbed.evaluation.evaluator import Evaluation
from pp_testbed.evaluation.scores import METRICS
from pp_testbed.inference.base import (
    METHODS,
    method_name,
    option_value,
    options_of,
    read_presets,
    with_options,
)
from pp_testbed.inference.specs import MethodSpec, resolve
from pp_testbed.problems.suites import tuning_suite
from pp_testbed.studies.scoring import configuration, run

SAMPLERS = {
    "grid": "every point of the method's sweep",
    "random": "independent draws from the ranges of the sweep",
    "tpe": "tree-structured Parzen estimator",
    "gp": "Gaussian process; needs torch",
}
AT_ONCE = {"random": 16, "tpe": 4, "gp": 1}  # trials that run together
COLUMNS = ["trial", "options", "score", "stderr", "error"]
SECONDS_BETWEEN_LOOKS = 0.5  # at what other processes do
STUDIES = (".journal", ".db", ".sqlite")  # the names of files
NUM_TRIALS = 30  # of a study whose sampler has no end
LOST_AFTER = timedelta(days=1)  # a trial, whoever is at it
Options = dict[str, Any]


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
    """

    method: str
    suite: str
    metric: str
    sampler: str
    held: Options
    defaults: Options
    trials: pd.DataFrame
    elsewhere: int = 0

    @property
    def best(self) -> dict[str, Any]:
        """The trial with the lowest score: `options`, `score`, `stderr`."""
        done = self.trials[self.trials.error == ""]
        if done.empty:
            errors = [*self.trials.error, f"{self.elsewhere} are with other processes"]
            raise UsageError(f"no trial of {self.method} has ended well: {errors[0]}")
        row = done.loc[done.score.idxmin()]
        return {"options": row.options, "score": float(row.score), "stderr": float(row.stderr)}

    def table(self) -> pd.DataFrame:
        """The trials with a column for each option, best first."""
        rows = [self.defaults | options for options in self.trials.options]
        options = pd.DataFrame(rows, index=self.trials.index)
        columns = [self.trials.trial, options, self.trials[["score", "stderr", "error"]]]
        return pd.concat(columns, axis=1).sort_values("score", ignore_index=True)

    def entry(self, with_held: bool = False) -> dict[str, Any]:
        """The best trial as an entry of a file of presets, such as `tuned.json`.

        With `with_held`, the options that were held are part of the preset.
        """
        best = self.best
        default = self.trials.score[~self.trials.options.astype(bool)]
        return {
            **best,
            "options": (self.held if with_held else {}) | best["options"],
            "metric": self.metric,
            "suite": self.suite,
            "sampler": self.sampler,
            "held": self.held,
            "default_score": float(default.iloc[0]) if len(default) else None,
            "trials": len(self.trials),
            "version": pp_testbed.__version__,
        }

    def save(self, path: str | os.PathLike[str], with_held: bool = False) -> None:
        """Put the best trial into a file of presets, next to those of other methods."""
        path = Path(path)
        entries = read_presets(path) if path.exists() else {}
        entries = entries | {self.method: self.entry(with_held)}
        text = json.dumps(dict(sorted(entries.items())), indent=1) + "\n"
        write_whole(path, lambda file: file.write(text.encode()))


@dataclass
class Study:
    """A study of Optuna, seen as options that are done, that somebody is at, or that nobody has.

    Attributes:
        study: Optuna's.
        sampler: the name of the sampler, seed: its seed.
        space: the grids of the sweep.
        limit: how many different options are tried in all.
        failed: options that failed since this process opened it; earlier failures are tried again.
    """

    study: Any
    sampler: str
    seed: int
    space: tuple[Options, ...]
    limit: int
    failed: set[str] = field(default_factory=set)

    def claim(self) -> list[tuple[Any, Options]]:
        """The trials that this process runs next, with their options; none if nothing is left."""
        claimed: list[tuple[Any, Options]] = []
        for _ in range(10 * AT_ONCE[self.sampler]):  # draws of options that were tried before
            if len(claimed) == AT_ONCE[self.sampler] or (text := self._next()) is None:
                break
            # A seed for each trial, so that a study that is resumed does not repeat itself.
            number = len(self.study.get_trials(deepcopy=False))
            self.study.sampler = _sampler(self.sampler, self.seed + number)
            trial = self.study.ask()
            trial.set_user_attr("process", f"{socket.gethostname()}:{os.getpid()}")
            trial.set_user_attr("version", pp_testbed.__version__)
            text = text or self._suggest(trial)
            taken = self.taken()
            trial.set_user_attr("options", text)
            # Of two processes that have claimed the same, the one with the lower number has it.
            rivals = [other.number for other in self._trials("running") if _options(other) == text]
            if text in taken or min(rivals) < trial.number or text not in self._first():
                self._fail(trial)
            else:
                claimed.append((trial, json.loads(text)))
        return claimed

    def tell(self, trial: Any, cells: pd.DataFrame, metric: str) -> None:
        """Give a trial its score, or the error of a cell that failed."""
        found = outcome(cells, metric)
        if found["error"]:
            self.tell_error(trial, found["error"])
        else:
            trial.set_user_attr("stderr", found["stderr"])
            self.study.tell(trial, found["score"], skip_if_finished=True)

    def tell_error(self, trial: Any, error: str) -> None:
        """Say of a trial that it failed, and why."""
        trial.set_user_attr("error", error)
        self.failed.add(trial.user_attrs["options"])
        self._fail(trial)

    def table(self) -> pd.DataFrame:
        """One row per options that are done, or that failed."""
        rows: dict[str, dict[str, Any]] = {}
        for trial in [*self._trials("failed"), *self._trials("done")]:  # the latter replace the former
            text = _options(trial)
            rows[text] = {
                "trial": trial.number,
                "options": json.loads(text),
                "score": float("nan") if trial.value is None else trial.value,
                "stderr": trial.user_attrs.get("stderr", float("nan")),
                "error": trial.user_attrs.get("error", ""),
            }
        return pd.DataFrame(list(rows.values()), columns=COLUMNS).sort_values("trial", ignore_index=True)

    def _next(self) -> str | None:
        """Options that nobody has: the defaults; "" for the sampler's; None if enough were tried."""
        taken = self.taken()
        if len(taken) >= self.limit:
            return None
        return _as_text({}) if _as_text({}) not in taken else ""

    def _first(self) -> list[str]:
        """The options that are tried in all, if processes have claimed more at the same time."""
        trials = sorted(self._trials("done") + self._trials("running"), key=lambda trial: trial.number)
        return list(dict.fromkeys(map(_options, trials)))[: self.limit]

    def _suggest(self, trial: Any) -> str:
        try:
            return _as_text(suggest(trial, self.space))
        except ValueError as error:
            changed = f"the study was begun with another sweep ({error})"
            raise UsageError(f"{changed}: name another with --study") from error

    def _trials(self, state: str) -> list[Any]:
        """Trials of this version that are done, failed with an error, or running and not lost."""
        from optuna.trial import TrialState as State

        chosen = []
        for trial in self.study.get_trials(deepcopy=False):
            attributes = trial.user_attrs
            if attributes.get("version") != pp_testbed.__version__ or "options" not in attributes:
                continue
            is_in = {
                "done": trial.state == State.COMPLETE,
                "failed": trial.state == State.FAIL and "error" in attributes,
                "running": trial.state == State.RUNNING,
            }
            if is_in[state]:
                chosen.append(trial)
        return chosen

    def _options(self, *states: str) -> set[str]:
        return {_options(trial) for state in states for trial in self._trials(state)}

    def taken(self) -> set[str]:
        """The options that are done, that somebody is at, or that failed here."""
        return self._options("done", "running") | self.failed

    def release_lost(self) -> None:
        """Fail the trials whose process is gone, so that their options are free again."""
        for trial in self._trials("running"):
            if _is_lost(trial):
                self._fail(trial)

    def elsewhere(self) -> int:
        """How many trials other processes are at."""
        return len(self._trials("running"))

    def is_shared(self) -> bool:
        """Whether another process of this machine is at a trial, for which one can wait."""
        here = socket.gethostname()
        return any(trial.user_attrs["process"].startswith(f"{here}:") for trial in self._trials("running"))

    def _fail(self, trial: Any) -> None:
        from optuna.trial import TrialState

        self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def tune(
    method: Any,
    *,
    suite: str = "2d",
    sampler: str = "grid",
    trials: int | None = None,
    metric: str = "kl_aggregate",
    study: str | os.PathLike[str] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
    jobs: int = 0,
    progress: bool = True,
    config: Evaluation | None = None,
) -> Tuning:
    """Find the options of a method with the lowest mean score; a study goes on where it was.

    Args:
        method: a name, `file.py:NAME`, a `MethodSpec` or a dataclass with `fit(key, task)`. Its sweep is its
            attribute `sweep`; options that are given are held.
        suite: a suite; its grid with seeds 1000 and 1001 is what methods are tuned on.
        sampler: one of `SAMPLERS`.
        trials: different options that this study tries in all, the defaults among them; the grid has as
            many as it has points, others 30 if None.
        metric: one of `METRICS`.
        study: of a sampler, a journal file, or SQLite where it ends in .db; `tuning/METHOD-SAMPLER.journal`
            if None. Cells are kept in the directory `cells` beside it.
        grid: values of options instead of the sweep, as in {"l2": [0.1, 1, 10]}.
        seed: of the sampler.
        jobs: as for `run`.
        progress: as for `run`.
        config: as for `run`.

    Examples:
        >>> len(tune("knn", suite="smoke", grid={"k": [1, 10]}, progress=False).table())  # and the default
        3
    """
    for kind, value, known in [("sampler", sampler, SAMPLERS), ("metric", metric, METRICS)]:
        if value not in known:
            raise unknown(kind, value, known)
    spec = MethodSpec(method) if isinstance(method, str) else method
    if isinstance(spec, MethodSpec):
        spec = replace(spec, preset="paper")
    made, evaluation = resolve(spec), config or Evaluation()
    if not is_dataclass(made):
        raise UsageError(f"{method_name(made)} is not a dataclass: it has no options to tune")
    name, problems = method_name(made), tuning_suite(suite)
    space = sweep_of(spec, made, grid)
    path = Path(study or Path("tuning") / f"{name}-{sampler}.journal")
    if path.suffix not in STUDIES:
        raise UsageError(f"the study {path}: expected a name that ends in {', '.join(STUDIES)}")
    create_directory(path.parent, "a study")
    score = partial(run, problems, out=path.parent / "cells", jobs=jobs, progress=progress, config=evaluation)
    runs = Trials(spec, made, evaluation, metric, score, Progress(progress).line)
    if sampler == "grid":
        found, elsewhere = runs.grid(distinct_points(made, space)[:trials]), 0
    else:
        purpose = {"suite": problems.name, "metric": metric, "sampler": sampler}
        purpose["configuration"] = config_hash(configuration(made, evaluation))
        purpose["sweep"] = config_hash(_as_text({"space": describe(space)}))
        opened = Study(_open(path, name, purpose), sampler, seed, space, trials or NUM_TRIALS)
        runs.sampled(opened)
        found, elsewhere = opened.table(), opened.elsewhere()
    held = dict(spec.options) if isinstance(spec, MethodSpec) else {}
    defaults = {option: _text(options_of(made)[option]) for one in space for option in one}
    return Tuning(name, problems.name, metric, sampler, held, defaults, found, elsewhere)


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

    def grid(self, points: list[Options]) -> pd.DataFrame:
        """A row per point."""
        errors, cells = self._run(dict(enumerate(points)))
        rows = [
            {"trial": number, "options": options}
            | (outcome(cells[number], self.metric) if number in cells else _failed(errors[number]))
            for number, options in enumerate(points)
        ]
        return pd.DataFrame(rows, columns=COLUMNS)

    def sampled(self, study: Study) -> None:
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
                study.tell(trials[number], frame, self.metric)

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
    for point in ParameterGrid([{o: list(map(_text, v)) for o, v in grid.items()} for grid in space]):
        points.setdefault(_key(with_options(made, point)), dict(point))
    return list(points.values())


def suggest(trial: Any, space: tuple[Options, ...]) -> Options:
    """A point of the ranges that the grids span: continuous where values are floats, else one of them."""
    values: dict[str, list[Any]] = {}
    for grid in space:
        for option, some in grid.items():
            values.setdefault(option, []).extend(one for one in some if one not in values.get(option, []))
    point: Options = {}
    for option, some in values.items():
        if all(isinstance(one, float) for one in some) and len(some) > 1:
            low, high = min(some), max(some)
            is_log = low > 0 and high / low >= 10
            point[option] = repr(trial.suggest_float(option, low, high, log=is_log))
        else:
            point[option] = trial.suggest_categorical(option, [_text(one) for one in some])
    return point


def _text(value: Any) -> str:
    """A value of an option as on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return repr(value)


def _as_text(options: Options) -> str:
    return json.dumps(options, sort_keys=True)


def _options(trial: Any) -> str:
    return trial.user_attrs["options"]


def _with(spec: Any, made: Any, point: Options) -> Any:
    """The method with other options, in a form that workers can resolve."""
    if isinstance(spec, MethodSpec):
        return replace(spec, options=(*spec.options, *point.items()))
    return with_options(made, point)


def _key(made: Any) -> str:
    """What two equal methods have in common."""
    return json.dumps(describe(made), sort_keys=True)


def _open(path: Path, name: str, purpose: dict[str, str]) -> Any:
    """The study of a file, made if it is not there; or a UsageError if it has another purpose."""
    for package in ["optuna", "torch"] if purpose["sampler"] == "gp" else ["optuna"]:
        if importlib.util.find_spec(package) is None:
            others = "grid does without" if package == "optuna" else "grid, random and tpe do without"
            hint = f"{others}; or pip install {package}"
            raise UsageError(f"sampler {purpose['sampler']} needs {package}, which is not installed: {hint}")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = _storage(path)
        found = optuna.get_all_study_names(storage)
        if found and name not in found:
            raise UsageError(f"{path} holds a study of {', '.join(found)}, not of {name}")
        study = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
    except UsageError:
        raise
    except Exception as error:
        first = str(error).splitlines()[:1]
        raise UsageError(f"{path} is not a study that can be opened: {''.join(first)}") from error
    for key, value in purpose.items():
        known = study.user_attrs.get(key, value)
        if known != value:
            what = f"{key} {known}, not {value}"
            if key == "configuration":
                what = f"another {name}: other --set, other code or another evaluation"
            if key == "sweep":
                what = "another sweep"
            raise UsageError(f"{path} holds a study with {what}; name another with --study")
        study.set_user_attr(key, value)
    return study


def _storage(path: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path.suffix != ".journal":
        return optuna.storages.RDBStorage(f"sqlite:///{path}")
    return JournalStorage(JournalFileBackend(str(path)))


def _sampler(name: str, seed: int) -> Any:
    import optuna

    kinds: dict[str, Any] = {
        "random": optuna.samplers.RandomSampler,
        "tpe": optuna.samplers.TPESampler,
        "gp": optuna.samplers.GPSampler,
    }
    return kinds[name](seed=seed)


def _is_lost(trial: Any) -> bool:
    """Whether a running trial's process is gone: not of this machine any more, or an earlier one of this."""
    host, _, pid = trial.user_attrs.get("process", "").rpartition(":")
    if datetime.now() - trial.datetime_start > LOST_AFTER:
        return True
    if host != socket.gethostname():
        return False
    if int(pid) == os.getpid():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
