"""Running bandits: which there are, in which processes, with checkpoints, and the table of their regrets.

A run of one agent on one bandit is a row per logged step in a results directory of its own, readable
with `pandas.read_parquet(dir)`. The loop itself is `evaluation.bandit`; figures are `report.decisions`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
from jax.tree_util import Partial

import pp_testbed
from pp_testbed.errors import CannotWriteError, UsageError
from pp_testbed.evaluation.bandit import CAPACITY, State, World, begin, canonical, play, selection
from pp_testbed.experiments import workers
from pp_testbed.experiments.batch import map_problems, one_line, problems_at_once, stack
from pp_testbed.experiments.identity import config_hash, describe
from pp_testbed.experiments.problems import family, key_of, make_model
from pp_testbed.experiments.progress import Progress
from pp_testbed.experiments.specs import MethodSpec
from pp_testbed.experiments.store import OK, Tables, cell_id, cell_ids, file_words
from pp_testbed.inference.base import METHODS, Finite, method_name, with_options
from pp_testbed.inference.map_ensemble import Ensemble
from pp_testbed.inference.mcmc import Sampler
from pp_testbed.inference.online import Refreshed, online
from pp_testbed.inference.sgmcmc import StochasticGradientSampler
from pp_testbed.models.base import Array, Environment, no_labels, pytree_dataclass, sample_latents

STEPS = 5000
PAPER_STEPS = 50_000
ACTIONS_PER_DIM = 20
CHUNK = 500  # steps of one compiled program
SECONDS_BETWEEN_CHECKPOINTS = 20.0
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("problem", "method", "selection", "config", "config_hash", "model")]
    + [(name, pa.int64()) for name in ("seed", "input_dim", "num_actions", "step")]
    + [(name, pa.float64()) for name in ("temperature", "regret", "seconds")]
    + [(name, pa.string()) for name in ("status", "error", "version")]
)


class Keys(NamedTuple):
    """What the randomness of a bandit is used for. Agents share all of it: paired."""

    environment: Array
    actions: Array
    begin: Array
    play: Array


@dataclass(frozen=True)
class Bandit:
    """N actions from the inputs' distribution of a generative model, and an environment from its prior.

    Examples:
        >>> Bandit(make_model("mlp"), seed=3).name
        'bandit-2d/A40-rho0.1-s3'
    """

    model: Any
    seed: int
    actions_per_dim: int = ACTIONS_PER_DIM

    @property
    def num_actions(self) -> int:
        return self.actions_per_dim * self.model.input_dim

    @property
    def name(self) -> str:
        """The bandit in words, from which its keys are derived."""
        rho = float(self.model.temperature)
        return f"bandit-{family(self.model)}/A{self.num_actions}-rho{rho!r}-s{self.seed}"

    @property
    def keys(self) -> Keys:
        """Keys derived from the name."""
        return Keys(*jax.random.split(key_of(self.name), len(Keys._fields)))

    @property
    def environment(self) -> Environment:
        """The truth."""
        x = jnp.zeros((1, self.model.input_dim))
        return Environment(self.model, sample_latents(self.model, x, no_labels(x), self.keys.environment))

    @property
    def world(self) -> World:
        """The actions, and the truth about them."""
        world = World.of(self.environment, self.model.inputs(self.keys.actions, self.num_actions))
        if not bool(jnp.isfinite(world.rewards).all()):
            raise UsageError(f"{self.name}: the environment's probabilities are not finite")
        return world


@pytree_dataclass
class Oracle:
    """An agent that knows the environment: its regret is 0."""

    name: str = "oracle"
    networks: ClassVar[int] = 1

    def for_bandit(self, bandit: Bandit) -> KnowsTruth:
        return KnowsTruth(bandit.environment)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KnowsTruth:
    """The oracle of one environment."""

    environment: Environment

    def begin(self, key: Array, task: Any) -> None:
        return None

    def learn(self, key: Array, state: None, task: Any) -> None:
        return None

    def current(self, state: None, task: Any) -> Finite:
        return Finite.equal(Partial(true_logits, self.environment), jnp.zeros(1))


def true_logits(environment: Environment, _draw: Any, x: Array) -> Array:
    """Logits [N, K] of the truth, whatever the draw."""
    return environment.logits(x)


def agent(item: Any) -> Any:
    """A method as an agent of a bandit, from its name, its specification or itself.

    Named ones get the options of `usual` that are not given. "oracle" is one too.
    """
    spec = MethodSpec(item) if isinstance(item, str) else item
    if not isinstance(spec, MethodSpec):
        return online(spec)
    if spec.text == "oracle":
        return Oracle()
    made = spec.resolve()
    if spec.text in METHODS:
        made = with_options(made, {**usual(made), **dict(spec.options)})
    return online(made)


def usual(made: Any) -> dict[str, Any]:
    """What a registered method is as an agent: minibatches as published, and what two cores can do."""
    options: dict[str, Any] = {}
    if hasattr(made, "batch_size"):
        options["batch_size"] = 128
    if isinstance(made, Ensemble):
        options["size"] = min(made.size, 30)
    if isinstance(made, Sampler):
        options |= {"num_chains": 1, "warmup": 200, "num_draws": 100}
    return options


def annealed(made: Any, input_dim: int) -> Any:
    """A method whose prior is that of two dimensions, whatever the bandit's.

    A strength that is adaptive is λ d √rho / t at time t; the paper's bandit has λ 2 √rho / t. The prior
    variance of `sgld` and its relatives, which is of 1 / (2 d √rho), becomes one of 1 / (4 √rho) likewise.
    """
    if isinstance(made, Refreshed):
        return replace(made, method=annealed(made.method, input_dim))
    changed = {
        option: getattr(made, option) * 2.0 / input_dim
        for option, adaptive in (("l2", "adaptive_l2"), ("kl_weight", "adaptive_kl"))
        if getattr(made, adaptive, False)
    }
    if isinstance(made, StochasticGradientSampler) and made.network == "agent":
        changed["prior_variance"] = made.prior_variance * input_dim / 2.0
    return replace(made, **changed) if changed else made


@dataclass(frozen=True)
class Run:
    """One agent on one bandit."""

    agent: Any
    bandit: Bandit
    selection: str
    config: str

    @property
    def id(self) -> str:
        return cell_id(self.bandit.name, config_hash(self.config), pp_testbed.__version__)

    def file_name(self, steps: int) -> str:
        """The file of its regrets up to a horizon."""
        words = file_words(self.bandit.name, method_name(self.agent))
        return f"{words[:150]}_{steps}_{self.id}.parquet"

    def rows(self, steps: Iterable[int], regrets: Iterable[float], **columns: Any) -> list[dict[str, Any]]:
        """Its rows: the cumulative regret after each of some steps."""
        row = {
            "problem": self.bandit.name,
            "method": method_name(self.agent),
            "selection": self.selection,
            "config": self.config,
            "config_hash": config_hash(self.config),
            "model": family(self.bandit.model),
            "seed": self.bandit.seed,
            "input_dim": self.bandit.model.input_dim,
            "num_actions": self.bandit.num_actions,
            "temperature": float(self.bandit.model.temperature),
            "version": pp_testbed.__version__,
            **columns,
        }
        return [row | {"step": int(s), "regret": float(r)} for s, r in zip(steps, regrets, strict=True)]


def bandit(
    methods: Sequence[Any],
    *,
    dim: int = 2,
    steps: int = STEPS,
    seeds: int | Sequence[int] = 20,
    temperature: float = 0.1,
    model: str = "mlp",
    select: str = "thompson",
    out: str | os.PathLike[str] = "bandits",
    jobs: int = 0,
    progress: bool = True,
    **options: Any,
) -> pd.DataFrame:
    """Let methods act on neural bandits, keep their regrets in a directory, and return them.

    Args:
        methods: names, `file.py:NAME`, or objects that learn online (see `inference.online`). By name,
            ensembles have 30 members and minibatches 128 rows, unless told otherwise; objects and those of
            files are taken as they are. "oracle" and "uniform" are the bounds.
        dim: d, of 20 d actions.
        steps: the horizon; the paper's is 50,000.
        seeds: how many, or which.
        temperature: of the generative model.
        model: "mlp" or "logistic".
        options: of the generative model, as for `pt.problem`.
        select: "thompson", "ucb:1" or "epsilon-greedy:0.05", with any numbers.
        out: a directory; runs that are there are not run again, ones that were stopped go on.
        jobs: worker processes; 0 runs everything in this one.

    Returns:
        A row per run and logged step; `regret` is cumulative.

    Examples:
        >>> bandit(["oracle"], dim=2, steps=5, seeds=2, progress=False).regret.tolist()[:2]
        [0.0, 0.0]
    """
    if dim < 1 or steps < 1:
        raise UsageError(f"dim and steps must be positive, not {dim} and {steps}")
    select = canonical(select)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    made_model = make_model(model, temperature, input_dim=dim, **options)
    bandits = [Bandit(made_model, int(seed)) for seed in numbers]
    agents = [agent(item) for item in methods]
    if not bandits or not agents:
        raise UsageError("there are no methods or no seeds to run")
    runs = [Run(one, each, select, _config(one, select)) for one in agents for each in bandits]
    if len({run.id for run in runs}) < len(runs):
        raise UsageError("a method or a seed is given twice")
    tables, bar = bandit_tables(out), Progress(progress)
    tables.create()
    complete = _complete(tables, steps)
    missing = [run for run in runs if run.id not in complete]
    if len(missing) < len(runs):
        bar.line(f"{len(runs) - len(missing)} of {len(runs)} runs are in {tables.directory} already")
    _run_missing(list(methods), agents, missing, steps, tables, jobs, bar)
    frame = read_bandits(out)
    frame = frame.assign(id=cell_ids(frame))
    frame = frame[frame.id.isin({run.id for run in runs}) & (frame.step <= steps)]
    failed = set(frame.id[frame.status != OK])  # of which a beginning may be there
    return frame[(frame.status != OK) | ~frame.id.isin(failed)].drop(columns="id").reset_index(drop=True)


def _config(one: Any, select: str) -> str:
    return json.dumps({"method": describe(one), "selection": select, "capacity": CAPACITY}, sort_keys=True)


def _run_missing(
    items: list[Any],
    agents: list[Any],
    missing: list[Run],
    steps: int,
    tables: Tables,
    jobs: int,
    bar: Progress,
) -> None:
    """Run in batches of one agent, here or in workers."""
    batches: list[Batch] = []
    for index, one in enumerate(agents):
        mine, size = [run for run in missing if run.agent is one], problems_at_once(one)
        batches += [Batch(index, mine[i : i + size], steps) for i in range(0, len(mine), size)]

    def advanced(batch: Batch, fraction: float, seconds: float) -> None:
        finished = batch.seconds * max(0.0, fraction - batch.fraction)  # it may have to start again
        batch.fraction = max(batch.fraction, fraction)
        bar.advance(batch.name, finished, 0, seconds)

    def done(batch: Batch, seconds: float) -> None:
        bar.advance(batch.name, batch.seconds * (1.0 - batch.fraction), len(batch.runs), seconds)

    def died(batch: Batch, why: str) -> None:
        for run in batch.runs:
            _write_failure(run, tables, steps, why)

    queue = [workers.Job(batch.index, batch.message, batch) for batch in batches]
    with bar.over([(batch.name, batch.seconds) for batch in batches], len(missing), "runs"):
        workers.run(queue, partial(_handler, items, tables, steps), jobs, done, died, advanced)


@dataclass(eq=False)
class Batch:
    """Runs of one agent that one program holds, and how much of them is done.

    Attributes:
        index: of the agent among those that were asked for.
        fraction: of the steps.
    """

    index: int
    runs: list[Run]
    steps: int
    fraction: float = 0.0

    @property
    def name(self) -> str:
        """What a table calls its agent."""
        return method_name(self.runs[0].agent)

    @property
    def message(self) -> Any:
        """What a worker is sent: agents are places in the list that it makes itself."""
        return self.index, [(run.bandit, run.selection, run.config) for run in self.runs]

    @property
    def seconds(self) -> float:
        """A rough guess of the cost, for the progress bar."""
        networks = getattr(self.runs[0].agent, "networks", 1)
        return 5.0 + self.steps * len(self.runs) * (1e-5 + 1e-4 * networks)


def _handler(items: list[Any], tables: Tables, steps: int) -> Callable[[Any], Iterator[float]]:
    """What a worker does with a message: play, tell how far it is, and write a file for each run."""
    agents = [agent(item) for item in items]

    def handle(message: Any) -> Iterator[float]:
        index, parts = message
        runs = [Run(agents[index], *part) for part in parts]
        try:
            yield from _play_together(runs, tables, steps)
        except CannotWriteError:
            raise
        except Exception as error:
            for run in runs:
                _write_failure(run, tables, steps, one_line(error))

    return handle


def _play_together(runs: list[Run], tables: Tables, steps: int) -> Iterator[float]:
    """Play runs of one agent to the horizon, from their checkpoint if there is one; yields progress.

    The program is always filled up to the same number of runs, by repetition, so that the numbers of
    one do not depend on which others are played with it.
    """
    size, select = problems_at_once(runs[0].agent), selection(runs[0].selection)
    filled = [runs[i % len(runs)] for i in range(size)]
    worlds = stack([run.bandit.world for run in filled])
    agents = stack([_placed(run.agent, run.bandit) for run in filled])
    keys = stack([run.bandit.keys for run in filled])
    checkpoint = Checkpoint(tables, runs, steps)
    played = checkpoint.read(Played(_begin(keys.begin, agents, worlds), np.zeros((size, 0)), 0.0))
    saved = time.monotonic()
    while played.done < steps:
        start = time.monotonic()
        length = min(CHUNK, steps - played.done)
        states, regrets = _play(keys.play, agents, select, worlds, played.states, played.done, length)
        regrets = np.concatenate([played.regrets, np.asarray(regrets, dtype=np.float64)], axis=1)
        played = Played(states, regrets, played.seconds + time.monotonic() - start)
        if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS and played.done < steps:
            checkpoint.write(played)
            saved = time.monotonic()
        yield played.done / steps
    for run, regrets in zip(runs, played.regrets, strict=False):
        _write_run(run, tables, regrets, played.seconds / len(runs))
    checkpoint.remove()


def _placed(made: Any, bandit: Bandit) -> Any:
    """An agent as it is in one bandit."""
    return made.for_bandit(bandit) if isinstance(made, Oracle) else annealed(made, bandit.model.input_dim)


@jax.jit
def _begin(keys: Array, agents: Any, worlds: World) -> State:
    return map_problems(lambda arguments: begin(*arguments), (keys, agents, worlds))


@partial(jax.jit, static_argnums=6)
def _play(
    keys: Array, agents: Any, select: Any, worlds: World, states: State, first: Any, num_steps: int
) -> tuple[State, Array]:
    def one(arguments: Any) -> tuple[State, Array]:
        key, agent, world, state = arguments
        return play(key, agent, select, world, state, first, num_steps)

    return map_problems(one, (keys, agents, worlds, states))


class Played(NamedTuple):
    """How far runs are: their states, the regret of each step so far [runs, steps], and seconds."""

    states: State
    regrets: np.ndarray
    seconds: float

    @property
    def done(self) -> int:
        return self.regrets.shape[1]


@dataclass(frozen=True)
class Checkpoint:
    """The file in which runs that are played together are kept until they are complete."""

    tables: Tables
    runs: list[Run]
    steps: int

    @property
    def name(self) -> str:
        """Hidden, so that those who read the directory do not take it for results."""
        digest = hashlib.sha256("\n".join(run.id for run in self.runs).encode()).hexdigest()[:16]
        return f".{self.steps}-{digest}.npz"

    def write(self, played: Played) -> None:
        """Keep all of it, whole or not at all."""
        leaves = {f"leaf{i}": _as_array(leaf) for i, leaf in enumerate(jax.tree.leaves(played.states))}
        arrays: dict[str, Any] = {**leaves, "regrets": played.regrets, "seconds": np.asarray(played.seconds)}
        self.tables.write_whole(self.name, lambda file: np.savez(file, **arrays))

    def read(self, start: Played) -> Played:
        """How far the runs were; at the start where there is no file, or none that can be read."""
        leaves, structure = jax.tree.flatten(start.states)
        try:
            with np.load(self.tables.directory / self.name, allow_pickle=False) as file:
                arrays = [file[f"leaf{i}"] for i in range(len(leaves))]
                regrets, seconds = file["regrets"], float(file["seconds"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return start
        if any(found.shape != _as_array(leaf).shape for found, leaf in zip(arrays, leaves, strict=True)):
            return start
        restored = [_like(found, leaf) for found, leaf in zip(arrays, leaves, strict=True)]
        return Played(jax.tree.unflatten(structure, restored), regrets, seconds)

    def remove(self) -> None:
        """It is not needed any more."""
        (self.tables.directory / self.name).unlink(missing_ok=True)


def _as_array(leaf: Any) -> np.ndarray:
    """A leaf of a state as numbers: keys are not, to NumPy."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _like(array: np.ndarray, leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(jnp.asarray(array)) if is_key else jnp.asarray(array)


def logged_steps(steps: int) -> np.ndarray:
    """After which steps the cumulative regret is kept: 20 per factor of ten, and every thousandth."""
    scale = np.round(10.0 ** np.arange(0, np.log10(steps) + 1e-9, 0.05)).astype(int)
    return np.unique(np.concatenate([scale, np.arange(1000, steps + 1, 1000), [steps]]))


def _write_run(run: Run, tables: Tables, regrets: np.ndarray, seconds: float) -> None:
    undefined = np.isnan(regrets)
    if undefined.any():
        why = f"the values of actions are NaN at step {undefined.argmax() + 1}"
        _write_failure(run, tables, len(regrets), why)
        return
    steps = logged_steps(len(regrets))
    total = regrets.cumsum()[steps - 1]
    rows = run.rows(steps, total, seconds=seconds, status=OK, error="")
    tables.write(run.file_name(len(regrets)), rows)


def _write_failure(run: Run, tables: Tables, steps: int, why: str) -> None:
    rows = run.rows([steps], [float("nan")], seconds=0.0, status="error", error=why)
    tables.write(run.file_name(steps), rows)


def _complete(tables: Tables, steps: int) -> set[str]:
    """The ids of the runs of a directory whose regret after so many steps is known."""
    frame = read_bandits(tables.directory)
    return set(cell_ids(frame[(frame.status == OK) & (frame.step == steps)]))


def read_bandits(
    directory: str | os.PathLike[str], report: Callable[[str], None] = lambda line: None
) -> pd.DataFrame:
    """All runs of a directory, a row per logged step. Other files are reported, by name, and ignored.

    A run may be in any file, and in several, with other steps in each. A failure, whose step is the horizon
    that was not reached, counts only where no file has that step.
    """
    frame = bandit_tables(directory).read(report)
    frame = frame.assign(id=cell_ids(frame), failed=frame.status != OK)
    frame = frame.sort_values("failed", kind="stable").drop_duplicates(["id", "step"])
    reached = frame.id.map(frame[~frame.failed].groupby("id").step.max())
    frame = frame[~frame.failed | ~(reached >= frame.step)].drop(columns=["id", "failed"])
    order = ["method", "config_hash", "input_dim", "problem", "seed", "step"]
    return frame.sort_values(order, ignore_index=True)


def bandit_tables(directory: str | os.PathLike[str]) -> Tables:
    """The files of a directory of runs."""
    return Tables(directory, SCHEMA, "bandit runs")
