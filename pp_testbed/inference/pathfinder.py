"""Pathfinder, of BlackJAX: normals along the paths of an optimiser."""

from __future__ import annotations

from typing import Any, ClassVar

import blackjax
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from pp_testbed.inference.mcmc import Target
from pp_testbed.inference.options import Sweep, check_positive, compiled
from pp_testbed.inference.posterior import Sampled
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass, read_outputs


@pytree_dataclass
class Pathfinder:
    """The best of the normals along the path of L-BFGS: Zhang et al., 2022, "Pathfinder".

    Each path starts at a draw of the prior and gives the normal of its largest ELBO, with the inverse
    Hessian of L-BFGS as covariance. The posterior is an equal mixture of the paths that got anywhere: with
    thousands of weights, the paper's importance weights would leave one of them.

    Args:
        paths: how many.
        max_iterations: of L-BFGS.
        memory: its corrections.
        elbo_draws: for each normal's ELBO.
        model: as for `SVI`.
    """

    revision: ClassVar[int] = 1
    paths: int = 10
    max_iterations: int = 100
    memory: int = 10
    elbo_draws: int = 20
    model: Any = None
    name: str = "pathfinder"
    sweep: ClassVar[Sweep] = ({"max_iterations": (30, 100), "memory": (5, 10, 30)},)

    def __post_init__(self) -> None:
        check_positive(self, "paths", "max_iterations", "memory", "elbo_draws")

    @property
    def problems_at_once(self) -> int:
        """One problem at a time: under vmap all paths would wait for the longest."""
        return 1

    @property
    def weighs_rows(self) -> bool:
        """Not for certain where a user's model sees the rows."""
        return self.model is None

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        target = Target(task.model if self.model is None else Partial(self.model), task)

        def path(key: Array) -> Any:
            key_start, key_path = jax.random.split(key)
            return blackjax.vi.pathfinder.approximate(
                key_path,
                target.log_density,
                target.start(key_start),
                self.elbo_draws,
                maxiter=self.max_iterations,
                maxcor=self.memory,
            )[0]

        states = jax.lax.map(path, jax.random.split(key, self.paths))
        return Sampled(Partial(read_outputs, target.model), Partial(draw_of_paths, target, states))


def draw_of_paths(target: Target, states: Any, key: Array) -> Params:
    """Latent sites from one of the normals [paths, ...], each as likely."""
    key_path, key_draw = jax.random.split(key)
    is_normal = jnp.isfinite(states.elbo)  # not where L-BFGS took no step
    which = jax.random.categorical(key_path, jnp.where(is_normal, 0.0, -jnp.inf))
    state = jax.tree.map(lambda leaf: leaf[which], states)
    return target.latents(blackjax.vi.pathfinder.sample(key_draw, state)[0])
