"""Normals from the path of stochastic gradient descent: SWAG, and mixtures of several."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from pp_testbed.errors import UsageError
from pp_testbed.inference.map_ensemble import MEMBERS_AT_ONCE, Trained, map_members
from pp_testbed.inference.mcmc import Target
from pp_testbed.inference.options import (
    POSITIVE,
    Sweep,
    at_once,
    check_positive,
    check_within,
    compiled,
    method_name,
)
from pp_testbed.inference.posterior import Sampled
from pp_testbed.inference.svi import minibatch
from pp_testbed.models.base import Array, Task, pytree_dataclass


class SGD(NamedTuple):
    """Stochastic gradient descent with momentum 0.9 on the mean loss, seen every so many steps."""

    rate: Any
    batch_size: int
    snapshots: int
    steps: int


class Moments(NamedTuple):
    """Mean [P] and variance [P] of positions, and the deviations [rank, P] of the last ones."""

    mean: Array
    variance: Array
    deviations: Array


def moments(path: Array, rank: int) -> Moments:
    """Moments of positions [S, P]; deviations are from the mean of all.

    A rank of 0 leaves one deviation, which no draw uses: an empty array cannot be mapped.
    """
    mean = path.mean(axis=0)
    return Moments(mean, path.var(axis=0), path[path.shape[0] - max(rank, 1) :] - mean)


@pytree_dataclass
class SWAG(Trained):
    """Stochastic weight averaging, Gaussian: a normal with the moments of the iterates of SGD.

    θ ~ N(m, s (diag(v) + D Dᵀ / (R - 1)) / 2), with mean m and variance v of S iterates and the last R
    deviations D from the mean m (not, as in the paper, from the running mean); θ ~ N(m, s diag(v)) for
    R = 0. Maddox et al., 2019, "A Simple Baseline for Bayesian Uncertainty in Deep Learning". With `size` > 1
    an equal mixture of several, "MultiSWAG": Wilson and Izmailov, 2020. Where all data fit into a batch of
    SGD, its iterates have no noise and all draws are nearly one function.

    Args:
        size: normals in the mixture.
        sgd_rate: of SGD on the mean loss, with momentum 0.9, after training.
        sgd_batch_size: its rows.
        snapshots: S, one every `sgd_steps` steps.
        rank: R.
        scale: s.
    """

    revision: ClassVar[int] = 1
    size: int = 1
    sgd_rate: float = 1e-2
    sgd_batch_size: int = 10
    snapshots: int = 50
    sgd_steps: int = 20
    rank: int = 20
    scale: float = 1.0
    name: str = "swag"
    sweep: ClassVar[Sweep] = ({"sgd_rate": (1e-3, 1e-2, 1e-1), "scale": (0.3, 1.0, 3.0)}, {"rank": (0, 20)})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "size", "sgd_batch_size", "snapshots", "sgd_steps")
        check_within(self, "scale", POSITIVE)
        if self.rank == 1 or not 0 <= self.rank <= self.snapshots:
            expected = f"0, or 2 to {self.snapshots} (snapshots)"
            raise UsageError(f"{method_name(self)}.rank={self.rank}: expected {expected}")

    @property
    def problems_at_once(self) -> int:
        return at_once(min(self.size, MEMBERS_AT_ONCE))

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        agent = self.agent(task)
        target = Target(agent, task)

        def member(key: Array) -> tuple[Moments, Array]:
            key_train, key_path = jax.random.split(key)
            params, losses = self.train_one(key_train, agent, task)
            sgd = SGD(self.sgd_rate, self.sgd_batch_size, self.snapshots, self.sgd_steps)
            path = path_of_sgd(key_path, target, ravel_pytree(params)[0], sgd)
            return moments(path, self.rank), losses

        normals, losses = map_members(member, key, self.size)
        function = Partial(network_of_vector, target)
        return Sampled(function, Partial(draw_normal, normals, self.scale), losses[0])


def path_of_sgd(key: Array, target: Target, position: Array, sgd: SGD) -> Array:
    """Iterates [S, P] of SGD from a position [P]."""
    optimizer, rows = optax.sgd(sgd.rate, momentum=0.9), jnp.ones(target.task.x.shape[0])

    def loss(position: Array, batch: Any) -> Array:
        return -target.log_density(position, batch) / target.task.num_train

    def step(carry: Any, key: Array) -> tuple[Any, None]:
        position, state = carry
        slope = jax.grad(loss)(position, minibatch(key, target.task, rows, sgd.batch_size))
        update, state = optimizer.update(slope, state)
        return (position + update, state), None

    def snapshot(carry: Any, keys: Array) -> tuple[Any, Array]:
        carry, _ = jax.lax.scan(step, carry, keys)
        return carry, carry[0]

    keys = jax.random.split(key, (sgd.snapshots, sgd.steps))
    return jax.lax.scan(snapshot, (position, optimizer.init(position)), keys)[1]


def network_of_vector(target: Target, position: Array, x: Array) -> Array:
    """Logits [N, K] of the agent's network at a flat vector [P]."""
    return target.model.network(target.latents(position), x)


def draw_normal(normals: Moments, scale: Any, key: Array) -> Array:
    """A draw [P] from an equal mixture of normals, moments with a leading axis [size]."""
    key_member, key_diagonal, key_rank = jax.random.split(key, 3)
    which = jax.random.randint(key_member, (), 0, normals.mean.shape[0])
    mean, variance, deviations = jax.tree.map(lambda leaf: leaf[which], normals)
    change = jnp.sqrt(variance) * jax.random.normal(key_diagonal, mean.shape)
    rank = deviations.shape[0]
    if rank > 1:
        low_rank = jax.random.normal(key_rank, (rank,)) @ deviations / jnp.sqrt(rank - 1)
        change = (change + low_rank) / jnp.sqrt(2.0)
    return mean + jnp.sqrt(scale) * change
