"""The words that studies and the engine share: cells, studies, and what running them yields.

A study is a value: it lists its cells, and has a function that runs some of them. How cells are batched,
carried to other processes, shown and kept is for the rest of this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pp_testbed.engine.identity import config_hash
from pp_testbed.engine.programs import Programs
from pp_testbed.engine.store import Layout, cell_id

COMPILATION = 10.0  # a cell's share at most, next to a training of a network, which is an effort of 1


@dataclass(frozen=True)
class Cell:
    """One method on one problem: the unit that is run, stored and resumed.

    Attributes:
        head: what each of its rows says: the problem and its facts, the method, the configuration, the seed.
        message: what a worker needs to know; names and descriptions, no arrays.
        program: cells of equal programs share a compiled one, and are run together.
        size: how many such a program holds; 0 where one after another is run.
        goal: what its last row says besides, such as the horizon; it is complete where there is such a row.
        effort: a guess of what it costs, next to others: long ones are begun first, so that nobody waits for
            them in the end.
    """

    head: dict[str, Any]
    message: Any
    program: Any = None
    size: int = 1
    goal: dict[str, Any] = field(default_factory=dict)
    effort: float = 1.0

    @property
    def cost(self) -> float:
        """A guess of its seconds, compilation included, next to others'."""
        return COMPILATION + self.effort

    @property
    def id(self) -> str:
        """What identifies it: problem, configuration, and their revisions. Versions of the package do not."""
        return cell_id(self.head["problem"], self.head["revision"], self.head["config_hash"])


def head_of(problem: Any, method: str, config: str, **columns: Any) -> dict[str, Any]:
    """What all rows of a cell say of a problem, which has `name, kind, revision, seed` and `facts`."""
    return {
        "problem": problem.name,
        "kind": problem.kind,
        "revision": problem.revision,
        "seed": problem.seed,
        "method": method,
        "config": config,
        "config_hash": config_hash(config),
        **problem.facts,
        **columns,
    }


class Rows(NamedTuple):
    """What has come of a cell: its rows, without what its head says, and arrays if the study keeps some.

    Attributes:
        place: of the cell among those that were run together.
        checkpoint: a file that is not needed any more as soon as these rows are kept.
    """

    place: int
    rows: list[dict[str, Any]]
    arrays: dict[str, np.ndarray] = {}  # noqa: RUF012  (of a NamedTuple, and never changed)
    checkpoint: Path | None = None


class Workspace(NamedTuple):
    """What a worker has: its compiled programs, and a folder for checkpoints if it can reach that."""

    programs: Programs
    scratch: Path | None


@dataclass(frozen=True)
class Study:
    """A kind of question, asked of some methods and problems.

    Attributes:
        layout: of the rows that answer it.
        cells: all that were asked for.
        run: `(messages, workspace)` of cells of one program, at most `size` of them, to their `Rows`, in any
            order, and in between numbers: which fraction is done. It travels to workers.
        noun: what cells are called.
    """

    layout: Layout
    cells: Sequence[Cell]
    run: Callable[[list[Any], Workspace], Iterator[Rows | float]]
    noun: str = "cells"
