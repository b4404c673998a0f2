"""Deep kernels: a Gaussian process on the last hidden layer of a trained network."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.tree_util import Partial

from pp_testbed.inference.map_ensemble import Trained
from pp_testbed.inference.options import POSITIVE, Sweep, check_within, compiled
from pp_testbed.inference.posterior import Sampled
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass
from pp_testbed.models.networks import BayesianNetwork


@pytree_dataclass
class DeepKernel(Trained):
    """The trained network plus a draw of linear functions of its last hidden layer.

    f(x) = network(x) + s φ(x)ᵀ W, columns of W ~ N(0, σ² (σ² I + ΦᵀΦ)⁻¹), with φ the normalised last hidden
    layer, Φ that of the data, σ² = noise · rho and s = scale / √(T rho). Wilson et al., 2016, "Deep Kernel
    Learning"; Osband et al., 2022, whose scales these are.

    Args:
        scale: of the draws.
        noise: of the observations, relative to rho.
    """

    revision: ClassVar[int] = 1
    scale: float = 2.0
    noise: float = 4.0
    name: str = "deep-kernel"
    sweep: ClassVar[Sweep] = ({"scale": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "noise": (0.5, 1.0, 2.0, 3.0, 4.0)},)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "noise", POSITIVE)

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        agent = self.agent(task)
        params, losses = self.train_one(key, agent, task)
        noise = self.noise * task.temperature
        features = normalised_features(agent, params, task.x) * jnp.sqrt(task.data_weights)[:, None]
        precision = noise * jnp.eye(features.shape[1]) + features.T @ features
        scale = self.scale / jnp.sqrt(task.temperature * task.num_train)
        root = jnp.linalg.cholesky(precision) / (scale * jnp.sqrt(noise))
        function = Partial(with_linear, agent, params)
        return Sampled(function, Partial(draw_linear, root, jnp.zeros(task.num_outputs)), losses)


def normalised_features(agent: BayesianNetwork, params: Params, x: Array) -> Array:
    """The last hidden layer [N, units], each row of length 1."""
    features = agent.features(params, x)
    return features / (1e-6 + jnp.linalg.norm(features, axis=1, keepdims=True))


def with_linear(agent: BayesianNetwork, params: Params, weights: Array, x: Array) -> Array:
    """Outputs [N, D] of the network plus a linear function, weights [units, K], of its features."""
    values = agent.values(params, x) + normalised_features(agent, params, x) @ weights
    return agent.likelihood.with_noise(values, params)


def draw_linear(root: Array, like: Array, key: Array) -> Array:
    """Weights [units, K] with columns N(0, (R Rᵀ)⁻¹), R the lower triangular root of their precision."""
    normal = jax.random.normal(key, (root.shape[0], like.shape[0]))
    return solve_triangular(root, normal, lower=True, trans="T")
