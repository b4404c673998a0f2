"""The network of the testbed with a number for a label, and noise of unknown size."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import jax
import numpyro
import numpyro.distributions as dist

from pp_testbed.engine.identity import SINCE
from pp_testbed.errors import check_whole
from pp_testbed.models.base import Array, check_model, observe, pytree_dataclass
from pp_testbed.models.likelihoods import LOG_SCALE, Likelihood, Normal
from pp_testbed.models.mlp import check_network, generative_params, hidden_of, mlp, word_of


@pytree_dataclass
class RegressionMLP:
    """y ~ N(2 network(x), s²), log s ~ N(-1, 1), x ~ N(0, I_d); weights as those of `GenerativeMLP`, not cut.

    The factor 2 gives functions a standard deviation of about 1, as standardised labels have.

    Attributes:
        input_dim: d.
        hidden: units of each hidden layer.
        activation: one of `models.mlp.ACTIVATIONS`.
        targets: numbers of a label, which share the hidden layers; each has noise of its own.
    """

    revision: ClassVar[int] = 1
    temperature: ClassVar[float] = 1.0
    num_classes: ClassVar[int] = 0
    settings: ClassVar[tuple[str, ...]] = ()
    input_dim: int = 2
    hidden: tuple[int, ...] = (50,)
    activation: str = "relu"
    targets: int = field(default=1, metadata={SINCE: "0.5.0"})

    def __post_init__(self) -> None:
        check_whole("targets", self.targets, least=1)
        check_model(self)
        check_network(self.hidden, self.activation)

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        params = generative_params(self.input_dim, self.hidden, self.targets, "normal")
        prior = dist.Normal(*self.likelihood.noise[LOG_SCALE])
        noise = {LOG_SCALE: numpyro.sample(LOG_SCALE, prior.to_event(len(prior.batch_shape)))}
        values = 2.0 * mlp(params, x, self.activation)
        return observe(self.likelihood.with_noise(values, noise), y, num_train, self.likelihood)

    @property
    def likelihood(self) -> Likelihood:
        """Normal numbers with noise of unknown size."""
        return Normal(self.targets)

    @property
    def words(self) -> list[str]:
        """What a name says of it besides its dimension: what is not usual."""
        usual = {word_of(self.hidden): "h50", self.activation: "relu", f"y{self.targets}": "y1"}
        return [word for word, common in usual.items() if word != common]

    @classmethod
    def options_of(cls, words: list[str]) -> dict[str, Any]:
        """The options that such words say."""
        options: dict[str, Any] = {}
        for word in words:
            if not word[1:2].isdigit():
                options["activation"] = word
            elif word.startswith("y"):
                options["targets"] = int(word[1:])
            else:
                options["hidden"] = hidden_of(word)
        return options

    def inputs(self, key: Array, num: int) -> Array:
        """Draw inputs [num, d] from their distribution, N(0, I_d)."""
        return jax.random.normal(key, (num, self.input_dim))
