"""Simulation-based calibration: is a method's posterior the posterior?

Every environment is a draw from the prior, so that under the exact posterior the truth is as likely to
be at any rank among the draws as at any other: over many fresh problems its rank is uniform. Talts
et al., 2018, "Validating Bayesian Inference Algorithms with Simulation-Based Calibration". Ranks are of
the true logit at random inputs, and of the log likelihood of the data, which sees what inputs alone
cannot (Modrák et al., 2023). What the pictures look like is in `report.plots`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from pp_testbed.engine.identity import config_text
from pp_testbed.engine.jobs import Executor
from pp_testbed.engine.local import Local
from pp_testbed.engine.programs import filled, map_problems, stack
from pp_testbed.engine.run import run, words_on_failures
from pp_testbed.engine.store import GOOD, OK, Column, Layout, Store
from pp_testbed.engine.study import Cell, Rows, Study, Workspace, head_of
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.ranks import (
    NUM_PROBES,
    NUM_RANKS,
    QUANTITIES,
    Calibration,
    evenly,
    is_complete,
    normalised_rank,
    thinned,
)
from pp_testbed.inference.options import method_name, num_rows, problems_at_once
from pp_testbed.inference.posterior import log_weights_of
from pp_testbed.inference.specs import resolve, resolve_for_all, sent
from pp_testbed.models.base import Array, Task
from pp_testbed.problems.base import BaseProblem
from pp_testbed.problems.named import problem
from pp_testbed.studies.cells import FACTS, Fitted, program_of

REVISION = 1  # of what is ranked
FIRST_SEED = 100_000  # far from the seeds of suites
FEWEST = 20  # problems of which ranks have a distribution
RANKS = Layout("ranks", (*FACTS, *(Column(name, pa.float64(), GOOD) for name in QUANTITIES)))


def sbc(
    method: Any,
    *,
    num_problems: int = 200,
    num_train: int = 10,
    temperature: float | None = None,
    out: str | os.PathLike[str] = "sbc",
    jobs: int = 0,
    executor: Executor | None = None,
    progress: bool = True,
    **options: Any,
) -> Calibration:
    """Simulation-based calibration of a method.

    Args:
        method: a name, `file.py:NAME`, or an object with `fit(key, task)`.
        num_problems: fresh problems.
        num_train: their data.
        temperature: theirs; that of `pt.problem`, 0.1, if None; own models have none.
        options: of the problems, as for `pt.problem`, such as `model="my_model.py:MODEL"`.
        out: a directory with one file per problem; what is there is not run again.
        jobs: worker processes; 0 runs everything in this one.
        executor: another place to run, such as `pt.Dask(client)`.

    Examples:
        >>> sbc("uniform", num_problems=50, num_train=10, progress=False).passed
        False
    """
    if num_problems < FEWEST:
        raise UsageError(f"num_problems is {num_problems}; expected at least {FEWEST}, to see a distribution")
    problems = [
        problem(num_train=num_train, temperature=temperature, seed=FIRST_SEED + i, **options)
        for i in range(num_problems)
    ]
    frame = run(calibrating(method, problems), out, executor or Local(jobs), progress=progress)
    name, failed = frame.method[0], frame[frame.status == "error"]
    if len(failed):
        raise UsageError(words_on_failures(frame))
    undefined = frame.problem[frame.status == "nan"]
    if len(undefined):
        raise UsageError(f"{name} gives NaN on {undefined.iloc[0]}: its draws have no ranks")
    return Calibration(name, num_train, problems[0].temperature, frame[QUANTITIES].to_numpy())


def calibrating(method: Any, problems: Sequence[BaseProblem]) -> Study:
    """The study of one method's ranks on some problems."""
    made = resolve_for_all(method)
    text, message = config_text(revision=REVISION, method=made), sent(method, made)
    cells = [
        Cell(
            head_of(each, method_name(made), text),
            Fitted(message, each),
            program_of(made, each),
            problems_at_once(made),
        )
        for each in problems
    ]
    return Study(RANKS, cells, rank, "problems")


def rank(messages: list[Fitted], _workspace: Workspace) -> Iterator[Rows]:
    """The ranks of the truths of some problems."""
    made, problems = resolve(messages[0].method), [message.problem for message in messages]
    if problems_at_once(made):
        ranks = _ranks_together(made, filled(problems, problems_at_once(made)))
    else:
        ranks = [_ranks_alone(made, problem) for problem in problems]
    for place, values in enumerate(np.asarray(ranks, dtype=np.float64)[: len(problems)]):
        status = {"status": "nan", "error": "draws are NaN"} if np.isnan(values).any() else {}
        yield Rows(place, [dict(zip(QUANTITIES, values.tolist(), strict=True)) | status])


def _inputs(problem: BaseProblem) -> tuple[Array, Array, Array]:
    """Fresh probe inputs, and keys for draws and ties. (No score uses this key: no suite has the problem.)"""
    key_inputs, key_draws, key_ties = jax.random.split(problem.keys.evaluate, 3)
    return problem.model.inputs(key_inputs, NUM_PROBES), key_draws, key_ties


def _ranks_together(method: Any, problems: Sequence[BaseProblem]) -> Any:
    rows = num_rows(method, problems[0])
    tasks, environments = stack([problem.draw(rows) for problem in problems])
    keys = stack([problem.keys.fit for problem in problems])
    return _ranks(method, keys, tasks, environments, stack([_inputs(problem) for problem in problems]))


@jax.jit
def _ranks(method: Any, keys: Any, tasks: Any, environments: Any, inputs: Any) -> Array:
    def one(arguments: Any) -> Array:
        key, task, environment, (x_probe, key_draws, key_ties) = arguments
        posterior = method.fit(key, task)
        mixture = thinned(posterior.draw(key_draws, NUM_RANKS).without_history())
        x = jnp.concatenate([x_probe, task.x])
        drawn, true = (_quantities(logits, task) for logits in (mixture.values(x), environment.logits(x)))
        return normalised_rank(drawn, true, mixture.log_weights, key_ties, is_complete(posterior))

    return map_problems(one, (keys, tasks, environments, inputs))


def _ranks_alone(method: Any, problem: BaseProblem) -> Array:
    """The same for a method that is any Python."""
    x_probe, key_draws, key_ties = _inputs(problem)
    task, environment = problem.task, problem.truth
    posterior = method.fit(problem.keys.fit, task)
    complete = is_complete(posterior)
    x = jnp.concatenate([x_probe, task.x])
    logits = posterior.logits(key_draws, x, NUM_RANKS)
    log_weights = log_weights_of(posterior, len(logits))
    if not complete and len(logits) > NUM_RANKS:
        logits, log_weights = logits[evenly(len(logits))], jnp.full(NUM_RANKS, -jnp.log(NUM_RANKS))
    drawn, true = (_quantities(values, task) for values in (logits, environment.logits(x)))
    return normalised_rank(drawn, true, log_weights, key_ties, complete)


def _quantities(logits: Array, task: Task) -> Array:
    """What is ranked, [..., quantities], of outputs [..., probes + P, D]: see `QUANTITIES`."""
    probes, data = logits[..., :NUM_PROBES, :], logits[..., NUM_PROBES:, :]
    log_probs = task.likelihood.distribution(data).log_prob(task.y)
    log_likelihood = (log_probs * task.data_weights).sum(axis=-1, keepdims=True)
    return jnp.concatenate([task.likelihood.predictor(probes)[..., 0], log_likelihood], axis=-1)


def calibrations(
    directory: str | os.PathLike[str], report: Callable[[str], None] = lambda line: None
) -> list[tuple[str, Calibration]]:
    """What a directory holds: the description of each method, as JSON, and its calibration per setting."""
    frame = Store(directory, RANKS).read(report)
    frame, made = frame[frame.status == OK], []
    for (config, name, _), rows in frame.groupby(["config", "method", "kind"], sort=False):
        described = json.dumps(json.loads(config)["method"], sort_keys=True)
        if len(rows) >= FEWEST:
            first, ranks = rows.iloc[0], rows[QUANTITIES].to_numpy()
            made.append((described, Calibration(name, int(first.num_train), first.temperature, ranks)))
    return made
