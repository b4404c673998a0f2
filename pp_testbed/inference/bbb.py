"""Bayes by backprop: independent normals for the weights of the agent's network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax.tree_util import Partial
from numpyro.infer import TraceMeanField_ELBO

from pp_testbed.inference.map_ensemble import Agent, agent_of
from pp_testbed.inference.options import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Sweep,
    at_once,
    check_choice,
    check_positive,
    check_within,
)
from pp_testbed.inference.posterior import Sampled
from pp_testbed.inference.svi import Trainable, Training
from pp_testbed.models.base import Array, Params, Task, observe, pytree_dataclass, weigh
from pp_testbed.models.networks import BayesianNetwork

PRIORS = ("gaussian", "mixture")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WeightPrior:
    """The network with priors whose log densities, like the guide's, count `kl_weight` times.

    w ~ N(0, σ₁²), or π N(0, σ₁²) + (1 - π) N(0, σ₂²) for each weight.
    """

    agent: BayesianNetwork
    sigma: Any
    sigma_2: Any
    mixture_weight: Any
    kl_weight: Any
    prior: str = field(metadata={"static": True})

    def __call__(self, x: Array, y: Array | None = None) -> Array:
        shapes = jax.eval_shape(self.agent.start, jax.random.key(0))
        with weigh(self.kl_weight):
            params = {
                name: numpyro.sample(name, self.distribution(name, leaf.shape))
                for name, leaf in shapes.items()
            }
        return observe(self.agent.network(params, x), y, likelihood=self.agent.likelihood)

    def distribution(self, name: str, shape: tuple[int, ...]) -> Any:
        """The prior of a site: of a weight, or of what a network has besides, which is the likelihood's."""
        noise = self.agent.likelihood.noise
        if name in noise:
            return dist.Normal(*noise[name]).expand(shape).to_event(len(shape))
        one = dist.Normal(0.0, self.sigma).expand(shape)
        if self.prior == "gaussian":
            return one.to_event(len(shape))
        shares = jnp.stack([self.mixture_weight, 1.0 - self.mixture_weight])
        scales = jnp.broadcast_to(jnp.stack([self.sigma, self.sigma_2]), (*shape, 2))
        mixing = dist.Categorical(probs=jnp.broadcast_to(shares, (*shape, 2)))
        return dist.MixtureSameFamily(mixing, dist.Normal(0.0, scales)).to_event(len(shape))


@pytree_dataclass
class BayesByBackprop(Agent, Trainable):
    """Mean-field variational inference: Blundell et al., 2015, "Weight Uncertainty in Neural Networks".

    q(w) = N(m, softplus(r)²), independently, minimises E_q[mean cross-entropy] + κ KL(q ‖ p) / T with
    κ = kl_weight, times d √rho where `adaptive_kl`, but for real data. A Gaussian prior's KL is in closed
    form, a scale mixture's is sampled.

    Args:
        sigma: σ₁.
        sigma_2: σ₂.
        mixture_weight: π, of the first component.
        prior: "gaussian" or "mixture".
        kl_weight, adaptive_kl: κ.
        start_scale: of q.
        particles: draws per step.
    """

    revision: ClassVar[int] = 2  # 1 took the noise of numbers for a weight
    sigma: float = 1.0
    sigma_2: float = 0.75
    mixture_weight: float = 1.0
    prior: str = "gaussian"
    kl_weight: float = 1.0
    adaptive_kl: bool = True
    start_scale: float = 0.01
    particles: int = 8
    learning_rate: float = 3e-3
    name: str = "bbb"
    sweep: ClassVar[Sweep] = (
        {"sigma": (0.3, 0.5, 0.7, 1.0, 2.0, 4.0), "learning_rate": (1e-3, 3e-3), "num_steps": (1000, 2000)},
        {"hidden": ((50, 50), (50, 50, 50), (100, 100), (100, 100, 100))},
        {"adaptive_kl": (True, False)},
        {
            "prior": ("mixture",),
            "sigma": (1.0, 2.0, 4.0),
            "sigma_2": (0.3, 0.5, 0.7),
            "mixture_weight": (0.0, 0.5, 1.0),
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "particles")
        check_choice(self, "prior", PRIORS)
        for option in ("sigma", "sigma_2", "start_scale"):
            check_within(self, option, POSITIVE)
        check_within(self, "kl_weight", NOT_NEGATIVE)
        check_within(self, "mixture_weight", SHARE)

    @property
    def problems_at_once(self) -> int:
        return at_once(self.particles)

    def in_dimensions(self, input_dim: int) -> Self:
        """It, as it acts in a bandit of so many dimensions: with the weight of the prior of two."""
        return replace(self, kl_weight=self.kl_weight * 2.0 / input_dim) if self.adaptive_kl else self

    def agent(self, task: Task) -> BayesianNetwork:
        """The network."""
        return agent_of(task, self.hidden, self.sigma, self.network)

    def parts(self, key_start: Array, key_frozen: Array, task: Task) -> Params:
        return self.agent(task).start(key_start)

    def training(self, parts: Params, task: Task) -> Training:
        kl_weight = self.kl_weight * (task.decay if self.adaptive_kl else 1.0)
        model = WeightPrior(
            self.agent(task), self.sigma, self.sigma_2, self.mixture_weight, kl_weight, self.prior
        )

        def guide(x: Array, y: Array | None = None) -> None:  # noqa: ARG001
            with weigh(kl_weight):
                for name, value in sorted(parts.items()):  # in the model's order, as NumPyro wants it
                    loc = numpyro.param(name + "_loc", value)
                    scale = numpyro.param(
                        name + "_scale",
                        jnp.full(value.shape, self.start_scale),
                        constraint=dist.constraints.softplus_positive,
                    )
                    numpyro.sample(name, dist.Normal(loc, scale).to_event(value.ndim))

        optimizer, loss = optax.adam(self.learning_rate), TraceMeanField_ELBO(self.particles)
        return Training(model, guide, optimizer, loss, self.batch_size)

    def posterior(self, parts: Params, params: Params, task: Task) -> Sampled:
        return Sampled(Partial(BayesianNetwork.network, self.agent(task)), Partial(draw_normals, params))


def draw_normals(params: Params, key: Array) -> Params:
    """One draw of independent normals, from their `_loc` and `_scale`."""
    names = [name.removesuffix("_loc") for name in params if name.endswith("_loc")]
    return {
        name: dist.Normal(params[name + "_loc"], params[name + "_scale"]).sample(k)
        for name, k in zip(names, jax.random.split(key, len(names)), strict=True)
    }
