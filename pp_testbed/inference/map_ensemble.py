"""Maximum a posteriori networks: one, an ensemble of them, and an ensemble with prior functions.

Each member is a Delta guide over the agent's network, fitted by the engine of `svi`; members differ
by their start, minibatches, bootstrap and prior function. A Delta guide's ELBO is the log joint,
whose maximum is the MAP; with N(0, v) priors that is a network with weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax.tree_util import Partial
from numpyro.infer import Trace_ELBO

from pp_testbed.errors import unknown
from pp_testbed.inference.base import Finite, check_positive
from pp_testbed.inference.svi import fit
from pp_testbed.models.base import (
    Array,
    Model,
    Params,
    Task,
    observe,
    pytree_dataclass,
    read_logits,
    sample_latents,
)
from pp_testbed.models.mlp import AgentMLP

BOOTSTRAPS: dict[str, Callable[[Array, int], Array]] = {
    "none": lambda key, num: jnp.ones(num),
    "bernoulli": lambda key, num: 2.0 * jax.random.bernoulli(key, 0.5, (num,)),
    "exponential": lambda key, num: jax.random.exponential(key, (num,)),
}
MEMBERS_AT_ONCE = 100  # a larger ensemble would stream its parameters through memory


def delta_guide(start: Params) -> Callable[..., None]:
    """A guide that puts all mass on one point, a parameter for each site of `start`."""

    def guide(x: Array, y: Array | None = None) -> None:  # noqa: ARG001
        for name, value in start.items():
            point = numpyro.param(name + "_point", value)
            numpyro.sample(name, dist.Delta(point, event_dim=value.ndim))

    return guide


@pytree_dataclass
class Ensemble:
    """Independently trained networks with equal weights; `mlp` is an ensemble of one.

    Each member minimises mean cross-entropy + c ‖θ‖² with c = l2 √rho d / T, or c = l2 / T where not
    `adaptive_l2`: the MAP under θ ~ N(0, 1 / (2 c T)). Lakshminarayanan et al., 2017, "Simple and
    Scalable Predictive Uncertainty Estimation using Deep Ensembles".

    Args:
        size: members. l2: λ. hidden: units of each hidden layer; () is logistic regression.
        num_steps, batch_size, learning_rate: of Adam; the whole data where T <= batch_size.
    """

    size: int = 100
    l2: float = 1.0
    adaptive_l2: bool = True
    hidden: tuple[int, ...] = (50, 50)
    num_steps: int = 1000
    batch_size: int = 100
    learning_rate: float = 1e-3
    name: str = "ensemble"

    def __post_init__(self) -> None:
        check_positive(self, "size", "num_steps", "batch_size")

    @property
    def networks(self) -> int:
        """How many networks one fit trains together."""
        return min(self.size, MEMBERS_AT_ONCE)

    def agent(self, task: Task) -> AgentMLP:
        """The network and its prior."""
        decay = self.l2 * (jnp.sqrt(task.temperature) * task.input_dim if self.adaptive_l2 else 1.0)
        prior_sd: Any = jnp.sqrt(0.5 / decay)
        return AgentMLP(task.input_dim, task.num_classes, self.hidden, prior_sd)

    def fit(self, key: Array, task: Task) -> Finite:
        agent = self.agent(task)

        def member(key: Array) -> tuple[Params, Array]:
            key_start, key_train, _ = jax.random.split(key, 3)
            return self.train(key_train, agent, agent.start(key_start), task)

        params, losses = map_members(member, key, self.size)
        return Finite.equal(Partial(AgentMLP.network, agent), params, losses)

    def train(
        self, key: Array, model: Any, start: Params, task: Task, row_weights: Array | None = None
    ) -> tuple[Params, Array]:
        """The MAP of one member, and its loss curve."""
        result = fit(
            key,
            model,
            delta_guide(start),
            task,
            optimizer=optax.adam(self.learning_rate),
            loss=Trace_ELBO(),
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            row_weights=row_weights,
        )
        return {name: result.params[name + "_point"] for name in start}, result.losses


def map_members(member: Callable[[Array], Any], key: Array, size: int) -> Any:
    """Train members in parallel, at most `MEMBERS_AT_ONCE` together: leaves [size, ...]."""
    return jax.lax.map(member, jax.random.split(key, size), batch_size=min(size, MEMBERS_AT_ONCE))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdditivePrior:
    """A network plus a frozen function, a draw of the generative model's prior.

    logits(x) = network(x; θ) + scale · ρ · (the generative model's logits at x, given the draw).
    """

    agent: AgentMLP
    prior: Model
    scale: Any
    frozen: Params | None = None

    def __call__(self, x: Array, y: Array | None = None) -> Array:
        return observe(self.network({"theta": self.agent.params(), "frozen": self.frozen}, x), y)

    def network(self, params: dict[str, Any], x: Array) -> Array:
        """Logits [N, K] at x [N, d]; the frozen part is one of the draw's."""
        function = self.prior.temperature * read_logits(self.prior, params["frozen"], x)
        return self.agent.network(params["theta"], x) + self.scale * function


@pytree_dataclass
class EnsemblePlus(Ensemble):
    """An ensemble whose members each add a frozen random network, their prior function.

    Osband, Aslanides, Cassirer, 2018, "Randomized Prior Functions for Deep Reinforcement Learning".
    Each member is the MAP of its own model, whose logits are network(x; θ) + s · g(x), with g a frozen
    draw of the generative network, before division by rho, and s = prior_scale / √rho.

    Args:
        prior_scale: times 1/√rho, the scale of the prior function.
        bootstrap: weights of the data for each member: "none", "bernoulli" (0 or 2), "exponential".
    """

    prior_scale: float = 3.0
    bootstrap: str = "none"
    name: str = "ensemble+"

    def __post_init__(self) -> None:
        check_positive(self, "size", "num_steps", "batch_size")
        if self.bootstrap not in BOOTSTRAPS:
            raise unknown("bootstrap", self.bootstrap, BOOTSTRAPS)

    def fit(self, key: Array, task: Task) -> Finite:
        agent = self.agent(task)
        model = AdditivePrior(agent, task.model, self.prior_scale / jnp.sqrt(task.temperature))

        def member(key: Array) -> tuple[dict[str, Params], Array]:
            key_start, key_train, key_prior = jax.random.split(key, 3)
            key_frozen, key_bootstrap = jax.random.split(key_prior)
            frozen = sample_latents(task.model, task.x, task.y, key_frozen)
            row_weights = BOOTSTRAPS[self.bootstrap](key_bootstrap, task.x.shape[0])
            mine = replace(model, frozen=frozen)
            theta, losses = self.train(key_train, mine, agent.start(key_start), task, row_weights)
            return {"theta": theta, "frozen": frozen}, losses

        params, losses = map_members(member, key, self.size)
        return Finite.equal(Partial(AdditivePrior.network, model), params, losses)
