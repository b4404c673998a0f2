"""Microcanonical Langevin ensembles: chains from the members of an ensemble."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from pp_testbed.errors import UsageError
from pp_testbed.inference.map_ensemble import MEMBERS_AT_ONCE, Trained, map_members
from pp_testbed.inference.mcmc import MCLMC, Chains, Target
from pp_testbed.inference.options import Sweep, at_once, check_positive, compiled
from pp_testbed.inference.posterior import Finite, divisor
from pp_testbed.models.base import Array, Task, pytree_dataclass
from pp_testbed.models.networks import BayesianNetwork


@pytree_dataclass
class MILE(Trained):
    """Each member of an ensemble starts a short chain of microcanonical Langevin Monte Carlo.

    Sommer et al., 2025, "Microcanonical Langevin Ensembles: Advancing the Sampling of Bayesian Neural
    Networks". The chains sample the posterior of which the members are modes, θ ~ N(0, 1 / (2 c T)); L and
    the step size are tuned for each. With no steps, `warmup=0, thinning=0`, it is the ensemble.

    Args:
        size: members, and chains.
        warmup: steps that tune a chain.
        num_draws: kept of each.
        thinning: steps per kept draw.
        energy_variance: of MCLMC's tuning.
    """

    revision: ClassVar[int] = 1
    size: int = 10
    warmup: int = 1000
    num_draws: int = 10
    thinning: int = 100
    energy_variance: float = 5e-4
    name: str = "mile"
    sweep: ClassVar[Sweep] = ({"l2": (1.0, 3.0, 10.0), "energy_variance": (5e-4, 5e-3)},)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "size", "num_draws")
        if self.warmup == 0 and self.thinning > 0:
            raise UsageError(f"{self.name}.warmup=0: chains that are not tuned need thinning=0")
        if self.thinning > 0:
            divisor(self.name, self.size * self.num_draws)

    @property
    def problems_at_once(self) -> int:
        return at_once(min(self.size, MEMBERS_AT_ONCE))

    @compiled
    def fit(self, key: Array, task: Task) -> Finite:
        agent = self.agent(task)
        target = Target(agent, task)

        def chain(key: Array) -> tuple[Any, Array]:
            params, losses = self.train_one(key, agent, task)
            key_chain = jax.random.split(key, 3)[2]  # which training does not use
            positions = self.chain(key_chain, target, ravel_pytree(params)[0])
            return jax.vmap(target.latents)(positions), losses

        draws, losses = map_members(chain, key, self.size)  # leaves [size, draws, ...]
        together = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws)
        function = Partial(BayesianNetwork.network, agent)
        if self.thinning == 0:  # an ensemble, which is all there is; chains are a sample
            return Finite.equal(function, together, losses)
        num = self.size * self.num_draws
        log_weights, num_groups = jnp.full(num, -jnp.log(num)), divisor(self.name, num)
        return Chains(function, together, log_weights, losses, num_groups, task=task, num_chains=self.size)

    def chain(self, key: Array, target: Target, position: Array) -> Array:
        """Positions [draws, P] of a chain from a position [P]."""
        if self.thinning == 0:
            return jnp.broadcast_to(position, (self.num_draws, *position.shape))
        sampler = MCLMC(
            warmup=self.warmup,
            num_draws=self.num_draws,
            thinning=self.thinning,
            energy_variance=self.energy_variance,
        )
        key_tune, key_draws = jax.random.split(key)
        start = sampler.tune(key_tune, target, position)
        return sampler.continue_chain(key_draws, target, start, self.num_draws)[0]
