"""Compiled programs: problems of one shape mapped together, timed without their compilation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

MAPPINGS = Path(
    "/proc/self/maps"
)  # of memory; Linux ends a process of more than 65,530, a program has dozens
MOST_MAPPINGS = 20_000


@dataclass
class Programs:
    """Compiled programs of this process, so that compilation is not counted as fitting."""

    compiled: dict[Any, Any] = field(default_factory=dict)

    def timed(self, function: Any, *arguments: Any, **static: Any) -> tuple[Any, float]:
        """The value of a jitted function, and how many seconds it took to run once compiled."""
        leaves, structure = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (function, structure, shapes, tuple(static.items()))
        if key not in self.compiled:
            self.compiled[key] = function.lower(*arguments, **static).compile()
        start = time.perf_counter()
        value = jax.block_until_ready(self.compiled[key](*arguments))
        return value, time.perf_counter() - start

    def let_go(self) -> None:
        """Forget all programs where the process is about to have too many."""
        if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
            self.compiled.clear()
            jax.clear_caches()


def map_problems(function: Any, arguments: tuple[Any, ...]) -> Any:
    """`function` of one problem's arguments, mapped over the leading axis of all leaves.

    Not by vmap where there is one problem: a vmap of one still takes both sides of every condition,
    which doubles the cost of a sampler.
    """
    if len(jax.tree.leaves(arguments)[0]) > 1:
        return jax.vmap(function)(arguments)
    alone = function(jax.tree.map(lambda leaf: leaf[0], arguments))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one tree, with a leading axis on every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def filled(cells: Sequence[Any], size: int) -> list[Any]:
    """Cells, repeated up to one size: the last bits of a mapped program depend on how many it holds."""
    return [cells[i % len(cells)] for i in range(size)]
