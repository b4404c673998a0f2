"""Stein variational gradient descent, with the kernel of BlackJAX."""

from __future__ import annotations

from typing import Any, ClassVar

import blackjax
import jax
import jax.numpy as jnp
import optax
from blackjax.vi.svgd import median_heuristic, rbf_kernel
from jax.tree_util import Partial

from pp_testbed.errors import UsageError
from pp_testbed.inference.mcmc import Target
from pp_testbed.inference.options import Sweep, at_once, check_positive, compiled
from pp_testbed.inference.posterior import Finite
from pp_testbed.models.base import Array, Task, pytree_dataclass, read_outputs


@pytree_dataclass
class SVGD:
    """Stein variational gradient descent: Liu and Wang, 2016. Particles that repel one another.

    θ_i ← θ_i + ε/n Σ_j [k(θ_j, θ_i) ∇ log p(θ_j) + ∇_j k(θ_j, θ_i)], k Gaussian with the median heuristic.

    Args:
        particles: n, from draws of the prior. num_steps, learning_rate: of Adam.
        model: as for `SVI`.
    """

    revision: ClassVar[int] = 1
    particles: int = 30
    num_steps: int = 1000
    learning_rate: float = 1e-2
    model: Any = None
    name: str = "svgd"
    sweep: ClassVar[Sweep] = ({"learning_rate": (1e-3, 3e-3, 1e-2, 3e-2)}, {"particles": (10, 30, 100)})

    def __post_init__(self) -> None:
        check_positive(self, "num_steps")
        if self.particles < 2:
            raise UsageError(f"{self.name}.particles={self.particles}: expected at least 2")

    @property
    def problems_at_once(self) -> int:
        return at_once(self.particles)

    @property
    def weighs_rows(self) -> bool:
        """Not for certain where a user's model sees the rows."""
        return self.model is None

    @compiled
    def fit(self, key: Array, task: Task) -> Finite:
        target = Target(task.model if self.model is None else Partial(self.model), task)
        optimizer = optax.adam(self.learning_rate)
        kernel = blackjax.vi.svgd.build_kernel(optimizer)
        positions = jax.vmap(target.start)(jax.random.split(key, self.particles))
        state = blackjax.vi.svgd.init(positions, {"length_scale": jnp.asarray(1.0)}, optimizer)

        def step(state: Any, _: None) -> tuple[Any, None]:
            scale = median_heuristic({}, state.particles)
            return kernel(
                state._replace(kernel_parameters=scale), jax.grad(target.log_density), rbf_kernel
            ), None

        state, _ = jax.lax.scan(step, state, None, length=self.num_steps)
        draws = jax.vmap(target.latents)(state.particles)
        return Finite.equal(Partial(read_outputs, target.model), draws)
