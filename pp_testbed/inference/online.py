"""Learning while data come in: what an agent of a bandit promises, and how any method becomes one.

Whatever the engine of `svi` trains learns online by itself, one step of training per observation, and so do
the stochastic gradient samplers. Any other method whose `fit` is a pure JAX function is `Refreshed`: fitted
anew when there is so much more data. What agents decide is in `evaluation.bandit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from pp_testbed.errors import UsageError
from pp_testbed.inference.options import method_name, problems_at_once
from pp_testbed.inference.posterior import Posterior
from pp_testbed.models.base import Array, Task


class Online(Protocol):
    """A method whose posterior follows data as they come in: pure functions of a state, a pytree.

    The method is a pytree itself, as `pt.pytree_dataclass` makes one of a class.

    `task` holds the data so far: T = `task.num_train` of them, of which the last P are in its rows, in
    any order.
    """

    def begin(self, key: Array, task: Task) -> Any:
        """The state before any data; `task` has none, but its shapes, and weights of 0."""
        ...

    def learn(self, key: Array, state: Any, task: Task) -> Any:
        """The state after one more observation."""
        ...

    def current(self, state: Any, task: Task) -> Posterior:
        """The posterior as it is now, `Finite` or `Sampled`."""
        ...


class Refreshment(NamedTuple):
    """A posterior, and of how many data it is."""

    posterior: Any
    num_train: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Refreshed:
    """A method that is fitted anew, from scratch, whenever there are `growth` times as many data.

    Args:
        method: with a `fit` that is a pure JAX function.
        growth: above 1.
    """

    revision: ClassVar[int] = 1
    method: Any
    growth: float = 1.5
    name: str = field(default="", metadata={"static": True})

    @property
    def problems_at_once(self) -> int:
        """One bandit at a time: under vmap there would be a fit at every step, whether it is due or not."""
        return 1

    def in_dimensions(self, input_dim: int) -> Refreshed:
        """It, with its method as that acts in so many dimensions."""
        return replace(self, method=in_dimensions(self.method, input_dim))

    def begin(self, key: Array, task: Task) -> Refreshment:
        return self._fit(key, task, jnp.zeros_like(task.num_train))

    def learn(self, key: Array, state: Refreshment, task: Task) -> Refreshment:
        due = task.num_train >= jnp.ceil(self.growth * state.num_train)
        return jax.lax.cond(due, lambda: self._fit(key, task, task.num_train), lambda: state)

    def current(self, state: Refreshment, task: Task) -> Posterior:
        return state.posterior

    def _fit(self, key: Array, task: Task, num_train: Array) -> Refreshment:
        posterior = self.method.fit(key, task)
        return Refreshment(getattr(posterior, "without_history", lambda: posterior)(), num_train)


def in_dimensions(method: Any, input_dim: int) -> Any:
    """A method as it acts in a bandit of so many dimensions: with a prior of the strength of two."""
    return method.in_dimensions(input_dim) if hasattr(method, "in_dimensions") else method


def online(method: Any) -> Any:
    """A method as one that learns online: itself, or `Refreshed`.

    Examples:
        >>> from pp_testbed.inference.registry import method
        >>> online(method("mlp")).name, type(online(method("nuts"))).__name__
        ('mlp', 'Refreshed')
    """
    if callable(getattr(method, "begin", None)):
        if any(leaf is method for leaf in jax.tree.leaves(method)):
            raise UsageError(
                f"{method_name(method)} is no pytree; decorate its class with pt.pytree_dataclass"
            )
        return method
    if problems_at_once(method):
        if getattr(method, "weighs_rows", False):
            return Refreshed(method, name=method_name(method))
        raise UsageError(
            f"{method_name(method)} cannot learn online, where a task has rows that are not data yet: if its "
            "fit weighs rows by task.data_weights, say so in its class, as weighs_rows = True"
        )
    raise UsageError(
        f"{method_name(method)} cannot learn online: it has neither begin, learn and current, nor the "
        "attribute problems_at_once of a method whose fit is a pure JAX function"
    )
