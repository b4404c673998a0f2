"""Posteriors that have not looked at the data: uniform predictions, and the prior itself."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax.tree_util import Partial

from pp_testbed.errors import UsageError
from pp_testbed.inference.options import compiled
from pp_testbed.inference.posterior import Finite, Sampled
from pp_testbed.models.base import Array, Task, pytree_dataclass, read_outputs, sample_latents


@pytree_dataclass
class Uniform:
    """Every class equally likely everywhere: logits 0."""

    revision: ClassVar[int] = 1
    name: str = "uniform"
    problems_at_once: ClassVar[int] = 10
    weighs_rows: ClassVar[bool] = True

    @compiled
    def fit(self, key: Array, task: Task) -> Finite:
        if not task.likelihood.is_of_classes:
            raise UsageError("uniform is of classes; these labels are numbers")
        return Finite.equal(Partial(_constant), jnp.zeros((1, task.num_classes)))


def _constant(logits: Array, x: Array) -> Array:
    return jnp.broadcast_to(logits, (x.shape[0], logits.shape[0]))


@pytree_dataclass
class Prior:
    """The prior predictive of the generative model, which is the posterior of no data."""

    revision: ClassVar[int] = 1
    name: str = "prior"
    problems_at_once: ClassVar[int] = 1  # its draws are as many to evaluate as those of any other
    weighs_rows: ClassVar[bool] = True

    @compiled
    def fit(self, key: Array, task: Task) -> Sampled:
        sampler = Partial(sample_latents, task.model, task.x[:1], task.y[:1])
        return Sampled(Partial(read_outputs, task.model), sampler)
