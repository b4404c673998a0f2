"""The one loop: plan what is missing, have it run, keep what comes, keep the user told.

Nothing here knows what is computed, or where. Only this process writes: workers return rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

import pp_testbed
from pp_testbed.engine.jobs import Done, Event, Executor, Failed, Queue
from pp_testbed.engine.local import Local
from pp_testbed.engine.progress import Progress
from pp_testbed.engine.provenance import provenance
from pp_testbed.engine.store import OK, Store, cell_ids, create_directory, file_words
from pp_testbed.engine.study import Cell, Rows, Study
from pp_testbed.errors import UsageError


def run(
    study: Study,
    out: str | os.PathLike[str],
    executor: Executor | None = None,
    *,
    progress: bool = True,
    kept: Callable[[Cell], None] = lambda cell: None,
) -> pd.DataFrame:
    """Run the cells of a study that a directory lacks, and return the rows of all of its cells.

    Cells that are there, and ended well, are not run again; ones that failed are. A cell that fails is a row,
    whose `status` is not "ok" and whose `error` says why.

    Args:
        executor: where it runs; in this process if None.
        progress: whether to show a progress bar.
        kept: told of each cell that has ended well, as soon as it is kept.
    """
    cells = study.cells
    if not cells:
        raise UsageError(f"there are no {study.noun} to run: no methods, or no problems")
    ids = {cell.id for cell in cells}
    if len(ids) < len(cells):
        raise UsageError(f"some {study.noun} are given twice: a method or a problem is")
    store, bar = Store(out, study.layout), Progress(progress)
    store.create()
    missing = missing_cells(cells, store.read(bar.line), study.layout.step)
    if len(missing) < len(cells):
        there = len(cells) - len(missing)
        bar.line(f"{there} of {len(cells)} {study.noun} are in {store.directory} already")
    scratch = store.directory.resolve() / ".scratch"
    create_directory(scratch, "checkpoints")
    with bar.over([(_kind(cell), cell.cost) for cell in missing], len(missing), study.noun):
        keeper = Keeper(store, bar, kept)
        for batch, event in (executor or Local()).map(study.run, Queue(missing), str(scratch)):
            keeper.take(batch, event)
    with suppress(OSError):  # where runs that were stopped have left something
        scratch.rmdir()
    frame = store.read()
    return frame[pd.Index(cell_ids(frame)).isin(ids)].reset_index(drop=True)


def missing_cells(cells: Sequence[Cell], frame: pd.DataFrame, step: str = "") -> list[Cell]:
    """The cells that have no good row at their goals, or a failure before."""
    frame = frame.assign(id=cell_ids(frame))
    good, failed = frame[frame.status == OK], frame[frame.status != OK]
    there = set(zip(good.id, *(good[name] for name in cells[0].goal), strict=True))
    first = failed.groupby("id")[step].min().to_dict() if step else {}
    return [
        cell
        for cell in cells
        if (cell.id, *cell.goal.values()) not in there or first.get(cell.id, np.inf) <= cell.goal.get(step, 0)
    ]


class Keeper:
    """Keeps what comes of batches, and tells the bar."""

    def __init__(self, store: Store, bar: Progress, kept: Callable[[Cell], None]) -> None:
        self.store, self.bar, self.kept = store, bar, kept
        self.all_say = {"version": pp_testbed.__version__, "provenance": provenance()}
        self.seen: set[str] = set()  # cells of which there are rows
        self.fractions: dict[str, float] = {}  # of batches, by their first cell

    def take(self, batch: list[Cell], event: Event) -> None:
        """Something has come of a batch."""
        match event:
            case Rows(place, rows, arrays, checkpoint):
                self.keep(batch[place], [{"status": OK, "error": ""} | row for row in rows], arrays)
                if checkpoint is not None:
                    checkpoint.unlink(missing_ok=True)
            case Failed(why):
                for cell in batch:
                    if cell.id not in self.seen:
                        self.keep(cell, [cell.goal | {"status": "error", "error": why}], {})
            case Done(fraction, seconds, is_end, _):
                before = self.fractions.get(batch[0].id, 0.0)  # it may have begun again, elsewhere
                self.fractions[batch[0].id] = max(before, fraction)
                cost = batch[0].cost * len(batch) * (self.fractions[batch[0].id] - before)
                self.bar.advance(_kind(batch[0]), cost, len(batch) if is_end else 0, seconds)

    def keep(self, cell: Cell, rows: list[dict[str, object]], arrays: Mapping[str, object]) -> None:
        """Write the rows of a cell."""
        self.seen.add(cell.id)
        self.store.write(stem(cell), [cell.head | row | self.all_say for row in rows], arrays)
        if all(row["status"] == OK for row in rows):
            self.kept(cell)


def stem(cell: Cell) -> str:
    """The name of a cell's files; the words are for people, the hash is what counts."""
    words = file_words(cell.head["problem"], cell.head["method"])
    goal = "".join(f"\n{value}" for value in cell.goal.values())
    return f"{words[:150]}_{hashlib.sha256(f'{cell.id}{goal}'.encode()).hexdigest()[:16]}"


def _kind(cell: Cell) -> str:
    """What cells of one cost have in common, for the estimate of time."""
    return str(cell.head["method"])


def words_on_failures(frame: pd.DataFrame) -> str:
    """How many cells of results failed, and why the first did; nothing if none did."""
    failed = frame[frame.status != OK]
    if failed.empty:
        return ""
    one = failed.iloc[0]
    return f"{len(failed)} of {len(frame)} cells failed, such as {one.method} on {one.problem}: {one.error}"
