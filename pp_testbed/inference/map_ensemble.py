"""Maximum a posteriori networks: one, an ensemble of them, and an ensemble with prior functions.

Each member is a Delta guide over the agent's network, fitted by the engine of `svi`; members differ
by their start, minibatches, bootstrap and prior function. A Delta guide's ELBO is the log joint,
whose maximum is the MAP; with N(0, v) priors that is a network with weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax.tree_util import Partial
from numpyro.infer import Trace_ELBO

from pp_testbed.engine.identity import SINCE
from pp_testbed.errors import UsageError
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
from pp_testbed.inference.posterior import Finite
from pp_testbed.inference.svi import Learner, Trainable, Training, fit
from pp_testbed.models.base import (
    Array,
    Model,
    Params,
    Task,
    likelihood_of,
    observe,
    pytree_dataclass,
    read_outputs,
    sample_latents,
)
from pp_testbed.models.networks import MLP, BayesianNetwork, Network

BOOTSTRAPS: dict[str, Callable[[Array, int], Array]] = {
    "none": lambda key, num: jnp.ones(num),
    "bernoulli": lambda key, num: 2.0 * jax.random.bernoulli(key, 0.5, (num,)),
    "exponential": lambda key, num: jax.random.exponential(key, (num,)),
}
OPTIMIZERS: dict[str, Callable[[Any, Any], optax.GradientTransformation]] = {
    "adam": lambda rate, momentum: optax.adam(rate),
    "sgd": optax.sgd,
}
MOMENTUM = 0.9  # of SGD, if no other is given
MEMBERS_AT_ONCE = 100  # a larger ensemble would stream its parameters through memory


def one_cycle(rate: Any, num_steps: int) -> optax.Schedule:
    """Up to a rate, which JAX may trace, and down again."""
    shape = optax.cosine_onecycle_schedule(num_steps, 1.0)
    return lambda step: rate * shape(step)


SCHEDULES: dict[str, Callable[[Any, int], Any]] = {  # of the largest rate, and how many steps there are
    "constant": lambda rate, num_steps: rate,
    "cosine": lambda rate, num_steps: optax.cosine_decay_schedule(rate, num_steps, alpha=0.01),
    "one-cycle": one_cycle,
}


def delta_guide(start: Params, index: Callable[[], Any] = lambda: None) -> Callable[..., None]:
    """A guide that puts all mass on one point, a parameter for each site of `start`.

    What `index` samples is sampled too.
    """

    def guide(x: Array, y: Array | None = None) -> None:  # noqa: ARG001
        for name, value in start.items():
            point = numpyro.param(name + "_point", value)
            numpyro.sample(name, dist.Delta(point, event_dim=value.ndim))
        index()

    return guide


@pytree_dataclass
class Agent:
    """What the testbed's agents share: a network, and Adam.

    Args:
        hidden: units of each hidden layer; () is logistic regression.
        network: any other network, of `models.networks`, instead of a perceptron.
        num_steps, batch_size, learning_rate: of Adam; the whole data where T <= batch_size.
    """

    hidden: tuple[int, ...] = (50, 50)
    num_steps: int = 1000
    batch_size: int = 100
    learning_rate: float = 1e-3
    name: str = ""
    network: Network | None = field(default=None, metadata={SINCE: "0.5.0"})
    weighs_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "num_steps", "batch_size")
        check_within(self, "learning_rate", POSITIVE)
        if self.network is not None and not hasattr(self.network, "apply"):
            raise UsageError(
                f"network is {self.network!r}; expected one of models.networks, such as pt.MLP(2, (50,), 2)"
            )

    @property
    def problems_at_once(self) -> int:
        return at_once(1)

    @property
    def acting(self) -> dict[str, Any]:
        """What differs in bandits: minibatches as published."""
        return {"batch_size": 128}


def agent_of(
    task: Task, hidden: tuple[int, ...], prior_sd: Any, network: Network | None = None
) -> BayesianNetwork:
    """A network for a task: the one that is given, the task's own, or a perceptron of so many units.

    What is linear, of no hidden layers, stays so whatever the task's own network is.
    """
    given = network or (task.network if hidden else None)
    if given:
        check_network_of(given, task)
    function = given or MLP(task.input_dim, hidden, task.num_outputs)
    return BayesianNetwork(function, prior_sd, likelihood=task.likelihood)


def check_network_of(network: Network, task: Task) -> None:
    """Raise a UsageError unless a network has the inputs and the outputs of a task."""
    x = jax.ShapeDtypeStruct((1, task.input_dim), jnp.float32)
    try:
        found = jax.eval_shape(network.apply, jax.eval_shape(network.init, jax.random.key(0)), x).shape
    except UsageError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"the network cannot be run on inputs [1, {task.input_dim}]: {first}") from error
    if found != (1, task.num_outputs):
        raise UsageError(
            f"the network's outputs at 1 input have shape {found}; expected (1, {task.num_outputs})"
        )


@pytree_dataclass
class Trained(Agent):
    """An agent that is trained with weight decay.

    Training minimises mean cross-entropy + c ‖θ‖² with c = l2 √rho d / T, or c = l2 / T of real data and
    where not `adaptive_l2`: the MAP under θ ~ N(0, 1 / (2 c T)).

    Args:
        l2: λ.
        optimizer: "adam", or "sgd" with `momentum`.
        schedule: of the learning rate: "constant"; "cosine", to a hundredth of it in `num_steps`; or
            "one-cycle", from a 25th up to it and down to nothing: Smith and Topin, 2019, "Super-Convergence".
    """

    l2: float = 1.0
    adaptive_l2: bool = True
    optimizer: str = field(default="adam", metadata={SINCE: "0.6.0"})
    momentum: float = field(default=MOMENTUM, metadata={SINCE: "0.6.0"})
    schedule: str = field(default="constant", metadata={SINCE: "0.6.0"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "l2", POSITIVE)
        check_within(self, "momentum", BELOW_ONE)
        check_choice(self, "optimizer", OPTIMIZERS)
        if self.optimizer == "adam" and isinstance(self.momentum, float) and self.momentum != MOMENTUM:
            raise UsageError(f"{self.name}.momentum={self.momentum}: adam has none; set optimizer=sgd")
        check_choice(self, "schedule", SCHEDULES)

    def in_dimensions(self, input_dim: int) -> Self:
        """It, as it acts in a bandit of so many dimensions: with the prior of two, λ 2 √rho / t at time t."""
        return replace(self, l2=self.l2 * 2.0 / input_dim) if self.adaptive_l2 else self

    def agent(self, task: Task) -> BayesianNetwork:
        """The network and its prior."""
        decay = self.l2 * (task.decay if self.adaptive_l2 else 1.0)
        prior_sd: Any = jnp.sqrt(0.5 / decay)
        return agent_of(task, self.hidden, prior_sd, self.network)

    def map_training(
        self,
        model: Any,
        start: Params,
        *,
        index: Callable[[], Any] = lambda: None,
        particles: int = 1,
        row_weights: Array | None = None,
    ) -> Training:
        """What finds the MAP of the sites of `start`.

        Args:
            model: whose sites are those of `start`, and those that `index` samples.
            index: a program that samples the model's other sites from their prior, over which the
                loss is averaged, with so many `particles` a step.
            row_weights: of each row in the likelihood [P]; 1 if None.
        """
        guide, loss = delta_guide(start, index), Trace_ELBO(particles)
        rate = SCHEDULES[self.schedule](self.learning_rate, self.num_steps)
        optimizer = OPTIMIZERS[self.optimizer](rate, self.momentum)
        return Training(model, guide, optimizer, loss, self.batch_size, row_weights)

    def train_one(self, key: Array, agent: BayesianNetwork, task: Task) -> tuple[Params, Array]:
        """The parameters of one network, trained from a random start, and the loss curve."""
        key_start, key_train, _ = jax.random.split(key, 3)
        training = self.map_training(agent, agent.start(key_start))
        fitted = fit(key_train, training, task, self.num_steps)
        return points(fitted.params), fitted.losses


def points(params: Params) -> Params:
    """The sites that a `delta_guide` with these parameters puts its mass on."""
    return {name.removesuffix("_point"): value for name, value in params.items()}


@pytree_dataclass
class Ensemble(Trained, Trainable):
    """Independently trained networks with equal weights; `mlp` is an ensemble of one.

    Lakshminarayanan et al., 2017, "Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles". Each member is trained as `Trained` says, from its own start.

    Args:
        size: members.

    Examples:
        >>> Ensemble(size=30, l2=10.0).size
        30
    """

    revision: ClassVar[int] = 1
    size: int = 100
    name: str = "ensemble"
    sweep: ClassVar[Sweep] = (
        {"l2": tuple(10.0**power for power in range(-4, 3)), "adaptive_l2": (True, False)},
        {"size": (1, 3, 10, 30, 100)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "size")

    @property
    def problems_at_once(self) -> int:
        return at_once(min(self.size, MEMBERS_AT_ONCE))

    @property
    def acting(self) -> dict[str, Any]:
        """What differs in bandits: as many members as two cores can train at every step."""
        return super().acting | {"size": min(self.size, 30)}

    def parts(self, key_start: Array, key_frozen: Array, task: Task) -> Any:
        """Of one member."""
        return {"start": self.agent(task).start(key_start)}

    def training(self, parts: Any, task: Task) -> Training:
        return self.map_training(self.agent(task), parts["start"])

    def posterior(self, parts: Any, params: Params, task: Task) -> Finite:
        """Of all members, parts and parameters with a leading axis [size]."""
        return Finite.equal(Partial(BayesianNetwork.network, self.agent(task)), points(params))

    @compiled
    def fit(self, key: Array, task: Task) -> Finite:
        parts, fitted = map_members(lambda key: self.train(key, task), key, self.size)
        return replace(self.posterior(parts, fitted.params, task), losses=fitted.losses)

    def begin(self, key: Array, task: Task) -> Learner:
        begin = partial(Trainable.begin, self, task=task)
        return jax.vmap(begin)(jax.random.split(key, self.size))

    def learn(self, key: Array, learner: Learner, task: Task) -> Learner:
        learn = partial(Trainable.learn, self, task=task)
        return jax.vmap(learn)(jax.random.split(key, self.size), learner)

    def params(self, learner: Learner, task: Task) -> Params:
        return jax.vmap(partial(Trainable.params, self, task=task))(learner)


def map_members(member: Callable[[Array], Any], key: Array, size: int) -> Any:
    """Train members in parallel, at most `MEMBERS_AT_ONCE` together: leaves [size, ...]."""
    return jax.lax.map(member, jax.random.split(key, size), batch_size=min(size, MEMBERS_AT_ONCE))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdditivePrior:
    """A network plus a frozen function: values(x) = network(x; θ) + scale · g(x; frozen).

    Attributes:
        agent: the network.
        prior: g, a pytree callable `(frozen, x [N, d]) -> [N, K]`.
        frozen: what g is given, in training; in `network` it is the draw's own.
    """

    agent: BayesianNetwork
    prior: Partial
    scale: Any
    frozen: Any = None

    def __call__(self, x: Array, y: Array | None = None) -> Array:
        outputs = self.network({"theta": self.agent.params(), "frozen": self.frozen}, x)
        return observe(outputs, y, likelihood=self.agent.likelihood)

    def network(self, params: dict[str, Any], x: Array) -> Array:
        """Outputs [N, D] at x [N, d]; the frozen part is one of the draw's."""
        theta, prior = params["theta"], self.prior(params["frozen"], x)
        return self.agent.likelihood.with_noise(self.agent.values(theta, x) + self.scale * prior, theta)


def undivided_logits(model: Model, latents: Params, x: Array) -> Array:
    """What the generative network computes [N, K], before it is divided by the temperature; or locations."""
    return model.temperature * likelihood_of(model).without_noise(read_outputs(model, latents, x))


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

    revision: ClassVar[int] = 1
    prior_scale: float = 3.0
    bootstrap: str = "none"
    name: str = "ensemble+"
    sweep: ClassVar[Sweep] = (
        {"l2": (0.1, 0.3, 1.0, 3.0, 10.0), "prior_scale": (0.3, 1.0, 3.0)},
        {"bootstrap": tuple(BOOTSTRAPS)},
        {"size": (1, 3, 10, 30, 100)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "bootstrap", BOOTSTRAPS)

    def draw_prior(self, key: Array, task: Task, agent: BayesianNetwork) -> Any:
        """What makes one prior function."""
        return sample_latents(task.model, task.x, task.y, key)

    def prior_function(self, task: Task, agent: BayesianNetwork) -> Partial:
        """A pytree callable, `(what draw_prior drew, x [N, d]) -> [N, K]`."""
        return Partial(undivided_logits, task.model)

    def additive(self, task: Task, frozen: Any = None) -> AdditivePrior:
        """The model of a member whose prior function is this."""
        agent = self.agent(task)
        scale = self.prior_scale / jnp.sqrt(task.temperature)
        return AdditivePrior(agent, self.prior_function(task, agent), scale, frozen)

    def parts(self, key_start: Array, key_frozen: Array, task: Task) -> Any:
        agent = self.agent(task)
        key_prior, key_bootstrap = jax.random.split(key_frozen)
        return {
            "start": agent.start(key_start),
            "frozen": self.draw_prior(key_prior, task, agent),
            "row_weights": BOOTSTRAPS[self.bootstrap](key_bootstrap, task.x.shape[0]),
        }

    def training(self, parts: Any, task: Task) -> Training:
        model = self.additive(task, parts["frozen"])
        return self.map_training(model, parts["start"], row_weights=parts["row_weights"])

    def posterior(self, parts: Any, params: Params, task: Task) -> Finite:
        draws = {"theta": points(params), "frozen": parts["frozen"]}
        return Finite.equal(Partial(AdditivePrior.network, self.additive(task)), draws)
