"""Telling the user how far a run is and how long it will take, on the standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from pp_testbed.inference.base import method_name

SECONDS_BETWEEN_LINES = 10.0  # where the output is not a terminal


class Progress:
    """A bar with an estimate, or a line now and then where nobody sees a bar."""

    def __init__(self, shown: bool) -> None:
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True, highlight=False)
        self.bar = Bar(
            TextColumn("{task.fields[what]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cells, {task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def line(self, text: str) -> None:
        """Say something, above the bar."""
        self.console.print(text, markup=False)

    @contextmanager
    def over(self, seconds: float, cells: int) -> Iterator[None]:
        """Show progress while cells are run whose guessed costs add up to `seconds`."""
        self.guess, self.done, self.cells, self.cells_done = seconds, 0.0, cells, 0
        self.start = self.said = time.monotonic()
        if cells == 0:
            yield
            return
        with self.bar:
            self.task = self.bar.add_task("", total=cells, what="starting", left="estimating time")
            yield

    def advance(self, batch: Any) -> None:
        """A batch is done."""
        self.done += batch.seconds
        self.cells_done += len(batch.cells)
        now = time.monotonic()
        left = (now - self.start) * (self.guess / self.done - 1.0)
        text = f"{_clock(left)} left" if self.cells_done < self.cells else f"{_clock(now - self.start)}"
        what = method_name(batch.cells[0].method)
        self.bar.update(self.task, completed=self.cells_done, what=what, left=text)
        last = self.cells_done == self.cells
        if not self.console.is_terminal and (last or now - self.said > SECONDS_BETWEEN_LINES):
            self.said = now
            self.line(f"{self.cells_done} of {self.cells} cells, {text}")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
