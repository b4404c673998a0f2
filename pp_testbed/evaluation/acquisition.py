"""Priorities of active learning: which inputs of a pool should be labelled next, given a posterior.

A priority is a function of `Candidates`, the posterior's predictions, with a value for each input; those with
the largest are asked for, and among equals any. Two of them look at the labels, which no learner
has before it asks: they say what there is to gain. What is then learnt is for `studies.active`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from pp_testbed.models.base import Array

TAU = 10  # labels at one input, of which joint-nll is the joint likelihood


class Candidates(NamedTuple):
    """The inputs of a pool, as a posterior sees them.

    Attributes:
        log_probs: of each function, input and class, [M, N, K].
        log_weights: of the functions, [M].
        labels: [N].
        key: for what is random.
    """

    log_probs: Array
    log_weights: Array
    labels: Array
    key: Array

    @property
    def mean(self) -> Array:
        """The logarithm of the predictive mean, [N, K]."""
        return logsumexp(self.log_probs + self.log_weights[:, None, None], axis=0)


def uniform(pool: Candidates) -> Array:
    """Any input."""
    return jax.random.uniform(pool.key, pool.labels.shape)


def variance(pool: Candidates) -> Array:
    """The variance over functions of the classes' probabilities, Σ_k Var p_k."""
    deviations = jnp.exp(pool.log_probs) - jnp.exp(pool.mean)
    return jnp.einsum("m,mnk->n", jnp.exp(pool.log_weights), deviations**2)


def entropy(pool: Candidates) -> Array:
    """The entropy of the predictive mean."""
    return entropy_of(pool.mean)


def margin(pool: Candidates) -> Array:
    """Minus the difference of the two largest probabilities of the predictive mean."""
    ordered = jnp.sort(jnp.exp(pool.mean))
    return ordered[:, -2] - ordered[:, -1]


def bald(pool: Candidates) -> Array:
    """The mutual information of label and function: Houlsby et al., 2011."""
    within = jnp.einsum("m,mn->n", jnp.exp(pool.log_weights), entropy_of(pool.log_probs))
    return entropy_of(pool.mean) - within


def nll(pool: Candidates) -> Array:
    """The negative log likelihood of the input's own label, which a learner does not know."""
    return -of_labels(pool.mean, pool.labels)


def joint_nll(pool: Candidates) -> Array:
    """That of ten such labels together, -log E_m p_m(y | x)^10, which a learner does not know either.

    The ENN library, where this priority is from, has the mean of logarithms instead.
    """
    return -logsumexp(pool.log_weights[:, None] + TAU * of_labels(pool.log_probs, pool.labels), axis=0)


PRIORITIES: dict[str, Callable[[Candidates], Array]] = {
    "uniform": uniform,
    "variance": variance,
    "entropy": entropy,
    "margin": margin,
    "bald": bald,
    "nll": nll,
    "joint-nll": joint_nll,
}


def entropy_of(log_probs: Array) -> Array:
    """-Σ p log p over the last axis."""
    return jax.scipy.special.entr(jnp.exp(log_probs)).sum(axis=-1)


def of_labels(log_probs: Array, labels: Array) -> Array:
    """The log probabilities of labels [N]: [..., N, K] -> [..., N]."""
    index = jnp.broadcast_to(labels[:, None], (*log_probs.shape[:-1], 1))
    return jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]


def reorder(priorities: Array, order: Array, num_labelled: Array) -> Array:
    """The order [N] of a pool in which the labelled inputs stay first and the others follow by priority.

    Args:
        priorities: of each input of the pool [N].
        order: a permutation; its first `num_labelled` have labels.
    """
    place = jnp.arange(len(order))
    ranked = jnp.where(place < num_labelled, jnp.inf, priorities[order])
    return order[jnp.argsort(-ranked, stable=True)]
