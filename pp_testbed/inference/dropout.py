"""Monte Carlo dropout: an epistemic network whose index is the mask of its hidden units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import jax
import numpyro
import numpyro.distributions as dist

from pp_testbed.errors import UsageError
from pp_testbed.inference.epistemic import EpistemicAgent, Index
from pp_testbed.inference.options import Sweep, method_name
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass
from pp_testbed.models.networks import MLP, BayesianNetwork


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MaskedMLP:
    """A perceptron whose hidden units (and, where `mask_inputs`, inputs) are kept with probability 1 - p.

    A mask is of a function, the same for all inputs; a kept unit counts 1 / (1 - p) times. The index is
    a uniform number per unit, which is kept where that is at least p: for a discrete site NumPyro
    would warn of gradients that are not needed here.
    """

    agent: BayesianNetwork
    rate: Any
    mask_inputs: bool = field(metadata={"static": True})

    @property
    def perceptron(self) -> MLP:
        """The network, which says what enters each layer."""
        return cast(MLP, self.agent.function)

    def params(self) -> Params:
        return self.agent.params()

    def start(self, key: Array) -> Params:
        return self.agent.start(key)

    def index(self) -> Index:
        inputs, *hidden = self.perceptron.widths
        widths = [inputs if self.mask_inputs else 0, *hidden]
        return {
            f"mask{layer}": numpyro.sample(
                f"mask{layer}", dist.Uniform(0.0, 1.0).expand((width,)).to_event(1)
            )
            for layer, width in enumerate(widths)
            if width
        }

    def network(self, params: Params, index: Index, x: Array) -> Array:
        def masked(layer: int, hidden: Array) -> Array:
            if f"mask{layer}" not in index:
                return hidden
            return hidden * (index[f"mask{layer}"] >= self.rate) / (1.0 - self.rate)

        values = self.perceptron.apply(params, x, masked)
        return self.agent.likelihood.with_noise(values, params)

    def row_weights(self, index: Index, x: Array) -> Any:
        return 1.0


@pytree_dataclass
class Dropout(EpistemicAgent):
    """Dropout as a posterior: each draw is the network with one mask.

    Gal and Ghahramani, 2016, "Dropout as a Bayesian Approximation". Minimises E_mask[mean cross-entropy] +
    c ‖θ‖², the penalty on the weights before the mask, with c as in `Trained`; where it is adaptive, l2
    is the published length scale.

    Args:
        rate: p, the probability that a unit is dropped.
        mask_inputs: whether inputs are dropped too.

    Examples:
        >>> Dropout(rate=0.5).hidden
        (100, 100)
    """

    revision: ClassVar[int] = 1
    rate: float = 0.1
    mask_inputs: bool = False
    hidden: tuple[int, ...] = (100, 100)
    name: str = "dropout"
    sweep: ClassVar[Sweep] = (
        {
            "rate": tuple(i / 10 for i in range(10)),
            "l2": (1.0, 3.0, 10.0),
            "hidden": ((50, 50), (100, 100), (50, 50, 50), (100, 100, 100)),
        },
        {"rate": (0.1, 0.3, 0.5), "mask_inputs": (True,)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden and not self.mask_inputs:
            raise UsageError(f"{method_name(self)}.hidden=(): expected a layer whose units can be dropped")
        if isinstance(self.rate, int | float) and not 0 <= self.rate < 1:
            raise UsageError(f"{method_name(self)}.rate={self.rate}: expected at least 0 and below 1")

    def epistemic(self, key: Array, task: Task) -> MaskedMLP:
        agent = self.agent(task)
        if not hasattr(agent.function, "widths"):
            kind = type(agent.function).__name__
            raise UsageError(
                f"{method_name(self)} masks what enters a layer, which {kind} does not say; expected MLP"
            )
        return MaskedMLP(agent, self.rate, self.mask_inputs)
