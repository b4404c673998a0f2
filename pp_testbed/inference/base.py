"""The one Posterior type, what a method promises, and the registry of methods.

A posterior approximation is a distribution over functions. `Posterior` is its only door: `draw`
gives functions, `logits` gives their values. Nothing here knows how a posterior was made; that is
what the other files of this folder are for, one per family. A new method is a new file and a line
in `METHODS`.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from importlib.resources import files
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from pp_testbed.errors import UsageError, check_whole, unknown
from pp_testbed.models.base import Array, Task, check_inputs

# Sweeps are written as scikit-learn writes grids of parameters: products of values, side by side.
Sweep = tuple[dict[str, tuple[Any, ...]], ...]


class Entry(NamedTuple):
    """Where a registered method lives, what it changes of its class's defaults, and what it is."""

    path: str
    options: dict[str, Any]
    summary: str


_HERE = "pp_testbed.inference"
_MAP = f"{_HERE}.map_ensemble"
_SVI = f"{_HERE}.svi"
_MCMC = f"{_HERE}.mcmc"
_SGMCMC = f"{_HERE}.sgmcmc"
METHODS = {
    "uniform": Entry("pp_testbed.inference.baselines:Uniform", {}, "every class equally likely everywhere"),
    "prior": Entry("pp_testbed.inference.baselines:Prior", {}, "the prior predictive: no data seen"),
    "logistic": Entry(f"{_MAP}:Ensemble", {"hidden": (), "size": 1}, "MAP logistic regression"),
    "mlp": Entry(f"{_MAP}:Ensemble", {"size": 1}, "one MAP network: training with weight decay"),
    "ensemble": Entry(f"{_MAP}:Ensemble", {}, "MAP networks from many starts"),
    "ensemble+": Entry(f"{_MAP}:EnsemblePlus", {}, "an ensemble with prior functions"),
    "ensemble-ntk": Entry(f"{_HERE}.ntk:EnsembleNTK", {}, "an ensemble with priors of the tangent kernel"),
    "dropout": Entry(f"{_HERE}.dropout:Dropout", {}, "Monte Carlo dropout"),
    "bbb": Entry(f"{_HERE}.bbb:BayesByBackprop", {}, "Bayes by backprop: mean-field VI of the agent"),
    "hypermodel": Entry(
        f"{_HERE}.hypermodel:Hypermodel", {}, "weights linear in an index, with a prior function"
    ),
    "epinet": Entry(f"{_HERE}.epinet:Epinet", {}, "an indexed head on the last hidden layer"),
    "mean-field": Entry(f"{_SVI}:MeanField", {}, "VI: independent normals for all weights"),
    "rank1": Entry(f"{_SVI}:LowRank", {"rank": 1}, "VI: a normal of diagonal + rank 1 covariance"),
    "low-rank": Entry(f"{_SVI}:LowRank", {}, "VI: a normal of diagonal + low-rank covariance"),
    "full-rank": Entry(f"{_SVI}:FullRank", {}, "VI: a normal of any covariance"),
    "functional-vi": Entry(f"{_HERE}.functional_vi:FunctionalVI", {}, "VI with a KL between functions"),
    "flow": Entry(f"{_HERE}.subspace:Flow", {}, "VI: a normalizing flow on a subspace of the weights"),
    "laplace": Entry(f"{_HERE}.laplace:Laplace", {}, "Laplace's method, all weights, linearised"),
    "laplace-last-layer": Entry(
        f"{_HERE}.laplace:Laplace", {"subset": "last-layer"}, "Laplace's method on the last layer"
    ),
    "swag": Entry(f"{_HERE}.swag:SWAG", {}, "a normal with the moments of SGD's iterates"),
    "multi-swag": Entry(f"{_HERE}.swag:SWAG", {"size": 10}, "a mixture of ten of them"),
    "subspace-ess": Entry(f"{_HERE}.subspace:SubspaceSlice", {}, "slice sampling where training went"),
    "mile": Entry(f"{_HERE}.mile:MILE", {}, "microcanonical Langevin chains from an ensemble's members"),
    "pathfinder": Entry(f"{_HERE}.variational:Pathfinder", {}, "normals along the paths of L-BFGS"),
    "svgd": Entry(f"{_HERE}.variational:SVGD", {}, "Stein variational gradient descent"),
    "deep-kernel": Entry(f"{_HERE}.deep_kernel:DeepKernel", {}, "a Gaussian process on the last layer"),
    "knn": Entry(f"{_HERE}.nonparametric:Knn", {}, "nearest neighbours"),
    "random-forest": Entry(f"{_HERE}.nonparametric:RandomForest", {}, "a random forest"),
    "nuts": Entry(f"{_MCMC}:NUTS", {}, "the no-U-turn sampler on the generative model: the exact posterior"),
    "hmc": Entry(f"{_MCMC}:HMC", {}, "Hamiltonian Monte Carlo with trajectories of fixed length"),
    "mala": Entry(f"{_MCMC}:MALA", {}, "Metropolis-adjusted Langevin"),
    "mclmc": Entry(f"{_MCMC}:MCLMC", {}, "microcanonical Langevin Monte Carlo, unadjusted"),
    "elliptical-slice": Entry(f"{_MCMC}:EllipticalSlice", {}, "elliptical slice sampling"),
    "sgmcmc": Entry(
        f"{_SGMCMC}:SGLD",
        {"momentum": 0.9, "steady": 1.0},
        "the paper's agent: SGLD on the agent's network, its step in units of the mean loss",
    ),
    "sgld-ensemble": Entry(
        f"{_SGMCMC}:SGLD",
        {"num_chains": 10, "num_steps": 20_000, "burn_in": 10_000},
        "ten short chains of SGLD",
    ),
    "sgld": Entry(f"{_SGMCMC}:SGLD", {}, "stochastic gradient Langevin dynamics"),
    "sghmc": Entry(f"{_SGMCMC}:SGHMC", {}, "stochastic gradient Hamiltonian Monte Carlo"),
    "sgnht": Entry(f"{_SGMCMC}:SGNHT", {}, "stochastic gradient Nosé-Hoover thermostat"),
    "csgld": Entry(
        f"{_SGMCMC}:SGLD",
        {"schedule": "cyclical", "learning_rate": 5e-4},
        "cyclical SGLD: cosine cycles, exploration and sampling phases",
    ),
    "csghmc": Entry(
        f"{_SGMCMC}:SGLD",
        {"schedule": "cyclical", "learning_rate": 5e-5, "momentum": 0.9},
        "cyclical SGHMC: the same with momentum",
    ),
}


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


class Method(Protocol):
    """A way of approximating posteriors: hyperparameters, and `fit`.

    A method, a dataclass, with an attribute `problems_at_once` that is not 0 promises more: `fit` is a pure
    JAX function of `(self, key, task)`, all of them pytrees, which is mapped over so many problems, and over
    hyperparameters. Any other object with `fit(key, task)` is called with one problem after another.

    One whose attribute `weighs_rows` is true promises that no row counts more than `task.data_weights` says.
    Problems of different T, filled up to one shape, then share a program; other methods never see a row that
    is not data.

    A method that acts in bandits in another way than it is fitted says how: `acting()` is what it is there,
    where options that were given win, and `in_dimensions(d)` in a bandit of d dimensions.
    """

    def fit(self, key: Array, task: Task) -> Posterior: ...


NETWORKS_AT_ONCE = 10  # trained together by one program: what stays in a core's cache


def at_once(networks: int) -> int:
    """How many problems a program should hold where each fit trains so many networks together."""
    return max(1, NETWORKS_AT_ONCE // networks)


def problems_at_once(method: Any) -> int:
    """How many problems a method can be mapped over: see `Method`; 0 where it is any Python."""
    number = getattr(method, "problems_at_once", 0)
    return number if isinstance(number, int) and is_dataclass(method) else 0


def num_rows(method: Any, task: Any) -> int:
    """Rows of a task that a program of a method sees: more than the data only if it weighs them."""
    return task.padded_size if getattr(method, "weighs_rows", False) else task.num_train


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
        """The posterior as an object of ArviZ: see `evaluation.diagnostics.to_arviz`."""
        from pp_testbed.evaluation.diagnostics import to_arviz  # the one module that talks to ArviZ

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
        """Independent draws as an object of ArviZ: see `evaluation.diagnostics.to_arviz`."""
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
        """The posterior as an object of ArviZ: see `evaluation.diagnostics.to_arviz`."""
        from pp_testbed.evaluation.diagnostics import to_arviz  # the one module that talks to ArviZ

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


def method(name: str, /, *, preset: str = "tuned", **options: Any) -> Method:
    """A registered method by its name, with some of its hyperparameters changed.

    Args:
        preset: "tuned", the best on the problems of `pp-testbed tune`, where the method was tuned; "paper",
            the published defaults (of methods that are not in the paper, their classes'); or a JSON file
            that `pp-testbed tune --save` wrote, over the tuned ones.

    Examples:
        >>> method("ensemble", size=30).size
        30
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    entry = METHODS[name]
    module, attribute = entry.path.split(":")
    made = getattr(import_module(module), attribute)(name=name, **entry.options)
    presets = read_presets(preset)
    if preset not in ("tuned", "paper"):
        presets = read_presets("tuned") | presets
    found = presets.get(name)
    return with_options(with_options(made, found["options"]) if found else made, options)


def read_presets(preset: str | Path) -> dict[str, dict[str, Any]]:
    """What tuning found, by method: `options`, `score`, `stderr`, `metric`, `suite`, `trials`, `version`."""
    if preset == "paper":
        return {}
    source: Any = Path(preset)
    if preset == "tuned":
        source = files("pp_testbed").joinpath("data", "tuned.json")
    elif source.suffix != ".json":
        raise unknown("preset", str(preset), ("tuned", "paper"))
    try:
        found = json.loads(source.read_text() if source.is_file() else "")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{preset} is not a file of presets: {error}") from None
    if not isinstance(found, dict) or not all(
        isinstance(one, dict) and isinstance(one.get("options"), dict) for one in found.values()
    ):
        raise UsageError(
            f"{preset} is not a file of presets: expected options by method, as `tune --save` writes"
        )
    return found


def with_options(made: Any, options: dict[str, Any]) -> Any:
    """Change hyperparameters of a method; values may be text, as from a command line."""
    if not is_dataclass(made) or isinstance(made, type):
        if options:
            raise UsageError(f"{method_name(made)} is not a dataclass: it has no options to set")
        return made
    converted = {option: option_value(made, option, value) for option, value in options.items()}
    of_guide = {option: value for option, value in converted.items() if option in _guide_options(made)}
    if of_guide:
        guide = vars(made)["guide"]
        converted["guide"] = partial(guide.func, *guide.args, **(guide.keywords | of_guide))
    return replace(made, **{option: value for option, value in converted.items() if option not in of_guide})


def options_of(made: Any) -> dict[str, Any]:
    """The options of a method with their values: its fields, and what its guide, a `partial`, was given."""
    return {f.name: getattr(made, f.name) for f in fields(made) if f.name != "name"} | _guide_options(made)


def _guide_options(made: Any) -> dict[str, Any]:
    guide = next((getattr(made, f.name) for f in fields(made) if f.name == "guide"), None)
    return dict(guide.keywords) if isinstance(guide, partial) else {}


def option_value(made: Any, option: str, value: Any) -> Any:
    """A value of an option, of the type that it has; it may be text."""
    known = options_of(made)
    if option not in known:
        raise unknown(f"option of {method_name(made)}", option, known)
    return _converted(method_name(made), option, value, known[option])


def _converted(owner: str, option: str, value: Any, current: Any) -> Any:
    """Give `value` the type of the option's current value, or say why it cannot have it."""
    try:
        converted = _parse(value, current) if isinstance(value, str) else _as_type(value, current)
    except (ValueError, TypeError):
        kind = "numbers like 50,50" if isinstance(current, tuple) else type(current).__name__
        raise UsageError(f"{owner}.{option}={value}: expected {kind}, as in {current!r}") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise UsageError(f"{owner}.{option}={value}: expected a finite number, as in {current!r}")
    return converted


def _parse(text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(like, tuple):
        return tuple(int(part) for part in text.strip("()").split(",") if part)
    if isinstance(like, int | float):
        return type(like)(text)
    raise ValueError(text)


def _as_type(value: Any, like: Any) -> Any:
    """A value that is no text as of the type of another; a TypeError where that would change it."""
    if isinstance(like, bool | str):
        if not isinstance(value, type(like)):
            raise TypeError(value)
        return value
    if isinstance(like, tuple):
        return tuple(operator.index(part) for part in value)
    if isinstance(like, int):
        return operator.index(value)
    if isinstance(like, float) and not isinstance(value, jax.Array):  # which may be one of many, mapped over
        return float(value)
    return value


def check_positive(made: Any, *options: str) -> None:
    """Raise a UsageError unless these options of a method are whole numbers, at least 1."""
    for option in options:
        value = getattr(made, option)
        if not isinstance(value, Integral) or value < 1:
            raise UsageError(f"{method_name(made)}.{option}={value}: expected a whole number, at least 1")


class Range(NamedTuple):
    """Numbers between two, with or without these two themselves, and how people say that."""

    low: float
    high: float
    has_low: bool
    has_high: bool
    words: str

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        above = value >= self.low if self.has_low else value > self.low
        return above and (value <= self.high if self.has_high else value < self.high)


POSITIVE = Range(0.0, math.inf, False, False, "above 0")
NOT_NEGATIVE = Range(0.0, math.inf, True, False, "of at least 0")
BELOW_ONE = Range(0.0, 1.0, True, False, "between 0 and 1, and not 1")
SHARE = Range(0.0, 1.0, True, True, "between 0 and 1")


def check_within(made: Any, option: str, wanted: Range) -> None:
    """Raise a UsageError unless an option is in a range. Numbers that JAX traces were checked before."""
    value = getattr(made, option)
    if isinstance(value, int | float) and value not in wanted:
        raise UsageError(f"{method_name(made)}.{option}={value}: expected a number {wanted.words}")


def check_choice(made: Any, option: str, known: Any) -> None:
    """Raise a UsageError unless an option of a method is one of those known."""
    if getattr(made, option) not in known:
        raise unknown(option, getattr(made, option), known)


def divisor(name: str, num_draws: int) -> int:
    """Into how many groups the jackknife can divide draws: the largest divisor up to 10, or a UsageError."""
    for groups in range(10, 1, -1):
        if num_draws % groups == 0:
            return groups
    raise UsageError(f"{name}: {num_draws} draws in all; expected a multiple of 2, 3, 5 or 7, best of 10")


def method_name(made: Any) -> str:
    """What a table calls a method."""
    return cast(str, getattr(made, "name", "")) or type(made).__name__
