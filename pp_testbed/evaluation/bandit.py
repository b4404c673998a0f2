"""The neural bandit: what a posterior is worth when it is acted on.

There are N actions, vectors in R^d. The reward of an action a is 1 with probability p(y = 1 | a) under an
environment, and 0 else. An agent sees the rewards of the actions that it took, and is judged by its
regret, max_a p(a) - p(its action), summed over time. Osband et al., 2022, "The Neural Testbed".

Here is the loop, a pure function of its state. Which bandits are run, in which processes, and where
results are kept, is in `studies.bandits`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from pp_testbed.errors import UsageError, unknown
from pp_testbed.inference.posterior import Finite, Posterior
from pp_testbed.models.base import Array, Environment, Model, Task, pytree_dataclass

CAPACITY = 10_000  # observations that are kept for training


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class History(Task):
    """What an agent has seen: the last P observations, and how often each action had each label.

    Attributes:
        x, y: a ring buffer, [P, d] and [P].
        num_train: T, all observations, which can be more than P; 1 while there is none, so that what is
            divided by it is finite: `data_weights` say that there is none.
        actions: [N, d].
        counts: of labels 0 and 1 for each action, since the beginning, [N, 2].
    """

    actions: Array
    counts: Array

    @classmethod
    def empty(cls, model: Model, actions: Array, capacity: int = CAPACITY) -> History:
        """Before the first action."""
        num, dim = actions.shape
        x, y = jnp.zeros((capacity, dim)), jnp.zeros(capacity, dtype=jnp.int32)
        return cls(model, x, y, jnp.ones((), dtype=jnp.int32), actions, jnp.zeros((num, 2)))

    def add(self, action: Array, label: Array, time: Array) -> History:
        """With the observation number `time`, from 0, of an action and its label."""
        place = time % self.x.shape[0]
        return replace(
            self,
            x=self.x.at[place].set(self.actions[action]),
            y=self.y.at[place].set(label),
            num_train=time + 1,
            counts=self.counts.at[action, label].add(1.0),
        )

    @property
    def data_weights(self) -> Array:
        """Of each row: 0 where it is empty; those that are left stand for the forgotten ones too."""
        seen = self.counts.sum()
        return (jnp.arange(self.x.shape[0]) < seen) * jnp.maximum(1.0, seen / self.x.shape[0])

    def distinct(self) -> Counts:
        """Each action twice, with either label, weighted by how often that was seen since the beginning."""
        num = len(self.actions)
        labels = jnp.repeat(jnp.arange(2, dtype=jnp.int32), num)
        x = jnp.concatenate([self.actions, self.actions])
        counts = self.counts.T.ravel()
        return Counts(self.model, x, labels, self.num_train, counts, is_of_data=self.is_of_data)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Counts(Task):
    """A task whose rows count so many times: [P]."""

    counts: Array

    @property
    def data_weights(self) -> Array:
        """How many times each row counts."""
        return self.counts


class World(NamedTuple):
    """The truth of one bandit: actions [N, d], and the probability of a reward for each, [N]."""

    model: Model
    actions: Array
    rewards: Array

    @classmethod
    def of(cls, environment: Environment, actions: Array) -> World:
        """The bandit of an environment with two classes."""
        if environment.model.num_classes != 2:
            raise UsageError(f"a reward is 0 or 1; the model has {environment.model.num_classes} classes")
        return cls(environment.model, actions, jax.nn.softmax(environment.logits(actions))[:, 1])


class State(NamedTuple):
    """Where a run is: the agent's state, and what it has seen."""

    agent: Any
    x: Array
    y: Array
    counts: Array


class Selection(Protocol):
    """How an agent chooses: the action with the largest value is taken, one of the largest at random."""

    def values(self, key: Array, posterior: Posterior, actions: Array) -> Array:
        """A value of each action [N]."""
        ...


@pytree_dataclass
class Thompson:
    """Thompson sampling: the values are those of one draw of the posterior. Thompson, 1933."""

    revision: ClassVar[int] = 1

    def values(self, key: Array, posterior: Any, actions: Array) -> Array:
        return margins(posterior.function(draw_one(posterior, key), actions))


@pytree_dataclass
class UCB:
    """Upper confidence bounds: the mean of p(y = 1) plus `scale` times its standard deviation.

    Args:
        num_draws: of a posterior that is not finite.
    """

    revision: ClassVar[int] = 1
    scale: float = 1.0
    num_draws: int = 30

    def values(self, key: Array, posterior: Any, actions: Array) -> Array:
        mean, spread = moments_of_reward(posterior.draw(key, self.num_draws), actions)
        return mean + self.scale * spread


@pytree_dataclass
class EpsilonGreedy:
    """The largest mean of p(y = 1), and with probability `epsilon` any action."""

    revision: ClassVar[int] = 1
    epsilon: float = 0.05
    num_draws: int = 30

    def values(self, key: Array, posterior: Any, actions: Array) -> Array:
        key_draw, key_explore = jax.random.split(key)
        mean, _ = moments_of_reward(posterior.draw(key_draw, self.num_draws), actions)
        return jnp.where(jax.random.uniform(key_explore) < self.epsilon, jnp.zeros_like(mean), mean)


SELECTIONS = {"thompson": Thompson, "ucb": UCB, "epsilon-greedy": EpsilonGreedy}


def selection(text: str) -> Any:
    """A way to choose, by its name; its number may follow.

    Examples:
        >>> selection("ucb:2").scale, selection("epsilon-greedy:0.1").epsilon
        (2.0, 0.1)
    """
    name, colon, number = text.partition(":")
    if name not in SELECTIONS:
        raise unknown("selection", name, SELECTIONS)
    if not colon:
        return SELECTIONS[name]()
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if name == "thompson" or not value >= 0 or (name == "epsilon-greedy" and value > 1):
        raise UsageError(f"selection {text}: expected thompson, ucb:SCALE or epsilon-greedy:PROBABILITY")
    return SELECTIONS[name](value)


def canonical(text: str) -> str:
    """The same selection in one form: `ucb` as `ucb:1`."""
    chosen, name = selection(text), text.partition(":")[0]
    numbers = {"ucb": "scale", "epsilon-greedy": "epsilon"}
    return f"{name}:{getattr(chosen, numbers[name]):g}" if name in numbers else name


def draw_one(posterior: Any, key: Array) -> Any:
    """One draw of a posterior that is `Finite` or `Sampled`."""
    if not isinstance(posterior, Finite):
        return posterior.sampler(key)
    index = jax.random.categorical(key, posterior.log_weights)
    return jax.tree.map(lambda leaf: leaf[index], posterior.draws)


def margins(logits: Array) -> Array:
    """Log odds of label 1, which unlike its probability do not saturate: [..., N, 2] -> [..., N]."""
    return logits[..., 1] - logits[..., 0]


def moments_of_reward(mixture: Finite, actions: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of p(y = 1) over a mixture's functions, each [N]."""
    weights = jnp.exp(mixture.log_weights)[:, None]
    probs = jax.nn.sigmoid(margins(mixture.values(actions)))
    mean = (weights * probs).sum(axis=0)
    return mean, jnp.sqrt((weights * (probs - mean) ** 2).sum(axis=0))


def random_argmax(key: Array, values: Array) -> Array:
    """The place of the largest of values [N], any of them if there are several."""
    return jnp.argmax(jnp.where(values == values.max(), jax.random.uniform(key, values.shape), -1.0))


def begin(key: Array, agent: Any, world: World, capacity: int = CAPACITY) -> State:
    """The state before the first action."""
    history = History.empty(world.model, world.actions, capacity)
    return State(agent.begin(key, history), history.x, history.y, history.counts)


def step(
    key: Array, agent: Any, select: Selection, world: World, state: State, time: Array
) -> tuple[State, Array]:
    """Choose, see the reward, learn: the state and the regret of the step with this number, from 0.

    The regret is NaN where the agent's values are.
    """
    key_values, key_ties, key_reward, key_learn = jax.random.split(key, 4)
    num_train = jnp.maximum(time, 1)
    history = History(world.model, state.x, state.y, num_train, world.actions, state.counts)
    values = select.values(key_values, agent.current(state.agent, history), world.actions)
    action = random_argmax(key_ties, values)
    label = jax.random.bernoulli(key_reward, world.rewards[action]).astype(jnp.int32)
    history = history.add(action, label, time)
    learnt = agent.learn(key_learn, state.agent, history)
    regret = jnp.where(jnp.isnan(values).any(), jnp.nan, world.rewards.max() - world.rewards[action])
    return State(learnt, history.x, history.y, history.counts), regret


def play(
    key: Array, agent: Any, select: Selection, world: World, state: State, first: Array, num_steps: int
) -> tuple[State, Array]:
    """So many steps, from the one with the number `first`: the state, and the regret of each [num_steps].

    The randomness of a step depends on the key and the step's number alone, so that a run can be cut
    anywhere.

    Examples:
        >>> state = begin(key, agent, world)                                      # doctest: +SKIP
        >>> state, regrets = play(key, agent, Thompson(), world, state, 0, 1000)  # doctest: +SKIP
    """

    def advance(state: State, time: Array) -> tuple[State, Array]:
        return step(jax.random.fold_in(key, time), agent, select, world, state, time)

    return jax.lax.scan(advance, state, first + jnp.arange(num_steps))
