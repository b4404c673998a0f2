"""Running a batch of cells: draw the problems, fit, evaluate, make rows.

A batch holds cells of one compiled program: methods of one structure, problems of one shape. It is
always filled up to the same number of cells, by repetition, so that a cell's numbers do not depend
on which others happen to be run with it. Nothing here reads or writes files.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pp_testbed
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.evaluator import (
    Evaluation,
    Scores,
    evaluate,
    num_draws_of,
    score,
    scores_of,
    words_on_nan,
)
from pp_testbed.experiments.identity import config_hash, config_text
from pp_testbed.experiments.problems import Problem
from pp_testbed.experiments.store import OK, cell_id
from pp_testbed.inference.base import method_name

NETWORKS_AT_ONCE = 10  # trained together by one program: what stays in a core's cache


@dataclass(frozen=True)
class Cell:
    """One method on one problem: the unit that is run, stored and resumed."""

    method: Any
    problem: Problem
    suite: str
    config: str

    @property
    def id(self) -> str:
        return cell_id(self.problem.name, config_hash(self.config), pp_testbed.__version__)

    def row(self, status: str, error: str = "", **columns: Any) -> dict[str, Any]:
        """The cell as a row of results."""
        return {
            "suite": self.suite,
            "problem": self.problem.name,
            "method": method_name(self.method),
            "config": self.config,
            "config_hash": config_hash(self.config),
            "seed": self.problem.seed,
            "input_dim": self.problem.input_dim,
            "num_train": self.problem.num_train,
            "temperature": self.problem.temperature,
            "num_classes": self.problem.num_classes,
            "status": status,
            "error": error,
            "version": pp_testbed.__version__,
            **columns,
        }


@dataclass(frozen=True)
class Batch:
    """Cells that run together, how many their program holds, which it is, and whether it is new."""

    cells: tuple[Cell, ...]
    size: int
    program: int
    is_first: bool

    @property
    def name(self) -> str:
        """What a table calls its method."""
        return method_name(self.cells[0].method)

    @property
    def seconds(self) -> float:
        """A rough guess of the cost, for a progress bar, which corrects it as it goes."""
        method, rows = self.cells[0].method, min(self.cells[0].problem.num_train, 100)
        steps = getattr(method, "num_steps", 1000) * method.networks if is_batched(method) else 1000
        compilation = 4.0 if self.is_first else 0.0
        return compilation + len(self.cells) * (0.1 + steps * (1e-5 + 2e-7 * rows))


def make_cells(
    methods: Sequence[Any], problems: Sequence[Problem], suite: str, config: Evaluation
) -> list[Cell]:
    """Every method on every problem."""
    texts = [config_text(method, config) for method in methods]
    return [
        Cell(method, problem, suite, text)
        for method, text in zip(methods, texts, strict=True)
        for problem in problems
    ]


def make_batches(cells: Sequence[Cell]) -> Iterator[Batch]:
    """Group cells by compiled program, methods in their order, and cut groups into batches."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_program_of(cell), []).append(cell)
    for program, members in enumerate(groups.values()):
        method = members[0].method
        size = problems_at_once(method)
        for start in range(0, len(members), size):
            yield Batch(tuple(members[start : start + size]), size, program, start == 0)


def problems_at_once(method: Any) -> int:
    """How many problems one program of a method holds."""
    return max(1, NETWORKS_AT_ONCE // method.networks) if is_batched(method) else 1


def map_problems(function: Any, arguments: tuple[Any, ...]) -> Any:
    """`function` of one problem's arguments, mapped over the leading axis of all leaves.

    Not by vmap where there is one problem: a vmap of one still takes both sides of every condition,
    which doubles the cost of a sampler.
    """
    if len(jax.tree.leaves(arguments)[0]) > 1:
        return jax.vmap(function)(arguments)
    alone = function(jax.tree.map(lambda leaf: leaf[0], arguments))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)


def is_batched(method: Any) -> bool:
    """Whether a method can be mapped over problems: see `Method`."""
    return isinstance(getattr(method, "networks", None), int) and is_dataclass(method)


def _program_of(cell: Cell) -> Any:
    """What must be equal for cells to share a program: structures, not numbers."""
    if not is_batched(cell.method):
        return cell.id
    structures = jax.tree.structure((cell.method, cell.problem.model))
    return structures, num_rows(cell.method, cell.problem)


def num_rows(method: Any, problem: Problem) -> int:
    """Rows of the task that a program of a method sees: more than the data only if it weighs them."""
    return problem.padded_size if getattr(method, "weighs_rows", False) else problem.num_train


@dataclass
class Programs:
    """Compiled programs of this process, so that compilation is not counted as fitting."""

    compiled: dict[Any, Any] = field(default_factory=dict)

    def timed(self, function: Any, *arguments: Any, **static: Any) -> tuple[Any, float]:
        """The value of a jitted function, and how many seconds it took to run once compiled."""
        leaves, structure = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (function, structure, shapes, tuple(static.items()))
        if key not in self.compiled:
            self.compiled[key] = function.lower(*arguments, **static).compile()
        start = time.perf_counter()
        value = jax.block_until_ready(self.compiled[key](*arguments))
        return value, time.perf_counter() - start


def run_batch(batch: Batch, config: Evaluation, programs: Programs) -> list[dict[str, Any]]:
    """The rows of a batch. An exception becomes the status of its cells."""
    try:
        if is_batched(batch.cells[0].method):
            return _run_together(batch, config, programs)
        return [_run_alone(batch.cells[0], config)]
    except Exception as error:
        return [cell.row("error", one_line(error)) for cell in batch.cells]


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


@jax.jit
def _fit(methods: Any, keys: Any, tasks: Any) -> Any:
    def fit(arguments: tuple[Any, Any, Any]) -> Any:
        method, key, task = arguments
        return method.fit(key, task)

    return map_problems(fit, (methods, keys, tasks))


def _run_together(batch: Batch, config: Evaluation, programs: Programs) -> list[dict[str, Any]]:
    filled = [batch.cells[i % len(batch.cells)] for i in range(batch.size)]
    rows = num_rows(filled[0].method, filled[0].problem)
    tasks, environments = stack([cell.problem.draw(rows) for cell in filled])
    keys = stack([cell.problem.keys for cell in filled])
    methods = stack([cell.method for cell in filled])
    posteriors, fit_seconds = programs.timed(_fit, methods, keys.fit, tasks)
    losses = getattr(posteriors, "losses", None)
    posteriors = posteriors.without_history()  # on whose length the evaluator's program would depend
    made = []
    for i, cell in enumerate(batch.cells):
        posterior, environment, key = jax.tree.map(
            lambda leaf, i=i: leaf[i], (posteriors, environments, keys.evaluate)
        )
        try:
            terms, seconds = programs.timed(score, posterior, environment, key, config=config)
            scores = scores_of(terms, num_draws_of(posterior, config), environment, config)
            own = None if losses is None else losses[i]
            made.append(_row(cell, scores, fit_seconds / batch.size, seconds, own))
        except Exception as error:
            made.append(cell.row("error", one_line(error)))
    return made


def _run_alone(cell: Cell, config: Evaluation) -> dict[str, Any]:
    """A method that is any Python: on the unpadded task, one problem at a time."""
    keys = cell.problem.keys
    start = time.perf_counter()
    posterior = jax.block_until_ready(cell.method.fit(keys.fit, cell.problem.task))
    fitted = time.perf_counter()
    if not callable(posterior) and not callable(getattr(posterior, "logits", None)):
        raise UsageError(
            f"fit of {method_name(cell.method)} returned {type(posterior).__name__}; expected a "
            "posterior, or a function: see pt.finite and pt.sampled"
        )
    scores = evaluate(posterior, cell.problem.environment, key=keys.evaluate, config=config)
    losses = getattr(posterior, "losses", None)
    return _row(cell, scores, fitted - start, time.perf_counter() - fitted, losses)


def _row(
    cell: Cell, scores: Scores, fit_seconds: float, evaluate_seconds: float, losses: Any
) -> dict[str, Any]:
    columns: dict[str, Any] = scores.asdict()
    means = [name for name in columns if name + "_stderr" in columns]
    undefined = [name for name in means if np.isnan(columns[name])]
    status, error = OK, ""
    if undefined:
        status, error = "nan", f"{', '.join(undefined)} undefined: {words_on_nan(losses)}"
    return cell.row(status, error, **columns, fit_seconds=fit_seconds, evaluate_seconds=evaluate_seconds)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one tree, with a leading axis on every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)
