"""The study of scores: every method on every problem, against the truth.

`run` is the whole of it. Cells of one program are mapped together: methods of one structure, problems of one
shape. A method that is any Python is called with one problem after another.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pandas as pd
import pyarrow as pa

from pp_testbed.engine.identity import config_text
from pp_testbed.engine.jobs import Executor, one_line
from pp_testbed.engine.local import Local
from pp_testbed.engine.programs import Programs, filled, map_problems, stack, unstack
from pp_testbed.engine.run import run as run_study
from pp_testbed.engine.run import words_on_failures
from pp_testbed.engine.store import ALWAYS, GOOD, MAYBE, Column, Layout
from pp_testbed.engine.study import Cell, Rows, Study, Workspace, head_of
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.evaluator import evaluate, score, scores_of, words_on_nan
from pp_testbed.evaluation.scores import COLUMNS, MAY_LACK, Scores
from pp_testbed.evaluation.selective import CURVES
from pp_testbed.evaluation.terms import Evaluation, num_draws_of
from pp_testbed.inference.options import effort, method_name, num_rows, problems_at_once
from pp_testbed.inference.specs import MethodSpec, resolve, sent
from pp_testbed.models.base import Task
from pp_testbed.problems.base import BaseProblem
from pp_testbed.problems.suites import Suite
from pp_testbed.problems.suites import suite as named_suite
from pp_testbed.studies.cells import FACTS, Fitted, batch_size, facts_of, program_of
from pp_testbed.studies.chains import Joined, chains_of, side_by_side

REVISION = 1  # of how a cell is run
SCORES = (
    *(Column(name, pa.float64(), GOOD if name == "nll" else MAYBE) for name in COLUMNS),
    *(Column(name, pa.float64(), MAYBE) for name in ("fit_seconds", "evaluate_seconds")),
    *(Column(name, pa.list_(pa.float64()), MAYBE) for name in CURVES),
    Column("num_draws", pa.int64(), GOOD),
    Column("labels", pa.string(), GOOD),
)
ORDER = ("method", "config_hash", "input_dim", "num_train", "temperature", "seed", "problem")
RESULTS = Layout("results", (Column("suite", pa.string(), ALWAYS), *FACTS, *SCORES), ORDER)


def run(
    suite: Suite | str | Iterable[BaseProblem],
    methods: Sequence[Any],
    out: str | os.PathLike[str] = "results",
    *,
    jobs: int = 0,
    executor: Executor | None = None,
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
        executor: another place to run, such as `pt.Dask(client)`.
        progress: whether to show a progress bar.
        config: what is measured, and how precisely.

    Returns:
        One row per cell of this call; `studies.scoring.RESULTS` has the columns.

    Examples:
        >>> len(run("smoke", ["uniform", "prior"], out="results/", progress=False))
        4
    """
    name, problems = _problems(suite)
    study = scoring(methods, problems, name, config or Evaluation())
    executor = executor or Local(jobs)
    with side_by_side(study, out, executor, progress) as study:
        frame = run_study(study, out, executor, progress=progress).assign(suite=name)
    if not progress and (words := words_on_failures(frame)):
        warnings.warn(words, stacklevel=2)
    return frame


def _problems(suite: Suite | str | Iterable[BaseProblem]) -> tuple[str, list[BaseProblem]]:
    if isinstance(suite, str):
        suite = named_suite(suite)
    return suite.name if isinstance(suite, Suite) else "custom", list(suite)


def configuration(method: Any, evaluation: Evaluation, preset: str = "") -> str:
    """What identifies the cells of a method, besides their problems.

    Args:
        preset: where its options depend on the problem, by which name that is one method in tables.
    """
    named = {"preset": preset} if preset else {}
    return config_text(revision=REVISION, method=method, evaluation=evaluation, **named)


def scoring(methods: Sequence[Any], problems: Sequence[BaseProblem], suite: str, config: Evaluation) -> Study:
    """The study of some methods on some problems."""
    if isinstance(methods, str):
        raise UsageError(f"methods is a string; expected a list, as [{methods!r}]")
    cells = []
    for item in methods:
        preset = item.preset_by_facts if isinstance(item, MethodSpec) else ""
        made = resolve(item)
        text, message = configuration(made, config, preset), sent(item, made)
        for problem in problems:
            if preset:
                made = resolve(item, facts_of(problem))
                message = sent(item, made)
                text = configuration(made, config, preset)
            head = head_of(problem, method_name(made), text, suite=suite)
            program, size = program_of(made, problem), batch_size(made, problem)
            cells.append(Cell(head, Fitted(message, problem), program, size, effort=effort(made)))
    return Study(RESULTS, cells, partial(score_cells, config))


def score_cells(config: Evaluation, messages: list[Fitted], workspace: Workspace) -> Iterator[Rows]:
    """Fit and score cells of one program."""
    methods = [resolve(message.method, facts_of(message.problem)) for message in messages]
    problems = [message.problem for message in messages]
    if chains := chains_of(messages[0].chains):
        yield Rows(0, [_score_chains(config, methods[0], problems[0], chains, workspace.programs)])
    elif problems_at_once(methods[0]):
        yield from _score_together(config, methods, problems, workspace)
    else:
        for place, pair in enumerate(zip(methods, problems, strict=True)):
            yield Rows(place, [_score_alone(config, *pair)])


@jax.jit
def fit_together(methods: Any, keys: Any, tasks: Any) -> Any:
    """The posteriors of stacked methods, keys and tasks."""
    return map_problems(lambda arguments: arguments[0].fit(*arguments[1:]), (methods, keys, tasks))


def _get_ready(
    config: Evaluation, methods_and_keys: tuple[Any, Any], problem: BaseProblem, rows: int, programs: Programs
) -> None:
    """Compile what a batch needs, in an order in which workers that need the same do not wait."""
    size = len(methods_and_keys[1])
    blank = stack([Task.blank(problem.model, rows, is_of_data=problem.is_of_data)] * size)
    fit = programs.compiling(fit_together, *methods_and_keys, blank)
    if fit[0] in programs.compiled:
        return
    programs.ready((("draw", problem.group, rows > 1000), lambda: problem.draw(rows)), fit)
    fitted = jax.eval_shape(fit_together, *methods_and_keys, blank).without_history()
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), fitted)
    alone = unstack(stack([(problem.draw(rows)[1], problem.keys.evaluate)]), 1)[0]
    programs.ready(programs.compiling(score, one, *alone, config=config), fit)


def _score_together(
    config: Evaluation, methods: list[Any], problems: list[BaseProblem], workspace: Workspace
) -> Iterator[Rows]:
    size, rows = batch_size(methods[0], problems[0]), num_rows(methods[0], problems[0])
    timed = workspace.programs.timed
    stacked, keys = stack(filled(methods, size)), stack([problem.keys for problem in filled(problems, size)])
    _get_ready(config, (stacked, keys.fit), problems[0], rows, workspace.programs)
    drawn = {problem.name: problem.draw(rows) for problem in problems}
    tasks, truths = stack([drawn[problem.name] for problem in filled(problems, size)])
    posteriors, fit_seconds = timed(fit_together, stacked, keys.fit, tasks)
    losses = getattr(posteriors, "losses", None)
    posteriors = posteriors.without_history()  # on whose length the evaluator's program would depend
    parts = unstack((posteriors, truths, keys.evaluate), len(problems))
    for i, (posterior, truth, key) in enumerate(parts):
        try:
            own = None if losses is None else losses[i]
            row = _scored(config, posterior, truth, key, fit_seconds / size, own, workspace.programs)
        except Exception as error:
            row = {"status": "error", "error": one_line(error)}
        yield Rows(i, [row])


def _score_chains(
    config: Evaluation,
    method: Any,
    problem: BaseProblem,
    chains: list[dict[str, np.ndarray]],
    programs: Programs,
) -> dict[str, Any]:
    """A sampler whose chains were run side by side."""
    task, truth = problem.draw(num_rows(method, problem))
    joined = Joined.of(chains, method, task)
    posterior = joined.posterior.without_history()
    return _scored(config, posterior, truth, problem.keys.evaluate, joined.seconds, None, programs)


def _scored(
    config: Evaluation,
    posterior: Any,
    truth: Any,
    key: Any,
    fit_seconds: float,
    losses: Any,
    programs: Programs,
) -> dict[str, Any]:
    """The row of a posterior that JAX can compile."""
    terms, seconds = programs.timed(score, posterior, truth, key, config=config)
    scores = scores_of(terms, num_draws_of(posterior, config), truth, config)
    return _row(scores, fit_seconds, seconds, losses)


def _score_alone(config: Evaluation, method: Any, problem: BaseProblem) -> dict[str, Any]:
    """A method that is any Python: on the unpadded task."""
    start = time.perf_counter()
    posterior = jax.block_until_ready(method.fit(problem.keys.fit, problem.task))
    fitted = time.perf_counter()
    if not callable(posterior) and not callable(getattr(posterior, "logits", None)):
        raise UsageError(
            f"fit of {method_name(method)} returned {type(posterior).__name__}; expected a "
            "posterior, or a function: see pt.finite and pt.sampled"
        )
    scores = evaluate(posterior, problem, key=problem.keys.evaluate, config=config)
    losses = getattr(posterior, "losses", None)
    return _row(scores, fitted - start, time.perf_counter() - fitted, losses)


def _row(scores: Scores, fit_seconds: float, evaluate_seconds: float, losses: Any) -> dict[str, Any]:
    columns: dict[str, Any] = scores.asdict()
    columns |= {"fit_seconds": fit_seconds, "evaluate_seconds": evaluate_seconds}
    scored = [name for name in columns if name + "_stderr" in columns and name not in MAY_LACK]
    undefined = [name for name in scored if np.isnan(columns[name])]
    if undefined:
        columns |= {"status": "nan", "error": f"{', '.join(undefined)} undefined: {words_on_nan(losses)}"}
    return columns
