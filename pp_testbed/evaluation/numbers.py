"""Scores against an environment whose labels are numbers: they cannot be enumerated, and are drawn.

The KL divergences are E [log p*(y) - log p̂(y)] over labels of the environment, of one, of τ at τ inputs, and
of τ at inputs resampled from κ anchors. Each batch has `LABELS` sets of labels, and error bars are over
batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pp_testbed.evaluation.terms import BLOCK, Evaluation, Terms, log_mixture
from pp_testbed.models.base import Array, Environment

LABELS = 20  # sets of a batch


def inputs_of(truth: Environment, key: Array, config: Evaluation) -> Array:
    """Test inputs [num_batches * width, d], of the model's own distribution."""
    return truth.model.inputs(key, config.num_batches * config.width)


def terms_of_batches(
    read: Callable[[Any], Array],
    at: Any,
    x: Array,
    truth: Environment,
    log_weights: Array,
    num_groups: int,
    key: Array,
    config: Evaluation,
) -> Terms:
    """The terms of all batches.

    Args:
        read: the outputs [M, b, D] of all functions at a part of `at`.
        at: what is read at, with a leading axis [num_batches * width].
        x: the inputs [num_batches * width, ...].
        log_weights: of the functions, [M].
    """
    parts = jax.tree.map(
        lambda leaf: leaf.reshape(config.num_batches, config.width, *leaf.shape[1:]), (at, x)
    )

    def batch(part: tuple[Any, Array, Array]) -> Terms:
        there, inputs, key = part
        true = truth.logits(inputs)
        return _of_batch(key, read(there), true, log_weights, num_groups, truth, config)

    keys = jax.random.split(key, config.num_batches)
    at_once = max(1, BLOCK // (4 * LABELS * config.width * log_weights.shape[0]))
    return jax.lax.map(batch, (*parts, keys), batch_size=min(at_once, config.num_batches))


def _of_batch(
    key: Array,
    outputs: Array,
    true: Array,
    log_weights: Array,
    num_groups: int,
    truth: Environment,
    config: Evaluation,
) -> Terms:
    """The terms of one batch: outputs [M, width, D] of the functions, [width, D] of the truth."""
    likelihood = truth.model.likelihood
    key_iid, key_anchors, key_labels = jax.random.split(key, 3)

    def log_probs(key: Array, places: Array) -> tuple[Array, Array]:
        """Of labels drawn at places [S, τ] of the batch: the truth's [S, τ], and the functions' [S, τ, M]."""
        given = likelihood.distribution(true[places])
        y = given.sample(key)
        each = likelihood.distribution(jnp.moveaxis(outputs, 0, 1)[places]).log_prob(y[:, :, None])
        return given.log_prob(y), each

    width, tau = config.width, config.tau
    places = jnp.broadcast_to(jnp.arange(width), (LABELS, width))
    log_true, each = log_probs(key_iid, places)
    whole, without = {}, {}

    def keep(name: str, log_true: Array, log_each: Array) -> None:
        """The mean over sets of labels, [...]; without each group [G, ...]."""
        mixed, mixed_without = log_mixture(log_each, log_weights, num_groups)  # [S, ...] and [S, G, ...]
        whole[name] = (log_true - mixed).mean(axis=0)
        without[name] = (log_true[:, None] - mixed_without).mean(axis=0)

    keep("kl_marginal", log_true, each)
    keep("nll", jnp.zeros_like(log_true), each)
    keep("kl_joint", log_true[:, :tau].sum(axis=1), each[:, :tau].sum(axis=1))
    anchors = jax.random.randint(key_anchors, (LABELS, tau), 0, config.kappa)
    log_true, each = log_probs(key_labels, anchors)
    keep("kl_dyadic", log_true.sum(axis=1), each.sum(axis=1))
    return Terms(whole, without)
