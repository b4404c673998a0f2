"""Logistic regression in D dimensions, the simplest environment of the testbed."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from pp_testbed.errors import UsageError
from pp_testbed.models.base import CLASSES, Array, check_model, observe, pytree_dataclass
from pp_testbed.models.likelihoods import Likelihood


@pytree_dataclass
class LogisticRegression:
    """softmax([0, θᵀx] / temperature), θ ~ N(0, I_D), x ~ N(0, I_D).

    The environment of "Evaluating High-Order Predictive Distributions in Deep Learning" (Osband et
    al., 2022). The logit of class 1 against class 0 is θᵀx / temperature.
    """

    revision: ClassVar[int] = 1
    likelihood: ClassVar[Likelihood] = CLASSES
    input_dim: int = 10
    temperature: float = 0.01

    def __post_init__(self) -> None:
        check_model(self)

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def settings(self) -> tuple[str, ...]:
        """What a name says of it besides its family."""
        return (f"rho{float(self.temperature)!r}",)

    @property
    def words(self) -> list[str]:
        """What a name says of it besides its dimension."""
        return []

    @classmethod
    def options_of(cls, words: list[str]) -> dict[str, Any]:
        """The options that such words say."""
        if words:
            raise UsageError(f"{words[0]!r} is no option of logistic regression")
        return {}

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        prior = dist.Normal(0.0, 1.0).expand((self.input_dim,)).to_event(1)
        logit = x @ numpyro.sample("theta", prior) / self.temperature
        return observe(jnp.stack([jnp.zeros_like(logit), logit], axis=-1), y, num_train)

    def inputs(self, key: Array, num: int) -> Array:
        """Draw inputs [num, D] from their distribution, N(0, I_D)."""
        return jax.random.normal(key, (num, self.input_dim))
