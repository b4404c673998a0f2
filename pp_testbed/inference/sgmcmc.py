"""Stochastic gradient Markov chains: SGLD and its relatives, on minibatches of the task.

They sample the agent's network with its N(0, v) prior, as the field's papers do, or, with
`network="generative"`, the generative model itself, where their gap to NUTS is all their own. No chain
here has a Metropolis step: how far it is from the posterior is to be measured, not assumed. Chains
with exact transitions are in `mcmc`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, ClassVar, NamedTuple, Self

import blackjax
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from pp_testbed.engine.identity import SINCE
from pp_testbed.errors import UsageError
from pp_testbed.inference.map_ensemble import agent_of
from pp_testbed.inference.mcmc import Chains, Target
from pp_testbed.inference.options import (
    BELOW_ONE,
    POSITIVE,
    Sweep,
    at_once,
    check_choice,
    check_positive,
    check_within,
    compiled,
)
from pp_testbed.inference.posterior import Finite, divisor
from pp_testbed.inference.svi import minibatch
from pp_testbed.models.base import Array, Task, pytree_dataclass, read_outputs

Batch = tuple[Array, Array, Array]
Gradient = Callable[[Array, Batch], Array]
Kernel = Callable[[Array, Any, Batch, Array, Array], Any]
NETWORKS = ("agent", "generative")
SCHEDULES = ("constant", "polynomial", "cosine", "cyclical")
PRECONDITIONERS = ("none", "rmsprop")
LOOKS = 10  # at a row for log densities of draws, at most, for each that the chains take
ROWS_AT_ONCE = 100_000  # at which log densities of draws are computed together


@pytree_dataclass
class StochasticGradientSampler:
    """What the samplers of this file share: the network, the step sizes, and which draws are kept.

    Args:
        learning_rate: ε, of the gradient of the log posterior of all the data.
        steady: T₀; with more data the step is ε (T₀ / T)^`stiffness`, as curvature grows like T. With 1 it
            is ε / T, a step of size ε along the gradient of the mean loss, as published.
        prior_variance: λ; the agent's weights are N(0, λ / (2 √rho d)), and for real data N(0, λ / 2). The
            paper's σ² = λ T / (√rho d) is of the posterior whose energy is the mean loss, and the same up to
            its factor 2; its grid of λ has the squares of its code's values, 0.05, 0.1 and 0.2.
        num_steps: steps of a chain.
        burn_in: steps whose draws are dropped.
        thinning: steps per draw.
        num_chains: chains, each from its own start.
        batch_size: rows per step, or all there are.
        schedule: "constant"; "polynomial", ε (1 + t / burn_in)^-decay; "cosine", from ε to ε / 2 in half a
            period over all steps, as in URSABench; or "cyclical", ε (1 + cos π u) / 2 with u in [0, 1) the
            place in one of `num_cycles` cycles: Zhang et al., 2020, "Cyclical Stochastic Gradient MCMC for
            Bayesian Deep Learning".
        exploration: fraction of a cycle without noise.
        draws_per_cycle: last draws of each that are kept,
            whatever `burn_in` is.
        network: "agent", a perceptron of `hidden` units; any other network, of `models.networks`; or
            "generative", the task's own model.
    """

    learning_rate: float = 1e-4
    steady: float = 1000.0
    prior_variance: float = 0.1
    num_steps: int = 500_000
    burn_in: int = 100_000
    thinning: int = 1000
    num_chains: int = 1
    batch_size: int = 100
    schedule: str = "constant"
    decay: float = 0.33
    num_cycles: int = 10
    exploration: float = 0.5
    draws_per_cycle: int = 10
    network: Any = "agent"
    hidden: tuple[int, ...] = (50, 50)
    name: str = ""
    weighs_rows: ClassVar[bool] = True
    effort: ClassVar[float] = 50.0
    stiffness: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "num_steps", "thinning", "num_chains", "batch_size", "num_cycles")
        if isinstance(self.network, str):
            check_choice(self, "network", NETWORKS)
        check_choice(self, "schedule", SCHEDULES)
        if self.schedule == "cyclical":
            self._check_cycles()
        check_within(self, "learning_rate", POSITIVE)
        check_within(self, "steady", POSITIVE)
        check_within(self, "prior_variance", POSITIVE)
        if len(self.kept()) == 0:
            raise UsageError(
                f"{self.name} keeps no draws: {self.num_steps} steps, burn-in {self.burn_in}, thinning "
                f"{self.thinning}"
            )
        divisor(self.name, self.num_chains * len(self.kept()))

    def _check_cycles(self) -> None:
        if not isinstance(self, SGLD):
            raise UsageError(
                f"{self.name} draws momenta even where no noise is injected; cycles are for sgld"
            )
        check_within(self, "exploration", BELOW_ONE)
        if not isinstance(self.exploration, float):  # traced by JAX, and checked before
            return
        sampling = int((1.0 - self.exploration) * self.num_steps / self.num_cycles / self.thinning + 1e-6)
        if self.draws_per_cycle > sampling:
            raise UsageError(
                f"{self.name}.draws_per_cycle={self.draws_per_cycle}: "
                f"the sampling phase of a cycle has {sampling}"
            )

    @property
    def problems_at_once(self) -> int:
        return at_once(self.num_chains)

    @property
    def acting(self) -> dict[str, Any]:
        """What differs in bandits: minibatches as published."""
        return {"batch_size": 128}

    def in_dimensions(self, input_dim: int) -> Self:
        """It, as it acts in a bandit of so many dimensions: with the prior variance of two, 1 / (4 √rho)."""
        if self.network == "generative":
            return self
        return replace(self, prior_variance=self.prior_variance * input_dim / 2.0)

    def kept(self) -> list[int]:
        """Which of the chain's thinned positions, one every `thinning` steps, are kept as draws."""
        num = self.num_steps // self.thinning
        if self.schedule != "cyclical":
            return list(range(self.burn_in // self.thinning, num))
        ends = [(cycle + 1) * num // self.num_cycles for cycle in range(self.num_cycles)]
        starts = [0, *ends[:-1]]
        return [
            index
            for start, end in zip(starts, ends, strict=True)
            for index in range(max(start, end - self.draws_per_cycle), end)
        ]

    def init(self, key: Array, position: Array) -> Any:
        """The kernel's state at a position [P]; it has a `position` too."""
        raise NotImplementedError

    def kernel(self, gradient: Gradient, num_train: Any) -> Kernel:
        """One step, `(key, state, batch, step_size, noise) -> state`; noise scales the temperature."""
        raise NotImplementedError

    def rate(self, num_train: Any) -> Array:
        """The step size for so many data."""
        return self.learning_rate * jnp.minimum(1.0, self.steady / num_train) ** self.stiffness

    def step_size(self, step: Array, rate: Array) -> tuple[Array, Array]:
        """The step size at a step, from `rate` on, and whether noise is injected (1) or not (0)."""
        one = jnp.ones(())
        if self.schedule == "constant":
            return rate, one
        if self.schedule == "polynomial":
            return rate * (1.0 + step / max(1, self.burn_in)) ** -self.decay, one
        if self.schedule == "cosine":
            return rate * (0.75 + 0.25 * jnp.cos(jnp.pi * step / self.num_steps)), one
        place = (step * self.num_cycles / self.num_steps) % 1.0
        return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * place)), jnp.where(place < self.exploration, 0.0, 1.0)

    def target(self, task: Task) -> tuple[Target, Callable[[Array], Array]]:
        """The density that is sampled, and `key -> position [P]`, where chains start."""
        if self.network == "generative":
            target = Target(task.model, task)
            return target, target.start
        prior_sd: Any = jnp.sqrt(self.prior_variance / (2.0 * task.decay))
        given = None if isinstance(self.network, str) else self.network
        agent = agent_of(task, self.hidden, prior_sd, given)
        return Target(agent, task), lambda key: ravel_pytree(agent.start(key))[0]

    def begin(self, key: Array, task: Task) -> Any:
        """Where chains start that go on while data come in: see `inference.online.Online`."""
        if self.schedule != "constant":
            raise UsageError(f"{self.name}.schedule={self.schedule}: online it can only be constant")
        start = self.target(task)[1]

        def chain(key: Array) -> Any:
            key_start, key_init = jax.random.split(key)
            return self.init(key_init, start(key_start))

        return jax.vmap(chain)(jax.random.split(key, self.num_chains))

    def learn(self, key: Array, states: Any, task: Task) -> Any:
        """One step of each chain."""
        kernel = self.kernel(jax.grad(self.target(task)[0].log_density), task.num_train)
        rate = self.rate(task.num_train)

        def step(key: Array, state: Any) -> Any:
            key_rows, key_step = jax.random.split(key)
            batch = minibatch(key_rows, task, jnp.ones(task.x.shape[0]), self.batch_size)
            return kernel(key_step, state, batch, rate, jnp.ones(()))

        return jax.vmap(step)(jax.random.split(key, self.num_chains), states)

    def current(self, states: Any, task: Task) -> Finite:
        """The functions that the chains are at."""
        target = self.target(task)[0]
        draws = jax.vmap(target.latents)(states.position)
        return Finite.equal(Partial(read_outputs, target.model), draws)

    @compiled
    def fit(self, key: Array, task: Task) -> Chains:
        target, start = self.target(task)
        kernel = self.kernel(jax.grad(target.log_density), task.num_train)
        rows, rate = jnp.ones(task.x.shape[0]), self.rate(task.num_train)
        positions_of_draws = jnp.asarray(self.kept())

        def chain(key: Array) -> Array:
            key_start, key_init, key_steps = jax.random.split(key, 3)
            state = self.init(key_init, start(key_start))

            def step(state: Any, index: Array) -> tuple[Any, None]:
                key_rows, key_step = jax.random.split(jax.random.fold_in(key_steps, index))
                batch = minibatch(key_rows, task, rows, self.batch_size)
                return kernel(key_step, state, batch, *self.step_size(index, rate)), None

            def thinned(state: Any, first: Array) -> tuple[Any, Array]:
                state, _ = jax.lax.scan(step, state, first + jnp.arange(self.thinning))
                return state, state.position

            firsts = jnp.arange(self.num_steps // self.thinning) * self.thinning
            return jax.lax.scan(thinned, state, firsts)[1][positions_of_draws]

        positions = jax.vmap(chain)(jax.random.split(key, self.num_chains))  # [chains, draws, P]
        function = Partial(read_outputs, target.model)
        return Chains.of(target, positions, self.stats(target, task, positions), None, function)

    def stats(self, target: Target, task: Task, positions: Array) -> dict[str, Array]:
        """Log densities of draws [chains, draws, P], unless those cost far more than the chains."""
        (chains, draws, _), rows = positions.shape, task.x.shape[0]
        if chains * draws * rows > LOOKS * self.num_chains * self.num_steps * self.batch_size:
            return {}
        # Of few draws at once where data are many: each has hidden units for every row.
        at_once = max(1, ROWS_AT_ONCE // rows)
        flat = positions.reshape(-1, positions.shape[-1])
        log_density = jax.lax.map(target.log_density, flat, batch_size=at_once)
        return {"lp": log_density.reshape(chains, draws)}


class LangevinState(NamedTuple):
    """Position [P], momentum [P] and the running mean of squared gradients per datum [P]."""

    position: Array
    momentum: Array
    square: Array


@pytree_dataclass
class SGLD(StochasticGradientSampler):
    """Stochastic gradient Langevin dynamics: Welling and Teh, 2011.

    m ← μ m + √ε G^½ g + √(2 (1 - μ)) n,  θ ← θ + √ε G^½ m,  n ~ N(0, I), with g the gradient of the log
    posterior, estimated on a minibatch. With μ = 0 it is θ ← θ + ε G g + √(2 ε G) n. G is 1, or that of
    Li et al., 2016, "Preconditioned Stochastic Gradient Langevin Dynamics for Deep Neural Networks",
    whose Γ term is left out, as it is in their experiments.

    With `steady` 1 and μ > 0 this is the SGHMC of Chen et al. as URSABench writes it (Vadera et al., 2020):
    with v = √ε m and learning rate η = ε T, v ← μ v - η ∂U/∂θ / T + noise, U the negative log posterior.

    Args:
        momentum: μ, 0 or say 0.9.
        preconditioner: "none" or "rmsprop".
        cold: whether p(θ | y)^T is sampled, at temperature 1 / T, as URSABench does: noise is √T times less.
    """

    revision: ClassVar[int] = 1
    momentum: float = 0.0
    preconditioner: str = "none"
    name: str = "sgld"
    cold: bool = field(default=False, metadata={SINCE: "0.6.0"})
    sweep: ClassVar[Sweep] = (
        {
            "learning_rate": (1e-4, 5e-4, 1e-3, 5e-3),
            "prior_variance": (0.05, 0.1, 0.2, 0.3),
            "momentum": (0.0, 0.9),
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "momentum", BELOW_ONE)
        check_choice(self, "preconditioner", PRECONDITIONERS)

    def init(self, key: Array, position: Array) -> LangevinState:
        return LangevinState(position, jnp.zeros_like(position), jnp.zeros_like(position))

    def kernel(self, gradient: Gradient, num_train: Any) -> Kernel:
        temperature = 1.0 / num_train if self.cold else 1.0

        def step(key: Array, state: LangevinState, batch: Batch, rate: Array, noise: Array) -> LangevinState:
            slope = gradient(state.position, batch)
            root, square = jnp.sqrt(rate), state.square
            if self.preconditioner == "rmsprop":
                square = 0.99 * square + 0.01 * (slope / num_train) ** 2
                root = root / jnp.sqrt(1e-5 + jnp.sqrt(square))
            normal = jax.random.normal(key, slope.shape)
            spread = noise * jnp.sqrt(2.0 * (1.0 - self.momentum) * temperature)
            momentum = self.momentum * state.momentum + root * slope + spread * normal
            return LangevinState(state.position + root * momentum, momentum, square)

        return step


class Position(NamedTuple):
    """The state of a kernel that has no memory but its position [P]."""

    position: Array


@pytree_dataclass
class SGHMC(StochasticGradientSampler):
    """Stochastic gradient Hamiltonian Monte Carlo: Chen, Fox and Guestrin, 2014; BlackJAX's kernel.

    A transition of `num_leapfrog` steps, each of size √ε, starts from a new momentum and has one
    minibatch. The kernel is Euler's, which heats a direction of curvature Λ at the rate √ε Λ / 2: the
    friction must be well above that, which is why ε falls like 1 / T² beyond `steady` data.

    Args:
        friction: α; a step keeps 1 - α √ε of the momentum.
        num_leapfrog: steps of a transition.
    """

    revision: ClassVar[int] = 1
    friction: float = 10.0
    num_leapfrog: int = 10
    steady: float = 100.0
    stiffness: ClassVar[float] = 2.0
    num_steps: int = 50_000
    burn_in: int = 10_000
    thinning: int = 100
    name: str = "sghmc"

    def init(self, key: Array, position: Array) -> Position:
        return Position(position)

    def kernel(self, gradient: Gradient, num_train: Any) -> Kernel:
        kernel = blackjax.sgmcmc.sghmc.build_kernel(self.friction)

        def step(key: Array, state: Position, batch: Batch, rate: Array, noise: Array) -> Position:
            arguments = (key, state.position, gradient, batch, jnp.sqrt(rate), self.num_leapfrog, noise)
            return Position(kernel(*arguments))

        return step


@pytree_dataclass
class SGNHT(StochasticGradientSampler):
    """The stochastic gradient Nosé-Hoover thermostat: Ding et al., 2014; BlackJAX's kernel.

    Its step is √ε; the thermostat learns how much friction the noise of the minibatches needs. As in `SGHMC`,
    the kernel is Euler's, and ε falls like 1 / T².

    Args:
        friction: α, of the injected noise, and the thermostat's start.
    """

    revision: ClassVar[int] = 1
    friction: float = 10.0
    steady: float = 100.0
    stiffness: ClassVar[float] = 2.0
    name: str = "sgnht"

    def init(self, key: Array, position: Array) -> Any:
        return blackjax.sgmcmc.sgnht.init(position, key, jnp.asarray(self.friction))

    def kernel(self, gradient: Gradient, num_train: Any) -> Kernel:
        kernel = blackjax.sgmcmc.sgnht.build_kernel(self.friction)

        def step(key: Array, state: Any, batch: Batch, rate: Array, noise: Array) -> Any:
            return kernel(key, state, gradient, batch, jnp.sqrt(rate), noise)

        return step
