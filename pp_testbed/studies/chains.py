"""Chains as cells of their own: run side by side, and kept until what they are chains of is put together.

A posterior of several chains is fitted by one program on one core. References are built chain by chain; and
so is a sampler in a study of scores that has fewer cells of it than workers, to the same bits.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from pp_testbed.engine.identity import config_text
from pp_testbed.engine.jobs import Executor
from pp_testbed.engine.local import Local
from pp_testbed.engine.programs import Programs
from pp_testbed.engine.provenance import versions
from pp_testbed.engine.run import missing_cells, run, stem
from pp_testbed.engine.store import ALWAYS, GOOD, OK, Column, Layout, Store, read_arrays, read_table
from pp_testbed.engine.study import Cell, Rows, Study, Workspace, head_of
from pp_testbed.inference.mcmc import Chains, Sampler
from pp_testbed.inference.options import effort, method_name, num_rows, problems_at_once
from pp_testbed.inference.specs import resolve
from pp_testbed.problems.base import BaseProblem
from pp_testbed.studies.cells import FACTS, facts_of, program_of

REVISION = 1  # of how a chain is run
CHAINS = Layout(
    "chains", (*FACTS, Column("chain", pa.int64(), ALWAYS), Column("seconds", pa.float64(), GOOD))
)


class Sampled(NamedTuple):
    """What a worker is told of a chain: the method, in words or itself, the problem, and which."""

    method: Any
    problem: BaseProblem
    chain: int


def sampling(method: Any, problems: Sequence[BaseProblem]) -> Study:
    """The study of single chains. Versions are part of what they are: none are put together with others."""
    cells, made_by = [], versions()
    for problem in problems:
        made = resolve(method, facts_of(problem))
        for chain in range(made.num_chains):
            text = config_text(revision=REVISION, method=made, chain=chain, versions=made_by)
            head = head_of(problem, method_name(made), text, chain=chain)
            program = program_of(made, problem)
            cells.append(Cell(head, Sampled(method, problem, chain), program, effort=effort(made)))
    return Study(CHAINS, cells, sample, "chains")


def sample(messages: list[Sampled], workspace: Workspace) -> Iterator[Rows]:
    """Run chains, one after another."""
    for place, message in enumerate(messages):
        arrays = _run_chain(*message, workspace.programs)
        yield Rows(place, [{"seconds": float(arrays["seconds"])}], arrays)


@jax.jit
def _chain(method: Sampler, key: Any, task: Any) -> Any:
    positions, stats, (state, tuned) = method.chain(key, method.target(task))
    return positions, stats, {"position": state.position, **tuned}


def _run_chain(method: Any, problem: BaseProblem, chain: int, programs: Programs) -> dict[str, np.ndarray]:
    """One chain as arrays."""
    method = resolve(method, facts_of(problem))
    key = method.chain_keys(problem.keys.fit)[chain]
    task = problem.draw(num_rows(method, problem))[0]
    arguments = jax.tree.map(jnp.asarray, (method, key, task))
    (positions, stats, started), seconds = programs.timed(_chain, *arguments)
    arrays = {"positions": positions, "seconds": seconds}
    arrays |= {f"stats/{name}": leaf for name, leaf in stats.items()}
    arrays |= {f"start/{name}": leaf for name, leaf in started.items()}
    return {name: np.asarray(leaf) for name, leaf in arrays.items()}


@jax.jit
def _posterior(method: Sampler, task: Any, positions: Any, stats: Any) -> Chains:
    return method.posterior(method.target(task), positions, stats, None)


@dataclass(frozen=True)
class Joined:
    """Chains side by side, each leaf with a leading axis of them."""

    posterior: Chains
    stats: dict[str, np.ndarray]
    start: dict[str, np.ndarray]
    seconds: float

    @classmethod
    def of(cls, chains: Sequence[dict[str, np.ndarray]], method: Sampler, task: Any) -> Joined:
        """Of the arrays of all chains of a method on a task."""
        stacked = {name: np.stack([chain[name] for chain in chains]) for name in chains[0]}
        stats, start = _group(stacked, "stats"), _group(stacked, "start")
        posterior = _posterior(method, task, stacked["positions"], stats)
        return cls(posterior, stats, start, float(stacked["seconds"].sum()))


def chains_of(paths: Sequence[Path]) -> list[dict[str, np.ndarray]]:
    """The arrays of chains; none if one is not there any more, as another run has put them together."""
    chains = [arrays for path in paths if (arrays := read_arrays(path))]
    return chains if len(chains) == len(paths) else []


def _group(arrays: dict[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    prefix = group + "/"
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Pieces:
    """Where chains are kept until they are put together."""

    directory: Path

    def path(self, cell: Cell) -> Path:
        """Of the arrays of a chain."""
        return self.directory / f"{stem(cell)}.npz"

    def ended_well(self, cell: Cell) -> bool:
        """Whether a chain is there."""
        table = read_table(self.path(cell).with_suffix(".parquet"), CHAINS)
        return table is not None and table["status"].to_pylist() == [OK]

    def read(self, cell: Cell) -> dict[str, np.ndarray] | None:
        """The arrays of a chain that ended well; damaged ones are removed, so that it is run again."""
        if not self.ended_well(cell):
            return None
        arrays = read_arrays(self.path(cell))
        if arrays is None:
            self.remove(cell)
        return arrays

    def remove(self, cell: Cell) -> None:
        """Forget a chain."""
        self.path(cell).unlink(missing_ok=True)
        self.path(cell).with_suffix(".parquet").unlink(missing_ok=True)


@contextmanager
def side_by_side(
    study: Study, out: str | os.PathLike[str], executor: Executor, progress: bool
) -> Iterator[Study]:
    """The study, its samplers told where their chains are, if workers would have waited for them."""
    pieces = Pieces(Path(out).resolve() / ".chains")
    parts = _parts(study, out, pieces, executor.processes if isinstance(executor, Local) else 0)
    chains = [chain for some in parts.values() for chain in some]
    for chain in chains:
        pieces.read(chain)  # a damaged one is run again
    if chains:
        run(Study(CHAINS, chains, sample, "chains"), pieces.directory, executor, progress=progress)
    cells = list(study.cells)
    for place, some in parts.items():
        if all(map(pieces.ended_well, some)):  # where one failed, the cell itself says why
            message = cells[place].message._replace(chains=tuple(map(pieces.path, some)))
            cells[place] = replace(cells[place], message=message)
    yield replace(study, cells=cells)
    if parts:
        left = _missing(study, out)
        for chain in [one for place, some in parts.items() if place not in left for one in some]:
            pieces.remove(chain)
        with suppress(OSError):  # where a cell has failed, or another run has its own
            pieces.directory.rmdir()


def _parts(study: Study, out: str | os.PathLike[str], pieces: Pieces, workers: int) -> dict[int, list[Cell]]:
    """By its place, the chains of each cell that is missing and worth it, or whose chains are there."""
    if workers < 2 and not pieces.directory.exists():
        return {}
    made = {cell.head["config_hash"]: cell.message for cell in study.cells}
    apart = {text for text, message in made.items() if _has_chains(message)}
    if not apart:
        return {}
    left = _missing(study, out)
    number = Counter(cell.head["method"] for cell in left.values())
    parts = {}
    for place, cell in left.items():
        if cell.head["config_hash"] in apart:
            chains = list(sampling(cell.message.method, [cell.message.problem]).cells)
            if number[cell.head["method"]] < workers or all(map(pieces.ended_well, chains)):
                parts[place] = chains
    return parts


def _missing(study: Study, out: str | os.PathLike[str]) -> dict[int, Cell]:
    """The cells that have no good row, by their places."""
    store = Store(out, study.layout)
    store.create()
    missing = {cell.id for cell in missing_cells(study.cells, store.read())}
    return {place: cell for place, cell in enumerate(study.cells) if cell.id in missing}


def _has_chains(message: Any) -> bool:
    """Whether a cell is of several chains, each as `Sampler` runs it."""
    made = resolve(message.method, facts_of(message.problem))
    if not isinstance(made, Sampler) or problems_at_once(made) != 1:
        return False
    is_sampler = type(made).fit is Sampler.fit and type(made).sample is Sampler.sample
    return is_sampler and made.num_chains > 1
