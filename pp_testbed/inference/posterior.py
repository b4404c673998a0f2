"""The one Posterior type: a distribution over functions, of whatever make.

`Posterior` is the only door: `draw` gives functions, `logits` gives their values. Nothing here knows how a
posterior was made; that is what the other files of this folder are for, one per family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from pp_testbed.errors import UsageError, check_whole
from pp_testbed.inference.arviz import to_arviz
from pp_testbed.models.base import Array, Task, check_inputs
from pp_testbed.models.likelihoods import Likelihood

ACTIVATIONS_AT_ONCE = 2**19  # floats, for hidden layers of some 64 units: what stays in a core's cache


class Posterior(Protocol):
    """A distribution over functions.

    Besides `Finite`, `Sampled` and `Plain`, an object with only `logits` will do: it is taken to draw
    as many functions as it is asked for, unless it has an attribute `is_finite` that is true.
    """

    def draw(self, key: Array, num_draws: int) -> Finite:
        """Draw functions. A finite posterior is given whole, with its weights, never resampled."""
        ...

    def logits(self, key: Array, x: Array, num_draws: int = 1000) -> Array:
        """Logits [draws, N, K] of drawn functions at inputs x [N, d]."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Finite:
    """Finitely many functions with weights, such as an ensemble or a chain.

    Attributes:
        function: a pytree callable, `(draw, x [N, d]) -> [N, K]`.
        draws: a pytree with a leading axis [M].
        log_weights: [M], normalised.
        losses: the loss curves of the training that made it, if any: [M, steps].
        num_groups: 1 if these functions are all there is; else they are a sample, and the bias of its
            finite size is estimated by a jackknife over so many groups of neighbours.
    """

    function: Partial
    draws: Any
    log_weights: Array
    losses: Array | None = None
    num_groups: int = field(default=1, metadata={"static": True})

    @classmethod
    def equal(cls, function: Partial, draws: Any, losses: Array | None = None, num_groups: int = 1) -> Finite:
        """Equal weights for all draws."""
        num = jax.tree.leaves(draws)[0].shape[0]
        return cls(function, draws, jnp.full(num, -jnp.log(num)), losses, num_groups)

    def draw(self, key: Array, num_draws: int) -> Finite:
        return self

    def without_history(self) -> Finite:
        """Only what is needed to draw functions, not how they came about."""
        return replace(self, losses=None)

    @property
    def num_chains(self) -> int:
        """Of how many chains the functions are draws, one after another; 0 where they are all there is."""
        return 0 if self.num_groups == 1 else 1

    def to_arviz(self, task: Task | None = None, probes: Array | None = None) -> Any:
        """The posterior as an object of ArviZ: see `inference.arviz.to_arviz`."""
        return to_arviz(self, task, probes)

    def values(self, x: Array) -> Array:
        """Logits [M, N, K] of every function at x [N, d], few functions at a time."""
        at_once = max(1, ACTIVATIONS_AT_ONCE // (64 * x.shape[0]))
        return jax.lax.map(lambda draw: self.function(draw, x), self.draws, batch_size=at_once)

    def logits(self, key: Array, x: Array, num_draws: int = 1000) -> Array:
        check_inputs(x)
        return _values(self, x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sampled:
    """A posterior that can be drawn from without end, such as a fitted guide.

    Attributes:
        function: as in `Finite`.
        sampler: a pytree callable, `key -> draw`.
        losses: the loss curve of the training that made it, if any: [steps].
    """

    function: Partial
    sampler: Partial
    losses: Array | None = None

    def without_history(self) -> Sampled:
        """Only what is needed to draw functions, not how they came about."""
        return replace(self, losses=None)

    def draw(self, key: Array, num_draws: int) -> Finite:
        draws = jax.vmap(self.sampler)(jax.random.split(key, num_draws))
        return Finite.equal(self.function, draws)

    def to_arviz(self, task: Task, probes: Array | None = None, num_draws: int = 1000) -> Any:
        """Independent draws as an object of ArviZ: see `inference.arviz.to_arviz`."""
        return _draw(self, jax.random.key(0), num_draws).to_arviz(task, probes)

    def logits(self, key: Array, x: Array, num_draws: int = 1000) -> Array:
        check_inputs(x)
        return _values(_draw(self, key, num_draws), x)


_values = jax.jit(Finite.values)
_draw = jax.jit(Sampled.draw, static_argnums=2)


@dataclass(frozen=True)
class Plain:
    """A posterior written in NumPy, scikit-learn, PyTorch or anything that Python can call.

    Attributes:
        function: `(x [N, d], rng) -> [N, K]`, the logits of one drawn function at all of x; or, where
            `is_finite`, `x -> [M, N, K]`, those of every function.
        is_finite: whether there are finitely many functions.
        log_weights: [M] for a finite one; equal if None.
        num_chains: of how many chains the functions of a finite one are draws, chain after chain; 0 where
            they are all there is.
    """

    function: Callable[..., Any]
    is_finite: bool = False
    log_weights: Any = None
    num_chains: int = 0

    def draw(self, key: Array, num_draws: int) -> Finite:
        raise TypeError("a posterior written in plain Python has values, not draws; use .logits")

    def to_arviz(self, task: Task, probes: Array | None = None, num_draws: int = 1000) -> Any:
        """The posterior as an object of ArviZ: see `inference.arviz.to_arviz`."""
        return to_arviz(self, task, probes, num_draws)

    def logits(self, key: Array, x: Array, num_draws: int = 1000) -> Array:
        check_inputs(x)
        inputs = np.asarray(x)
        if self.is_finite:
            values = np.asarray(self.function(inputs))
        else:
            seed = np.asarray(jax.random.key_data(key)).tolist()
            # One generator per draw: the same draw is the same function whatever x it is asked at.
            rngs = [np.random.default_rng([*seed, draw]) for draw in range(num_draws)]
            values = np.stack([np.asarray(self.function(inputs, rng)) for rng in rngs])
        if values.ndim != 3 or values.shape[1] != len(inputs):
            expected = "[draws, N, K]" if self.is_finite else "[N, K]"
            shape = values.shape if self.is_finite else values.shape[1:]
            raise UsageError(f"logits have shape {shape}; expected {expected} with N = {len(inputs)}")
        if self.num_chains and len(values) % self.num_chains:
            raise UsageError(
                f"there are {len(values)} draws; expected a multiple of {self.num_chains} chains"
            )
        return jnp.asarray(values, dtype=jnp.float32)


def check_logits(values: np.ndarray) -> None:
    """Raise a UsageError if values [M, N, K] that vary are probabilities: between 0 and 1, of sum 1."""
    are_shares = (values >= 0.0).all() and (values <= 1.0).all() and np.allclose(values.sum(axis=2), 1.0)
    if are_shares and np.ptp(values[..., 0]) > 0:
        raise UsageError("these look like probabilities, as they sum to 1: return logits, such as np.log(p)")


def finite(function: Callable[[Any], Any], weights: Any = None, *, chains: int = 0) -> Plain:
    """A finite posterior from a plain callable, `x [N, d] -> logits [draws, N, K]`.

    Args:
        function: any Python; called with a NumPy array.
        weights: of the draws, non-negative; equal if None.
        chains: of how many Markov chains these are draws, chain after chain, so that they are a sample of
            another posterior and `diagnose` looks at them; 0 where they are all there is.

    Examples:
        >>> posterior = finite(lambda x: np.zeros((5, len(x), 2)))
        >>> posterior.logits(jax.random.key(0), np.ones((3, 2))).shape
        (5, 3, 2)
    """
    if not callable(function):
        raise UsageError(f"expected a function of inputs, not {type(function).__name__}")
    check_whole("chains", chains, least=0)
    if weights is None:
        return Plain(function, True, None, chains)
    if chains:
        raise UsageError("the draws of chains have equal weights")
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 1 or not (weights >= 0).all() or weights.sum() <= 0:
        raise UsageError("weights must be non-negative, one per draw, and not all zero")
    with np.errstate(divide="ignore"):
        return Plain(function, True, np.log(weights / weights.sum()))


def sampled(function: Callable[[Any, np.random.Generator], Any]) -> Plain:
    """A posterior from a plain callable that draws one function, `(x [N, d], rng) -> [N, K]`."""
    return Plain(function)


def as_posterior(posterior: Any) -> Any:
    """A posterior; a plain function `(x, rng) -> logits` is taken as by `sampled`."""
    is_function = callable(posterior) and not hasattr(posterior, "logits")
    return sampled(posterior) if is_function else posterior


def log_weights_of(posterior: Any, num_draws: int) -> Array:
    """The log weights of a posterior's functions [num_draws], equal where it has none."""
    given = getattr(posterior, "log_weights", None)
    if given is None:
        return jnp.full(num_draws, -jnp.log(num_draws))
    return jnp.asarray(given, dtype=jnp.float32)


def predictive_mean(functions: Finite, likelihood: Likelihood, x: Array) -> Array:
    """Probabilities of classes [N, K], or locations of numbers [N, D]: one function after another.

    Memory is that of one function's outputs, however many there are.
    """

    def add(total: Array, one: tuple[Any, Array]) -> tuple[Array, None]:
        draw, weight = one
        outputs = functions.function(draw, x)
        values = jax.nn.softmax(outputs) if likelihood.is_of_classes else likelihood.margins(outputs).loc
        return total + weight * values, None

    first = jax.tree.map(lambda leaf: leaf[0], functions.draws)
    weights = jnp.exp(functions.log_weights)
    shape = jax.eval_shape(lambda: add(jnp.zeros(()), (first, weights[0]))[0]).shape
    return jax.lax.scan(add, jnp.zeros(shape), (functions.draws, weights))[0]


def divisor(name: str, num_draws: int) -> int:
    """Into how many groups the jackknife can divide draws: the largest divisor up to 10, or a UsageError."""
    for groups in range(10, 1, -1):
        if num_draws % groups == 0:
            return groups
    raise UsageError(f"{name}: {num_draws} draws in all; expected a multiple of 2, 3, 5 or 7, best of 10")
