"""Telling the user how far a run is and how long it will take, on the standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    def over(self, seconds: float, number: int, noun: str = "cells") -> Iterator[None]:
        """Show progress while so many things are done whose guessed costs add up to `seconds`."""
        self.guess, self.done, self.number, self.number_done = seconds, 0.0, number, 0
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

    def advance(self, seconds: float, number: int, what: str) -> None:
        """So many more are done, whose cost was guessed to be `seconds`."""
        self.done += seconds
        self.number_done += number
        now = time.monotonic()
        left = (now - self.start) * (self.guess / self.done - 1.0)
        last = self.number_done == self.number
        text = _clock(now - self.start) if last else f"{_clock(left)} left"
        self.bar.update(self.task, completed=self.number_done, what=what, left=text)
        if not self.console.is_terminal and (last or now - self.said > SECONDS_BETWEEN_LINES):
            self.said = now
            self.line(f"{self.number_done} of {self.number} {self.noun}, {text}")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
