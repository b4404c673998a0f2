"""Running suites: plan the cells that are missing, run them here or in workers, keep the user told.

`run` is the whole of it. What a batch does is in `batch`; how it travels to a process of its own in
`workers`; where results go in `store`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.evaluator import Evaluation
from pp_testbed.experiments import workers
from pp_testbed.experiments.batch import Batch, Cell, Programs, make_batches, make_cells, run_batch
from pp_testbed.experiments.problems import Problem, Suite
from pp_testbed.experiments.problems import suite as named_suite
from pp_testbed.experiments.progress import Progress
from pp_testbed.experiments.provenance import provenance
from pp_testbed.experiments.specs import resolve
from pp_testbed.experiments.store import OK, Store, cell_ids


def run(
    suite: Suite | str | Iterable[Problem],
    methods: Sequence[Any],
    out: str | os.PathLike[str] = "results",
    *,
    jobs: int = 0,
    progress: bool = True,
    config: Evaluation | None = None,
) -> pd.DataFrame:
    """Score methods on problems, keep the results in a directory, and return them.

    Cells that are there already, and complete, are not run again; ones that failed are. A method
    that fails costs its own cells: their `status` is not "ok", and their `error` says why.

    Args:
        suite: a suite, its name, or any problems.
        methods: names, `file.py:NAME`, or objects with `fit(key, task)`.
        out: the results directory; `pandas.read_parquet(out)` reads it.
        jobs: worker processes; 0 runs everything in this process, where a debugger sees it.
        progress: whether to show a progress bar.
        config: what is measured, and how precisely.

    Returns:
        One row per cell of this call; `experiments.store.SCHEMA` has the columns.

    Examples:
        >>> len(run("smoke", ["uniform", "prior"], out="results/", progress=False))
        4
    """
    if isinstance(methods, str):
        raise UsageError(f"methods is a string; expected a list, as [{methods!r}]")
    config = config or Evaluation()
    name, problems = _problems(suite)
    made = [resolve(item) for item in methods]
    if not made:
        raise UsageError("there are no methods to run")
    store = Store(out)
    store.create()
    cells = make_cells(made, problems, name, config)
    if len({cell.id for cell in cells}) < len(cells):
        raise UsageError("a method or a problem is given twice")
    bar = Progress(progress)
    complete = _complete(store, bar.line)
    missing = [cell for cell in cells if cell.id not in complete]
    if len(missing) < len(cells):
        bar.line(f"{len(cells) - len(missing)} of {len(cells)} cells are in {store.directory} already")
    batches = list(make_batches(missing))

    def done(batch: Batch, seconds: float) -> None:
        bar.advance(batch.name, batch.seconds, len(batch.cells), seconds)

    with bar.over([(batch.name, batch.seconds) for batch in batches], len(missing)):
        index = {id(method): i for i, method in enumerate(made)}
        made_by = provenance()
        setup = partial(_handler, list(methods), store.directory, config, made_by)
        queue = (_job(batch, index) for batch in batches)
        workers.run(queue, setup, jobs, done, partial(_write_death, store, made_by))
    frame = store.read()
    wanted = {cell.id for cell in cells}
    frame = frame[[one in wanted for one in cell_ids(frame)]].assign(suite=name).reset_index(drop=True)
    if not progress and (words := words_on_failures(frame)):
        warnings.warn(words, stacklevel=2)
    return frame


def words_on_failures(frame: pd.DataFrame) -> str:
    """How many cells of results failed, and why the first did; nothing if none did."""
    failed = frame[frame.status != OK]
    if failed.empty:
        return ""
    one = failed.iloc[0]
    return f"{len(failed)} of {len(frame)} cells failed, such as {one.method} on {one.problem}: {one.error}"


def _job(batch: Batch, index: dict[int, int]) -> workers.Job:
    """A batch as a message, in which methods are places in the list that workers resolve themselves."""
    cells = [(index[id(cell.method)], cell.problem, cell.suite, cell.config) for cell in batch.cells]
    return workers.Job(batch.program, (cells, batch.size, batch.program, batch.is_first), batch)


def _handler(items: list[Any], directory: Path, config: Evaluation, made_by: str) -> Callable[[Any], None]:
    """What a worker does with the message of a job."""
    methods = [resolve(item) for item in items]
    store, programs = Store(directory), Programs()

    def handle(message: Any) -> None:
        cells, *rest_of_batch = message
        batch = Batch(tuple(Cell(methods[i], *rest) for i, *rest in cells), *rest_of_batch)
        rows = run_batch(batch, config, programs)
        try:
            for row in rows:
                store.write(row | {"provenance": made_by})
        except OSError as problem:
            raise UsageError(f"cannot write results to {directory}: {problem.strerror}") from None

    return handle


def _write_death(store: Store, made_by: str, batch: Batch, why: str) -> None:
    for cell in batch.cells:
        store.write(cell.row("error", why, provenance=made_by))


def _problems(suite: Suite | str | Iterable[Problem]) -> tuple[str, list[Problem]]:
    if isinstance(suite, str):
        suite = named_suite(suite)
    name = suite.name if isinstance(suite, Suite) else "custom"
    problems = list(suite)
    if not problems:
        raise UsageError("there are no problems to run on")
    return name, problems


def _complete(store: Store, report: Callable[[str], None]) -> set[str]:
    """The ids of cells that are stored and did not fail."""
    frame = store.read(report)
    return set(cell_ids(frame[frame.status == OK]))
