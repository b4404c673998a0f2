"""What the outputs of a function mean: the distribution of a label given them, and back.

Outputs are an array [..., N, D]. Of classes they are logits, D = K; of numbers they are locations and the
logarithms of scales, and for Student's t the logarithm of the degrees of freedom too. A likelihood is found
from the distribution of a model's observed site, so that no program has to say which it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from pp_testbed.errors import UsageError, check_whole, unknown

Array = jax.Array
LOG_SCALE, LOG_FREEDOM = "log_scale", "log_freedom"  # the sites of networks that predict numbers
SCALES = ("learned", "inputs")
NEARLY_NORMAL = 4.0  # the logarithm of degrees of freedom


class Likelihood(Protocol):
    """The distribution of labels given outputs."""

    @property
    def is_of_classes(self) -> bool:
        """Whether labels are 0, ..., K-1, which can be enumerated; else they are numbers."""
        ...

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of a label: () of one number or class, (T,) of several numbers."""
        ...

    def num_outputs(self, num_classes: int) -> int:
        """D, of so many classes."""
        ...

    def num_values(self, num_classes: int) -> int:
        """What a network computes at an input: all of the outputs but its noise."""
        ...

    def outputs(self, distribution: Any, shape: tuple[int, ...]) -> Array:
        """Outputs [..., N, D] from the distribution of labels of this shape [..., N, *event_shape]."""
        ...

    def distribution(self, outputs: Array) -> Any:
        """The distribution of labels [..., N] from outputs [..., N, D]."""
        ...

    def margins(self, outputs: Array) -> Any:
        """The distribution of each number of a label, [..., N, *event_shape]."""
        ...

    def predictor(self, outputs: Array) -> Array:
        """What identifies the prediction, [..., N, P]: functions are compared by it at probe inputs."""
        ...

    def curvature_root(self, outputs: Array) -> Array:
        """L [R, D] with Lᵀ L the Fisher information of one label in its outputs [D]."""
        ...

    @property
    def noise(self) -> dict[str, tuple[Any, float]]:
        """What a network has besides its weights: mean and sd of the normal prior of each parameter."""
        ...

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        """Outputs [N, D] of a network's values, logits or locations, and these parameters."""
        ...

    def without_noise(self, outputs: Array) -> Array:
        """What a network computes of outputs [..., N, D]: logits, or locations [..., N, 1]."""
        ...

    def around(self, locations: Array, spread: Any) -> Array:
        """Outputs [N, D] of numbers that are about locations [N, T], with a spread, one or [T]."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Classes: outputs are logits, of which only differences matter.

    Examples:
        >>> likelihood, outputs = outputs_of(dist.Bernoulli(logits=jnp.ones(3)))
        >>> outputs.shape, likelihood.predictor(outputs).shape
        ((3, 2), (3, 1))
    """

    is_of_classes: ClassVar[bool] = True
    event_shape: ClassVar[tuple[int, ...]] = ()

    def num_outputs(self, num_classes: int) -> int:
        return num_classes

    def num_values(self, num_classes: int) -> int:
        return num_classes

    def outputs(self, distribution: Any, shape: tuple[int, ...]) -> Array:
        if isinstance(distribution, dist.BernoulliProbs):  # whose own logits are clipped
            logits = jnp.stack([jnp.log1p(-distribution.probs), jnp.log(distribution.probs)], axis=-1)
        elif isinstance(distribution, dist.BernoulliLogits):
            logits = jnp.stack([jnp.zeros_like(distribution.logits), distribution.logits], axis=-1)
        else:
            logits = distribution.logits
        return jnp.broadcast_to(logits, (*shape, logits.shape[-1]))

    def margins(self, outputs: Array) -> Any:
        return self.distribution(outputs)

    def distribution(self, outputs: Array) -> Any:
        return dist.Categorical(logits=outputs, validate_args=False)  # NaN is said where it is judged

    def predictor(self, outputs: Array) -> Array:
        return outputs[..., 1:] - outputs[..., :1]

    def curvature_root(self, outputs: Array) -> Array:
        return multinomial_root(jax.nn.softmax(outputs))

    @property
    def noise(self) -> dict[str, tuple[Any, float]]:
        return {}

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        return values

    def without_noise(self, outputs: Array) -> Array:
        return outputs

    def around(self, locations: Array, spread: Any) -> Array:
        raise TypeError("classes are not about a location")


@dataclass(frozen=True)
class Normal:
    """Numbers: y_t ~ N(m_t, exp(s_t)²) for each of T targets, outputs (m_1, ..., m_T, s_1, ..., s_T).

    Attributes:
        targets: T; a label of one is a number, of several a vector [T].
        scale: of a network's noise: "learned", a parameter for each target; "inputs", where the network
            computes its logarithm at each input beside the locations; or a number, which is known.

    Examples:
        >>> Normal(targets=3, scale="inputs").num_values(0), Normal(scale=0.1).noise
        (6, {})
    """

    targets: int = 1
    scale: str | float = "learned"
    is_of_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("targets", self.targets, least=1)
        if isinstance(self.scale, str) and self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        is_number = isinstance(self.scale, Real) and 0.0 < float(self.scale) < float("inf")
        if not isinstance(self.scale, str) and not is_number:
            raise UsageError(
                f"the scale is {self.scale!r}; expected a number above 0, or {' or '.join(SCALES)}"
            )

    @property
    def event_shape(self) -> tuple[int, ...]:
        return () if self.targets == 1 else (self.targets,)

    def num_outputs(self, num_classes: int) -> int:
        return 2 * self.targets

    def num_values(self, num_classes: int) -> int:
        return 2 * self.targets if self.scale == "inputs" else self.targets

    def outputs(self, distribution: Any, shape: tuple[int, ...]) -> Array:
        parts = [jnp.broadcast_to(part, shape) for part in (distribution.loc, jnp.log(distribution.scale))]
        return jnp.stack(parts, axis=-1) if self.targets == 1 else jnp.concatenate(parts, axis=-1)

    def margins(self, outputs: Array) -> Any:
        location, scale = outputs[..., : self.targets], jnp.exp(outputs[..., self.targets :])
        if self.targets == 1:
            location, scale = location[..., 0], scale[..., 0]
        return dist.Normal(location, scale, validate_args=False)

    def distribution(self, outputs: Array) -> Any:
        margins = self.margins(outputs)
        return margins if self.targets == 1 else margins.to_event(1)

    def predictor(self, outputs: Array) -> Array:
        return outputs

    def curvature_root(self, outputs: Array) -> Array:
        of_locations = jnp.exp(-outputs[self.targets :])
        return jnp.diag(jnp.concatenate([of_locations, jnp.full(self.targets, jnp.sqrt(2.0))]))

    @property
    def noise(self) -> dict[str, tuple[Any, float]]:
        if self.scale != "learned":
            return {}
        return {LOG_SCALE: (-1.0 if self.targets == 1 else np.full(self.targets, -1.0, np.float32), 1.0)}

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        if self.scale == "inputs":
            return values
        known = None if self.scale == "learned" else jnp.log(jnp.asarray(self.scale, values.dtype))
        return _beside(values, params[LOG_SCALE] if known is None else known)

    def without_noise(self, outputs: Array) -> Array:
        return outputs if self.scale == "inputs" else outputs[..., : self.targets]

    def around(self, locations: Array, spread: Any) -> Array:
        return _beside(locations, jnp.log(spread))


@dataclass(frozen=True)
class StudentT:
    """A number with heavy tails: y ~ m + exp(s) t_exp(v), outputs (m, s, v)."""

    is_of_classes: ClassVar[bool] = False
    event_shape: ClassVar[tuple[int, ...]] = ()

    def num_outputs(self, num_classes: int) -> int:
        return 3

    def num_values(self, num_classes: int) -> int:
        return 1

    def outputs(self, distribution: Any, shape: tuple[int, ...]) -> Array:
        parts = distribution.loc, jnp.log(distribution.scale), jnp.log(distribution.df)
        return jnp.stack([jnp.broadcast_to(part, shape) for part in parts], axis=-1)

    def margins(self, outputs: Array) -> Any:
        return self.distribution(outputs)

    def distribution(self, outputs: Array) -> Any:
        parts = jnp.exp(outputs[..., 2]), outputs[..., 0], jnp.exp(outputs[..., 1])
        return dist.StudentT(*parts, validate_args=False)

    def predictor(self, outputs: Array) -> Array:
        return outputs

    def curvature_root(self, outputs: Array) -> Array:
        """Of location and scale: Lange, Little and Taylor, 1989; the degrees of freedom are held fixed."""
        freedom = jnp.exp(outputs[2])
        of_location = jnp.sqrt((freedom + 1.0) / (freedom + 3.0)) * jnp.exp(-outputs[1])
        return jnp.diag(jnp.stack([of_location, jnp.sqrt(2.0 * freedom / (freedom + 3.0)), 0.0]))

    @property
    def noise(self) -> dict[str, tuple[Any, float]]:
        return {LOG_SCALE: (-1.0, 1.0), LOG_FREEDOM: (1.5, 0.5)}

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        return _beside(values, params[LOG_SCALE], params[LOG_FREEDOM])

    def without_noise(self, outputs: Array) -> Array:
        return outputs[..., :1]

    def around(self, locations: Array, spread: Any) -> Array:
        return _beside(locations, jnp.log(spread), jnp.asarray(NEARLY_NORMAL))


def _beside(values: Array, *numbers: Array) -> Array:
    """Locations [N, T] with the same numbers, each one or [T], in every row: [N, T + T · numbers]."""
    return jnp.concatenate([values, *(jnp.broadcast_to(one, values.shape) for one in numbers)], axis=-1)


def multinomial_root(p: Array) -> Array:
    """L [K - 1, K] with Lᵀ L = diag(p) - p pᵀ: Tanabe and Sagae, 1992.

    Row k is sqrt(p_k / (p_k + r_k)) (sqrt(r_k) e_k - Σ_{j>k} p_j e_j / sqrt(r_k)), r_k = Σ_{j>k} p_j.
    """
    tail = jnp.cumsum(p[::-1])[::-1]
    rest = jnp.append(tail[1:], 0.0)
    share = jnp.where(tail > 0, p / jnp.where(tail > 0, tail, 1.0), 0.0)
    over_rest = jnp.where(rest > 0, 1.0 / jnp.sqrt(jnp.where(rest > 0, rest, 1.0)), 0.0)
    later = jnp.triu(jnp.broadcast_to(p, (p.shape[0], p.shape[0])), 1)
    rows = jnp.diag(jnp.sqrt(rest)) - over_rest[:, None] * later
    return (jnp.sqrt(share)[:, None] * rows)[:-1]


KINDS: dict[type, Likelihood] = {
    dist.CategoricalLogits: Categorical(),
    dist.CategoricalProbs: Categorical(),
    dist.BernoulliLogits: Categorical(),
    dist.BernoulliProbs: Categorical(),
    dist.Normal: Normal(),
    dist.StudentT: StudentT(),
}


# What leaves the distribution of a single label as it is; a transformed or truncated one is another.
WRAPPERS = (dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution)


def outputs_of(distribution: Any) -> tuple[Likelihood, Array]:
    """The likelihood of an observed site's distribution, and the outputs that it was made of."""
    base = distribution
    while isinstance(base, WRAPPERS):
        base = base.base_dist
    if type(base) not in KINDS:
        known = ", ".join(dict.fromkeys(kind.__name__.removesuffix("Logits") for kind in KINDS))
        raise UsageError(f"labels y are {type(base).__name__}; expected one of {known}")
    likelihood, event_shape = KINDS[type(base)], distribution.event_shape
    if event_shape and (len(event_shape) > 1 or not isinstance(likelihood, Normal)):
        kind = type(base).__name__.removesuffix("Logits")
        raise UsageError(
            f"labels y are {kind} with an event of shape {event_shape}; expected one value for each input, a "
            "plate and not .to_event, or vectors of normal numbers, .to_event(1)"
        )
    if event_shape:
        likelihood = Normal(targets=event_shape[0])
    return likelihood, likelihood.outputs(base, (*distribution.batch_shape, *event_shape))
