"""Hypermodels: an epistemic network whose weights are a linear function of the index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm

from pp_testbed.errors import UsageError
from pp_testbed.inference.epistemic import EpistemicAgent, Index
from pp_testbed.inference.map_ensemble import BOOTSTRAPS
from pp_testbed.inference.options import Sweep, check_choice, check_positive, method_name
from pp_testbed.inference.svi import Learner
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass
from pp_testbed.models.mlp import layer_shapes, mlp
from pp_testbed.models.networks import BayesianNetwork

# Weights of a datum as functions of a standard normal, which the index makes: see BOOTSTRAPS.
QUANTILES = {
    "none": lambda normal: jnp.ones_like(normal),
    "bernoulli": lambda normal: 2.0 * (normal > 0.0),
    "exponential": lambda normal: -norm.logcdf(-normal),  # -log(1 - Φ), which is finite in float32
}
FACTOR = "_factor"  # the part of a site's name that says it is B, where the bare name is a


def linear_weights(parts: Params, z: Array) -> Params:
    """θ = a + B z, site by site: a [...], B [..., m], z [m]."""
    names = [name for name in parts if not name.endswith(FACTOR)]
    return {name: parts[name] + parts[name + FACTOR] @ z for name in names}


def gaussian_index(index_dim: int) -> Index:
    """Declare z ~ N(0, I_m)."""
    return {"z": numpyro.sample("z", dist.Normal(0.0, 1.0).expand((index_dim,)).to_event(1))}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearHypermodel:
    """logits(x; z) = network(x; a + B z) + scale · g(x; C z), g a small network, C frozen.

    Attributes:
        agent: the network.
        index_dim: m.
        frozen: C, with its leading axes the shapes of the small network's weights; scale: of g.
        bootstrap: one of `BOOTSTRAPS`. The weight of a datum is a function of c·z with c ~ N(0, I_m)
            drawn once for each x, so that one index weighs all data and one datum is weighed by all indices.
    """

    agent: BayesianNetwork
    frozen: Params
    scale: Any
    key_rows: Array
    index_dim: int = field(metadata={"static": True})
    bootstrap: str = field(metadata={"static": True})

    def params(self) -> Params:
        means = self.agent.params()
        factors = {
            name + FACTOR: numpyro.sample(
                name + FACTOR,
                dist.Normal(0.0, self.agent.prior_sd)
                .expand((*value.shape, self.index_dim))
                .to_event(value.ndim + 1),
            )
            for name, value in means.items()
        }
        return means | factors

    def index(self) -> Index:
        return gaussian_index(self.index_dim)

    def start(self, key: Array) -> Params:
        """a and B z each start like the weights of a network, the latter through its index."""
        key_mean, *keys = jax.random.split(key, 1 + self.index_dim)
        factors = [self.agent.start(key) for key in keys]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=-1), *factors)
        root, noise = jnp.sqrt(self.index_dim), self.agent.likelihood.noise
        scaled = {name: leaf * 0.0 if name in noise else leaf / root for name, leaf in stacked.items()}
        return self.agent.start(key_mean) | {name + FACTOR: leaf for name, leaf in scaled.items()}

    def network(self, params: Params, index: Index, x: Array) -> Array:
        prior = mlp({name: factor @ index["z"] for name, factor in self.frozen.items()}, x)
        weights = linear_weights(params, index["z"])
        return self.agent.likelihood.with_noise(self.agent.values(weights, x) + self.scale * prior, weights)

    def row_weights(self, index: Index, x: Array) -> Any:
        if self.bootstrap == "none":
            return 1.0

        def weight(row: Array) -> Array:
            bits = jax.lax.bitcast_convert_type(row, jnp.uint32)
            key = jax.lax.fori_loop(
                0, len(row), lambda i, key: jax.random.fold_in(key, bits[i]), self.key_rows
            )
            direction = jax.random.normal(key, (self.index_dim,))
            cosine = direction @ index["z"] / jnp.linalg.norm(direction)
            return QUANTILES[self.bootstrap](cosine)

        return jax.vmap(weight)(x)


def frozen_factors(key: Array, shapes: list[tuple[int, int]], index_dim: int) -> Params:
    """C of a small network: weights [in, out, m] such that those of C z have variance 1 / in."""
    params = {}
    for layer, ((fan_in, fan_out), k) in enumerate(
        zip(shapes, jax.random.split(key, len(shapes)), strict=True)
    ):
        key_weights, key_biases = jax.random.split(k)
        scale = 1.0 / jnp.sqrt(fan_in * index_dim)
        params[f"w{layer}"] = scale * jax.random.normal(key_weights, (fan_in, fan_out, index_dim))
        if layer == 0:
            params["b0"] = scale * jax.random.normal(key_biases, (fan_out, index_dim))
    return params


@pytree_dataclass
class Hypermodel(EpistemicAgent):
    """A network whose weights are a + B z with z ~ N(0, I), and an additive prior of the same kind.

    Dwaracherla et al., 2020, "Hypermodels for Exploration". Minimises E_z[mean cross-entropy] +
    c (‖a‖² + ‖B‖²), c as in `Trained`. The published code has z ~ N(0, I/m), so that its decay of B is m
    times this one, and gives each layer of the prior's network its own part of the index, so that its
    prior function is about m times smaller.

    Args:
        index_dim: m.
        prior_scale: times 1/√rho (`prior_power` 0.5) or 1/rho (1), the scale of the prior.
        prior_hidden: units of each hidden layer of the prior's network.
        bootstrap: weights of the data for each index: "none", "bernoulli" (0 or 2), "exponential".
    """

    revision: ClassVar[int] = 1
    index_dim: int = 6
    prior_scale: float = 1.0
    prior_power: float = 0.5
    prior_hidden: tuple[int, ...] = (10,)
    bootstrap: str = "none"
    num_index_samples: int = 16
    num_steps: int = 2000
    name: str = "hypermodel"
    sweep: ClassVar[Sweep] = (
        {"prior_scale": (0.0, 1.0), "prior_power": (0.5, 1.0), "l2": (1.0, 2.0)},
        {"prior_hidden": ((10,), (10, 10))},
        {"index_dim": (1, 3, 5, 7)},
        {"l2": (0.1, 0.3, 1.0, 3.0, 10.0)},
        {"bootstrap": tuple(BOOTSTRAPS)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "index_dim")
        check_choice(self, "bootstrap", BOOTSTRAPS)

    def begin(self, key: Array, task: Task) -> Learner:
        if self.bootstrap != "none":
            raise UsageError(
                f"{method_name(self)}.bootstrap={self.bootstrap} weighs inputs, of which an online learner "
                "sees few again and again; expected none"
            )
        return super().begin(key, task)

    def epistemic(self, key: Array, task: Task) -> LinearHypermodel:
        key_frozen, key_rows = jax.random.split(key)
        shapes = layer_shapes(task.input_dim, self.prior_hidden, task.num_outputs)
        return LinearHypermodel(
            self.agent(task),
            frozen_factors(key_frozen, shapes, self.index_dim),
            self.prior_scale * task.temperature**-self.prior_power,
            key_rows,
            self.index_dim,
            self.bootstrap,
        )
