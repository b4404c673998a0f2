"""What the outputs of a function mean: the distribution of a label given them, and back.

Outputs are an array [..., N, D]. Of classes they are logits, D = K; of a number they are the location and the
logarithm of the scale, and for Student's t the logarithm of the degrees of freedom too. A likelihood is found
from the distribution of a model's observed site, so that no program has to say which it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from pp_testbed.errors import UsageError

Array = jax.Array
LOG_SCALE, LOG_FREEDOM = "log_scale", "log_freedom"  # the sites of networks that predict numbers


class Likelihood(Protocol):
    """The distribution of labels given outputs."""

    @property
    def is_of_classes(self) -> bool:
        """Whether labels are 0, ..., K-1, which can be enumerated; else they are numbers."""
        ...

    def num_outputs(self, num_classes: int) -> int:
        """D, of so many classes."""
        ...

    def outputs(self, distribution: Any) -> Array:
        """Outputs [..., N, D] from the distribution of labels [..., N]."""
        ...

    def distribution(self, outputs: Array) -> Any:
        """The distribution of labels [..., N] from outputs [..., N, D]."""
        ...

    def predictor(self, outputs: Array) -> Array:
        """What identifies the prediction, [..., N, P]: functions are compared by it at probe inputs."""
        ...

    def curvature_root(self, outputs: Array) -> Array:
        """L [R, D] with Lᵀ L the Fisher information of one label in its outputs [D]."""
        ...

    @property
    def noise(self) -> dict[str, tuple[float, float]]:
        """What a network has besides its weights: mean and sd of the normal prior of each parameter."""
        ...

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        """Outputs [N, D] of a network's values, logits or locations, and these parameters."""
        ...

    def without_noise(self, outputs: Array) -> Array:
        """What a network computes of outputs [..., N, D]: logits, or locations [..., N, 1]."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Classes: outputs are logits, of which only differences matter.

    Examples:
        >>> likelihood, outputs = outputs_of(dist.Bernoulli(logits=jnp.ones(3)))
        >>> outputs.shape, likelihood.predictor(outputs).shape
        ((3, 2), (3, 1))
    """

    is_of_classes: bool = True

    def num_outputs(self, num_classes: int) -> int:
        return num_classes

    def outputs(self, distribution: Any) -> Array:
        logits: Array = distribution.logits
        if isinstance(distribution, dist.BernoulliLogits | dist.BernoulliProbs):
            return jnp.stack([jnp.zeros_like(logits), logits], axis=-1)
        return logits

    def distribution(self, outputs: Array) -> Any:
        return dist.Categorical(logits=outputs, validate_args=False)  # NaN is said where it is judged

    def predictor(self, outputs: Array) -> Array:
        return outputs[..., 1:] - outputs[..., :1]

    def curvature_root(self, outputs: Array) -> Array:
        return multinomial_root(jax.nn.softmax(outputs))

    @property
    def noise(self) -> dict[str, tuple[float, float]]:
        return {}

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        return values

    def without_noise(self, outputs: Array) -> Array:
        return outputs


@dataclass(frozen=True)
class Normal:
    """A number: y ~ N(m, exp(s)²), outputs (m, s)."""

    is_of_classes: bool = False

    def num_outputs(self, num_classes: int) -> int:
        return 2

    def outputs(self, distribution: Any) -> Array:
        parts = distribution.loc, jnp.log(distribution.scale)
        return jnp.stack(jnp.broadcast_arrays(*parts), axis=-1)

    def distribution(self, outputs: Array) -> Any:
        return dist.Normal(outputs[..., 0], jnp.exp(outputs[..., 1]), validate_args=False)

    def predictor(self, outputs: Array) -> Array:
        return outputs

    def curvature_root(self, outputs: Array) -> Array:
        return jnp.diag(jnp.stack([jnp.exp(-outputs[1]), jnp.sqrt(2.0)]))

    @property
    def noise(self) -> dict[str, tuple[float, float]]:
        return {LOG_SCALE: (-1.0, 1.0)}

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        return _beside(values, params[LOG_SCALE])

    def without_noise(self, outputs: Array) -> Array:
        return outputs[..., :1]


@dataclass(frozen=True)
class StudentT:
    """A number with heavy tails: y ~ m + exp(s) t_exp(v), outputs (m, s, v)."""

    is_of_classes: bool = False

    def num_outputs(self, num_classes: int) -> int:
        return 3

    def outputs(self, distribution: Any) -> Array:
        parts = distribution.loc, jnp.log(distribution.scale), jnp.log(distribution.df)
        return jnp.stack(jnp.broadcast_arrays(*parts), axis=-1)

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
    def noise(self) -> dict[str, tuple[float, float]]:
        return {LOG_SCALE: (-1.0, 1.0), LOG_FREEDOM: (1.5, 0.5)}

    def with_noise(self, values: Array, params: dict[str, Array]) -> Array:
        return _beside(values, params[LOG_SCALE], params[LOG_FREEDOM])

    def without_noise(self, outputs: Array) -> Array:
        return outputs[..., :1]


def _beside(values: Array, *numbers: Array) -> Array:
    """Locations [N, 1] with the same numbers in every row: [N, 1 + numbers]."""
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
    likelihood = KINDS[type(base)]
    outputs = likelihood.outputs(base)
    shape = (*distribution.batch_shape, *distribution.event_shape, outputs.shape[-1])
    return likelihood, jnp.broadcast_to(outputs, shape)
