"""Ensembles with prior functions from the neural tangent kernel."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from pp_testbed.inference.map_ensemble import EnsemblePlus
from pp_testbed.inference.options import Sweep
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass
from pp_testbed.models.networks import BayesianNetwork


@pytree_dataclass
class EnsembleNTK(EnsemblePlus):
    """An ensemble whose members each add a frozen function, linear in the weights of a random network.

    g(x) = J(x; θ₀) v, with θ₀ a start of the network, J its Jacobian and v another start whose last layer is
    0: the last layer's part of the kernel is in the network's own start already. He, Lakshminarayanan and
    Teh, 2020, "Bayesian Deep Ensembles via the Neural Tangent Kernel", where the scale of g is 1 and the sum
    is a draw of a Gaussian process; here it is prior_scale / √rho, as for `EnsemblePlus`, which trains it.
    """

    revision: ClassVar[int] = 1
    prior_scale: float = 1.0
    name: str = "ensemble-ntk"
    sweep: ClassVar[Sweep] = ({"l2": (0.3, 1.0, 3.0), "prior_scale": (0.3, 1.0, 3.0)},)

    def draw_prior(self, key: Array, task: Task, agent: BayesianNetwork) -> Any:
        key_start, key_tangent = jax.random.split(key)
        tangent = agent.start(key_tangent)
        flat = {name: jnp.zeros_like(tangent[name]) for name in agent.last_layer}
        return {"start": agent.start(key_start), "tangent": tangent | flat}

    def prior_function(self, task: Task, agent: BayesianNetwork) -> Partial:
        return Partial(tangent_logits, agent)


def tangent_logits(agent: BayesianNetwork, frozen: dict[str, Params], x: Array) -> Array:
    """J(x; start) · tangent: [N, K]."""
    return jax.jvp(lambda params: agent.values(params, x), (frozen["start"],), (frozen["tangent"],))[1]
