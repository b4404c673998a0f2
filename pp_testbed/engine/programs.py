"""Compiled programs: problems of one shape mapped together, timed without their compilation."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # of a system without locks
    fcntl = None  # type: ignore[assignment]

import jax
import jax.numpy as jnp
import numpy as np

MAPPINGS = Path("/proc/self/maps")  # of memory: a program has dozens, Linux gives a process 65,530
MOST_MAPPINGS = 20_000


@dataclass
class Programs:
    """Compiled programs of this process, so that compilation is not counted as fitting."""

    compiled: dict[Any, Any] = field(default_factory=dict)

    def timed(self, function: Any, *arguments: Any, **static: Any) -> tuple[Any, float]:
        """The value of a jitted function, and how many seconds it took to run once compiled."""
        key = key_of_program(function, arguments, static)
        if key not in self.compiled:
            lowered = function.lower(*arguments, **static)
            with one_at_a_time(key):
                self.compiled[key] = lowered.compile()
        start = time.perf_counter()
        value = jax.block_until_ready(self.compiled[key](*arguments))
        return value, time.perf_counter() - start

    def compiling(self, function: Any, *arguments: Any, **static: Any) -> Step:
        """The step that compiles a jitted function for arguments of these shapes."""
        key = key_of_program(function, arguments, static)
        return key, lambda: function.lower(*arguments, **static).compile()

    def ready(self, *steps: Step) -> None:
        """Take steps that compile, each once in this process, first those that no other process is at."""
        left = [step for step in steps if step[0] not in self.compiled]
        for wait in (False, True):
            for key, take in [step for step in left if step[0] not in self.compiled]:
                with one_at_a_time(key, wait) as is_mine:
                    if is_mine:
                        self.compiled[key] = take()

    def let_go(self) -> None:
        """Forget all programs where the process is about to have too many."""
        if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
            self.compiled.clear()
            jax.clear_caches()


Step = tuple[Any, Callable[[], Any]]


def key_of_program(function: Any, arguments: Any, static: dict[str, Any]) -> Any:
    """What a compiled program is of: a function, and the structure, shapes and types of its arguments."""
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return function, structure, shapes, tuple(static.items())


@contextmanager
def one_at_a_time(key: Any, wait: bool = True) -> Iterator[bool]:
    """So that of processes that want a program one compiles it, and the others find it in the cache.

    What comes is whether it is this process's turn, which it is always, having waited.
    """
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    text = re.sub(r"0x[0-9a-f]+", "", str(key))  # addresses of this process
    name = f".{hashlib.sha256(text.encode()).hexdigest()[:16]}.lock"
    with ExitStack() as held:
        if folder is not None and fcntl is not None and Path(folder).is_absolute():
            with suppress(OSError):  # of a folder that cannot be written, or locked: each compiles for itself
                Path(folder).mkdir(parents=True, exist_ok=True)
                file = held.enter_context((Path(folder) / name).open("w"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:  # somebody is at it
                    yield False
                    return
        yield True


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
    """Trees of one structure as one tree, with a leading axis on every leaf.

    By NumPy, as is `unstack`: JAX would compile a program for every shape.
    """
    return jax.tree.map(lambda *leaves: of_host(np.stack([*map(on_host, leaves)]), leaves[0]), *trees)


def unstack(tree: Any, number: int) -> list[Any]:
    """The first so many trees of a stacked one."""
    leaves, structure = jax.tree.flatten(tree)
    rows = [[of_host(row, leaf) for row in on_host(leaf)[:number]] for leaf in leaves]
    return [jax.tree.unflatten(structure, row) for row in zip(*rows, strict=True)]


def on_host(leaf: Any) -> np.ndarray:
    """A leaf as numbers: keys are not, to NumPy."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def of_host(array: np.ndarray, like: Any) -> Any:
    """Numbers as what they were of: keys, where the leaf has keys."""
    is_key = isinstance(like, jax.Array) and jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(jnp.asarray(array)) if is_key else array


def filled(cells: Sequence[Any], size: int) -> list[Any]:
    """Cells, repeated up to one size: the last bits of a mapped program depend on how many it holds."""
    return [cells[i % len(cells)] for i in range(size)]
