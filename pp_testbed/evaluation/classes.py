"""Scores against an environment of classes: labels are integrated out where they can be enumerated.

Every posterior, however made, is scored by `score_chunk` on its logits at test inputs. What remains random is
the inputs and, of a posterior that is not finite, the draws.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.evaluation import joint
from pp_testbed.evaluation.terms import Evaluation, Terms, marginal_terms, mixture_of
from pp_testbed.inference.posterior import check_logits, divisor, log_weights_of
from pp_testbed.models.base import Array, Environment

HOST_CHUNK = 2**24  # logits per call of a posterior in plain Python


def score_chunk(
    key: Array, logits: Array, truth: Array, log_weights: Array, num_groups: int, config: Evaluation
) -> Terms:
    """Score one chunk of test batches.

    Args:
        key: for labels, where they are sampled.
        logits: of the posterior, [M, n * width, K].
        truth: of the environment, [n * width, K].
        log_weights: of the functions, [M].

    Returns:
        The terms of n batches.
    """
    num_classes, width, num_draws = truth.shape[-1], config.width, logits.shape[0]
    log_truth = jax.nn.log_softmax(truth).reshape(-1, width, num_classes)
    log_probs = jnp.moveaxis(logits, 0, -1).reshape(-1, width, num_classes, num_draws)
    log_probs = jax.nn.log_softmax(log_probs, axis=2)
    terms = marginal_terms(log_truth, log_probs, log_weights, num_groups)

    def compare(name: str, outcomes: joint.Outcomes, inputs: int, is_sampled: bool = False) -> None:
        terms.whole[name], terms.without[name] = joint.kl_of_outcomes(
            outcomes, log_truth[:, :inputs], log_probs[:, :inputs], log_weights, num_groups, is_sampled
        )

    for name, inputs, resampled in [("kl_joint", config.tau, False), ("kl_dyadic", config.kappa, True)]:
        if config.is_exact(num_classes, resampled):
            outcomes = (
                joint.label_counts(config.tau, config.kappa, num_classes)
                if resampled
                else joint.label_sequences(config.tau, num_classes)
            )
            compare(name, outcomes, inputs)
        else:
            key, key_labels = jax.random.split(key)
            drawn = joint.sampled_outcomes(
                key_labels, log_truth[:, :inputs], config.tau, config.num_label_samples, resampled
            )
            compare(name, drawn, inputs, is_sampled=True)

    return terms


def terms_of_inputs(posterior: Any, environment: Environment, key: Array, config: Evaluation) -> Terms:
    """The terms of all batches.

    Networks are evaluated on a block of inputs, large enough for fast matrix products; outcomes are
    enumerated chunk by chunk of the block, small enough to stay in cache.
    """
    x, key_labels, key_draws = _randomness(key, environment, config)
    mixture, num_groups = mixture_of(posterior, key_draws, config)
    check_width(jax.eval_shape(mixture.values, x[:1]).shape[-1], environment)
    num_draws, num_classes = mixture.log_weights.shape[0], environment.model.num_classes
    chunk = config.batches_per_chunk(num_draws, num_classes)
    block = chunk * config.chunks_per_block(num_draws, num_classes)
    num_blocks = -(-config.num_batches // block)
    x = jnp.resize(x, (num_blocks, block * config.width, x.shape[-1]))  # the last block starts over

    def score_block(block: tuple[Array, Array]) -> Terms:
        key, x = block
        logits = mixture.values(x).reshape(num_draws, -1, chunk * config.width, num_classes)
        truth = environment.logits(x).reshape(logits.shape[1:])
        keys = jax.random.split(key, len(truth))

        def score_part(part: tuple[Array, Array, Array]) -> Terms:
            key, logits, truth = part
            return score_chunk(key, logits, truth, mixture.log_weights, num_groups, config)

        return jax.lax.map(score_part, (keys, jnp.moveaxis(logits, 1, 0), truth))

    # Loops, not vmap: under vmap the choice of a path by `joint` would compute both.
    terms = jax.lax.map(score_block, (jax.random.split(key_labels, num_blocks), x))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:])[: config.num_batches], terms)


def _randomness(key: Array, environment: Environment, config: Evaluation) -> tuple[Array, Array, Array]:
    """Test inputs [num_batches * width, d] from the model's own distribution, and two more keys."""
    key_inputs, key_labels, key_draws = jax.random.split(key, 3)
    x = environment.model.inputs(key_inputs, config.num_batches * config.width)
    return x, key_labels, key_draws


def terms_of_plain(
    posterior: Any, environment: Environment, key: Array, config: Evaluation
) -> tuple[Terms, int]:
    """As `terms_of_inputs`, for logits of any Python: a loop over chunks of inputs, not a scan."""
    x, key_labels, key_draws = _randomness(key, environment, config)
    num_classes = environment.model.num_classes
    is_finite = getattr(posterior, "is_finite", False)
    inputs_at_once = HOST_CHUNK // (num_classes * (100 if is_finite else config.num_draws))
    step = max(1, inputs_at_once // config.width) * config.width
    pieces: list[Terms] = []
    for start in range(0, len(x), step):
        inputs = x[start : start + step]
        logits = posterior.logits(key_draws, inputs, config.num_draws)
        num_draws = logits.shape[0]
        log_weights, num_groups = weights_of_plain(posterior, logits, environment, config)
        truth = environment.logits(inputs)
        small = config.batches_per_chunk(num_draws, num_classes) * config.width
        for i in range(0, len(inputs), small):
            key_chunk = jax.random.fold_in(key_labels, start + i)
            part = logits[:, i : i + small], truth[i : i + small]
            pieces.append(_score_chunk(key_chunk, *part, log_weights, num_groups, config))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces), num_draws


_score_chunk = jax.jit(score_chunk, static_argnums=(4, 5))


def check_width(width: int, truth: Any) -> None:
    """Raise a UsageError unless so many outputs at an input are what labels of this truth are given."""
    num_classes = truth.num_classes
    if num_classes and width != num_classes:
        raise UsageError(f"logits have {width} classes; the problem has {num_classes}")
    if width != (expected := truth.likelihood.num_outputs(num_classes)):
        words = (
            "location and logarithm of the scale" if expected == 2 else "location, logarithms of scale and df"
        )
        raise UsageError(f"outputs at an input are {width} numbers; expected {expected}: {words}")


def weights_of_plain(posterior: Any, outputs: Array, truth: Any, config: Evaluation) -> tuple[Array, int]:
    """Log weights [draws] of a plain posterior, checked, with outputs [draws, N, D]; and how many groups."""
    num_draws, is_finite = outputs.shape[0], getattr(posterior, "is_finite", False)
    check_width(outputs.shape[2], truth)
    if truth.num_classes:
        check_logits(np.asarray(outputs))
    if not is_finite and num_draws != config.num_draws:
        raise UsageError(f"the posterior gave {num_draws} draws; expected {config.num_draws}")
    num_groups = 1 if is_finite else config.num_groups
    if getattr(posterior, "num_chains", 0):
        num_groups = divisor("chains", num_draws)
    log_weights = log_weights_of(posterior, num_draws)
    if log_weights.shape != (num_draws,):
        raise UsageError(f"there are {len(log_weights)} weights for {num_draws} draws")
    return log_weights, num_groups
