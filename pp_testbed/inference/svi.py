"""Stochastic variational inference: the engine that fits any NumPyro model and guide.

`Training` is the engine, for one start; vmap it over problems, members and hyperparameters. `fit` takes it
through so many steps, and `Trainable` makes methods of it, which also learn online, step by step as data
come in. `SVI` is the one that a user's own guide runs in; `MeanField` and `LowRank` are Gaussian guides
over the generative model. Guides of other families (maximum a posteriori, masks, indices) are in files
of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax.tree_util import Partial
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import (
    AutoGuide,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.primitives import Messenger

from pp_testbed.errors import UsageError
from pp_testbed.inference.options import POSITIVE, Sweep, at_once, check_positive, check_within, compiled
from pp_testbed.inference.posterior import Sampled
from pp_testbed.models.base import (
    Array,
    Params,
    Program,
    Task,
    is_latent,
    pytree_dataclass,
    read_outputs,
    sample_latents,
    weighted,
)


class Fit(NamedTuple):
    """What training gives: the guide's parameters, and the loss at each step, [steps]."""

    params: Params
    losses: Array


def bound_guide(guide: Any, model: Program) -> Program:
    """A guide program `(x, y, weights)`, from an autoguide class or a function `(x, y=None)`."""
    if _is_autoguide_class(guide):
        return guide(weighted(model))
    return lambda x, y=None, weights=1.0: guide(x, y)


def _is_autoguide_class(guide: Any) -> bool:
    base = guide.func if isinstance(guide, partial) else guide
    return inspect.isclass(base) and issubclass(base, AutoGuide)


class leave_out(Messenger):  # noqa: N801
    """Do not count the log densities of sites."""

    def __init__(self, fn: Program, sites: set[str]) -> None:
        super().__init__(fn)
        self.sites = sites

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.sites:
            msg["fn"] = msg["fn"].mask(False)


def without_auxiliary(guide: Any, task: Task) -> Any:
    """A guide whose auxiliary sites count in log q only where the model's sites are their values, rearranged.

    Where a guide's site z has values that `Delta` sites take apart, q(z) is the density of those. Any other
    auxiliary site, such as a scale s that several sites share, must not count: E log p - E log q(θ | s) is a
    lower bound of the evidence, as conditioning lowers an entropy; with - E log q(s) added it has none.
    """
    if _is_autoguide_class(guide):
        return guide
    with jax.ensure_compile_time_eval():
        left_out = _not_rearranged(guide, jnp.zeros(task.x.shape), jnp.zeros(task.y.shape, dtype=jnp.int32))
    return leave_out(guide, left_out) if left_out else guide


def _not_rearranged(guide: Program, x: Array, y: Array) -> set[str]:
    """The auxiliary sites that `Delta` sites do not rearrange: distances of values are not preserved."""
    keys = jax.random.split(jax.random.key(0))

    def run(values: Params) -> dict[str, Any]:
        return handlers.trace(handlers.substitute(handlers.seed(guide, keys[0]), data=values)).get_trace(x, y)

    trace = run({})
    auxiliary = {
        name: site for name, site in trace.items() if site.get("infer", {}).get("is_auxiliary", False)
    }
    left_out = set()
    for name, site in auxiliary.items():
        value = jnp.asarray(site["value"])
        if not jnp.issubdtype(value.dtype, jnp.floating):  # a mask, an index
            left_out.add(name)
            continue
        other_value = site["fn"].sample(keys[1])
        moved = run({other: s["value"] for other, s in auxiliary.items()} | {name: other_value})
        distance = sum(
            jnp.sum((moved[other]["value"] - one["value"]) ** 2)
            for other, one in trace.items()
            if is_latent(one) and _is_delta(one["fn"])
        )
        if not jnp.allclose(distance, jnp.sum((other_value - value) ** 2), rtol=1e-3, atol=0.0):
            left_out.add(name)
    return left_out


def _is_delta(distribution: Any) -> bool:
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return isinstance(distribution, dist.Delta)


def minibatch(key: Array, task: Task, row_weights: Array, size: int) -> tuple[Array, Array, Array]:
    """Rows x [B, d], y [B] and their weights [B] in an unbiased estimate of the log likelihood.

    Where the data fit into a batch, it is all of them. Where T is more than the rows P that are kept, those
    stand for all.
    """
    num_rows = task.x.shape[0]
    if num_rows <= size:
        return task.x, task.y, row_weights * task.data_weights
    fits = task.num_train <= size
    some = jax.random.randint(key, (size,), 0, jnp.minimum(task.num_train, num_rows))
    rows = jnp.where(fits, jnp.arange(size), some)
    scale = jnp.where(fits, task.data_weights[:size], task.num_train / size)
    return task.x[rows], task.y[rows], row_weights[rows] * scale


class Training(NamedTuple):
    """One model and guide, and how they are trained: by minimising the loss, the negative ELBO.

    The gradient is divided by the number of data, so that a step size means the same for any T.

    Attributes:
        model: `(x, y)`, written for the whole data set; its observed sites are scaled here.
        guide: a guide `(x, y)` or an autoguide class.
        optimizer: any of optax.
        loss: any ELBO of NumPyro.
        batch_size: rows per step; where the data have fewer, all of them.
        row_weights: of each row in the likelihood [P], say of a bootstrap; 1 if None.
    """

    model: Program
    guide: Any
    optimizer: optax.GradientTransformation
    loss: Any
    batch_size: int = 100
    row_weights: Array | None = None

    def svi(self, task: Task) -> numpyro.infer.SVI:
        """NumPyro's SVI, which knows its constraints once its `init` was called."""
        per_datum = optax.chain(optax.scale(1.0 / task.num_train), self.optimizer)
        return numpyro.infer.SVI(
            weighted(self.model), bound_guide(self.guide, self.model), per_datum, self.loss
        )

    def rows(self, key: Array, task: Task) -> tuple[Array, Array, Array]:
        """The arguments of one step: see `minibatch`."""
        weights = jnp.ones(task.x.shape[0]) if self.row_weights is None else self.row_weights
        return minibatch(key, task, weights, self.batch_size)

    def begin(self, key_init: Array, key_rows: Array, task: Task) -> tuple[numpyro.infer.SVI, Any]:
        """SVI and its state before the first step. The state is a pytree, SVI is not."""
        svi = self.svi(task)
        return svi, svi.init(key_init, *self.rows(key_rows, task))


def fit(key: Array, training: Training, task: Task, num_steps: int) -> Fit:
    """Train for so many steps on data that stay the same.

    Args:
        key: for the start, the minibatches and the guide's noise.
        task: the data, `task.x` [P, d], `task.y` [P].

    Returns:
        The guide's parameters, constrained, and the loss at each step.
    """
    key_init, key_rows, key_steps = jax.random.split(key, 3)
    svi, state = training.begin(key_init, key_rows, task)

    def step(state: Any, key: Array) -> tuple[Any, Array]:
        return svi.update(state, *training.rows(key, task))

    state, losses = jax.lax.scan(step, state, jax.random.split(key_steps, num_steps))
    return Fit(svi.get_params(state), losses)


class Learner(NamedTuple):
    """A method that learns online: what was drawn before training, and the state of NumPyro's SVI."""

    parts: Any
    state: Any


class Trainable:
    """A method whose posterior is one training by the engine, on data at hand or while they come in.

    A method says three things: `parts`, what is random and stays (a start, frozen functions);
    `training`, what is trained given those; and `posterior`, what the parameters then mean.
    """

    num_steps: int
    weighs_rows: ClassVar[bool] = True  # in `minibatch`

    def parts(self, key_start: Array, key_frozen: Array, task: Task) -> Any:
        """What is drawn before training, a pytree."""
        raise NotImplementedError

    def training(self, parts: Any, task: Task) -> Training:
        """What is trained."""
        raise NotImplementedError

    def posterior(self, parts: Any, params: Params, task: Task) -> Any:
        """The posterior of the guide's parameters."""
        raise NotImplementedError

    def train(self, key: Array, task: Task) -> tuple[Any, Fit]:
        """The parts and the parameters after `num_steps` steps."""
        key_start, key_train, key_frozen = jax.random.split(key, 3)
        parts = self.parts(key_start, key_frozen, task)
        return parts, fit(key_train, self.training(parts, task), task, self.num_steps)

    @compiled
    def fit(self, key: Array, task: Task) -> Any:
        """The posterior after training."""
        parts, fitted = self.train(key, task)
        return replace(self.posterior(parts, fitted.params, task), losses=fitted.losses)

    def begin(self, key: Array, task: Task) -> Learner:
        """Before the first step: see `inference.online.Online`."""
        if (schedule := getattr(self, "schedule", "constant")) != "constant":
            raise UsageError(f"schedule={schedule}: online, without a last step, it can only be constant")
        key_start, key_train, key_frozen = jax.random.split(key, 3)
        parts = self.parts(key_start, key_frozen, task)
        key_init, key_rows = jax.random.split(key_train)
        return Learner(parts, self.training(parts, task).begin(key_init, key_rows, task)[1])

    def learn(self, key: Array, learner: Learner, task: Task) -> Learner:
        """One step of training on the data so far."""
        training = self.training(learner.parts, task)
        svi = training.begin(key, key, task)[0]  # for its constraints: what is drawn with the key is not used
        return learner._replace(state=svi.update(learner.state, *training.rows(key, task))[0])

    def params(self, learner: Learner, task: Task) -> Params:
        """The guide's parameters, constrained."""
        key = jax.random.key(0)  # nothing that is drawn with it is used
        svi = self.training(learner.parts, task).begin(key, key, task)[0]
        return svi.get_params(learner.state)

    def current(self, learner: Learner, task: Task) -> Any:
        """The posterior as it is now."""
        return self.posterior(learner.parts, self.params(learner, task), task)


@dataclass(frozen=True)
class GuideSampler:
    """Draws latent sites from a fitted guide; equal for equal guides, so that JAX compiles once."""

    guide: Any

    def __call__(self, model: Program, params: Params, x: Array, y: Array, key: Array) -> Params:
        fitted = handlers.substitute(bound_guide(self.guide, model), data=params)
        return sample_latents(fitted, x, y, key)


@cache
def with_keywords(guide: Any, **keywords: Any) -> Any:
    """A guide with some arguments: the same object for the same arguments, so that JAX compiles once."""
    return partial(guide, **keywords)


def abstract_trace(program: Program, task: Task) -> dict[str, Any]:
    """The sites of a model or a guide, of whose values only the shapes are known."""
    found: dict[str, Any] = {}

    def run(x: Array, y: Array, key: Array) -> None:
        found.update(handlers.trace(handlers.seed(program, key)).get_trace(x, y))

    jax.eval_shape(run, task.x, task.y, jax.random.key(0))
    return found


def _support(distribution: Any) -> Any:
    """The constraint of a single value."""
    constraint = distribution.support
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    return constraint


def check_sites(model: Program, guide: Any, task: Task) -> None:
    """Raise a UsageError unless the guide's latent sites are the model's, of their shapes and supports."""
    traces = abstract_trace(model, task), abstract_trace(bound_guide(guide, model), task)
    if not {"logits", "y"} & traces[0].keys():
        raise UsageError(
            "the model has no labels, a site y, and no site logits; expected numpyro.sample('y', ..., obs=y)"
        )
    expected, found = ({name: site for name, site in trace.items() if is_latent(site)} for trace in traces)
    if extra := sorted(found.keys() - expected.keys()):
        raise UsageError(
            f"the guide samples {', '.join(extra)}, which the model does not have; "
            f"it has {', '.join(expected)}"
        )
    if missing := sorted(expected.keys() - found.keys()):
        raise UsageError(f"the guide does not sample the model's {', '.join(missing)}")
    for name, site in expected.items():
        of_guide, of_model = found[name]["fn"], site["fn"]
        shapes = [jnp.shape(one["value"]) for one in (found[name], site)]
        if shapes[0] != shapes[1]:
            raise UsageError(f"the guide's site {name} has shape {shapes[0]}; the model's has {shapes[1]}")
        if of_guide.event_dim < of_model.event_dim:
            raise UsageError(
                f"the guide's site {name} has an event of {of_guide.event_dim} dimensions, the model's of "
                f"{of_model.event_dim}: end its distribution, of single values, with "
                f".to_event({of_model.event_dim})"
            )
        real, support = dist.constraints.real, _support(of_model)
        if _support(of_guide) is real and support is not real and not _is_delta(of_guide):
            raise UsageError(
                f"the guide's site {name} can have any value; the model's is {type(of_model).__name__}, of "
                f"support {support!r}: give it a distribution there, such as LogNormal for positive values"
            )


@pytree_dataclass
class SVI(Trainable):
    """Variational inference with any guide, by default over the generative model itself.

    Maximises ELBO(φ) = E_q[log p(y | x, θ) + log p(θ) - log q(θ; φ)].

    Attributes:
        guide: a NumPyro guide `guide(x, y=None)`, or an autoguide class such as `AutoNormal`.
        model: a NumPyro model `model(x, y=None)` with a `logits` site, written for the whole data
            set; the task's own model if None.
        optimizer: an optax optimiser that takes the learning rate.
        loss: an ELBO of NumPyro.
        num_steps: of the optimiser.
        batch_size: of the optimiser's minibatches.
        learning_rate: of the optimiser.
        num_starts: how many starts are trained; the one with the lowest mean loss over the last
            tenth of its steps is kept. Online there is one.

    Examples:
        >>> from numpyro.infer.autoguide import AutoNormal
        >>> SVI(AutoNormal, num_steps=2000).num_steps
        2000
    """

    revision: ClassVar[int] = 1
    guide: Any
    model: Program | None = None
    optimizer: Callable[..., optax.GradientTransformation] = optax.adam
    loss: Any = Trace_ELBO()
    num_steps: int = 2000
    batch_size: int = 100
    learning_rate: float = 3e-3
    num_starts: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.guide, AutoGuide):
            kind = type(self.guide).__name__
            raise UsageError(f"pass the autoguide's class, {kind}, not an instance of it")
        if not callable(self.guide):
            raise UsageError(f"a guide is a function or an autoguide class, not {self.guide!r}")
        check_positive(self, "num_steps", "batch_size", "num_starts")
        check_within(self, "learning_rate", POSITIVE)

    @property
    def problems_at_once(self) -> int:
        return at_once(self.num_starts * getattr(self.loss, "num_particles", 1))

    @property
    def acting(self) -> dict[str, Any]:
        """What differs in bandits: minibatches as published."""
        return {"batch_size": 128}

    @property
    def weighs_rows(self) -> bool:  # type: ignore[override]
        """Not for certain where a user's guide or model sees the rows."""
        return self.model is None and _is_autoguide_class(self.guide)

    @property
    def guide_program(self) -> Any:
        """The guide, with the options that it has."""
        return self.guide

    def loss_for(self, task: Task) -> Any:
        """The loss, where it depends on the task."""
        return self.loss

    def program(self, task: Task) -> Program:
        """The model."""
        return task.model if self.model is None else Partial(self.model)

    def parts(self, key_start: Array, key_frozen: Array, task: Task) -> None:
        """There are none: NumPyro starts the guide. Its sites are checked here, before any training."""
        check_sites(self.program(task), self.guide_program, task)

    def training(self, parts: None, task: Task) -> Training:
        optimizer, loss = self.optimizer(self.learning_rate), self.loss_for(task)
        guide = without_auxiliary(self.guide_program, task)
        return Training(self.program(task), guide, optimizer, loss, self.batch_size)

    def posterior(self, parts: None, params: Params, task: Task) -> Sampled:
        model = self.program(task)
        sampler = Partial(GuideSampler(self.guide_program), model, params, task.x, task.y)
        return Sampled(Partial(read_outputs, model), sampler)

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        self.parts(key, key, task)
        training = self.training(None, task)
        start = lambda key: fit(key, training, task, self.num_steps)  # noqa: E731
        fits = jax.vmap(start)(jax.random.split(key, self.num_starts))
        final = fits.losses[:, -max(1, self.num_steps // 10) :].mean(axis=1)
        best = jax.tree.map(lambda leaf: leaf[jnp.nanargmin(final)], fits)
        return replace(self.posterior(None, best.params, task), losses=best.losses)


@pytree_dataclass
class MeanField(SVI):
    """Independent normal distributions for all weights of the generative model."""

    revision: ClassVar[int] = 1
    guide: Any = partial(AutoNormal, init_scale=0.1)
    sweep: ClassVar[Sweep] = ({"learning_rate": (1e-3, 3e-3, 1e-2), "num_steps": (1000, 2000, 5000)},)


@pytree_dataclass
class LowRank(MeanField):
    """A normal distribution of covariance diagonal + low rank for all weights.

    Args:
        rank: of the part that is not diagonal.
    """

    revision: ClassVar[int] = 1
    guide: Any = partial(AutoLowRankMultivariateNormal, init_scale=0.1)
    rank: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "rank")

    @property
    def guide_program(self) -> Any:
        return with_keywords(self.guide, rank=self.rank)


@pytree_dataclass
class FullRank(MeanField):
    """A normal distribution of any covariance for all weights: millions of parameters, and slow."""

    revision: ClassVar[int] = 1
    guide: Any = partial(AutoMultivariateNormal, init_scale=0.1)
