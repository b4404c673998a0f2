"""What a prediction doubts, and the terms of how doubt ranks errors and inputs from elsewhere.

How a ranking is scored is in `detection`; which of these are columns of results is declared in `scores`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr

from pp_testbed.evaluation.detection import auroc, linearised
from pp_testbed.models.base import Array

# What scores are made of: KLs [n] or [n, width], scores of the mean [n, width], `predicted` [n, width, K]; of
# held-out labels also `knowledge`, the uncertainty of it [n, width], and both of sets `elsewhere`.
Parts = dict[str, Any]


def total_uncertainty(parts: Parts, _tau: int = 0) -> Array:
    """The entropy of the predictive mean, in nats."""
    return entr(parts["predicted"]).sum(axis=-1)


def knowledge_uncertainty(parts: Parts, _tau: int = 0) -> Array:
    """What a label would say of which function is true: total uncertainty but for what each function has."""
    return parts["knowledge"]


class Doubt(NamedTuple):
    """A measure of doubt in a prediction: what follows the symbols of its scores, words, and its values."""

    short: str
    words: str
    of: Callable[[Parts], Array]


DOUBTS = {
    "confidence": Doubt(
        "", "the probability of the likeliest class", lambda parts: -parts["predicted"].max(axis=-1)
    ),
    "total": Doubt(", TU", "total uncertainty", total_uncertainty),
    "knowledge": Doubt(", MU", "knowledge uncertainty", knowledge_uncertainty),
}
OF_SETS = ("total", "knowledge")  # by which inputs from elsewhere are told


def of_errors(score: Callable[[Array, Array, Array], Array], doubt: Doubt) -> Callable[[Parts, int], Array]:
    """The terms of a score of how a doubt ranks errors."""

    def terms(parts: Parts, _tau: int) -> Array:
        errors, doubts = 1.0 - parts["accuracy"], doubt.of(parts).ravel()
        flat = linearised(lambda weights: score(weights, doubts, errors.ravel()), errors.size)
        return flat.reshape(errors.shape)

    return terms


def of_sets(doubt: Doubt) -> Callable[[Parts, int], Array]:
    """The terms of the mean over sets of how inputs from elsewhere are told."""

    def terms(parts: Parts, _tau: int) -> Array:
        num = sum(part["knowledge"].size for part in sets_of(parts))
        return linearised(lambda weights: areas_of_sets(parts, doubt, weights).mean(), num)[:, None]

    return terms


def areas_of_sets(parts: Parts, doubt: Doubt, weights: Array | None = None) -> Array:
    """How often an input of each set is doubted more than one that was held out: [sets].

    Args:
        weights: of all inputs, those that were held out first; 1 if None.
    """
    own, *others = (doubt.of(part).ravel() for part in sets_of(parts))
    ends = np.cumsum([len(own), *map(len, others)]).tolist()
    own_weights, *of_others = jnp.split(jnp.ones(ends[-1]) if weights is None else weights, ends[:-1])

    def area(doubts: Array, weights: Array) -> Array:
        both = jnp.concatenate([own_weights, weights]), jnp.concatenate([own, doubts])
        return auroc(*both, jnp.concatenate([jnp.zeros(len(own)), jnp.ones(len(doubts))]))

    return jnp.stack([area(*pair) for pair in zip(others, of_others, strict=True)])


def sets_of(parts: Parts) -> list[Parts]:
    """What is known of inputs that were held out, and of those of each other set, by name."""
    return [parts, *(part for _, part in sorted(parts.get("elsewhere", {}).items()))]
