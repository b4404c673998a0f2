"""Epistemic neural networks: one network, and an index whose prior is the posterior of functions.

A draw is an index z ~ P, fixed in advance; training finds one set of parameters θ that serves all
indices: Osband et al., 2021, "Epistemic Neural Networks". As a NumPyro program the model has sites for
θ and for z; the guide is a Delta on θ and the prior itself on z, so that z adds log p(z) - log q(z) = 0
to the ELBO and all that remains is E_z[log p(y | x, θ, z)] + log p(θ). What the index does to a network
(a mask, a hypermodel, an epinet) is in files of their own.
"""

from __future__ import annotations

from typing import Any, Protocol

from jax.tree_util import Partial
from numpyro import handlers

from pp_testbed.inference.map_ensemble import Trained, points
from pp_testbed.inference.options import at_once, check_positive
from pp_testbed.inference.posterior import Sampled
from pp_testbed.inference.svi import Trainable, Training
from pp_testbed.models.base import Array, Params, Task, observe, pytree_dataclass, weigh_observations

Index = dict[str, Array]


class EpistemicNetwork(Protocol):
    """A pytree that says which sites there are and what the network computes from them."""

    def params(self) -> Params:
        """Declare the sites of θ, each with its prior."""
        ...

    def index(self) -> Index:
        """Declare the sites of z, each with its distribution."""
        ...

    def start(self, key: Array) -> Params:
        """Where training starts."""
        ...

    def network(self, params: Params, index: Index, x: Array) -> Array:
        """Logits [N, K] of the function of an index at x [N, d]."""
        ...

    def row_weights(self, index: Index, x: Array) -> Any:
        """Weights of rows x [N, d] in the likelihood of the function of an index: [N], or 1."""
        ...


@pytree_dataclass
class EpistemicAgent(Trained, Trainable):
    """What the agents of this kind share.

    Args:
        num_index_samples: indices per step of training.
    """

    num_index_samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_index_samples")

    @property
    def problems_at_once(self) -> int:
        return at_once(self.num_index_samples)

    def epistemic(self, key: Array, task: Task) -> EpistemicNetwork:
        """The network; the key is for what is frozen in it."""
        raise NotImplementedError

    def parts(self, key_start: Array, key_frozen: Array, task: Task) -> Any:
        enn = self.epistemic(key_frozen, task)
        return {"enn": enn, "start": enn.start(key_start)}

    def training(self, parts: Any, task: Task) -> Training:
        enn = parts["enn"]

        def model(x: Array, y: Array | None = None) -> Array:
            params, index = enn.params(), enn.index()
            with weigh_observations(enn.row_weights(index, x)):
                return observe(enn.network(params, index, x), y, likelihood=task.likelihood)

        return self.map_training(model, parts["start"], index=enn.index, particles=self.num_index_samples)

    def posterior(self, parts: Any, params: Params, task: Task) -> Sampled:
        enn = parts["enn"]
        return Sampled(Partial(function_of_index, enn, points(params)), Partial(draw_index, enn))


def function_of_index(enn: EpistemicNetwork, params: Params, index: Index, x: Array) -> Array:
    """Logits [N, K] of the function of an index."""
    return enn.network(params, index, x)


def draw_index(enn: EpistemicNetwork, key: Array) -> Index:
    """One index from its distribution."""
    return handlers.seed(enn.index, key)()
