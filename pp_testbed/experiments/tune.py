"""Tuning: a method's hyperparameters, by their mean score on problems that are never reported.

A study is Optuna's: a journal (or SQLite) file that resumes and that several processes may share. Each
trial is a method with some options, run by `runner.run` like any other, many trials together, so that
numbers are batched into one compiled program and cells that are done are not run again.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.model_selection import ParameterGrid

import pp_testbed
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.evaluator import Evaluation
from pp_testbed.experiments.aggregate import stderr_of_mean, strata
from pp_testbed.experiments.identity import config_text, describe
from pp_testbed.experiments.problems import tuning_suite
from pp_testbed.experiments.runner import run
from pp_testbed.experiments.specs import MethodSpec, resolve
from pp_testbed.experiments.store import OK, create_directory, write_whole
from pp_testbed.inference.base import METHODS, method_name, with_options

SAMPLERS = {
    "grid": "every point of the method's sweep",
    "random": "independent draws from the ranges of the sweep",
    "tpe": "tree-structured Parzen estimator",
    "gp": "Gaussian process; needs torch",
}
METRICS = ("kl_aggregate", "kl_joint", "kl_dyadic", "kl_marginal", "nll", "brier", "ece")
AT_ONCE = {"grid": 16, "random": 16, "tpe": 4, "gp": 1}  # trials that run together
Options = dict[str, Any]


@dataclass(frozen=True)
class Tuning:
    """What a study has found so far.

    Attributes:
        method, suite, metric: what was tuned, on which problems, by which mean score (less is better).
        held: options that were held at other values than the defaults.
        trials: one row per trial that ended: the options that it changed, `score`, `stderr`, `error`.
    """

    method: str
    suite: str
    metric: str
    sampler: str
    held: Options
    trials: pd.DataFrame

    @property
    def best(self) -> dict[str, Any]:
        """The trial with the lowest score: `options`, `score`, `stderr`."""
        done = self.trials[self.trials.error == ""]
        if done.empty:
            raise UsageError(f"no trial of {self.method} has ended well: {self.trials.error.iloc[0]}")
        row = done.loc[done.score.idxmin()]
        return {"options": row.options, "score": float(row.score), "stderr": float(row.stderr)}

    def table(self) -> pd.DataFrame:
        """The trials with a column for each option, best first; an empty cell is the default."""
        options = pd.DataFrame(list(self.trials.options), index=self.trials.index).fillna("")
        columns = [self.trials.trial, options, self.trials[["score", "stderr", "error"]]]
        return pd.concat(columns, axis=1).sort_values("score", ignore_index=True)

    def entry(self) -> dict[str, Any]:
        """The best trial as an entry of `tuned.json`."""
        return {
            **self.best,
            "metric": self.metric,
            "suite": self.suite,
            "sampler": self.sampler,
            "held": self.held,
            "default_score": float(self.trials.score[~self.trials.options.astype(bool)].iloc[0]),
            "trials": len(self.trials),
            "version": pp_testbed.__version__,
        }

    def save(self, path: str | os.PathLike[str], with_held: bool = False) -> None:
        """Put the best trial into a file of presets, next to those of other methods.

        With `with_held`, the options that were held are part of the preset.
        """
        path = Path(path)
        entries = json.loads(path.read_text()) if path.exists() else {}
        entry = self.entry()
        if with_held:
            entry["options"] = self.held | entry["options"]
        text = json.dumps(dict(sorted((entries | {self.method: entry}).items())), indent=1) + "\n"
        write_whole(path, lambda file: file.write(text.encode()))


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
        trials: of this study in all; the grid has as many as it has points, others 30 if None.
        metric: one of `METRICS`.
        study: a journal file, or SQLite where it ends in .db; `tuning/METHOD.journal` if None. Cells are
            kept in `results` beside it.
        grid: values of options instead of the sweep, as in {"l2": [0.1, 1, 10]}.
        seed: of the sampler. jobs, progress, config: as for `run`.

    Example:
        >>> tune("mlp", grid={"l2": [0.1, 1.0, 10.0]}).best  # doctest: +SKIP
    """
    for kind, value, known in [("sampler", sampler, SAMPLERS), ("metric", metric, METRICS)]:
        if value not in known:
            raise unknown(kind, value, known)
    spec = MethodSpec(method) if isinstance(method, str) else method
    if isinstance(spec, MethodSpec):
        spec = replace(spec, preset="paper")
    made = resolve(spec)
    name, problems = method_name(made), tuning_suite(suite)
    space = sweep_of(spec, made, grid)
    points = distinct_points(made, space)
    path = Path(study or Path("tuning") / f"{name}-{sampler}.journal")
    create_directory(path.parent, "a study")
    opened = _open(path, name, problems.name, metric, sampler)
    _enqueue(opened, points if sampler == "grid" else [{}])
    limit = trials or (len(points) if sampler == "grid" else 30)
    while batch := _ask(opened, sampler, space, limit, seed):
        options = [json.loads(trial.user_attrs["options"]) for trial in batch]
        variants = [_with(spec, made, point) for point in options]
        configs = [config_text(resolve(variant), config or Evaluation()) for variant in variants]
        distinct = list(dict(zip(configs, variants, strict=True)).values())
        results = path.parent / "results"
        frame = run(problems, distinct, results, jobs=jobs, progress=progress, config=config)
        _tell(opened, batch, configs, frame, metric)
    held = dict(spec.options) if isinstance(spec, MethodSpec) else {}
    return Tuning(name, problems.name, metric, sampler, held, _table(opened))


def sweep_of(spec: Any, made: Any, grid: Mapping[str, Sequence[Any]] | None) -> tuple[Options, ...]:
    """The grids of a method, without the options that its name or the user holds."""
    if grid:
        return ({option: tuple(values) for option, values in grid.items()},)
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


def _with(spec: Any, made: Any, point: Options) -> Any:
    """The method with other options, in a form that workers can resolve."""
    if isinstance(spec, MethodSpec):
        return replace(spec, options=(*spec.options, *point.items()))
    return with_options(made, point)


def _key(made: Any) -> str:
    """What two equal methods have in common."""
    return json.dumps(describe(made), sort_keys=True)


def _open(path: Path, name: str, suite: str, metric: str, sampler: str) -> Any:
    """The study of a file, made if it is not there; or a UsageError if it is another one."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if sampler == "gp" and importlib.util.find_spec("torch") is None:
        raise UsageError("the sampler gp needs torch, which is not installed; grid, random and tpe do not")
    purpose = {"suite": suite, "metric": metric, "sampler": sampler}
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
        if study.user_attrs.setdefault(key, value) != value:
            known = f"{path} holds a study with {key} {study.user_attrs[key]}, not {value}"
            raise UsageError(f"{known}: name another with --study")
        study.set_user_attr(key, value)
    return study


def _storage(path: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path.suffix in (".db", ".sqlite"):
        return optuna.storages.RDBStorage(f"sqlite:///{path}")
    return JournalStorage(JournalFileBackend(str(path)))


def _sampler(name: str, seed: int) -> Any:
    import optuna

    kinds: dict[str, Any] = {
        "grid": optuna.samplers.RandomSampler,  # whose points are all in the queue
        "random": optuna.samplers.RandomSampler,
        "tpe": optuna.samplers.TPESampler,
        "gp": optuna.samplers.GPSampler,
    }
    return kinds[name](seed=seed)


def _enqueue(study: Any, points: list[Options]) -> None:
    """Queue points that the study does not have, and again those whose process died."""
    from optuna.trial import TrialState

    there = set()
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING and _is_dead(trial.user_attrs.get("process", "")):
            study.tell(trial.number, state=TrialState.FAIL)
            if "options" in trial.user_attrs:
                study.enqueue_trial({}, user_attrs={"options": trial.user_attrs["options"]})
        if trial.state != TrialState.FAIL or "error" in trial.user_attrs:
            there.add(trial.user_attrs.get("options"))
    for point in points:
        if json.dumps(point, sort_keys=True) not in there:
            study.enqueue_trial({}, user_attrs={"options": json.dumps(point, sort_keys=True)})


def _is_dead(process: str) -> bool:
    """Whether `host:pid` is no process of this machine any more."""
    host, _, pid = process.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _ask(study: Any, sampler: str, space: tuple[Options, ...], limit: int, seed: int) -> list[Any]:
    """The trials that run next, each with its `options`; none if the study is complete."""
    from optuna.trial import TrialState

    batch: list[Any] = []
    while len(batch) < AT_ONCE[sampler]:
        trials = study.get_trials(deepcopy=False)
        is_waiting = any(trial.state == TrialState.WAITING for trial in trials)
        started = [t for t in trials if t.state in (TrialState.RUNNING, TrialState.COMPLETE)]
        failed = [t for t in trials if t.state == TrialState.FAIL and "error" in t.user_attrs]
        if len(started) + len(failed) >= limit or (sampler == "grid" and not is_waiting):
            break
        # A seed for each trial: a study that is resumed does not repeat itself.
        study.sampler = _sampler(sampler, seed + len(trials))
        trial = study.ask()
        trial.set_user_attr("process", f"{socket.gethostname()}:{os.getpid()}")
        if "options" not in trial.user_attrs:
            try:
                point = suggest(trial, space)
            except ValueError as error:
                changed = f"the study was begun with another sweep ({error})"
                raise UsageError(f"{changed}: name another with --study") from error
            trial.set_user_attr("options", json.dumps(point, sort_keys=True))
        batch.append(trial)
    return batch


def _tell(study: Any, batch: list[Any], configs: list[str], frame: pd.DataFrame, metric: str) -> None:
    """Give the trials their scores: the mean over problems, or the error of a cell that failed."""
    from optuna.trial import TrialState

    for trial, config in zip(batch, configs, strict=True):
        cells = frame[frame.config == config]
        errors = cells.error[cells.status != OK]
        score = cells[metric].mean()
        if len(errors) or not math.isfinite(score):
            trial.set_user_attr("error", errors.iloc[0] if len(errors) else f"{metric} is {score}")
            study.tell(trial, state=TrialState.FAIL)
        else:
            trial.set_user_attr("stderr", stderr_of_mean(cells[metric], strata(cells)))
            study.tell(trial, float(score))


def _table(study: Any) -> pd.DataFrame:
    """One row per trial that ended."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        attributes = trial.user_attrs
        if trial.value is not None or "error" in attributes:
            rows.append(
                {
                    "trial": trial.number,
                    "options": json.loads(attributes["options"]),
                    "score": float("nan") if trial.value is None else trial.value,
                    "stderr": attributes.get("stderr", float("nan")),
                    "error": attributes.get("error", ""),
                }
            )
    return pd.DataFrame(rows, columns=["trial", "options", "score", "stderr", "error"])
