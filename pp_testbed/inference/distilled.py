"""Any posterior in one network: Bayesian dark knowledge."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.tree_util import Partial

from pp_testbed.errors import UsageError
from pp_testbed.inference.map_ensemble import Trained, points
from pp_testbed.inference.options import (
    POSITIVE,
    check_positive,
    check_within,
    compiled,
    effort,
    problems_at_once,
)
from pp_testbed.inference.posterior import (
    Finite,
    Sampled,
    as_posterior,
    log_weights_of,
    predictive_mean,
)
from pp_testbed.inference.svi import fit
from pp_testbed.models.base import Array, Params, Task, pytree_dataclass
from pp_testbed.models.likelihoods import Categorical
from pp_testbed.models.networks import BayesianNetwork


class SoftLabels(dist.Distribution):
    """Labels that are probabilities p of classes: log density Σ_k p_k log softmax(logits)_k."""

    support = dist.constraints.simplex

    def __init__(self, logits: Array) -> None:
        self.logits = logits
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=False)

    def log_prob(self, value: Array) -> Array:
        """The negative cross-entropy."""
        return (value * jax.nn.log_softmax(self.logits)).sum(axis=-1)


@dataclass(frozen=True)
class SoftCategorical(Categorical):
    """Classes of which a label says how likely each is."""

    def distribution(self, outputs: Array) -> SoftLabels:
        return SoftLabels(outputs)


@pytree_dataclass
class Taught(Trained):
    """A network that is taught the mean prediction of functions: what `Distilled` is but for its teacher.

    Args:
        num_draws: functions of a posterior that is not finite.
        num_inputs: at least so many inputs are taught.
        jitter: the standard deviation of the noise that moves inputs, next to columns of 1.
    """

    revision: ClassVar[int] = 1
    num_draws: int = 100
    num_inputs: int = 1000
    jitter: float = 0.3
    l2: float = 0.01
    num_steps: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_draws", "num_inputs")
        check_within(self, "jitter", POSITIVE)

    @compiled
    def fit_to(self, key: Array, task: Task, functions: Finite) -> Finite:
        """The network that predicts what these functions do on average."""
        key_inputs, key_start, key_train = jax.random.split(key, 3)
        x, agent = self.inputs(key_inputs, task), self.agent(task)
        number = jnp.maximum(task.num_train, self.num_inputs)
        probs = predictive_mean(functions, task.likelihood, x)
        lesson = Task(task.model, x, probs, number, is_of_data=task.is_of_data)
        student = replace(agent, likelihood=SoftCategorical())
        training = self.map_training(student, agent.start(key_start))
        fitted = fit(key_train, training, lesson, self.num_steps)
        draws: Params = jax.tree.map(lambda leaf: leaf[None], points(fitted.params))
        return Finite.equal(Partial(BayesianNetwork.network, agent), draws, fitted.losses[None])

    def inputs(self, key: Array, task: Task) -> Array:
        """What is taught [n, d]: the rows of the data, and rows of them that are moved, up to `num_inputs`.

        Further ones are padding, as in the task.
        """
        size = max(task.x.shape[0], self.num_inputs)
        rows = task.x[jnp.arange(size) % jnp.minimum(task.num_train, task.x.shape[0])]
        noise = self.jitter * jax.random.normal(key, (self.num_inputs, *task.x.shape[1:]))
        is_moved = (jnp.arange(self.num_inputs) >= task.num_train)[:, None]
        return rows.at[: self.num_inputs].add(jnp.where(is_moved, noise, 0.0))


@pytree_dataclass
class Distilled(Taught):
    """One network that predicts what another method's posterior of classes does on average.

    Minimises E_x KL(p̄(y | x) ‖ p(y | x; θ)) + c ‖θ‖², p̄ the mean over the posterior's functions, with c as in
    `Trained` of so many data as inputs are taught. Inputs x are those of the data and, where they are fewer
    than `num_inputs`, more of them moved by noise. Balan et al., 2015, "Bayesian Dark Knowledge", whose
    student learns while the chain runs; here it learns when that is done.

    Attributes:
        teacher: the method; `distilled:NAME` on a command line, with the options of its preset. Options that
            are set are the student's.

    Examples:
        >>> from pp_testbed.inference.map_ensemble import Ensemble
        >>> Distilled(teacher=Ensemble(size=10)).teacher.size
        10
    """

    revision: ClassVar[int] = 1
    teacher: Any = field(default=None, metadata={"is_data": True})
    name: str = "distilled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.teacher, "fit", None)):
            raise UsageError(f"{self.name}.teacher is {self.teacher!r}; expected a method")

    @property
    def problems_at_once(self) -> int:
        return problems_at_once(self.teacher)

    @property
    def weighs_rows(self) -> bool:  # type: ignore[override]
        """As its teacher."""
        return bool(getattr(self.teacher, "weighs_rows", False))

    @property
    def effort(self) -> float:
        """With its teacher's."""
        return 1.0 + effort(self.teacher)

    def fit(self, key: Array, task: Task) -> Finite:
        if not task.likelihood.is_of_classes:
            raise UsageError(f"{self.name} is taught probabilities of classes; labels here are numbers")
        key_teacher, key_draws, key_student = jax.random.split(key, 3)
        posterior = as_posterior(self.teacher.fit(key_teacher, task))
        student = Taught(**{one.name: getattr(self, one.name) for one in fields(Taught)})
        if isinstance(posterior, Finite | Sampled):
            return student.fit_to(key_student, task, posterior.draw(key_draws, self.num_draws))
        x = student.inputs(jax.random.split(key_student, 3)[0], task)
        table = posterior.logits(key_draws, x, self.num_draws)  # of any Python
        functions = Finite(Partial(_as_it_is), table, log_weights_of(posterior, len(table)))
        return student.fit_to(key_student, task, functions)


def _as_it_is(table: Array, _x: Array) -> Array:
    return table
