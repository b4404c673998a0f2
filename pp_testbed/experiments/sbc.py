"""Simulation-based calibration: is a method's posterior the posterior?

Every environment is a draw from the prior, so that under the exact posterior the truth is as likely to
be at any rank among the draws as at any other: over many fresh problems its rank is uniform. Talts
et al., 2018, "Validating Bayesian Inference Algorithms with Simulation-Based Calibration". Ranks are of
the true logit at random inputs, and of the log likelihood of the data, which sees what inputs alone
cannot (Modrák et al., 2023). What the pictures look like is in `report.figures`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pp_testbed
from pp_testbed.errors import UsageError
from pp_testbed.experiments import workers
from pp_testbed.experiments.batch import is_batched, map_problems, num_rows, problems_at_once, stack
from pp_testbed.experiments.identity import describe
from pp_testbed.experiments.problems import Problem
from pp_testbed.experiments.problems import problem as make_problem
from pp_testbed.experiments.progress import Progress
from pp_testbed.experiments.specs import resolve
from pp_testbed.experiments.store import TEXT, create_directory, file_words, write_whole
from pp_testbed.inference.base import Finite, log_weights_of, method_name
from pp_testbed.models.base import Array, Task

NUM_PROBES = 4
NUM_RANKS = 99  # draws among which the truth is ranked, far enough apart in a chain to be independent
FIRST_SEED = 100_000  # far from the seeds of suites
FEWEST = 20  # problems of which ranks have a distribution
LEVEL = 0.99
SIMULATIONS = 20_000  # of uniform ranks, for the simultaneous band
QUANTITIES = [f"logit {i + 1}" for i in range(NUM_PROBES)] + ["log likelihood"]


@dataclass(frozen=True)
class Calibration:
    """The ranks of one method, and what they say.

    Attributes:
        method: its name.
        num_train: of the problems.
        temperature: of the problems.
        ranks: normalised to [0, 1], uniform if calibrated, [problems, quantities].
    """

    method: str
    num_train: int
    temperature: float
    ranks: np.ndarray

    @property
    def p_values(self) -> dict[str, float]:
        """Of each quantity: how likely uniform ranks leave their band as far."""
        return dict(zip(QUANTITIES, map(uniformity_p_value, self.ranks.T), strict=True))

    @property
    def p_value(self) -> float:
        """Of all quantities together: the smallest, times their number (Bonferroni)."""
        return min(1.0, len(QUANTITIES) * min(self.p_values.values()))

    @property
    def passed(self) -> bool:
        """Whether all ranks stay in the simultaneous 99 % band."""
        return self.p_value >= 1.0 - LEVEL

    @property
    def error(self) -> float:
        """The calibration score: mean over quantities of the largest |ECDF(u) - u|.

        That of uniform ranks is about 0.87 / √N, so compare errors of equal numbers of problems.
        """
        return float(np.mean([largest_gap(ranks) for ranks in self.ranks.T]))

    def asdict(self) -> dict[str, Any]:
        """The calibration as a row of a table."""
        return {
            "method": self.method,
            "num_train": self.num_train,
            "temperature": self.temperature,
            "problems": len(self.ranks),
            "calibration_error": self.error,
            "p_value": self.p_value,
            "passed": self.passed,
            **{f"p {name}": value for name, value in self.p_values.items()},
        }


def sbc(
    method: Any,
    *,
    num_problems: int = 200,
    num_train: int = 10,
    temperature: float = 0.1,
    out: str | os.PathLike[str] = "sbc",
    jobs: int = 0,
    progress: bool = True,
    **options: Any,
) -> Calibration:
    """Simulation-based calibration of a method.

    Args:
        method: a name, `file.py:NAME`, or an object with `fit(key, task)`.
        num_problems: fresh problems.
        num_train: their data.
        temperature: theirs.
        options: of the problems, as for `pt.problem`.
        out: a directory with one file per problem; what is there is not run again.
        jobs: worker processes; 0 runs everything in this one.

    Examples:
        >>> sbc("uniform", num_problems=50, num_train=10, progress=False).passed
        False
    """
    if num_problems < FEWEST:
        raise UsageError(f"num_problems is {num_problems}; expected at least {FEWEST}, to see a distribution")
    made = resolve(method)
    problems = [
        make_problem(num_train=num_train, temperature=temperature, seed=FIRST_SEED + i, **options)
        for i in range(num_problems)
    ]
    directory, bar = Path(out), Progress(progress)
    create_directory(directory, "ranks")
    paths = {problem: directory / _file_name(problem, made) for problem in problems}
    missing = [problem for problem, path in paths.items() if _read(path) is None]
    if len(missing) < num_problems:
        bar.line(f"{num_problems - len(missing)} of {num_problems} problems are in {directory} already")
    size = problems_at_once(made)
    batches = [missing[i : i + size] for i in range(0, len(missing), size)]
    failures: list[str] = []

    def done(batch: Sequence[Problem], seconds: float) -> None:
        bar.advance(method_name(made), len(batch), len(batch), seconds)

    with bar.over([(method_name(made), len(missing))], len(missing), "problems"):
        queue = [workers.Job(0, batch, batch) for batch in batches]
        died = lambda batch, why: failures.append(f"{batch[0].name}: {why}")  # noqa: E731
        workers.run(queue, partial(_handler, method, directory, size), jobs, done, died)
    if failures:
        raise UsageError("; ".join(failures))
    ranks = np.stack([_ranks_in(path) for path in paths.values()])
    if np.isnan(ranks).any():
        first = problems[int(np.isnan(ranks).any(axis=1).argmax())].name
        raise UsageError(f"{method_name(made)} gives NaN on {first}: its draws have no ranks")
    return Calibration(method_name(made), num_train, temperature, ranks)


def _handler(method: Any, directory: Path, size: int) -> Callable[[Sequence[Problem]], None]:
    """What a worker does with a batch of problems: rank, and write a file for each."""
    made = resolve(method)

    def handle(problems: Sequence[Problem]) -> None:
        if is_batched(made):
            filled = [problems[i % len(problems)] for i in range(size)]
            ranks = _ranks_together(made, filled)
        else:
            ranks = [_ranks_alone(made, problem) for problem in problems]
        for problem, row in zip(problems, ranks, strict=False):
            _write(directory / _file_name(problem, made), problem, made, np.asarray(row))

    return handle


def _inputs(problem: Problem) -> tuple[Array, Array, Array]:
    """Fresh probe inputs, and keys for draws and ties. (No score uses this key: no suite has the problem.)"""
    key_inputs, key_draws, key_ties = jax.random.split(problem.keys.evaluate, 3)
    return problem.model.inputs(key_inputs, NUM_PROBES), key_draws, key_ties


def _ranks_together(method: Any, problems: Sequence[Problem]) -> Any:
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


def _ranks_alone(method: Any, problem: Problem) -> Array:
    """The same for a method that is any Python."""
    x_probe, key_draws, key_ties = _inputs(problem)
    task, environment = problem.task, problem.environment
    posterior = method.fit(problem.keys.fit, task)
    complete = is_complete(posterior)
    x = jnp.concatenate([x_probe, task.x])
    logits = posterior.logits(key_draws, x, NUM_RANKS)
    log_weights = log_weights_of(posterior, len(logits))
    if not complete and len(logits) > NUM_RANKS:
        logits, log_weights = logits[_evenly(len(logits))], jnp.full(NUM_RANKS, -jnp.log(NUM_RANKS))
    drawn, true = (_quantities(values, task) for values in (logits, environment.logits(x)))
    return normalised_rank(drawn, true, log_weights, key_ties, complete)


def thinned(mixture: Finite) -> Finite:
    """At most `NUM_RANKS` draws of a chain, evenly spaced; a complete posterior as it is."""
    num = mixture.log_weights.shape[0]
    if is_complete(mixture) or num <= NUM_RANKS:
        return mixture
    rows = _evenly(num)
    return Finite.equal(mixture.function, jax.tree.map(lambda leaf: leaf[rows], mixture.draws))


def _evenly(num: int) -> np.ndarray:
    return np.linspace(0, num - 1, NUM_RANKS).astype(int)


def is_complete(posterior: Any) -> bool:
    """Whether a posterior is all of its functions, and not a sample: an ensemble, not a chain."""
    if isinstance(posterior, Finite):
        return posterior.num_groups == 1
    return bool(getattr(posterior, "is_finite", False)) and not getattr(posterior, "num_chains", 0)


def _quantities(logits: Array, task: Task) -> Array:
    """What is ranked, [..., quantities], of logits [..., probes + P, K]: see `QUANTITIES`."""
    probes, data = logits[..., :NUM_PROBES, :], logits[..., NUM_PROBES:, :]
    log_probs = jnp.take_along_axis(
        jax.nn.log_softmax(data), jnp.broadcast_to(task.y[:, None], (*data.shape[:-1], 1)), axis=-1
    )[..., 0]
    log_likelihood = (log_probs * task.data_weights).sum(axis=-1, keepdims=True)
    return jnp.concatenate([probes[..., 1] - probes[..., 0], log_likelihood], axis=-1)


def normalised_rank(drawn: Array, true: Array, log_weights: Array, key: Array, complete: bool) -> Array:
    """The rank in [0, 1] of true values [Q] among drawn ones [M, Q].

    u = F(true-) + V (F(true) - F(true-)), V uniform, with F the distribution function of the draws where
    they are all there is; and where they are a sample of M, (rank + V) / (M + 1) with ties at random.
    Either is uniform if the truth is a draw of the posterior.
    """
    weights = jnp.exp(log_weights)[:, None]
    below = (weights * (drawn < true)).sum(axis=0)
    equal = (weights * (drawn == true)).sum(axis=0)
    # What is NaN has no rank, and must not pass for one of 0.
    uniform = jnp.where(jnp.isnan(drawn).any(axis=0), jnp.nan, jax.random.uniform(key, true.shape))
    if complete:
        return jnp.clip(below + uniform * equal, 0.0, 1.0)
    num = drawn.shape[0]
    return (num * below + uniform * (num * equal + 1.0)) / (num + 1.0)


def ecdf_gap(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ECDF(z) - z on the grid z = 1/N, ..., (N - 1)/N of N ranks."""
    grid = np.arange(1, len(ranks)) / len(ranks)
    return grid, np.searchsorted(np.sort(ranks), grid, side="right") / len(ranks) - grid


def largest_gap(ranks: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance of ranks to uniform."""
    ordered, num = np.sort(ranks), len(ranks)
    return float(max((np.arange(1, num + 1) / num - ordered).max(), (ordered - np.arange(num) / num).max()))


def uniformity_p_value(ranks: np.ndarray) -> float:
    """How often N uniform ranks are as extreme, at the worst point of the grid, as these.

    Säilynoja, Bürkner and Vehtari, 2022, "Graphical Test for Discrete Uniformity": the count below each
    point is binomial; the smallest of the pointwise two-sided tail probabilities is the statistic,
    and its distribution is simulated.
    """
    null = _null_statistics(len(ranks))
    observed = _smallest_tail(ranks[None])[0]
    return float((1 + (null <= observed * (1 + 1e-12)).sum()) / (1 + len(null)))


def band(num: int, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A simultaneous band of ECDF(z) - z for N uniform ranks: z, lower and upper."""
    from scipy.stats import binom

    gamma = np.quantile(_null_statistics(num), 1.0 - level)
    grid = np.arange(1, num) / num
    lower, upper = binom.ppf(gamma / 2, num, grid), binom.ppf(1 - gamma / 2, num, grid)
    return grid, lower / num - grid, upper / num - grid


@lru_cache
def _null_statistics(num: int) -> np.ndarray:
    uniform = np.random.default_rng(0).uniform(size=(SIMULATIONS, num))
    return np.concatenate([_smallest_tail(part) for part in np.array_split(uniform, 20)])


def _smallest_tail(ranks: np.ndarray) -> np.ndarray:
    """The smallest two-sided binomial tail probability over the grid, of ranks [R, N]: [R]."""
    tails = _tails(ranks.shape[1])
    num = ranks.shape[1]
    # A rank in ((j - 1)/N, j/N] counts at grid points j, j + 1, ...
    bins = np.clip(np.ceil(ranks * num).astype(int), 1, num) - 1
    counts = np.zeros((len(ranks), num), dtype=int)
    np.add.at(counts, (np.arange(len(ranks))[:, None], bins), 1)
    below = counts.cumsum(axis=1)[:, :-1]
    return tails[np.arange(num - 1), below].min(axis=1)


@lru_cache
def _tails(num: int) -> np.ndarray:
    """Two-sided tail probability of each count [N - 1, N + 1] at each grid point."""
    from scipy.stats import binom

    grid, counts = np.arange(1, num)[:, None] / num, np.arange(num + 1)[None]
    return 2.0 * np.minimum(binom.cdf(counts, num, grid), binom.sf(counts - 1, num, grid))


def _identity(made: Any) -> str:
    return json.dumps({"method": describe(made), "version": pp_testbed.__version__}, sort_keys=True)


def _file_name(problem: Problem, made: Any) -> str:
    digest = hashlib.sha256(f"{problem.name}\n{_identity(made)}".encode()).hexdigest()[:16]
    return f"{file_words(problem.name, method_name(made))}_{digest}.json"


def _write(path: Path, problem: Problem, made: Any, ranks: np.ndarray) -> None:
    row = {
        "problem": problem.name,
        "method": method_name(made),
        "method_config": describe(made),
        "version": pp_testbed.__version__,
        "ranks": dict(zip(QUANTITIES, ranks.tolist(), strict=True)),
    }
    try:
        write_whole(path, lambda file: file.write(json.dumps(row).encode()))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path) -> dict[str, Any] | None:
    """The ranks of one problem and what they are of; None where the file is another thing."""
    if not path.is_file() or path.stat().st_size > TEXT:
        return None
    try:
        row = json.loads(path.read_bytes())
        ranks = [row["ranks"][name] for name in QUANTITIES]
        are_texts = all(isinstance(row[name], str) for name in ("problem", "method", "version"))
        is_named = isinstance(row["method_config"], dict) and path.name.startswith(
            file_words(make_problem(row["problem"]).name, row["method"])
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return row if are_texts and is_named and all(isinstance(rank, float) for rank in ranks) else None


def _ranks_in(path: Path) -> np.ndarray:
    row = _read(path)
    if row is None:
        raise UsageError(f"{path} is damaged; remove it and run again")
    return np.array([row["ranks"][name] for name in QUANTITIES])


def calibrations(directory: str | os.PathLike[str]) -> list[tuple[str, Calibration]]:
    """What a directory holds: the description of each method, as JSON, and its calibration per setting."""
    if not Path(directory).is_dir():
        raise UsageError(f"there is no directory {directory}")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in filter(None, map(_read, sorted(Path(directory).glob("*.json")))):
        if row["version"] != pp_testbed.__version__:
            continue
        setting = row["problem"].rpartition("-s")[0]
        groups.setdefault(
            (json.dumps(row["method_config"], sort_keys=True), row["method"], setting), []
        ).append(row)
    made = []
    for (config, name, setting), rows in groups.items():
        problem = make_problem(f"{setting}-s0")
        ranks = np.array([[row["ranks"][quantity] for quantity in QUANTITIES] for row in rows])
        if len(ranks) >= FEWEST and not np.isnan(ranks).any():
            made.append((config, Calibration(name, problem.num_train, problem.temperature, ranks)))
    return made
