"""What confidence is worth: how often it is right, and what is lost where the unsure are left to others.

These are curves, not scores: arrays of fixed lengths, which results keep beside the scores.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pp_testbed.evaluation.detection import Ranking
from pp_testbed.evaluation.doubt import DOUBTS, OF_SETS, Parts, areas_of_sets, sets_of, total_uncertainty
from pp_testbed.evaluation.scores import DECILES, NUM_BINS
from pp_testbed.models.base import Array

COVERAGES = np.arange(1, 21) / 20  # at which risk is said
NUM_LEVELS = 20  # of total uncertainty, from none to that of a guess
CURVES = ("reliability", "risk", "pit", "elsewhere", "uncertainty")  # the columns of them


def reliability(confidence: Array, correct: Array) -> Array:
    """Of each bin of confidence: inputs in it, their confidence and their accuracy, summed: [3, bins].

    Sums, so that those of several problems add up.

    Examples:
        >>> reliability(jnp.array([0.95, 0.91, 0.2]), jnp.array([1.0, 0.0, 1.0]))[0].astype(int).tolist()
        [0, 0, 1, 0, 0, 0, 0, 0, 0, 2]
    """
    bins = jnp.clip((confidence * NUM_BINS).astype(int), 0, NUM_BINS - 1)
    rows = jnp.stack([jnp.ones_like(confidence), confidence, correct])
    return jnp.zeros((3, NUM_BINS)).at[:, bins].add(rows)


def risk_at(confidence: Array, loss: Array) -> Array:
    """The mean loss of the most confident share of N inputs, at each of `COVERAGES`.

    A share that is no whole number of inputs has a part of the last. Of inputs that are equally confident all
    orders are as likely: each has the mean loss of all of them.

    Examples:
        >>> risk_at(jnp.array([0.9, 0.5]), jnp.array([0.0, 1.0]))[jnp.array([9, 19])].tolist()
        [0.0, 0.5]
    """
    num = confidence.shape[0]
    shared = Ranking.by(-confidence).means(loss, jnp.ones(num))
    total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(shared)])
    covered = jnp.asarray(COVERAGES) * num
    return jnp.interp(covered, jnp.arange(num + 1), total) / covered


def shares_of(uncertainty: Array, num_classes: int) -> Array:
    """The share of inputs [N] in each of `NUM_LEVELS` levels of total uncertainty, up to log K.

    Examples:
        >>> shares = shares_of(jnp.array([0.0, 0.01, jnp.log(2.0), 0.3]), 2)
        >>> shares[0].item(), shares[8].item(), shares[-1].item()
        (0.5, 0.25, 0.25)
    """
    levels = (uncertainty / jnp.log(num_classes) * NUM_LEVELS).astype(int)
    return jnp.zeros(NUM_LEVELS).at[jnp.clip(levels, 0, NUM_LEVELS - 1)].add(1.0 / len(uncertainty))


def curves_of(terms: Parts) -> dict[str, Array]:
    """The curves of rows that were held out, flat, from the terms of their scores."""
    if "predicted" in terms:
        confidence, correct = terms["predicted"].max(axis=-1).ravel(), terms["accuracy"].ravel()
        risk = risk_at(confidence, 1.0 - correct)
        curves = {"reliability": reliability(confidence, correct).ravel(), "risk": risk}
        num_classes = terms["predicted"].shape[-1]
        shares = [shares_of(total_uncertainty(part).ravel(), num_classes) for part in sets_of(terms)]
        curves["uncertainty"] = jnp.concatenate(shares)  # [1 + sets, levels]
        if "elsewhere" in terms:  # areas [sets, doubts]
            areas = [areas_of_sets(terms, DOUBTS[name]) for name in OF_SETS]
            curves["elsewhere"] = jnp.stack(areas, axis=1).ravel()
        return curves
    below = terms["pit"][..., None] <= DECILES
    return {"pit": below.mean(axis=tuple(range(below.ndim - 1)))}
