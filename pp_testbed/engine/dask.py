"""Jobs done by a Dask cluster: one that is there, or one of this machine that is started for the purpose.

Workers need the package and nothing else: a job is names and descriptions, its rows come with its result, and
only checkpoints of long runs want a disk that all can reach. What a worker does is in `remote`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

import cloudpickle

import pp_testbed
from pp_testbed.engine.identity import is_library
from pp_testbed.engine.jobs import Done, Event, Failed, Job, Queue, one_line
from pp_testbed.engine.local import pickled
from pp_testbed.engine.progress import Progress
from pp_testbed.engine.remote import ENVIRONMENT, Outcome, do
from pp_testbed.engine.study import Cell
from pp_testbed.errors import UsageError

SECONDS = 30.0  # that a job should take, so that a scheduler sees few of them
AHEAD = 2  # jobs per worker that the scheduler has at a time
PATIENCE = 15.0  # seconds that a scheduler may be out of reach


@dataclass(frozen=True)
class Dask:
    """A cluster: of a client, at an address, or so many processes of this machine.

    Args:
        client: a `distributed.Client`, which is left open.
        scheduler: an address, such as tcp://10.0.0.1:8786.
        processes: of a cluster that is started here if neither is given.

    Examples:
        >>> pt.run("2d", ["mlp"], executor=pt.Dask(client))  # doctest: +SKIP
    """

    client: Any = None
    scheduler: str = ""
    processes: int = 2

    def map(self, run: Callable[..., Any], queue: Queue, scratch: str) -> Iterator[tuple[list[Cell], Event]]:
        """Do the jobs of a queue: what happens to their batches."""
        if not len(queue):
            return
        with self._connected() as client:
            yield from Submission(client, run, queue, scratch).events()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        if importlib.util.find_spec("distributed") is None:
            raise UsageError("Dask needs distributed, which is not installed: pip install 'pp_testbed[dask]'")
        if self.client is not None:
            yield self.client
        elif self.scheduler:
            with _client(self.scheduler) as client:
                yield client
        else:
            with _cluster(self.processes) as address, _client(address) as client:
                yield client


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from distributed import Client

    with _quiet("distributed", "tornado"):  # what is wrong is said in a line
        try:
            client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"there is no Dask scheduler at {address}: {one_line(error)}") from None
        try:
            yield client
        finally:
            with suppress(Exception):  # a scheduler that is gone cannot be told
                client.close(timeout=2)


@contextmanager
def _quiet(*packages: str) -> Iterator[None]:
    """The loggers of packages say nothing for a while."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(packages)]
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# Dask's nannies, which start workers again that have died, give them a seed of their own, unless it is "00",
# and a threshold above which freed memory goes back to the system: XLA then takes 1.6 times as long.
NANNY = {**ENVIRONMENT, "PYTHONHASHSEED": "00"}
NANNY |= {"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": str(NANNY | {"MALLOC_TRIM_THRESHOLD_": None})}
# Both end with their parent, whatever they compute: its end of the pipe closes, and the group is killed.
CLUSTER = """
"$0" -m dask scheduler --port 0 --no-dashboard --scheduler-file "$1/scheduler.json" &
"$0" -m dask worker --nworkers "$2" --nthreads 1 --no-dashboard --local-directory "$1" \\
    --scheduler-file "$1/scheduler.json" &
read -r nothing
kill -KILL 0
"""


@contextmanager
def _cluster(processes: int) -> Iterator[str]:
    """A scheduler and workers of this machine."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        group = subprocess.Popen(
            ["sh", "-c", CLUSTER, sys.executable, folder, str(processes)],
            env={**os.environ, **NANNY, "DASK_LOGGING__DISTRIBUTED": "critical"},
            stdin=subprocess.PIPE,
            stdout=2,  # what a method prints is not part of a table
            start_new_session=True,  # Ctrl-C is for this process
        )
        try:
            yield _address(Path(folder) / "scheduler.json")
        finally:
            group.communicate()


def _address(file: Path) -> str:
    """What a scheduler writes into a file when it has started."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        with suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
    raise UsageError("the scheduler of a local Dask cluster did not start in a minute")


class Submission:
    """The jobs of one run on a cluster."""

    def __init__(self, client: Any, run: Callable[..., Any], queue: Queue, scratch: str) -> None:
        self.client, self.run, self.queue, self.scratch = client, run, queue, scratch
        self.inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()  # keys of jobs, and what is heard of them
        self.jobs: dict[str, tuple[Job, Any]] = {}  # by key: with its future
        self.said: set[str] = set()
        self.topic = f"pp_testbed-{uuid.uuid4().hex}"  # under which workers tell how far they are

    def events(self) -> Iterator[tuple[list[Cell], Event]]:
        """Keep the cluster busy, and tell what happens to batches."""
        try:
            self.client.subscribe_topic(self.topic, lambda event: self.inbox.put((event[1][0], event[1][1:])))
            self._submit()
            while self.jobs:
                key, heard = self._hear()
                if key not in self.jobs:  # told of after it had ended
                    continue
                if heard is not None:
                    place, *done = heard
                    yield self.jobs[key][0].batches[place], Done(*done)
                    continue
                yield from self._ended(*self.jobs.pop(key))
                self._submit()
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.startswith("distributed"):
                raise _gone() from error
            raise
        finally:
            with suppress(Exception):  # as in `_client`
                self.client.unsubscribe_topic(self.topic)
                self.client.cancel([future for _, future in self.jobs.values()], force=True)

    def _submit(self) -> None:
        workers = max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))
        while len(self.jobs) < AHEAD * workers and (job := self.queue.take(set(), SECONDS, workers)):
            self._send(job)

    def _send(self, job: Job) -> None:
        key, version = f"pp_testbed-{uuid.uuid4().hex}", pp_testbed.__version__
        payload = _pickled((self.run, job.messages, self.scratch))
        future = self.client.submit(do, payload, version, self.topic, key, key=key, pure=False)
        self.jobs[key] = job, future
        future.add_done_callback(lambda _, key=key: self.inbox.put((key, None)))

    def _hear(self) -> tuple[str, Any]:
        """The next news; a scheduler that is gone for long has none."""
        last = time.monotonic()
        while True:
            with suppress(Empty):
                return self.inbox.get(timeout=1.0)
            if self.client.status == "running":
                last = time.monotonic()
            elif time.monotonic() - last > PATIENCE:
                raise _gone()

    def _ended(self, job: Job, future: Any) -> Iterator[tuple[list[Cell], Event]]:
        if future.status in ("cancelled", "lost"):
            raise _gone()
        try:
            outcome = future.result()
        except Exception as error:
            if str(getattr(error, "name", "")).partition(".")[0] == "pp_testbed":
                raise UsageError("the workers lack the package: install pp_testbed where they run") from None
            is_dead = type(error).__name__ == "KilledWorker"
            if is_dead and len(job.batches) > 1:  # of which one may be at fault
                for batch in job.batches:
                    self._send(Job(job.program, [batch], is_new=False))
                return
            why = "the worker processes died that ran it, most likely for lack of memory"
            for batch in job.batches:
                yield batch, Failed(why if is_dead else f"it could not begin: {one_line(error)}")
                yield batch, Done(1.0, 0.0, is_end=True)
            return
        self._check(outcome)
        for place, event in outcome.events:
            if isinstance(event, Done):
                self.queue.measured(job.program, event.all_seconds)
            yield job.batches[place], event

    def _check(self, outcome: Outcome) -> None:
        if outcome.version != pp_testbed.__version__:
            versions = f"{outcome.version}, this is {pp_testbed.__version__}"
            raise UsageError(f"a worker has pp_testbed {versions}: install the same version there")
        if outcome.note and outcome.note not in self.said:
            self.said.add(outcome.note)
            Progress(True).line(outcome.note)


def _gone() -> UsageError:
    return UsageError("the Dask scheduler is gone: run the same again to go on, with another")


def _pickled(value: Any) -> bytes:
    """A value with what a user's modules define, which are not where workers are."""
    known = cloudpickle.list_registry_pickle_by_value()
    modules = [one for one in list(sys.modules.values()) if _is_users(one) and one.__name__ not in known]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return pickled(value)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: Any) -> bool:
    if not isinstance(module, ModuleType) or sys.modules.get(module.__name__) is not module:
        return False
    is_file = str(getattr(module, "__file__", None)).endswith(".py")
    return is_file and module.__name__ != "__main__" and not is_library(module)
