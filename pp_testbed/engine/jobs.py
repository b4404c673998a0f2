"""What is to be run, cut into batches and jobs, and how a job is done, in whatever process that is."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pp_testbed
from pp_testbed.engine.programs import Programs
from pp_testbed.engine.study import Cell, Rows, Workspace
from pp_testbed.errors import UsageError


class Failed(NamedTuple):
    """Why a batch came to nothing, in one line."""

    why: str


class Done(NamedTuple):
    """A fraction of a batch is done, all of it if it has ended, well or not, in so many seconds more."""

    fraction: float
    seconds: float
    is_end: bool = False
    all_seconds: float = 0.0  # of the batch, at its end


Event = Rows | Failed | Done


class Job(NamedTuple):
    """Batches of one program that travel together."""

    program: Any
    batches: list[list[Cell]]
    is_new: bool = True  # no process has died over it

    @property
    def messages(self) -> list[list[Any]]:
        """What a worker is told of them."""
        return [[cell.message for cell in batch] for batch in self.batches]


class Executor(Protocol):
    """Where jobs are done."""

    def map(self, run: Callable[..., Any], queue: Queue, scratch: str) -> Iterator[tuple[list[Cell], Event]]:
        """Take jobs from the queue until it is empty, and tell what happens to each batch."""
        ...


class Queue:
    """The batches that nobody is at yet."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.waiting: dict[Any, list[list[Cell]]] = {}
        for program, some in _by_program(cells).items():
            size = max(1, some[0].size)
            self.waiting[program] = [some[i : i + size] for i in range(0, len(some), size)]
        self.seconds: dict[Any, float] = {}  # of a batch of each program, the last that was seen
        self.given: set[Any] = set()  # programs that some worker has

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))

    def effort(self, program: Any) -> float:
        """Of a cell of a program that is waiting."""
        return self.waiting[program][0][0].effort

    def measured(self, program: Any, seconds: float) -> None:
        """A batch of this program took so long."""
        self.seconds[program] = seconds

    def take(self, known: set[Any], seconds: float = 0.0, workers: int = 1) -> Job | None:
        """The next job for a worker that has compiled some programs: one that spares most compilation.

        Args:
            seconds: how long it should take, as far as that is known; a single batch if not.
            workers: that share what is left.
        """
        places = [program for program, batches in self.waiting.items() if batches]
        if not places:
            return None
        mine = [program for program in places if program in known]
        new = [program for program in places if program not in self.given]
        # Of new programs a long one, then that with most batches, so that those which share its cells come in
        # time.
        program = max(mine or new or places, key=lambda one: (self.effort(one), len(self.waiting[one])))
        self.given.add(program)
        known.add(program)
        batches = self.waiting[program]
        share = math.ceil(len(batches) / (2 * workers))  # so that the last jobs end together
        wanted = seconds / max(self.seconds.get(program, math.inf), 1e-3)
        number = max(1, min(share, int(wanted)))
        job, self.waiting[program] = Job(program, batches[:number]), batches[number:]
        return job


def _by_program(cells: Sequence[Cell]) -> dict[Any, list[Cell]]:
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.program, []).append(cell)
    return groups


class Stopwatch:
    """How long something took since the last time one looked."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self.last = self.last, time.monotonic()
        return self.last - before


def perform(
    run: Callable[..., Any], batches: list[list[Any]], scratch: str, programs: Programs
) -> Iterator[tuple[int, Event]]:
    """Do a job: what happens to each of its batches, by their places. An exception costs its batch."""
    folder = Path(scratch)  # which another run that ends may remove, and the next checkpoint makes again
    workspace = Workspace(programs, folder if folder.parent.is_dir() else None)
    for place, messages in enumerate(batches):
        watch, whole = Stopwatch(), Stopwatch()
        programs.let_go()
        try:
            for event in run(messages, workspace):
                yield place, Done(event, watch.lap()) if isinstance(event, float) else event
        except Exception as error:
            yield place, Failed(one_line(error))
        yield place, Done(1.0, watch.lap(), True, whole.lap())


def one_line(error: BaseException) -> str:
    """An exception in one line: what a user's mistake says, or its type, first line and place."""
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, UsageError):
        return first
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(pp_testbed.__file__).parent)
    theirs = [f for f in frames if "site-packages" not in f.filename and ours not in f.filename]
    place = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {first}{place}"
