"""Active learning: methods choose which inputs of a pool are labelled, and are scored after each budget.

The pool is the data of a problem, whose labels are hidden until they are asked for. A run, one method
on one pool with one priority, starts from the same few labels as the others; at each budget the method
is fitted anew on the labels that it has, scored by the common evaluator, and its priorities choose the
labels up to the next. Priorities are in `evaluation.acquisition`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa

from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.acquisition import PRIORITIES, Candidates, reorder
from pp_testbed.evaluation.evaluator import Evaluation, evaluate
from pp_testbed.experiments import workers
from pp_testbed.experiments.batch import Cell, is_batched, map_problems, one_line, problems_at_once, stack
from pp_testbed.experiments.identity import describe
from pp_testbed.experiments.problems import Problem, Suite, key_of
from pp_testbed.experiments.problems import suite as named_suite
from pp_testbed.experiments.progress import Progress
from pp_testbed.experiments.specs import resolve
from pp_testbed.experiments.store import OK, SCHEMA, Tables, cell_ids, file_words
from pp_testbed.inference.base import as_posterior, log_weights_of, method_name
from pp_testbed.models.base import Array, Task

BUDGETS = (10, 20, 40, 80, 160)
DRAWS = 100  # functions of which priorities are computed, where a posterior is not finite
ACTIVE_SCHEMA = pa.schema(
    [*SCHEMA, ("priority", pa.string()), ("num_labelled", pa.int64())],
)


@dataclass(frozen=True)
class Run:
    """One method on one pool with one priority."""

    method: Any
    problem: Problem
    priority: str
    budgets: tuple[int, ...]
    config: str

    @property
    def cell(self) -> Cell:
        """What it shares with a cell of `pt.run`: its identity, and most of its rows' columns."""
        return Cell(self.method, self.problem, "active", self.config)

    @property
    def file_name(self) -> str:
        words = file_words(self.problem.name, method_name(self.method), self.priority)
        return f"{words[:150]}_{self.cell.id}.parquet"

    def row(self, num_labelled: int, status: str, error: str = "", **columns: Any) -> dict[str, Any]:
        """The scores after one budget."""
        return self.cell.row(status, error, priority=self.priority, num_labelled=num_labelled, **columns)


def active(
    methods: Sequence[Any],
    problems: Suite | str = "2d",
    *,
    priorities: Sequence[str] = tuple(PRIORITIES),
    budgets: Sequence[int] = BUDGETS,
    out: str | os.PathLike[str] = "active",
    jobs: int = 0,
    progress: bool = True,
    config: Evaluation | None = None,
) -> pd.DataFrame:
    """Let methods choose their data, keep their scores in a directory, and return them.

    Args:
        methods: names, `file.py:NAME`, or objects with `fit(key, task)`.
        problems: a suite, whose problems' data are the pools; of a named one, those of 1000 data at
            temperature 0.1.
        priorities: of `evaluation.acquisition.PRIORITIES`.
        budgets: numbers of labels after which there is a score; the first are chosen at random.
        out: a directory; runs that are there are not run again.
        jobs: worker processes; 0 runs everything in this one.

    Returns:
        A row per run and budget.

    Examples:
        >>> pool = Suite("mine", (problem,))
        >>> active(["uniform"], pool, priorities=["uniform"], budgets=[1, 2], progress=False).status[0]
        'ok'
    """
    budgets, chosen = tuple(budgets), list(pools(problems))
    if not budgets or list(budgets) != sorted(set(budgets)) or budgets[0] < 1:
        raise UsageError(f"budgets are {budgets}; expected increasing numbers of labels, as in 10,20,40")
    for priority in priorities:
        if priority not in PRIORITIES:
            raise unknown("priority", priority, PRIORITIES)
    for pool in chosen:
        if pool.num_train < budgets[-1]:
            raise UsageError(f"{pool.name} has {pool.num_train} data; the largest budget is {budgets[-1]}")
    made, config = [resolve(item) for item in methods], config or Evaluation()
    runs = [
        Run(one, pool, priority, budgets, _config(one, priority, budgets, config))
        for one in made
        for priority in priorities
        for pool in chosen
    ]
    if not runs:
        raise UsageError("there are no methods, priorities or problems to run")
    if len({run.cell.id for run in runs}) < len(runs):
        raise UsageError("a method, a priority or a problem is given twice")
    tables, bar = active_tables(out), Progress(progress)
    tables.create()
    missing = [run for run in runs if not _is_complete(tables.rows(run.file_name))]
    if len(missing) < len(runs):
        bar.line(f"{len(runs) - len(missing)} of {len(runs)} runs are in {tables.directory} already")
    _run_missing(list(methods), made, missing, config, tables, jobs, bar)
    frame, wanted = tables.read(), {run.cell.id for run in runs}
    return frame[[one in wanted for one in cell_ids(frame)]].reset_index(drop=True)


def read_active(
    directory: str | os.PathLike[str], report: Callable[[str], None] = lambda line: None
) -> pd.DataFrame:
    """All runs of a directory, a row per budget. Other files are reported, by name, and ignored."""
    return active_tables(directory).read(report)


def active_tables(directory: str | os.PathLike[str]) -> Tables:
    """The files of a directory of runs."""
    return Tables(directory, ACTIVE_SCHEMA, "active learning")


def pools(problems: Suite | str) -> Suite:
    """The problems whose data are pools: a suite's own, or of a named one those of 1000 data at 0.1."""
    if isinstance(problems, Suite):
        return problems
    found = named_suite(problems).filter(num_train=1000, temperature=0.1)
    if not len(found):
        raise UsageError(f"suite {problems} has no problem with 1000 data at temperature 0.1")
    return found


def _config(method: Any, priority: str, budgets: tuple[int, ...], config: Evaluation) -> str:
    parts = {"method": method, "priority": priority, "budgets": budgets, "evaluation": config}
    return json.dumps({name: describe(part) for name, part in parts.items()}, sort_keys=True)


def _is_complete(rows: pd.DataFrame | None) -> bool:
    return rows is not None and bool((rows.status == OK).all())


def _run_missing(
    items: list[Any],
    made: list[Any],
    missing: list[Run],
    config: Evaluation,
    tables: Tables,
    jobs: int,
    bar: Progress,
) -> None:
    """Run in batches of one method, here or in workers."""
    queue = []
    for index, one in enumerate(made):
        mine, size = [run for run in missing if run.method is one], problems_at_once(one)
        for start in range(0, len(mine), size):
            batch = mine[start : start + size]
            message = index, [(run.problem, run.priority, run.budgets, run.config) for run in batch]
            queue.append(workers.Job(index, message, batch))

    def cost(batch: list[Run]) -> float:
        return len(batch) * float(getattr(batch[0].method, "networks", 1))

    def done(batch: list[Run], seconds: float) -> None:
        bar.advance(method_name(batch[0].method), cost(batch), len(batch), seconds)

    def died(batch: list[Run], why: str) -> None:
        for run in batch:
            tables.write(run.file_name, [run.row(0, "error", why)])

    costs = [(method_name(job.subject[0].method), cost(job.subject)) for job in queue]
    with bar.over(costs, len(missing), "runs"):
        workers.run(queue, partial(_handler, items, config, tables), jobs, done, died)


def _handler(items: list[Any], config: Evaluation, tables: Tables) -> Callable[[Any], None]:
    """What a worker does with a message: run, and write a file for each."""
    made = [resolve(item) for item in items]

    def handle(message: Any) -> None:
        index, parts = message
        runs = [Run(made[index], *part) for part in parts]
        rows: dict[str, list[dict[str, Any]]] = {run.cell.id: [] for run in runs}
        try:
            for run, row in _learn(runs, config):
                rows[run.cell.id].append(row)
        except Exception as error:
            for run in runs:
                budget = run.budgets[min(len(rows[run.cell.id]), len(run.budgets) - 1)]
                rows[run.cell.id].append(run.row(budget, "error", one_line(error)))
        for run in runs:
            tables.write(run.file_name, rows[run.cell.id])

    return handle


def _learn(runs: list[Run], config: Evaluation) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Runs of one method together: their scores after each budget."""
    method, budgets = runs[0].method, runs[0].budgets
    orders = [np.asarray(jax.random.permutation(_keys(run)[0], run.problem.num_train)) for run in runs]
    for budget in budgets:
        # A program that weighs rows has as many for each budget; any other method its data and no others.
        num_rows = budgets[-1] if is_batched(method) and getattr(method, "weighs_rows", False) else budget
        tasks = [
            _labelled(run.problem.task, order, budget, num_rows)
            for run, order in zip(runs, orders, strict=True)
        ]
        posteriors = _fit(method, runs, tasks)
        for place, (run, posterior) in enumerate(zip(runs, posteriors, strict=True)):
            key = run.problem.keys.evaluate
            scores = evaluate(posterior, run.problem, key=key, config=config).asdict()
            undefined = np.isnan(scores["kl_joint"])
            status, error = ("nan", "its scores are NaN") if undefined else (OK, "")
            yield run, run.row(budget, status, error, **scores)
            if budget != budgets[-1]:
                orders[place] = _next_order(run, posterior, orders[place], budget)


def _fit(method: Any, runs: list[Run], tasks: list[Task]) -> list[Any]:
    """The posterior of each run's task, together where the method can: see `batch`."""
    if not is_batched(method):
        fits = (method.fit(run.problem.keys.fit, task) for run, task in zip(runs, tasks, strict=True))
        return [as_posterior(posterior) for posterior in fits]
    filled = [i % len(runs) for i in range(problems_at_once(method))]
    keys = stack([runs[i].problem.keys.fit for i in filled])
    methods, together = stack([method] * len(filled)), stack([tasks[i] for i in filled])
    together = _fit_together(methods, keys, together).without_history()
    return [jax.tree.map(lambda leaf, i=i: leaf[i], together) for i in range(len(runs))]


@jax.jit
def _fit_together(methods: Any, keys: Array, tasks: Task) -> Any:
    return map_problems(lambda arguments: arguments[0].fit(*arguments[1:]), (methods, keys, tasks))


def _labelled(pool: Task, order: np.ndarray, budget: int, num_rows: int) -> Task:
    """The task of the first inputs of a pool in some order, repeated up to so many rows."""
    rows = order[np.arange(num_rows) % budget]
    return Task(pool.model, pool.x[rows], pool.y[rows], budget)


def _next_order(run: Run, posterior: Any, order: np.ndarray, budget: int) -> np.ndarray:
    """The pool's order with the inputs of the highest priority after those that have labels."""
    key_draw, key_priority = jax.random.split(jax.random.fold_in(_keys(run)[1], budget))
    task = run.problem.task
    logits = posterior.logits(key_draw, task.x, DRAWS)
    log_weights = log_weights_of(posterior, len(logits))
    ranked = _reorder(run.priority, logits, log_weights, task.y, key_priority, jnp.asarray(order), budget)
    return np.asarray(ranked)


@partial(jax.jit, static_argnums=0)
def _reorder(
    priority: str, logits: Array, log_weights: Array, labels: Array, key: Array, order: Array, budget: Array
) -> Array:
    pool = Candidates(jax.nn.log_softmax(logits), log_weights, labels, key)
    return reorder(PRIORITIES[priority](pool), order, budget)


def _keys(run: Run) -> Array:
    """Of a pool: the keys of its first order, and of what is chosen."""
    return jax.random.split(key_of(f"active/{run.problem.name}"))
