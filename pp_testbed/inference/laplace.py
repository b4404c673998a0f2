"""Laplace's method: a normal distribution at the mode, from the generalised Gauss-Newton matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from numpyro import handlers

from pp_testbed.inference.map_ensemble import Trained
from pp_testbed.inference.mcmc import Target, normal_prior
from pp_testbed.inference.options import Sweep, check_choice, compiled
from pp_testbed.inference.posterior import Sampled
from pp_testbed.inference.subspace import Subspace, last_layer
from pp_testbed.models.base import Array, Task, pytree_dataclass, read_outputs
from pp_testbed.models.likelihoods import outputs_of

SUBSETS = ("all", "last-layer")
PRECISIONS = ("model", "evidence")
PREDICTIVES = ("linearised", "network")


@pytree_dataclass
class Laplace(Trained):
    """θ ~ N(θ̂, (δ V⁻¹ + Σ_n J_nᵀ Λ_n J_n)⁻¹) with θ̂ the trained network, V its prior's variance.

    J is the network's Jacobian and Λ_n the curvature of the likelihood in the logits, diag(p) - p pᵀ.
    MacKay, 1992, "A Practical Bayesian Framework for Backpropagation Networks"; Daxberger et al., 2021,
    "Laplace Redux". A draw is the network linearised at θ̂ (Immer et al., 2021), or that of the drawn θ.

    Args:
        subset: "all" weights, or those of the "last-layer".
        prior_precision: δ = 1, the "model"'s own prior, which is the weight decay; or what maximises the
            "evidence", the marginal likelihood in the same approximation, with θ̂ held fixed.
        predictive: "linearised" or "network".

    Examples:
        >>> Laplace(subset="last-layer").predictive
        'linearised'
    """

    revision: ClassVar[int] = 2
    subset: str = "all"
    prior_precision: str = "model"
    predictive: str = "linearised"
    name: str = "laplace"
    sweep: ClassVar[Sweep] = (
        {"l2": (0.3, 1.0, 3.0), "prior_precision": PRECISIONS, "predictive": PREDICTIVES},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "subset", SUBSETS)
        check_choice(self, "prior_precision", PRECISIONS)
        check_choice(self, "predictive", PREDICTIVES)

    @property
    def problems_at_once(self) -> int:
        """One problem at a time: a decomposition of a large matrix is no work for vmap."""
        return 1

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        agent = self.agent(task)
        params, losses = self.train_one(key, agent, task)
        target, point = Target(agent, task), ravel_pytree(params)[0]
        if self.subset == "last-layer":
            subspace = Subspace.through(target, point, last_layer(target))
            target, point = Target(subspace, task), subspace.coordinates(point)
        normal = normal_at(target, point, self.prior_precision)
        function = (
            Partial(linearised_logits, target, point)
            if self.predictive == "linearised"
            else Partial(network_logits, target)
        )
        return Sampled(function, Partial(NormalAtMode.draw, normal), losses)


def normal_at(target: Target, point: Array, prior_precision: str = "model") -> NormalAtMode:
    """Laplace's normal at a mode [P] of any model with priors of independent normals.

    Observations may be of any likelihood of `models.likelihoods`.
    """
    mean, variance = normal_prior(target)
    root_prior = jnp.sqrt(variance)  # in whose units the prior is N(0, I)
    eigenvalues, directions = eigen(curvature_root(target, point) * root_prior)
    precision = jnp.ones(())
    if prior_precision == "evidence":
        precision = best_precision(eigenvalues, (point - mean) / root_prior)
    return NormalAtMode(point, root_prior, precision, eigenvalues, directions)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NormalAtMode:
    """θ = point + V^½ u, u ~ N(0, (δ I + W S² Wᵀ)⁻¹): what of it is needed to draw.

    Attributes:
        point: θ̂ [P].
        root_prior: V^½ [P].
        precision: δ.
        eigenvalues: S² [r].
        directions: W [P, r].
    """

    point: Array
    root_prior: Array
    precision: Any
    eigenvalues: Array
    directions: Array

    def draw(self, key: Array) -> Array:
        """One θ [P]."""
        normal = jax.random.normal(key, self.point.shape) / jnp.sqrt(self.precision)
        shrink = 1.0 - jnp.sqrt(self.precision / (self.precision + self.eigenvalues))
        shrunken = normal - self.directions @ (shrink * (self.directions.T @ normal))
        return self.point + self.root_prior * shrunken


def curvature_root(target: Target, point: Array) -> Array:
    """Λ^½ J: [R, P], a square root of the Gauss-Newton matrix, R = N (K - 1) for classes."""
    task = target.task

    def of_row(row: tuple[Array, Array, Array]) -> Array:
        x, y, weight = row

        def outputs(position: Array) -> tuple[Array, Array]:
            """What y's distribution is made of [D], and the root of the curvature in it."""
            given = handlers.substitute(target.model, data=target.latents(position))
            trace = handlers.trace(handlers.seed(given, jax.random.key(0))).get_trace(x[None], y[None])
            likelihood, found = outputs_of(trace["y"]["fn"])
            return found[0], likelihood.curvature_root(found[0])

        jacobian, root = jax.jacrev(outputs, has_aux=True)(point)
        return jnp.sqrt(weight) * root @ jacobian

    rows = jax.lax.map(of_row, (task.x, task.y, task.data_weights), batch_size=100)
    return rows.reshape(-1, point.shape[0])


def eigen(root: Array) -> tuple[Array, Array]:
    """Eigenvalues [r] of AᵀA and their directions [P, r], from A [R, P], r the smaller of R and P.

    By singular values: a product has squares of them, of which float32 holds seven digits, and a curvature of
    a millionth of the largest can still be a thousand times the prior's.
    """
    _, values, directions = jnp.linalg.svd(root, full_matrices=False)
    return values**2, directions.T


def best_precision(eigenvalues: Array, offset: Array) -> Array:
    """The δ that maximises log Z(δ) = -δ ‖u‖² / 2 - Σ log(1 + s / δ) / 2, u [P] the mode's offset."""
    deltas = jnp.logspace(-4.0, 4.0, 801)
    evidence = -0.5 * deltas * (offset**2).sum() - 0.5 * jnp.log1p(eigenvalues / deltas[:, None]).sum(axis=1)
    return deltas[jnp.argmax(evidence)]


def network_logits(target: Target, position: Array, x: Array) -> Array:
    """Logits [N, K] of the model at a flat vector [P]."""
    return read_outputs(target.model, target.latents(position), x)


def linearised_logits(target: Target, point: Array, position: Array, x: Array) -> Array:
    """f(x; θ̂) + J(x) (θ - θ̂): [N, K]."""
    value, change = jax.jvp(lambda p: network_logits(target, p, x), (point,), (position - point,))
    return value + change
