"""Trials that a sampler chooses: a study of Optuna in a file that resumes and that processes may share.

Trials are known by their options, not by their numbers. How they are run is in `tune`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from pp_testbed.errors import UsageError

SAMPLERS = {
    "grid": "every point of the method's sweep",
    "random": "independent draws from the ranges of the sweep",
    "tpe": "tree-structured Parzen estimator",
    "gp": "Gaussian process; needs torch",
}
AT_ONCE = {"random": 16, "tpe": 4, "gp": 1}  # trials that run together
COLUMNS = ["trial", "options", "score", "stderr", "error"]
STUDIES = (".journal", ".db", ".sqlite")  # the names of files
LOST_AFTER = timedelta(days=1)  # a trial, whoever is at it
CLAIMED_WITHIN = timedelta(minutes=1)  # else whoever has begun a trial did not live to say its options
Options = dict[str, Any]


@dataclass
class SharedTrials:
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
            text = text or self._suggest(trial)
            taken = self.taken()
            trial.set_user_attr("options", text)
            self._settle(trial.number)
            # Of two processes that have claimed the same, the one with the lower number has it.
            rivals = [other.number for other in self._trials("running") if options_of_trial(other) == text]
            if text in taken or min(rivals) < trial.number or text not in self._first():
                self._fail(trial)
            else:
                claimed.append((trial, json.loads(text)))
        return claimed

    def tell(self, trial: Any, outcome: Options) -> None:
        """Give a trial its score, or the error of a cell that failed."""
        if outcome["error"]:
            self.tell_error(trial, outcome["error"])
        else:
            trial.set_user_attr("stderr", outcome["stderr"])
            self.study.tell(trial, outcome["score"], skip_if_finished=True)

    def tell_error(self, trial: Any, error: str) -> None:
        """Say of a trial that it failed, and why."""
        trial.set_user_attr("error", error)
        self.failed.add(trial.user_attrs["options"])
        self._fail(trial)

    def table(self) -> pd.DataFrame:
        """One row per options that are done, or that failed."""
        rows: dict[str, dict[str, Any]] = {}
        for trial in [*self._trials("failed"), *self._trials("done")]:  # the latter replace the former
            text = options_of_trial(trial)
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
        return options_text({}) if options_text({}) not in taken else ""

    def _settle(self, number: int) -> None:
        """Wait until trials before this one, which other processes have begun just now, have options too."""
        while any(
            trial.number < number and _has_begun(trial) for trial in self.study.get_trials(deepcopy=False)
        ):
            time.sleep(0.05)

    def _first(self) -> list[str]:
        """The options that are tried in all, if processes have claimed more at the same time."""
        trials = sorted(self._trials("done") + self._trials("running"), key=lambda trial: trial.number)
        return list(dict.fromkeys(map(options_of_trial, trials)))[: self.limit]

    def _suggest(self, trial: Any) -> str:
        try:
            return options_text(suggest(trial, self.space))
        except ValueError as error:
            changed = f"the study was begun with another sweep ({error})"
            raise UsageError(f"{changed}: name another with --study") from error

    def _trials(self, state: str) -> list[Any]:
        """Trials that are done, failed with an error, or running."""
        from optuna.trial import TrialState as State

        chosen = []
        for trial in self.study.get_trials(deepcopy=False):
            attributes = trial.user_attrs
            if "options" not in attributes:
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
        return {options_of_trial(trial) for state in states for trial in self._trials(state)}

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


def _has_begun(trial: Any) -> bool:
    """Whether a trial is about to be given its options."""
    is_new = trial.state.name == "RUNNING" and "options" not in trial.user_attrs
    return is_new and datetime.now() - trial.datetime_start < CLAIMED_WITHIN


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
            point[option] = trial.suggest_categorical(option, [as_text(one) for one in some])
    return point


def as_text(value: Any) -> str:
    """A value of an option as on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return repr(value)


def options_text(options: Options) -> str:
    """Options in one form, by which a trial is known."""
    return json.dumps(options, sort_keys=True)


def options_of_trial(trial: Any) -> str:
    """The options of a trial, in that form."""
    return trial.user_attrs["options"]


def open_trials(path: Path, name: str, purpose: dict[str, str]) -> Any:
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
