"""Posteriors on an affine subspace of the agent's weights: the last layer, or where training goes.

`Subspace` is a NumPyro model of few latent numbers, so that any guide or sampler runs in it: a
normalizing flow and elliptical slice sampling here, Laplace's method in `laplace`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.tree_util import Partial
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoIAFNormal

from pp_testbed.engine.identity import SINCE
from pp_testbed.errors import UsageError
from pp_testbed.inference.map_ensemble import Trained
from pp_testbed.inference.mcmc import EllipticalSlice, Target, normal_prior
from pp_testbed.inference.options import Sweep, at_once, check_choice, check_positive, compiled
from pp_testbed.inference.posterior import Finite, Sampled
from pp_testbed.inference.svi import GuideSampler, Training, fit, with_keywords
from pp_testbed.inference.swag import SGD, path_of_sgd
from pp_testbed.models.base import Array, Task, pytree_dataclass, read_outputs

SUBSPACES = ("last-layer", "pca")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Subspace:
    """A model whose latent vector is origin + basis z, with z ~ N(0, I): its prior, given that it lies there.

    Attributes:
        target: of the whole model, whose priors are independent normals.
        origin: [P].
        basis: [P, k].
    """

    target: Target
    origin: Array
    basis: Array

    @classmethod
    def through(cls, target: Target, point: Array, directions: Array) -> Subspace:
        """The subspace point + D t, D [P, k], in coordinates in which the prior is N(0, I).

        The prior N(m, V), restricted, is normal in t with precision Dᵀ V⁻¹ D and mean
        (Dᵀ V⁻¹ D)⁻¹ Dᵀ V⁻¹ (m - point).
        """
        mean, variance = normal_prior(target)
        scaled = directions / variance[:, None]
        root = jnp.linalg.cholesky(directions.T @ scaled)
        center = cho_solve((root, True), scaled.T @ (mean - point))
        # t = center + R⁻ᵀ z has precision R Rᵀ.
        basis = solve_triangular(root, directions.T, lower=True).T
        return cls(target, point + directions @ center, basis)

    def coordinates(self, point: Array) -> Array:
        """z [k] of a vector [P] of the subspace."""
        return jnp.linalg.lstsq(self.basis, point - self.origin)[0]

    def __call__(self, x: Array, y: Array | None = None) -> Any:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand((self.basis.shape[1],)).to_event(1))
        with handlers.block():
            latents = self.target.latents(self.origin + self.basis @ z)
        # Their prior is that of z.
        with handlers.block(hide=list(latents)), handlers.substitute(data=latents):
            return self.target.model(x, y)


def last_layer(target: Target) -> Array:
    """Unit vectors [P, k] of the parameters of an agent's last layer."""
    sites = jax.eval_shape(lambda key: target.latents(target.start(key)), jax.random.key(0))
    last = target.model.last_layer
    is_last = ravel_pytree({name: jnp.full(leaf.shape, name in last) for name, leaf in sites.items()})[0]
    rows = jnp.nonzero(is_last, size=sum(sites[name].size for name in last))[0]
    return jnp.zeros((is_last.size, rows.size)).at[rows, jnp.arange(rows.size)].set(1.0)


def principal_directions(path: Array, num: int) -> Array:
    """Orthonormal directions [P, num] in which positions [S, P] vary most."""
    return jnp.linalg.svd(path - path.mean(axis=0), full_matrices=False)[2][:num].T


@pytree_dataclass
class InSubspace(Trained):
    """What the methods of this file share: a trained network, and the subspace through it.

    Args:
        subspace: "last-layer", or "pca": the directions in which SGD varies most after training.
        dimensions: of the "pca" subspace. sgd_rate, sgd_batch_size, snapshots, sgd_steps: of that SGD, as
            for `SWAG`.
    """

    subspace: str = "pca"
    dimensions: int = 5
    sgd_rate: float = 1e-2
    sgd_batch_size: int = 10
    snapshots: int = field(default=50, metadata={SINCE: "0.6.0"})
    sgd_steps: int = field(default=20, metadata={SINCE: "0.6.0"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "dimensions", "sgd_batch_size", "snapshots", "sgd_steps")
        check_choice(self, "subspace", SUBSPACES)
        if self.dimensions > self.snapshots:
            raise UsageError(
                f"{self.name}.dimensions={self.dimensions}: expected at most {self.snapshots} (snapshots)"
            )

    def find(self, key: Array, task: Task) -> Subspace:
        """The subspace through the trained network."""
        key_train, key_path = jax.random.split(key)
        agent = self.agent(task)
        params, _ = self.train_one(key_train, agent, task)
        target, point = Target(agent, task), ravel_pytree(params)[0]
        if self.subspace == "last-layer":
            return Subspace.through(target, point, last_layer(target))
        sgd = SGD(self.sgd_rate, self.sgd_batch_size, self.snapshots, self.sgd_steps)
        path = path_of_sgd(key_path, target, point, sgd)
        return Subspace.through(target, point, principal_directions(path, self.dimensions))


@pytree_dataclass
class Flow(InSubspace):
    """A normalizing flow on a subspace of the weights: inverse autoregressive, by SVI.

    q(z) is N(0, I) through `num_flows` autoregressive layers. Kingma et al., 2016, "Improved Variational
    Inference with Inverse Autoregressive Flow"; on few weights, the others being trained: Izmailov et al.,
    2019, and the last layer.

    Args:
        num_flows: layers of the flow. svi_steps, svi_rate, particles: of SVI.
    """

    revision: ClassVar[int] = 1
    num_flows: int = 2
    svi_steps: int = 1000
    svi_rate: float = 3e-3
    particles: int = 4
    subspace: str = "last-layer"
    name: str = "flow"
    sweep: ClassVar[Sweep] = ({"subspace": SUBSPACES, "l2": (0.3, 1.0, 3.0)}, {"num_flows": (1, 2, 3)})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_flows", "svi_steps", "particles")
        if self.subspace == "pca" and self.dimensions < 2:
            raise UsageError(f"{self.name}.dimensions={self.dimensions}: a flow needs at least 2")

    @property
    def problems_at_once(self) -> int:
        return at_once(self.particles)

    @property
    def guide(self) -> Any:
        """The flow, as a class of NumPyro's guides."""
        return with_keywords(AutoIAFNormal, num_flows=self.num_flows)

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        key_find, key_flow = jax.random.split(key)
        subspace = self.find(key_find, task)
        optimizer, loss = optax.adam(self.svi_rate), Trace_ELBO(self.particles)
        training = Training(subspace, self.guide, optimizer, loss, self.batch_size)
        fitted = fit(key_flow, training, task, self.svi_steps)
        sampler = Partial(GuideSampler(self.guide), subspace, fitted.params, task.x, task.y)
        return Sampled(Partial(read_outputs, subspace), sampler, fitted.losses)


@pytree_dataclass
class SubspaceSlice(InSubspace):
    """Elliptical slice sampling on a subspace.

    Izmailov et al., 2019, "Subspace Inference for Bayesian Deep Learning".

    Args:
        num_chains, warmup, num_draws, thinning: of `EllipticalSlice`, whose chains they are.
        likelihood_power: of the likelihood; the paper's temperature is its inverse.
    """

    revision: ClassVar[int] = 1
    num_chains: int = 1
    warmup: int = 200
    num_draws: int = 200
    thinning: int = 5
    likelihood_power: float = 1.0
    name: str = "subspace-ess"
    sweep: ClassVar[Sweep] = (
        {"subspace": SUBSPACES, "l2": (0.3, 1.0, 3.0)},
        {"dimensions": (2, 5, 20), "likelihood_power": (0.1, 0.3, 1.0)},
    )

    @compiled
    def fit(self, key: Array, task: Task) -> Finite:
        key_find, key_chain = jax.random.split(key)
        target = Target(self.find(key_find, task), task, self.likelihood_power)
        chains = EllipticalSlice(
            num_chains=self.num_chains,
            warmup=self.warmup,
            num_draws=self.num_draws,
            thinning=self.thinning,
        )
        return chains.sample(key_chain, target)
