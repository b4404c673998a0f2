"""Active learning: methods choose which inputs of a pool are labelled, and are scored after each budget.

The pool is the data of a problem, whose labels are hidden until they are asked for. A run, one method
on one pool with one priority, starts from the same few labels as the others; at each budget the method
is fitted anew on the labels that it has, scored by the common evaluator, and its priorities choose the
labels up to the next. Priorities are in `evaluation.acquisition`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa

from pp_testbed.engine.identity import config_text
from pp_testbed.engine.jobs import Executor, one_line
from pp_testbed.engine.local import Local
from pp_testbed.engine.programs import filled, stack, unstack
from pp_testbed.engine.run import run
from pp_testbed.engine.store import ALWAYS, OK, Column, Layout, Store
from pp_testbed.engine.study import Cell, Rows, Study, Workspace, head_of
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.acquisition import PRIORITIES, Candidates, reorder
from pp_testbed.evaluation.evaluator import evaluate
from pp_testbed.evaluation.terms import Evaluation
from pp_testbed.inference.options import method_name, problems_at_once
from pp_testbed.inference.posterior import as_posterior, log_weights_of
from pp_testbed.inference.specs import resolve, sent
from pp_testbed.models.base import Array, Task
from pp_testbed.problems.base import BaseProblem, key_of
from pp_testbed.problems.suites import Suite
from pp_testbed.problems.suites import suite as named_suite
from pp_testbed.studies.cells import FACTS, facts_of, program_of
from pp_testbed.studies.scoring import ORDER, SCORES, fit_together

REVISION = 1  # of how a run chooses
BUDGETS = (10, 20, 40, 80, 160)
DRAWS = 100  # functions of which priorities are computed, where a posterior is not finite
OWN = (Column("suite", pa.string(), ALWAYS), Column("priority", pa.string(), ALWAYS))
LABELLED = Column("num_labelled", pa.int64(), ALWAYS)
LEARNING = Layout("active learning", (*OWN, *FACTS, LABELLED, *SCORES), ORDER, LABELLED.name)


class Learning(NamedTuple):
    """What a worker is told of a run: one method, in words or itself, on one pool with one priority."""

    method: Any
    problem: BaseProblem
    priority: str


def active(
    methods: Sequence[Any],
    problems: Suite | str = "2d",
    *,
    priorities: Sequence[str] = tuple(PRIORITIES),
    budgets: Sequence[int] = BUDGETS,
    out: str | os.PathLike[str] = "active",
    jobs: int = 0,
    executor: Executor | None = None,
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
        executor: another place to run, such as `pt.Dask(client)`.

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
        if not pool.num_classes:
            raise UsageError(f"the labels of {pool.name} are numbers; priorities are of classes")
        if pool.num_train < budgets[-1]:
            raise UsageError(f"{pool.name} has {pool.num_train} data; the largest budget is {budgets[-1]}")
    study = choosing(methods, chosen, priorities, budgets, config or Evaluation())
    return run(study, out, executor or Local(jobs), progress=progress)


def choosing(
    methods: Sequence[Any],
    pools: Sequence[BaseProblem],
    priorities: Sequence[str],
    budgets: tuple[int, ...],
    config: Evaluation,
) -> Study:
    """The study of some methods on some pools with some priorities."""
    cells = []
    for item, pool in product(methods, pools):
        made = resolve(item, facts_of(pool))
        message, program, size = sent(item, made), program_of(made, pool), problems_at_once(made)
        asked = {"revision": REVISION, "method": made, "budgets": budgets, "evaluation": config}
        for priority in priorities:
            text = config_text(priority=priority, **asked)
            head = head_of(pool, method_name(made), text, suite="active", priority=priority)
            goal = {LABELLED.name: budgets[-1]}
            cells.append(Cell(head, Learning(message, pool, priority), program, size, goal))
    return Study(LEARNING, cells, partial(learn, budgets, config), "runs")


def read_active(
    directory: str | os.PathLike[str], report: Callable[[str], None] = lambda line: None
) -> pd.DataFrame:
    """All runs of a directory, a row per budget. Other files are reported, by name, and ignored."""
    return Store(directory, LEARNING).read(report)


def pools(problems: Suite | str) -> Suite:
    """The problems whose data are pools: a suite's own, or of a named one those of 1000 data at 0.1."""
    if isinstance(problems, Suite):
        return problems
    found = named_suite(problems).filter(num_train=1000, temperature=0.1)
    if not len(found):
        raise UsageError(f"suite {problems} has no problem with 1000 data at temperature 0.1")
    return found


def learn(
    budgets: tuple[int, ...], config: Evaluation, messages: list[Learning], _workspace: Workspace
) -> Iterator[Rows | float]:
    """Runs of one method together: the scores of each after each budget, up to where it fails."""
    rows: list[list[dict[str, Any]]] = [[] for _ in messages]
    try:
        for place, row in _learn(budgets, config, messages):
            rows[place].append(row)
            yield min(map(len, rows)) / len(budgets)
    except Exception as error:
        for mine in rows:
            budget = budgets[min(len(mine), len(budgets) - 1)]
            mine.append({LABELLED.name: budget, "status": "error", "error": one_line(error)})
    for place, mine in enumerate(rows):
        yield Rows(place, mine)


def _learn(
    budgets: tuple[int, ...], config: Evaluation, runs: list[Learning]
) -> Iterator[tuple[int, dict[str, Any]]]:
    methods = [resolve(one.method, facts_of(one.problem)) for one in runs]
    orders = [np.asarray(jax.random.permutation(_keys(one)[0], one.problem.num_train)) for one in runs]
    weighs_rows = problems_at_once(methods[0]) and getattr(methods[0], "weighs_rows", False)
    for budget in budgets:
        # A program that weighs rows has as many for each budget; any other method its data and no others.
        num_rows = budgets[-1] if weighs_rows else budget
        pairs = zip(runs, orders, strict=True)
        tasks = [_labelled(one.problem.task, order, budget, num_rows) for one, order in pairs]
        posteriors = _fit(methods, runs, tasks)
        for place, (one, posterior) in enumerate(zip(runs, posteriors, strict=True)):
            key = one.problem.keys.evaluate
            scores = evaluate(posterior, one.problem, key=key, config=config).asdict()
            undefined = np.isnan(scores["nll"])
            status, error = ("nan", "its scores are NaN") if undefined else (OK, "")
            yield place, {LABELLED.name: budget, "status": status, "error": error, **scores}
            if budget != budgets[-1]:
                orders[place] = _next_order(one, posterior, orders[place], budget)


def _fit(methods: list[Any], runs: list[Learning], tasks: list[Task]) -> list[Any]:
    """The posterior of each run's task, together where the methods can."""
    size = problems_at_once(methods[0])
    if not size:
        each = zip(methods, runs, tasks, strict=True)
        return [as_posterior(method.fit(one.problem.keys.fit, task)) for method, one, task in each]
    keys = stack([one.problem.keys.fit for one in filled(runs, size)])
    together = fit_together(stack(filled(methods, size)), keys, stack(filled(tasks, size))).without_history()
    return unstack(together, len(runs))


def _labelled(pool: Task, order: np.ndarray, budget: int, num_rows: int) -> Task:
    """The task of the first inputs of a pool in some order, repeated up to so many rows."""
    rows = order[np.arange(num_rows) % budget]
    return replace(pool, x=pool.x[rows], y=pool.y[rows], num_train=budget)


def _next_order(run: Learning, posterior: Any, order: np.ndarray, budget: int) -> np.ndarray:
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


def _keys(run: Learning) -> Array:
    """Of a pool: the keys of its first order, and of what is chosen."""
    return jax.random.split(key_of(f"active/{run.problem.name}"))
