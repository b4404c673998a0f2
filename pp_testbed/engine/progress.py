"""Telling the user how far a run is and how long it will take, on the standard error."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

SECONDS_BETWEEN_LINES = 10.0  # where the output is not a terminal


class Progress:
    """A bar with an estimate, or a line now and then where nobody sees a bar."""

    def __init__(self, shown: bool) -> None:
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True, highlight=False)
        self.bar = Bar(
            TextColumn("{task.fields[what]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[noun]}, {task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def line(self, text: str) -> None:
        """Say something, above the bar."""
        self.console.print(text, markup=False)

    @contextmanager
    def over(self, costs: Iterable[tuple[str, float]], number: int, noun: str = "cells") -> Iterator[None]:
        """Show progress while so many things are done.

        Args:
            costs: what is to be done, and a guess of its seconds; equal names are one kind, whose guesses are
                wrong by one factor.
        """
        self.costs: Counter[str] = Counter()
        for what, cost in costs:
            self.costs[what] += cost  # type: ignore[assignment]
        self.done: Counter[str] = Counter()
        self.spent: Counter[str] = Counter()
        self.number, self.number_done = number, 0
        self.start = self.said = time.monotonic()
        self.noun = noun
        if number == 0:
            yield
            return
        with self.bar:
            self.task = self.bar.add_task(
                "", total=number, what="starting", noun=noun, left="estimating time"
            )
            yield

    def advance(self, what: str, cost: float, number: int, seconds: float) -> None:
        """So many more of a kind are done, whose cost was guessed, in so many seconds of one process."""
        self.done[what] += cost  # type: ignore[assignment]
        self.spent[what] += seconds  # type: ignore[assignment]
        self.number_done += number
        now = time.monotonic()
        last = self.number_done == self.number
        text = _clock(now - self.start) if last else f"{_clock(self._left(now - self.start))} left"
        self.bar.update(self.task, completed=self.number_done, what=what, left=text)
        if not self.console.is_terminal and (last or now - self.said > SECONDS_BETWEEN_LINES):
            self.said = now
            self.line(f"{self.number_done} of {self.number} {self.noun}, {text}")

    def _left(self, elapsed: float) -> float:
        """Seconds left: of a kind that was seen at its own speed, of another at that of all."""
        spent, done = sum(self.spent.values()), sum(self.done.values())
        processes = spent / max(elapsed, 1e-9)  # that work at the same time
        rates = {what: self.spent[what] / cost for what, cost in self.done.items() if cost > 0}
        work = sum(
            max(0.0, cost - self.done[what]) * rates.get(what, spent / max(done, 1e-9))
            for what, cost in self.costs.items()
        )
        return work / max(processes, 1e-9)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
