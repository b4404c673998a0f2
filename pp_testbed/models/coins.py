"""A bag of coins, the simplest environment in which joint predictions differ and single ones do not."""

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
class Coins:
    """M coins, each with its own probability of heads p ~ U(0, 1); an input says which coin is flipped.

    Example 1 of "Evaluating High-Order Predictive Distributions in Deep Learning" (Osband et al., 2022). An
    input is a row of M numbers, 1 for the coin and 0 for the others; coins are taken with equal probability.
    `benchmarks/dyadic.py` has the scores of its agents in closed form.

    Attributes:
        input_dim: M.
    """

    revision: ClassVar[int] = 1
    temperature: ClassVar[float] = 1.0
    settings: ClassVar[tuple[str, ...]] = ()
    likelihood: ClassVar[Likelihood] = CLASSES
    input_dim: int = 10

    def __post_init__(self) -> None:
        check_model(self)

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def words(self) -> list[str]:
        """What a name says of it besides its dimension."""
        return []

    @classmethod
    def options_of(cls, words: list[str]) -> dict[str, Any]:
        """The options that such words say."""
        if words:
            raise UsageError(f"{words[0]!r} is no option of coins")
        return {}

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        prior = dist.Uniform(0.0, 1.0).expand((self.input_dim,)).to_event(1)
        heads = numpyro.sample("heads", prior)
        logs = jnp.stack([jnp.log1p(-heads), jnp.log(heads)], axis=-1)  # [M, 2]
        x = x[:, :, None]
        # A bias of 0 says nothing of other coins, and -∞ times 0 is no number.
        return observe(jnp.where(x > 0, x * logs, 0.0).sum(axis=1), y, num_train)

    def inputs(self, key: Array, num: int) -> Array:
        """Draw inputs [num, M]: which coin."""
        return jax.nn.one_hot(jax.random.randint(key, (num,), 0, self.input_dim), self.input_dim)
