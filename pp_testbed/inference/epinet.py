"""Epinets: an epistemic network that adds an indexed head to the features of a plain one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from pp_testbed.inference.epistemic import EpistemicAgent, Index
from pp_testbed.inference.hypermodel import gaussian_index
from pp_testbed.inference.options import Sweep, check_positive
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass
from pp_testbed.models.networks import MLP, BayesianNetwork

HEAD = "head_"  # the prefix of the sites of the epinet


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeadedMLP:
    """logits(x; z) = μ(x) + σ([φ(x), x, z]) z + scale · Σ_i z_i g_i(x).

    μ is the base network and φ its last hidden layer, through which the epinet σ passes no gradient;
    σ gives a matrix [K, m]; the g_i are small frozen networks.

    Attributes:
        base, head, small: the networks μ, σ and g_i.
        frozen: the weights of all g_i, leaves [m, ...].
    """

    base: BayesianNetwork
    head: BayesianNetwork
    small: BayesianNetwork
    frozen: Params
    scale: Any
    index_dim: int = field(metadata={"static": True})

    def params(self) -> Params:
        return self.base.params() | self.head.params(HEAD)

    def index(self) -> Index:
        return gaussian_index(self.index_dim)

    def start(self, key: Array) -> Params:
        key_base, key_head = jax.random.split(key)
        head = self.head.start(key_head)
        return self.base.start(key_base) | {HEAD + name: value for name, value in head.items()}

    def network(self, params: Params, index: Index, x: Array) -> Array:
        z = index["z"]
        head = {name.removeprefix(HEAD): value for name, value in params.items() if name.startswith(HEAD)}
        plain = {name: value for name, value in params.items() if not name.startswith(HEAD)}
        features = jax.lax.stop_gradient(self.base.features(plain, x))
        inputs = jnp.concatenate([features, x, jnp.broadcast_to(z, (x.shape[0], self.index_dim))], axis=1)
        matrix = self.head.network(head, inputs).reshape(x.shape[0], -1, self.index_dim)
        prior = jax.vmap(Partial(self.small.network, x=x))(self.frozen)  # [m, N, K]
        values = self.base.values(plain, x) + matrix @ z + self.scale * jnp.tensordot(z, prior, axes=1)
        return self.base.likelihood.with_noise(values, plain)

    def row_weights(self, index: Index, x: Array) -> Any:
        return 1.0


@pytree_dataclass
class Epinet(EpistemicAgent):
    """A network with an epinet on its last hidden layer: Osband et al., 2021, "Epistemic Neural Networks".

    Minimises E_z[mean cross-entropy] + c ‖θ‖², c as in `Trained`, z ~ N(0, I_m).

    Args:
        index_dim: m.
        prior_scale: times 1/√rho, the scale of the prior functions' sum.
        head_hidden, prior_hidden: units of the hidden layers of the epinet and of its priors.
    """

    revision: ClassVar[int] = 1
    index_dim: int = 8
    prior_scale: float = 1.0
    head_hidden: tuple[int, ...] = (50,)
    prior_hidden: tuple[int, ...] = (10,)
    num_index_samples: int = 8
    name: str = "epinet"
    sweep: ClassVar[Sweep] = (
        {"prior_scale": (0.0, 0.3, 1.0, 3.0), "l2": (0.3, 1.0, 3.0)},
        {"index_dim": (2, 8, 20)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "index_dim")

    def epistemic(self, key: Array, task: Task) -> HeadedMLP:
        base, dim, outputs = self.agent(task), task.input_dim, task.num_outputs
        shapes = base.start(key), jax.ShapeDtypeStruct((1, dim), task.x.dtype)
        width = jax.eval_shape(base.features, *shapes).shape[1]
        into = width + dim + self.index_dim
        head, small = (
            BayesianNetwork(network, base.prior_sd)
            for network in (
                MLP(into, self.head_hidden, outputs * self.index_dim),
                MLP(dim, self.prior_hidden, outputs),
            )
        )
        frozen = jax.vmap(small.start)(jax.random.split(key, self.index_dim))
        scale = self.prior_scale / jnp.sqrt(task.temperature * self.index_dim)
        return HeadedMLP(base, head, small, frozen, scale, self.index_dim)
