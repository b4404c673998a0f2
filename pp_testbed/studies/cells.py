"""What cells of a study of methods and problems have in common: facts, and who shares a program with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import pyarrow as pa

from pp_testbed.engine.store import ALWAYS, MAYBE, Column
from pp_testbed.inference.options import num_rows, problems_at_once
from pp_testbed.problems.base import BaseProblem

FLOATS_AT_ONCE = 2**27  # of the data of problems that are fitted by one program
FACTS = (
    Column("model", pa.string(), MAYBE),
    *(Column(name, pa.int64(), ALWAYS) for name in ("input_dim", "num_train")),
    Column("temperature", pa.float64(), ALWAYS),
    Column("num_classes", pa.int64(), ALWAYS),
)


class Fitted(NamedTuple):
    """What a worker is told of a cell.

    Attributes:
        method: in words, or itself.
        problem: that it is fitted to.
        chains: where its chains are, if they were run before.
    """

    method: Any
    problem: BaseProblem
    chains: tuple[Path, ...] = ()


def facts_of(problem: BaseProblem) -> dict[str, Any]:
    """What the options of a preset may depend on."""
    return problem.facts | {"seed": problem.seed}


def batch_size(method: Any, problem: BaseProblem) -> int:
    """How many problems a program of a method holds: fewer where their data are large."""
    rows = num_rows(method, problem) + problem.num_test
    most = max(1, FLOATS_AT_ONCE // (rows * problem.input_dim))
    return min(problems_at_once(method), most)


def program_of(method: Any, problem: BaseProblem) -> Any:
    """What must be equal for cells to share a program: structures, not numbers."""
    if not problems_at_once(method):
        return id(method), problem.name
    structure = jax.tree.structure((method, problem.model))
    return structure, num_rows(method, problem), problem.num_test, problem.judged_by, problem.is_of_data
