"""Running bandits: which there are, in which processes, with checkpoints, and the table of their regrets.

A run of one agent on one bandit is a row per logged step in a results directory of its own, readable
with `pandas.read_parquet(dir)`. The loop itself is `evaluation.bandit`; figures are `report.decisions`.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
from jax.tree_util import Partial

from pp_testbed.engine.identity import config_text
from pp_testbed.engine.jobs import Executor
from pp_testbed.engine.local import Local
from pp_testbed.engine.programs import filled, map_problems, of_host, on_host, stack
from pp_testbed.engine.run import run
from pp_testbed.engine.store import ALWAYS, GOOD, MAYBE, OK, Column, Layout, Store, cell_ids, write_whole
from pp_testbed.engine.study import Cell, Rows, Study, Workspace, head_of
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.bandit import CAPACITY, State, World, begin, canonical, play, selection
from pp_testbed.inference.online import in_dimensions, online
from pp_testbed.inference.options import method_name, problems_at_once, with_options
from pp_testbed.inference.posterior import Finite
from pp_testbed.inference.registry import METHODS
from pp_testbed.inference.specs import MethodSpec, resolve_for_all, sent
from pp_testbed.models.base import Array, Environment, as_pytree, no_labels, pytree_dataclass, sample_latents
from pp_testbed.problems.base import Named
from pp_testbed.problems.synthetic import MODELS, family, make_model

REVISION = 1  # of how a run is played
STEPS = 5000
TEMPERATURE = 0.1
PAPER_STEPS = 50_000
ACTIONS_PER_DIM = 20
CHUNK = 500  # steps of one compiled program
SECONDS_BETWEEN_CHECKPOINTS = 20.0
REGRETS = Layout(
    "bandit runs",
    (
        *(Column(name, pa.string(), ALWAYS) for name in ("selection", "model")),
        *(Column(name, pa.int64(), ALWAYS) for name in ("input_dim", "num_actions", "step")),
        Column("temperature", pa.float64(), ALWAYS),
        Column("regret", pa.float64(), GOOD),
        Column("seconds", pa.float64(), MAYBE),
    ),
    order=("method", "config_hash", "input_dim", "problem", "seed"),
    step="step",
)


class Keys(NamedTuple):
    """What the randomness of a bandit is used for. Agents share all of it: paired."""

    environment: Array
    actions: Array
    begin: Array
    play: Array


@dataclass(frozen=True)
class Bandit(Named):
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
    def kind(self) -> str:
        """What it is but for its seed, in words."""
        return "-".join([f"bandit-{family(self.model)}/A{self.num_actions}", *self.model.settings])

    @property
    def facts(self) -> dict[str, Any]:
        """What tables say of it."""
        return {
            "model": family(self.model),
            "input_dim": self.model.input_dim,
            "num_actions": self.num_actions,
            "temperature": float(self.model.temperature),
        }

    @property
    def keys(self) -> Keys:
        """Keys derived from the name."""
        return self.keys_for(Keys)

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
    problems_at_once: ClassVar[int] = 10

    def in_bandit(self, bandit: Bandit) -> KnowsTruth:
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
    """A method as it acts in bandits, from its name, its specification or itself.

    Named ones get the options of their `acting` that are not given. "oracle" is one too.
    """
    spec = MethodSpec(item) if isinstance(item, str) else item
    if not isinstance(spec, MethodSpec):
        return spec if isinstance(spec, Oracle) else online(as_pytree(spec))
    if spec.text == "oracle":
        return Oracle()
    made = resolve_for_all(spec)
    if spec.text in METHODS:
        made = with_options(made, {**getattr(made, "acting", {}), **dict(spec.options)})
    return online(made)


def _placed(made: Any, bandit: Bandit) -> Any:
    """An agent as it is in one bandit."""
    knows = hasattr(made, "in_bandit")
    return made.in_bandit(bandit) if knows else in_dimensions(made, bandit.model.input_dim)


def bandit(
    methods: Sequence[Any],
    *,
    dim: int = 2,
    steps: int = STEPS,
    seeds: int | Sequence[int] = 20,
    temperature: float | None = None,
    model: Any = "mlp",
    select: str = "thompson",
    out: str | os.PathLike[str] = "bandits",
    jobs: int = 0,
    executor: Executor | None = None,
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
        temperature: of the generative model; 0.1 if None; own models have none.
        model: "mlp", "logistic", or one's own: a NumPyro program, or `file.py:NAME`, which says its d itself.
        options: of the generative model, as for `pt.problem`.
        select: "thompson", "ucb:1" or "epsilon-greedy:0.05", with any numbers.
        out: a directory; runs that are there are not run again, ones that were stopped go on.
        jobs: worker processes; 0 runs everything in this one.
        executor: another place to run, such as `pt.Dask(client)`.

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
    made_model = bandit_model(model, temperature, dim, options)
    if not made_model.num_classes:
        raise UsageError("a reward is 0 or 1; the labels of the model are numbers")
    study = acting(methods, [Bandit(made_model, int(seed)) for seed in numbers], steps, select)
    frame = run(study, out, executor or Local(jobs), progress=progress)
    frame = frame[frame.step <= steps]
    ids = pd.Series(cell_ids(frame), index=frame.index)
    failed = set(ids[frame.status != OK])  # of which a beginning may be there
    return frame[(frame.status != OK) | ~ids.isin(failed)].reset_index(drop=True)


def bandit_model(model: Any, temperature: float | None, dim: int, options: dict[str, Any]) -> Any:
    """The model of a bandit, whose rewards are two classes."""
    if not (isinstance(model, str) and model in MODELS):
        return make_model(model, temperature, **options)
    return make_model(model, TEMPERATURE if temperature is None else temperature, input_dim=dim, **options)


def configuration(made: Any, select: str) -> str:
    """What identifies the runs of an agent, besides their bandits."""
    return config_text(revision=REVISION, method=made, selection=select, capacity=CAPACITY)


class Acting(NamedTuple):
    """What a worker is told of a run: the agent, in words or itself, the bandit, and the run's name."""

    agent: Any
    bandit: Bandit
    run: str


def acting(methods: Sequence[Any], bandits: Sequence[Bandit], steps: int, select: str) -> Study:
    """The study of some methods in some bandits."""
    cells = []
    for place, item in enumerate(methods):
        made = agent(item)
        config = configuration(made, select)
        message = made if isinstance(made, Oracle) else sent(item, made)
        for each in bandits:
            head = head_of(each, method_name(made), config, selection=select)
            cell = Cell(head, None, place, problems_at_once(made), {"step": steps})
            cells.append(replace(cell, message=Acting(message, each, cell.id)))
    return Study(REGRETS, cells, partial(play_together, steps, select), "runs")


def play_together(
    steps: int, select: str, messages: list[Acting], workspace: Workspace
) -> Iterator[Rows | float]:
    """Play runs of one agent to the horizon, from their checkpoint if there is one.

    The program is always filled up to the same number of runs, by repetition, so that the numbers of
    one do not depend on which others are played with it.
    """
    made = agent(messages[0].agent)
    size, bandits = max(1, problems_at_once(made)), [message.bandit for message in messages]
    worlds = stack([bandit.world for bandit in filled(bandits, size)])
    agents = stack([_placed(made, bandit) for bandit in filled(bandits, size)])
    keys = stack([bandit.keys for bandit in filled(bandits, size)])
    checkpoint = Checkpoint.of(workspace.scratch, messages, steps)
    played = checkpoint.read(Played(_begin(keys.begin, agents, worlds), np.zeros((size, 0)), 0.0))
    saved = time.monotonic()
    while played.done < steps:
        start, length = time.monotonic(), min(CHUNK, steps - played.done)
        states, regrets = _play(
            keys.play, agents, selection(select), worlds, played.states, played.done, length
        )
        regrets = np.concatenate([played.regrets, np.asarray(regrets, dtype=np.float64)], axis=1)
        played = Played(states, regrets, played.seconds + time.monotonic() - start)
        if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS and played.done < steps:
            checkpoint.write(played)
            saved = time.monotonic()
        yield played.done / steps
    for place in range(len(messages)):
        last = checkpoint.path if place == len(messages) - 1 else None
        yield Rows(place, _rows(played.regrets[place], played.seconds / len(messages)), checkpoint=last)


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
    """The file in which runs that are played together are kept until they are complete, if any."""

    path: Path | None

    @classmethod
    def of(cls, scratch: Path | None, messages: list[Acting], steps: int) -> Checkpoint:
        """That of some runs up to a horizon."""
        digest = hashlib.sha256("\n".join(message.run for message in messages).encode()).hexdigest()[:16]
        return cls(scratch / f"{steps}-{digest}.npz" if scratch else None)

    def write(self, played: Played) -> None:
        """Keep all of it, whole or not at all; where it cannot be written, a run that ends begins again."""
        if self.path is None:
            return
        leaves = {f"leaf{i}": on_host(leaf) for i, leaf in enumerate(jax.tree.leaves(played.states))}
        arrays: dict[str, Any] = {**leaves, "regrets": played.regrets, "seconds": np.asarray(played.seconds)}
        with suppress(OSError):  # a disk that is full, or of results that workers may not write
            self.path.parent.mkdir(exist_ok=True)  # which another run, that has ended, may have removed
            write_whole(self.path, lambda file: np.savez(file, **arrays))

    def read(self, start: Played) -> Played:
        """How far the runs were; at the start where there is no file, or none that can be read."""
        leaves, structure = jax.tree.flatten(start.states)
        if self.path is None or not self.path.is_file():
            return start
        try:
            with np.load(self.path, allow_pickle=False) as file:
                arrays = [file[f"leaf{i}"] for i in range(len(leaves))]
                regrets, seconds = file["regrets"], float(file["seconds"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return start
        if any(found.shape != on_host(leaf).shape for found, leaf in zip(arrays, leaves, strict=True)):
            return start
        restored = [of_host(found, leaf) for found, leaf in zip(arrays, leaves, strict=True)]
        return Played(jax.tree.unflatten(structure, restored), regrets, seconds)


def logged_steps(steps: int) -> np.ndarray:
    """After which steps the cumulative regret is kept: 20 per factor of ten, and every thousandth."""
    scale = np.round(10.0 ** np.arange(0, np.log10(steps) + 1e-9, 0.05)).astype(int)
    return np.unique(np.concatenate([scale, np.arange(1000, steps + 1, 1000), [steps]]))


def _rows(regrets: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    """The cumulative regret at some steps, or where it is not defined."""
    undefined = np.isnan(regrets)
    if undefined.any():
        why = f"the values of actions are NaN at step {undefined.argmax() + 1}"
        return [{"step": len(regrets), "status": "error", "error": why}]
    steps = logged_steps(len(regrets))
    pairs = zip(steps.tolist(), regrets.cumsum()[steps - 1].tolist(), strict=True)
    return [{"step": step, "regret": regret, "seconds": seconds} for step, regret in pairs]


def read_bandits(
    directory: str | os.PathLike[str], report: Callable[[str], None] = lambda line: None
) -> pd.DataFrame:
    """All runs of a directory, a row per logged step. Other files are reported, by name, and ignored.

    A run may be in any file, and in several, with other steps in each. A failure, whose step is the horizon
    that was not reached, counts only where no file has that step.
    """
    return Store(directory, REGRETS).read(report)
