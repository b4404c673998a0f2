"""Environments, tasks, and the two things every NumPyro model of the testbed does.

A *model* is a callable `model(x, y=None, num_train=None)` that writes a NumPyro program: latent
sites, one deterministic site `logits` and one observed site `y`. The same model is the prior that
generates the truth and the prior that a method conditions.

What lives here: what models share (`observe`, `weighted`, `sample_latents`, `read_outputs`), the truth
(`Environment`) and what a method may see of it (`Task`). The models themselves are in their own files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Protocol, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.infer.util import log_density

from pp_testbed.errors import UsageError, check_whole
from pp_testbed.models.likelihoods import Categorical, Likelihood, outputs_of

Array: TypeAlias = jax.Array
Params: TypeAlias = dict[str, Array]
Program: TypeAlias = Callable[..., Any]
T = TypeVar("T")
CLASSES: Likelihood = Categorical()


class Model(Protocol):
    """What a generative model of the testbed promises (see `GenerativeMLP` for the main one)."""

    @property
    def input_dim(self) -> int: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def temperature(self) -> Any: ...

    @property
    def revision(self) -> int: ...

    @property
    def likelihood(self) -> Likelihood: ...

    @property
    def settings(self) -> tuple[str, ...]: ...

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Any: ...

    def inputs(self, key: Array, num: int) -> Array: ...


@dataclass_transform(frozen_default=True)
def pytree_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields annotated `float` are data and all others are structure.

    A field that is a pytree itself is data where its metadata say so: `field(metadata={"is_data": True})`.

    The data are traced, stacked and mapped by JAX: ten temperatures or weight decays are one
    compiled program. The structure (names, sizes, functions) is compiled in.
    """
    cls = dataclass(frozen=True)(cls)
    cls.is_pytree = True  # type: ignore[attr-defined]
    return _registered(cls)


def _registered(cls: type[T]) -> type[T]:
    kinds = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    data = [
        name for name, kind in kinds.items() if kind.type in ("float", float) or "is_data" in kind.metadata
    ]
    meta = [name for name in kinds if name not in data]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


def as_pytree(made: Any) -> Any:
    """An object whose classes JAX knows: one that came by value from another process is told of here."""
    for kind in map(type, jax.tree.leaves(made)):
        if "is_pytree" in vars(kind):
            _registered(kind)
            return as_pytree(made)
        if hasattr(kind, "is_pytree"):
            raise UsageError(
                f"{kind.__name__} derives from {kind.__mro__[1].__name__}, which JAX knows as a pytree, and "
                "is none itself: decorate it with @pt.pytree_dataclass"
            )
    return made


def observe(
    outputs: Array, y: Array | None, num_train: Any = None, likelihood: Likelihood = CLASSES
) -> Array:
    """The end of every model: observe labels `y` [B] given outputs [B, D]; of classes these are a site
    `logits`.

    Where `x` is a minibatch of B out of `num_train` rows, the log likelihood counts
    `num_train / B` times, so that its expectation is that of the whole data set.
    """
    if likelihood.is_of_classes:
        numpyro.deterministic("logits", outputs)
    num_rows = outputs.shape[-2]
    scale = 1.0 if num_train is None else num_train / num_rows
    with numpyro.plate("data", num_rows), handlers.scale(scale=scale):
        return numpyro.sample("y", likelihood.distribution(outputs), obs=y)


class weigh(handlers.scale):  # noqa: N801  (NumPyro names its handlers like functions)
    """Scale the log density of sites, as `handlers.scale` does, which refuses the weight 0."""

    def __init__(self, weights: Any) -> None:
        super(handlers.scale, self).__init__()
        self.scale = weights


class weigh_observations(weigh):  # noqa: N801
    """Scale the log density of observed sites, row by row, and leave latent sites alone."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or not msg["is_observed"]:
            return
        # A `numpyro.factor` is an observed site too, but not one of rows.
        if msg["fn"].batch_shape[-1:] == jnp.shape(self.scale)[-1:]:
            super().process_message(msg)


def weighted(model: Program) -> Program:
    """The model with one more argument: the weight of each row in the likelihood, [B]."""

    def weighted_model(x: Array, y: Array | None = None, weights: Any = 1.0) -> Any:
        with weigh_observations(weights):
            return model(x, y)

    return weighted_model


def is_latent(site: dict[str, Any]) -> bool:
    """Whether a site of a trace is an unobserved random variable of the model."""
    return (
        site["type"] == "sample"
        and not site["is_observed"]
        and not site.get("infer", {}).get("is_auxiliary", False)
    )


def sample_latents(program: Callable[..., Any], x: Array, y: Array, key: Array) -> Params:
    """One draw of the latent sites of a model, which is a draw of its prior, or of a guide."""
    trace = handlers.trace(handlers.seed(program, key)).get_trace(x, y)
    return {name: site["value"] for name, site in trace.items() if is_latent(site)}


def read_outputs(model: Callable[..., Any], latents: Params, x: Array) -> Array:
    """The outputs [N, D] of a model at inputs x [N, d], its latent sites given.

    They are its site `logits` [N, K] if it has one, else what the distribution of its labels is made of.
    """
    conditioned = handlers.seed(handlers.substitute(model, data=latents), jax.random.key(0))
    with handlers.block():  # so that one model may call another's function
        sites = handlers.trace(conditioned).get_trace(x, no_labels(x))
    said = sites.get("logits", {"type": None})
    if said["type"] == "deterministic" and jnp.ndim(said["value"]) == 2:  # and not a latent of that name
        return said["value"]
    return outputs_of(sites["y"]["fn"])[1]


def likelihood_of(model: Any) -> Likelihood:
    """What a model's outputs mean; classes, unless it says otherwise."""
    return getattr(model, "likelihood", CLASSES)


def no_labels(x: Array) -> Array:
    """Labels [N] for a program that wants some where none matter."""
    return jnp.zeros(x.shape[0], dtype=jnp.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Environment:
    """The truth of a problem: one draw of the generative model's parameters. For judges only."""

    model: Model
    latents: Params

    @property
    def offers(self) -> frozenset[str]:
        """What it offers scores: see `evaluation.scores`."""
        return frozenset({"probabilities", "classes" if self.likelihood.is_of_classes else "numbers"})

    @property
    def num_classes(self) -> int:
        return self.model.num_classes

    @property
    def likelihood(self) -> Likelihood:
        """What outputs mean."""
        return likelihood_of(self.model)

    @property
    def num_rows(self) -> int:
        """None are held out: inputs are drawn."""
        return 0

    def logits(self, x: Array) -> Array:
        """Logits [N, K] at x [N, d], divided by the temperature: softmax gives p(y | x)."""
        return read_outputs(self.model, self.latents, x)

    def labels(self, key: Array, x: Array) -> Array:
        """Labels [N] at x [N, d], drawn by the model itself."""
        return handlers.seed(handlers.substitute(self.model, data=self.latents), key)(x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeldOut:
    """The truth of data: labels y [N] at inputs x [N, ...] that no method has seen. For judges only.

    Attributes:
        elsewhere: inputs that are of other sets, by their names.
        costs: C [K, K], of a true class and of a decision, if errors have costs.
    """

    x: Array
    y: Array
    likelihood: Likelihood = field(metadata={"static": True})
    num_classes: int = field(metadata={"static": True})
    elsewhere: dict[str, Array] = field(default_factory=dict)
    costs: Array | None = None

    @property
    def offers(self) -> frozenset[str]:
        """What it offers scores: see `evaluation.scores`."""
        kind = "classes" if self.likelihood.is_of_classes else "numbers"
        extras = ["elsewhere"] * bool(self.elsewhere) + ["costs"] * (self.costs is not None)
        return frozenset({"labels", kind, *extras})

    @property
    def others(self) -> list[tuple[str, Array]]:
        """The sets that are elsewhere, by name: JAX gives the items of a dictionary in no other order."""
        return sorted(self.elsewhere.items())

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self.x.shape[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Task:
    """What a method may see: the model that the truth was drawn from, and the data.

    Attributes:
        model: the generative model, whose prior is the truth's own.
        x: inputs [P, d].
        y: labels [P], in 0, ..., K-1, or numbers [P] or [P, targets].
        num_train: T, how many of the P rows are data. The rows after them repeat the data, so that
            problems of different T share one compiled program; but only for a method that promises to
            weigh rows (see `Method`), and in bandits. Elsewhere P equals T.
        is_of_data: whether the data are real, and the model is a guess.

    Examples:
        >>> problem.task.x.shape, problem.task.num_classes
        ((10, 2), 2)
    """

    model: Model
    x: Array
    y: Array
    num_train: Any
    is_of_data: bool = field(default=False, kw_only=True, metadata={"static": True})

    @property
    def input_dim(self) -> int:
        return self.model.input_dim

    @property
    def num_classes(self) -> int:
        return self.model.num_classes

    @classmethod
    def blank(cls, model: Model, rows: int, *, is_of_data: bool = False) -> Task:
        """A task of so many rows in which nothing is written yet: its shapes and types are those of any."""
        likelihood = likelihood_of(model)
        kind = jnp.int32 if likelihood.is_of_classes else jnp.float32
        labels = jnp.zeros((rows, *likelihood.event_shape), kind)
        return cls(model, jnp.zeros((rows, model.input_dim)), labels, rows, is_of_data=is_of_data)

    @property
    def num_outputs(self) -> int:
        """What a network computes at an input: a logit for each class, or locations and more."""
        return self.likelihood.num_values(self.num_classes)

    @property
    def network(self) -> Any:
        """The network that agents train on it, if its model says one: see `models.networks`."""
        return getattr(self.model, "network", None)

    @property
    def temperature(self) -> Any:
        return self.model.temperature

    @property
    def decay(self) -> Any:
        """What weight decay is a multiple of: √rho d in environments of the testbed, and 1 of real data.

        Of real data nobody knows rho, and hundreds of columns do not mean that each says little.
        """
        return 1.0 if self.is_of_data else jnp.sqrt(self.temperature) * self.input_dim

    @property
    def likelihood(self) -> Likelihood:
        """What outputs mean; classes, unless the model says otherwise."""
        return likelihood_of(self.model)

    @property
    def data_weights(self) -> Array:
        """1 for a row of data, 0 for a row of padding: [P]."""
        return (jnp.arange(self.x.shape[0]) < self.num_train).astype(self.x.dtype)

    def log_density(self, latents: Params) -> Array:
        """log p(y, θ) of the data and of values of the model's latent sites, rows weighed.

        Examples:
            >>> from pp_testbed.models.base import sample_latents
            >>> latents = sample_latents(problem.model, problem.task.x, problem.task.y, problem.keys.fit)
            >>> bool(jnp.isfinite(problem.task.log_density(latents)))
            True
        """
        arguments = self.x, self.y, self.data_weights
        return log_density(weighted(self.model), arguments, {}, latents)[0]

    def distinct(self) -> Task:
        """The same likelihood with equal rows counted together, where that is known; else the task itself."""
        return self


TEMPERATURES = 1e-6, 1e6  # with others the logits of a network are infinite, or nothing
SCALES = 0.1, 10.0  # of inputs, for which the priors and the step sizes of methods are made


def check_model(model: Any) -> None:
    """Raise a UsageError unless a model's numbers are possible. Those that JAX traces were checked before."""
    check_whole("input_dim", model.input_dim, least=1)
    if likelihood_of(model).is_of_classes:
        check_whole("num_classes", model.num_classes, least=2)
    rho, (least, most) = model.temperature, TEMPERATURES
    if isinstance(rho, str | list) or (isinstance(rho, Real) and not least <= float(rho) <= most):
        raise UsageError(f"the temperature is {rho!r}; expected a number from {least:g} to {most:g}")


def task(model: Model, x: Any, y: Any, *, is_of_data: bool = True) -> Task:
    """A task from one's own data, checked: inputs x [T, d], labels y [T] in 0, ..., K-1, or numbers.

    Inputs should be of a scale of about 1; there is a warning where they are far from it. Weights decay as on
    real data, unless `is_of_data` says that the model drew them: see `Task.decay`.
    """
    if isinstance(model, type) or not hasattr(model, "input_dim"):
        raise UsageError(f"the model is {model!r}; expected one such as pt.GenerativeMLP(input_dim=2)")
    try:
        x, y = np.asarray(x, dtype=np.float32), np.asarray(y)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the data are no arrays of numbers: {error}") from None
    if len(np.atleast_1d(x)) == 0:
        raise UsageError("there are no data; expected at least one input and its label")
    check_inputs(x, model.input_dim)
    sizes, (least, most) = np.sqrt((x.astype(np.float64) ** 2).mean(axis=0)), SCALES
    if sizes.max() > most or sizes.max() < least:
        warnings.warn(
            f"inputs are of size {sizes.min():.3g} to {sizes.max():.3g} (root mean square of a column); "
            "methods expect about 1: standardise the columns",
            stacklevel=2,
        )
    likelihood = likelihood_of(model)
    if y.shape != (expected := (x.shape[0], *likelihood.event_shape)):
        raise UsageError(f"labels have shape {y.shape}; expected {expected}, one per input")
    if not likelihood.is_of_classes:
        finite = np.isfinite(y).reshape(len(y), -1).all(axis=1)
        if not finite.all():
            raise UsageError(f"labels are NaN or infinite, first at row {int(np.argmin(finite))}")
        return Task(
            model, jnp.asarray(x), jnp.asarray(y, dtype=jnp.float32), x.shape[0], is_of_data=is_of_data
        )
    classes = model.num_classes
    wrong = ~np.isin(y, np.arange(classes))
    if wrong.any():
        raise UsageError(
            f"label {y[wrong][0]} at row {np.argmax(wrong)} is outside the classes 0..{classes - 1}"
        )
    return Task(model, jnp.asarray(x), jnp.asarray(y, dtype=jnp.int32), x.shape[0], is_of_data=is_of_data)


def check_key(key: Any) -> None:
    """Raise a UsageError unless this is a key of JAX, new or old."""
    kind, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    is_new = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key) and shape == ()
    if not is_new and not (kind == jnp.uint32 and len(shape or ()) == 1):
        raise UsageError(f"key is {key!r}; expected a key of JAX, as in jax.random.key(0)")


def check_inputs(x: Any, input_dim: int | None = None) -> None:
    """Raise a UsageError unless x is a finite array [N, d]. Traced arrays pass by their shape."""
    if x.ndim != 2 or (input_dim is not None and x.shape[1] != input_dim):
        expected = "d" if input_dim is None else input_dim
        raise UsageError(f"inputs have shape {tuple(x.shape)}; expected [N, {expected}]")
    if isinstance(x, jax.core.Tracer):
        return
    bad = ~np.isfinite(np.asarray(x)).all(axis=1)
    if bad.any():
        raise UsageError(f"inputs contain NaN or infinity, first at row {int(np.argmax(bad))}")
