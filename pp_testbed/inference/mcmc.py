"""Markov chains on any NumPyro model: the target, the chains, and BlackJAX's full-batch samplers.

A sampler is a frozen dataclass with two methods, `warm_up` (a state and its tuned parameters) and
`step` (one transition of a BlackJAX kernel); `Sampler` does the rest. Samplers with minibatches are in
`sgmcmc`, which shares `Target` and `Chains`. What the chains are worth is for `evaluation.diagnostics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from numpyro import handlers
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from pp_testbed.engine.identity import SINCE
from pp_testbed.errors import UsageError
from pp_testbed.inference.options import POSITIVE, check_positive, check_within, compiled
from pp_testbed.inference.posterior import Finite, divisor
from pp_testbed.models.base import (
    Array,
    Params,
    Task,
    is_latent,
    pytree_dataclass,
    read_outputs,
    sample_latents,
    weighted,
)

Stats = dict[str, Array]
Step = Callable[[Array, Any], tuple[Any, Stats]]
STEP_SIZE = 0.1  # where none is tuned
TYPICAL_GRADIENTS = 100  # per draw of NUTS on the testbed, for progress bars


class Target(NamedTuple):
    """The posterior of a model's latent sites given a task's data, on unconstrained flat vectors [P].

    Attributes:
        model: a NumPyro model `(x, y)`.
        task: the data.
        likelihood_power: p(θ | y) ∝ p(y | θ)^power p(θ); 1 is Bayes.
    """

    model: Any
    task: Task
    likelihood_power: Any = 1.0

    def log_density(self, position: Array, batch: tuple[Array, Array, Array] | None = None) -> Array:
        """log p(y, θ) up to a constant, or its estimate on a batch `(x, y, weights)`."""
        data = self.task.distinct()
        x, y, weights = batch or (data.x, data.y, data.data_weights)
        arguments = (x, y, self.likelihood_power * weights)
        return -potential_energy(weighted(self.model), arguments, {}, self._unravel(position))

    def start(self, key: Array) -> Array:
        """A draw of the prior, [P]."""
        return ravel_pytree(self._draw(key))[0]

    def latents(self, position: Array) -> Params:
        """The latent sites, constrained, of a flat vector."""
        values = constrain_fn(self.model, (self.task.x, self.task.y), {}, self._unravel(position))
        return {name: values[name] for name in jax.eval_shape(self._draw, jax.random.key(0))}

    def _draw(self, key: Array) -> Params:
        """A draw of the prior, each site on the real line."""
        data = self.task.x, self.task.y
        return unconstrain_fn(self.model, data, {}, sample_latents(self.model, *data, key))

    def _unravel(self, position: Array) -> Params:
        shapes = jax.eval_shape(self._draw, jax.random.key(0))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return ravel_pytree(zeros)[1](position)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chains(Finite):
    """The draws of Markov chains: a finite posterior that is a sample of another one.

    `draws` has the leading axis [chains * draws], chain after chain.

    Attributes:
        stats: what each transition reported, under ArviZ's names: `lp`, `energy`, `diverging`, ...,
            [chains, draws].
        tuned: the state and parameters that the warm-up left, with a leading axis [chains]: a chain
            starts from it.
        task: what the chains were conditioned on.
        num_chains: how many chains the draws are of.
    """

    stats: Stats = field(default_factory=dict)
    tuned: Any = None
    task: Task | None = None
    num_chains: int = field(default=1, kw_only=True, metadata={"static": True})

    @classmethod
    def of(cls, target: Target, positions: Array, stats: Stats, tuned: Any, function: Partial) -> Chains:
        """Chains from flat positions [chains, draws, P]."""
        chains, num = positions.shape[0], positions.shape[0] * positions.shape[1]
        draws = jax.lax.map(target.latents, positions.reshape(num, -1), batch_size=100)
        num_groups = divisor("chains", num)
        log_weights = jnp.full(num, -jnp.log(num))
        return cls(
            function, draws, log_weights, None, num_groups, stats, tuned, target.task, num_chains=chains
        )

    def without_history(self) -> Finite:
        return Finite(self.function, self.draws, self.log_weights, None, self.num_groups)


@pytree_dataclass
class Sampler:
    """A full-batch sampler of the generative model's posterior (or of `model`'s).

    Args:
        num_chains: chains, each from its own draw of the prior.
        warmup: steps that tune the sampler and are not kept; with 0, step sizes stay at 0.1 (0.001 for
            MALA).
        num_draws: kept draws of each chain.
        thinning: transitions per kept draw.
        likelihood_power: 1 is Bayes' rule, anything else is wrong on purpose ("cold" posteriors).
        model: a NumPyro model `model(x, y=None)` with a `logits` site; the task's own if None.
    """

    num_chains: int = 4
    warmup: int = 500
    num_draws: int = 500
    thinning: int = 1
    likelihood_power: float = 1.0
    model: Any = None
    name: str = ""
    effort: ClassVar[float] = 100.0

    def __post_init__(self) -> None:
        check_positive(self, "num_chains", "num_draws", "thinning")
        if self.warmup < 0:
            raise UsageError(f"{self.name}.warmup={self.warmup}: expected 0 or more")
        divisor(self.name, self.num_chains * self.num_draws)

    @property
    def problems_at_once(self) -> int:
        """One problem at a time: chains of different problems would wait for the longest step."""
        return 1

    @property
    def acting(self) -> dict[str, Any]:
        """What differs in bandits: a short chain, run again and again."""
        return {"num_chains": 1, "warmup": 200, "num_draws": 100}

    @property
    def weighs_rows(self) -> bool:
        """Not for certain where a user's model sees the rows."""
        return self.model is None

    @property
    def num_steps(self) -> int:
        """Transitions of all chains, for progress bars."""
        return self.num_chains * (self.warmup + self.num_draws * self.thinning)

    def warm_up(self, key: Array, target: Target) -> tuple[Any, Any]:
        """A kernel's state after warm-up, and its tuned parameters by name."""
        raise NotImplementedError

    def step(self, target: Target, tuned: Any) -> Step:
        """One transition, `(key, state) -> (state, stats)`; a state has a `position`."""
        raise NotImplementedError

    def target(self, task: Task) -> Target:
        """The density that the chains sample."""
        model = task.model if self.model is None else Partial(self.model)
        return Target(model, task, self.likelihood_power)

    def chain_keys(self, key: Array) -> Array:
        """The key of each chain, [chains]."""
        return jax.random.split(key, self.num_chains)

    def chain(self, key: Array, target: Target) -> tuple[Array, Stats, Any]:
        """One chain: positions [draws, P], stats [draws], and where and how it started."""
        key_warmup, key_draws = jax.random.split(key)
        start = self.warm_up(key_warmup, target)
        return *self.continue_chain(key_draws, target, start, self.num_draws), start

    def continue_chain(self, key: Array, target: Target, start: Any, num_draws: int) -> tuple[Array, Stats]:
        """Positions [num_draws, P] and stats [num_draws] of a chain after its warm-up."""
        state, tuned = start
        step = self.step(target, tuned)

        def draw(state: Any, index: Array) -> tuple[Any, tuple[Array, Stats]]:
            keys = jax.random.split(jax.random.fold_in(key, index), self.thinning)
            state, stats = jax.lax.scan(lambda s, k: step(k, s), state, keys)
            return state, (state.position, self._of_draw(stats))

        return jax.lax.scan(draw, state, jnp.arange(num_draws))[1]

    def _of_draw(self, stats: Stats) -> Stats:
        """What is reported of a draw, from the statistics of its transitions [thinning]."""
        whole: dict[str, Any] = {"diverging": jnp.any, "n_steps": jnp.sum}
        # The energies of every tenth transition say nothing about the missing information of one.
        names = [name for name in stats if name != "energy" or self.thinning == 1]
        return {name: whole.get(name, lambda leaf: leaf[-1])(stats[name]) for name in names}

    @compiled
    def fit(self, key: Array, task: Task) -> Chains:
        return self.sample(key, self.target(task))

    def sample(self, key: Array, target: Target) -> Chains:
        """Chains on any target."""
        # One after another: under vmap all chains would wait for the longest trajectory.
        positions, stats, tuned = jax.lax.map(lambda k: self.chain(k, target), self.chain_keys(key))
        return self.posterior(target, positions, stats, tuned)

    def posterior(self, target: Target, positions: Array, stats: Stats, tuned: Any) -> Chains:
        """The chains' posterior, from positions [chains, draws, P]."""
        return Chains.of(target, positions, stats, tuned, Partial(read_outputs, target.model))


@pytree_dataclass
class NUTS(Sampler):
    """The no-U-turn sampler: Hoffman and Gelman, 2014. Stan's window adaptation, diagonal mass matrix.

    Attributes:
        target_acceptance: of the step size adaptation.
        max_depth: doublings of a trajectory.
    """

    revision: ClassVar[int] = 1
    target_acceptance: float = 0.8
    max_depth: int = 10
    name: str = "nuts"

    @property
    def num_steps(self) -> int:
        return TYPICAL_GRADIENTS * self.num_chains * (self.warmup + self.num_draws * self.thinning)

    def warm_up(self, key: Array, target: Target) -> tuple[Any, Any]:
        options = {"max_num_doublings": self.max_depth}
        state, tuned = adapt(key, target, blackjax.nuts, self.warmup, self.target_acceptance, options)
        return state, {name: tuned[name] for name in ("step_size", "inverse_mass_matrix")}

    def step(self, target: Target, tuned: Any) -> Step:
        kernel = blackjax.nuts.build_kernel()

        def step(key: Array, state: Any) -> tuple[Any, Stats]:
            state, info = kernel(key, state, target.log_density, max_num_doublings=self.max_depth, **tuned)
            return state, {
                "lp": state.logdensity,
                "energy": info.energy,
                "diverging": info.is_divergent,
                "acceptance_rate": info.acceptance_rate,
                "n_steps": info.num_integration_steps,
                "tree_depth": info.num_trajectory_expansions,
            }

        return step


@pytree_dataclass
class HMC(Sampler):
    """Hamiltonian Monte Carlo with a fixed number of leapfrog steps: Duane et al., 1987; Neal, 2011.

    Args:
        target_acceptance: of the step size adaptation.
        num_leapfrog: steps of a trajectory.
        adapts: whether step and mass are tuned in the warm-up; if not, that is burn-in, and the mass is 1.
        step_size: the mean one of a sampler that does not adapt.
    """

    revision: ClassVar[int] = 1
    target_acceptance: float = 0.8
    num_leapfrog: int = 50
    name: str = "hmc"
    adapts: bool = field(default=True, metadata={SINCE: "0.6.0"})
    step_size: float = field(default=STEP_SIZE, metadata={SINCE: "0.6.0"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "step_size", POSITIVE)
        if self.adapts and isinstance(self.step_size, float) and self.step_size != STEP_SIZE:
            raise UsageError(f"{self.name}.step_size={self.step_size}: it is tuned, unless adapts=False")

    @property
    def num_steps(self) -> int:
        return self.num_leapfrog * self.num_chains * (self.warmup + self.num_draws * self.thinning)

    def warm_up(self, key: Array, target: Target) -> tuple[Any, Any]:
        if not self.adapts:
            return self._burn_in(key, target)
        options = {"num_integration_steps": self.num_leapfrog}
        state, tuned = adapt(key, target, blackjax.hmc, self.warmup, self.target_acceptance, options)
        return state, {name: tuned[name] for name in ("step_size", "inverse_mass_matrix")}

    def _burn_in(self, key: Array, target: Target) -> tuple[Any, Any]:
        key_start, key_steps = jax.random.split(key)
        position = target.start(key_start)
        tuned = {"step_size": jnp.asarray(self.step_size), "inverse_mass_matrix": jnp.ones_like(position)}
        step, state = self.step(target, tuned), blackjax.hmc.init(position, target.log_density)
        keys = jax.random.split(key_steps, self.warmup)
        return jax.lax.scan(lambda state, key: (step(key, state)[0], None), state, keys)[0], tuned

    def step(self, target: Target, tuned: Any) -> Step:
        kernel = blackjax.hmc.build_kernel()

        def step(key: Array, state: Any) -> tuple[Any, Stats]:
            # A trajectory of fixed length is resonant with normal targets: jitter the step.
            key_jitter, key_step = jax.random.split(key)
            jitter = jax.random.uniform(key_jitter, minval=0.8, maxval=1.2)
            jittered = tuned | {"step_size": tuned["step_size"] * jitter}
            state, info = kernel(
                key_step, state, target.log_density, num_integration_steps=self.num_leapfrog, **jittered
            )
            return state, {
                "lp": state.logdensity,
                "energy": info.energy,
                "diverging": info.is_divergent,
                "acceptance_rate": info.acceptance_rate,
                "n_steps": info.num_integration_steps,
            }

        return step


def adapt(
    key: Array, target: Target, algorithm: Any, num_steps: int, acceptance: Any, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Stan's warm-up from a draw of the prior: the state, step size and inverse mass matrix [P]."""
    key_start, key_adapt = jax.random.split(key)
    position = target.start(key_start)
    if num_steps == 0:
        tuned = {"step_size": jnp.asarray(STEP_SIZE), "inverse_mass_matrix": jnp.ones_like(position)}
        return algorithm.init(position, target.log_density), tuned
    adaptation = blackjax.window_adaptation(
        algorithm,
        target.log_density,
        target_acceptance_rate=acceptance,
        adaptation_info_fn=lambda *_: None,
        **options,
    )
    (state, tuned), _ = adaptation.run(key_adapt, position, num_steps)
    return state, tuned


@pytree_dataclass
class MALA(Sampler):
    """The Metropolis-adjusted Langevin algorithm: Roberts and Tweedie, 1996.

    The step size is tuned to `target_acceptance` by stochastic approximation, then held.
    """

    revision: ClassVar[int] = 1
    target_acceptance: float = 0.57
    warmup: int = 2000
    thinning: int = 100
    name: str = "mala"

    def warm_up(self, key: Array, target: Target) -> tuple[Any, Any]:
        kernel = blackjax.mala.build_kernel()
        key_start, key_tune = jax.random.split(key)
        state = blackjax.mala.init(target.start(key_start), target.log_density)

        def tune(carry: tuple[Any, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Any, Array], None]:
            (state, log_step), (index, key) = carry, inputs
            state, info = kernel(key, state, target.log_density, jnp.exp(log_step))
            # Robbins-Monro: the step of the logarithm falls like index^-0.6.
            gain = 2.0 * (index + 1.0) ** -0.6
            return (state, log_step + gain * (info.acceptance_rate - self.target_acceptance)), None

        keys = jax.random.split(key_tune, self.warmup)
        carry = state, jnp.log(1e-3)
        (state, log_step), _ = jax.lax.scan(tune, carry, (jnp.arange(self.warmup), keys))
        return state, {"step_size": jnp.exp(log_step)}

    def step(self, target: Target, tuned: Any) -> Step:
        kernel = blackjax.mala.build_kernel()

        def step(key: Array, state: Any) -> tuple[Any, Stats]:
            state, info = kernel(key, state, target.log_density, **tuned)
            return state, {"lp": state.logdensity, "acceptance_rate": info.acceptance_rate}

        return step


@pytree_dataclass
class MCLMC(Sampler):
    """Microcanonical Langevin Monte Carlo, unadjusted: Robnik et al., 2023.

    L and the step size are tuned by BlackJAX to `energy_variance` per dimension, which bounds the
    bias that the missing Metropolis step leaves.
    """

    revision: ClassVar[int] = 1
    energy_variance: float = 5e-4
    warmup: int = 2000
    thinning: int = 20
    name: str = "mclmc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup < 20:
            raise UsageError(f"{self.name}.warmup={self.warmup}: expected at least 20, to tune L")

    def warm_up(self, key: Array, target: Target) -> tuple[Any, Any]:
        key_start, key_tune = jax.random.split(key)
        return self.tune(key_tune, target, target.start(key_start))

    def tune(self, key: Array, target: Target, position: Array) -> tuple[Any, Any]:
        """The state after tuning steps from a position [P], and the L and step size that they found."""
        key_init, key_tune = jax.random.split(key)
        state = blackjax.mcmc.mclmc.init(position, target.log_density, key_init)
        state, tuned, _ = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=blackjax.mcmc.mclmc.build_kernel(),
            num_steps=self.warmup,
            state=state,
            rng_key=key_tune,
            logdensity_fn=target.log_density,
            frac_tune1=0.4,
            frac_tune2=0.4,
            frac_tune3=0.2,
            desired_energy_var=self.energy_variance,
            diagonal_preconditioning=False,
        )
        return state, tuned._asdict()

    def step(self, target: Target, tuned: Any) -> Step:
        kernel = blackjax.mcmc.mclmc.build_kernel()

        def step(key: Array, state: Any) -> tuple[Any, Stats]:
            state, info = kernel(key, state, target.log_density, **tuned)
            return state, {"lp": info.logdensity, "energy_change": info.energy_change}

        return step


@pytree_dataclass
class EllipticalSlice(Sampler):
    """Elliptical slice sampling, for models whose prior is normal: Murray et al., 2010."""

    revision: ClassVar[int] = 1
    warmup: int = 5000
    thinning: int = 100
    name: str = "elliptical-slice"

    def _kernel(self, target: Target) -> tuple[Any, Callable[[Array], Array]]:
        mean, variance = normal_prior(target)

        def log_likelihood(position: Array) -> Array:
            log_prior = -0.5 * ((position - mean) ** 2 / variance).sum()
            return target.log_density(position) - log_prior

        return blackjax.mcmc.elliptical_slice.build_kernel(variance, mean), log_likelihood

    def warm_up(self, key: Array, target: Target) -> tuple[Any, Any]:
        kernel, log_likelihood = self._kernel(target)
        key_start, key_steps = jax.random.split(key)
        state = blackjax.mcmc.elliptical_slice.init(target.start(key_start), log_likelihood)

        def step(state: Any, key: Array) -> tuple[Any, None]:
            return kernel(key, state, log_likelihood)[0], None

        return jax.lax.scan(step, state, jax.random.split(key_steps, self.warmup))[0], {}

    def step(self, target: Target, tuned: Any) -> Step:
        kernel, log_likelihood = self._kernel(target)

        def step(key: Array, state: Any) -> tuple[Any, Stats]:
            state, info = kernel(key, state, log_likelihood)
            return state, {"lp": target.log_density(state.position), "n_steps": info.subiter}

        return step


def normal_prior(target: Target) -> tuple[Array, Array]:
    """Mean [P] and variance [P] of a prior of independent normals; a UsageError for any other.

    Elliptical slice sampling needs it, and so do Laplace's method and subspaces.
    """
    seeded = handlers.seed(target.model, jax.random.key(0))
    trace = handlers.trace(seeded).get_trace(target.task.x, target.task.y)
    moments: dict[str, tuple[Array, Array]] = {}
    for name, site in trace.items():
        if not is_latent(site):
            continue
        base = site["fn"]
        while type(base).__name__ in ("Independent", "ExpandedDistribution"):
            base = base.base_dist
        if type(base).__name__ != "Normal":
            raise UsageError(
                f"this method needs independent normal priors; site {name} is {type(base).__name__}"
            )
        shape = site["value"].shape
        moments[name] = jnp.broadcast_to(site["fn"].mean, shape), jnp.broadcast_to(site["fn"].variance, shape)
    mean, variance = ({name: pair[i] for name, pair in moments.items()} for i in (0, 1))
    return ravel_pytree(mean)[0], ravel_pytree(variance)[0]
