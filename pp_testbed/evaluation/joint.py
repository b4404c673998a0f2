"""Joint predictive likelihoods: which labels are summed over, and the KL divergence of the sum.

A joint prediction is about tau labels at once. Under one function the labels are independent, so
the log probability of an outcome is linear in *counts*, how often each class is seen at each
distinct input: log p(outcome) = counts · log_probs. An `Outcomes` holds the counts of all outcomes
(labels integrated out exactly) or of some drawn from the truth (labels sampled), in two halves a
and b whose log probabilities add. `kl_and_bias` compares the truth's outcome probabilities with
those of a mixture of functions. What the inputs are, and what else is measured, is in `evaluator`.

Shapes: n input batches, M functions in G groups, F = inputs x classes features, A x B outcomes. The
functions are the last axis, which makes every reduction over classes a vector operation.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import comb, lgamma
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pp_testbed.models.base import Array

MAX_OUTCOMES = 2**17  # more than these, and labels are sampled
_SMALLEST_SUM = 1e-30  # a scaled sum of exponentials above this has lost no float32 digit
_NEGLIGIBLE = 1e-20  # times the largest log ratio possible, this is far below float32 resolution
_ZERO_PROBABILITY = -1e30  # stands for log 0 inside a matrix product, where 0 · inf would be NaN


class Outcomes(NamedTuple):
    """Pairs (a, b) of half outcomes: the first labels of a sequence, and the rest.

    Attributes:
        left: counts [..., A, F] of the first half.
        right: counts [..., B, F] of the second.
        weight: [A, B], how many label sequences (times the probability of their inputs) the pair
            stands for.
    """

    left: Any
    right: Any
    weight: Any


def num_outcomes(num_inputs: int, num_classes: int, tau: int, resampled: bool) -> int:
    """A x B, the size of the exact enumeration."""
    sizes = [
        comb(half + num_inputs * num_classes - 1, half) if resampled else num_classes**half
        for half in (tau - tau // 2, tau // 2)
    ]
    return sizes[0] * sizes[1]


@lru_cache
def label_sequences(tau: int, num_classes: int) -> Outcomes:
    """All K^tau label sequences at tau inputs, split into the first and the second half.

    Examples:
        >>> label_sequences(10, 2).weight.shape
        (32, 32)
    """
    first = tau - tau // 2
    left = _one_hot_sequences(first, num_classes)
    right = _one_hot_sequences(tau - first, num_classes)
    left = np.pad(left, ((0, 0), (0, right.shape[1])))
    right = np.pad(right, ((0, 0), (left.shape[1] - right.shape[1], 0)))
    return Outcomes(left, right, np.ones((len(left), len(right)), np.float32))


def _one_hot_sequences(length: int, num_classes: int) -> np.ndarray:
    """All label sequences: [K^length, length * K]."""
    labels = np.array(list(product(range(num_classes), repeat=length)), dtype=int)
    return np.eye(num_classes, dtype=np.float32)[labels].reshape(len(labels), length * num_classes)


@lru_cache
def label_counts(tau: int, kappa: int, num_classes: int) -> Outcomes:
    """All label counts of tau inputs that are resampled from kappa anchors, uniformly.

    Half a sequence of h inputs and labels is exchangeable, so an outcome is its counts
    c[anchor, class], and stands for h! / prod(c!) sequences, each of inputs with probability
    kappa^-h. Two halves make 56 x 56 pairs where tau = 10 and kappa = K = 2; merged into counts of the whole
    they would be the 286 of the dyadic scheme.

    Examples:
        >>> label_counts(10, 2, 2).weight.shape
        (56, 56)
    """
    left, weight_left = _counts_of(tau - tau // 2, kappa, num_classes)
    right, weight_right = _counts_of(tau // 2, kappa, num_classes)
    return Outcomes(left, right, np.outer(weight_left, weight_right).astype(np.float32))


def label_counts_of(tau: int, kappa: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each of kappa anchors is taken in tau draws [O, kappa], and how likely that is [O].

    Examples:
        >>> label_counts_of(2, 2)[0].tolist(), label_counts_of(2, 2)[1].round(6).tolist()
        ([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]], [0.25, 0.5, 0.25])
    """
    return _counts_of(tau, kappa, 1)


@lru_cache
def _counts_of(total: int, kappa: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """All vectors of kappa * K counts that add up to `total`, and the weight of each."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(kappa * num_classes - 1):
        rows = [(*row, count) for row in rows for count in range(total - sum(row) + 1)]
    counts = np.array([(*row, total - sum(row)) for row in rows], dtype=np.float32)
    log_factorial = np.array([lgamma(n + 1) for n in range(total + 1)])
    log_weight = log_factorial[total] - log_factorial[counts.astype(int)].sum(axis=1)
    return counts, np.exp(log_weight - total * np.log(kappa))


def sampled_outcomes(key: Array, log_truth: Array, tau: int, num: int, resampled: bool) -> Outcomes:
    """Outcomes [n, num, F] drawn from the truth's log probabilities [n, inputs, K]."""
    batches, num_inputs, num_classes = log_truth.shape
    key_inputs, key_labels = jax.random.split(key)
    if resampled:
        inputs = jax.random.randint(key_inputs, (batches, num, tau), 0, num_inputs)
    else:
        inputs = jnp.broadcast_to(jnp.arange(tau), (batches, num, tau))
    log_probs = jax.vmap(lambda rows, index: rows[index])(log_truth, inputs)
    labels = jax.random.categorical(key_labels, log_probs)
    features = jax.nn.one_hot(inputs * num_classes + labels, num_inputs * num_classes)
    counts = features.sum(axis=-2)
    return Outcomes(counts, jnp.zeros((1, counts.shape[-1])), jnp.full((1, 1), 1.0 / num))


def kl_of_outcomes(
    outcomes: Outcomes,
    log_truth: Array,
    log_probs: Array,
    log_weights: Array,
    num_groups: int,
    is_sampled: bool = False,
) -> tuple[Array, Array]:
    """KL(truth || mixture) of outcomes, summed over `outcomes`, and without each group of functions.

    KL = sum_o P*(o) [log P*(o) - log sum_m w_m P_m(o)].

    Args:
        log_truth: [n, inputs, K].
        log_probs: [n, inputs, K, M].
        log_weights: [M], normalised.
        num_groups: G, which divides M; 1 where the mixture is complete, and nothing is left out.
        is_sampled: the outcomes were drawn from the truth, and count equally.

    Returns:
        KL [n], and [n, G] without each group.
    """
    truth_left, truth_right = (half[..., 0] for half in _halves(outcomes, log_truth[..., None]))
    truth_left, truth_right = _zero(truth_left)[:, :, None], _zero(truth_right)[:, None, :]
    log_true, weight = truth_left + truth_right, jnp.asarray(outcomes.weight)
    if not is_sampled:
        weight = weight * jnp.exp(truth_left) * jnp.exp(truth_right)
    left, right = _halves(outcomes, log_probs)
    # A probability of exactly zero makes an infinite KL, however little its outcome weighs.
    is_positive = jnp.isfinite(log_probs).all() & jnp.isfinite(log_weights).all()
    log_mixture, log_without = _log_mixture(left, right, log_weights, weight, is_positive, num_groups)
    return kl_of_mixture(log_true, weight, log_mixture, log_without, log_weights)


def kl_of_mixture(
    log_true: Array, weight: Array, log_mixture: Array, log_without: Array, log_weights: Array
) -> tuple[Array, Array]:
    """KL [n] from log probabilities of outcomes [n, A, B], and [n, G] without each group of functions.

    `log_without` [n, G, A, B] is the mixture without each group, not normalised; it is not looked at
    where G = 1.
    """

    def expected(log_ratio: Array) -> Array:
        # An outcome that cannot happen adds nothing, whatever is predicted for it.
        return jnp.where(weight > 0, weight * log_ratio, 0.0).sum(axis=(-2, -1))

    kl, num_groups = expected(log_true - log_mixture), log_without.shape[1]
    if num_groups == 1:
        return kl, kl[:, None]
    log_without -= log_share_without(log_weights, num_groups)[:, None, None]
    return kl, jax.vmap(lambda log_mix: expected(log_true - log_mix), 1, 1)(log_without)


def log_share_without(log_weights: Array, num_groups: int) -> Array:
    """The logarithm of what functions weigh without each group: [M] -> [G]."""
    return jnp.log1p(-jnp.exp(log_weights).reshape(num_groups, -1).sum(axis=1))


def jackknife(deviations: Array) -> tuple[Array, Array]:
    """Bias and variance [...] of an estimate by a finite number of draws.

    With d_g what it is without group g, minus what it is: (G - 1) mean_g d_g, Quenouille, 1956, "Notes on
    Bias in Estimation"; and (G - 1) / G Σ_g (d_g - mean)², Tukey, 1958. Both are 0 for G = 1: what is all
    there is has neither.

    Args:
        deviations: d [G, ...].
    """
    num_groups = len(deviations)
    if num_groups == 1:
        return jnp.zeros(deviations.shape[1:]), jnp.zeros(deviations.shape[1:])
    return (num_groups - 1) * deviations.mean(axis=0), (num_groups - 1) * deviations.var(axis=0)


def combine_groups(logs: Array) -> tuple[Array, Array]:
    """Log sums over groups [n, G, ...]: of all of them, [n, ...], and of all but each, [n, G, ...]."""
    others = 1.0 - np.eye(logs.shape[1], dtype=np.float32)
    with np.errstate(divide="ignore"):
        log_others = np.log(others).reshape(*others.shape, *[1] * (logs.ndim - 2))
    return logsumexp(logs, axis=1), logsumexp(logs[:, None] + log_others, axis=2)


def _halves(outcomes: Outcomes, log_probs: Array) -> tuple[Array, Array]:
    """Log probabilities [n, A, M] and [n, B, M] of half outcomes, from [n, inputs, K, M].

    Where a probability is zero they are `_ZERO_PROBABILITY` or less; see `_zero`.
    """
    flat = log_probs.reshape(log_probs.shape[0], -1, log_probs.shape[-1])
    flat = jnp.where(jnp.isneginf(flat), _ZERO_PROBABILITY, flat)

    def half(counts: Any) -> Array:  # [A, F], or [n, A, F] where drawn for each batch
        return jnp.einsum("naf,nfm->nam" if counts.ndim == 3 else "af,nfm->nam", counts, flat)

    left = half(outcomes.left)
    return left, left if outcomes.right is outcomes.left else half(outcomes.right)


def _zero(log_prob: Array) -> Array:
    """Give probabilities of zero their logarithm."""
    return jnp.where(log_prob < 0.1 * _ZERO_PROBABILITY, -jnp.inf, log_prob)


def _log_mixture(
    left: Array, right: Array, log_weights: Array, weight: Array, is_positive: Array, num_groups: int
) -> tuple[Array, Array]:
    """log sum_m w_m exp(left_m + right_m) over all m, [n, A, B], and without each group, [n, G, A, B].

    Fast path: exponentials of the halves, each scaled by its largest, multiplied as matrices. A sum
    that underflows there, at an outcome that matters, sends the whole chunk down the exact path,
    sums of exponentials scaled for every outcome. `left` [n, A, M], `right` [n, B, M].
    """
    # Half of each weight goes to each half, so that equal halves stay equal and are computed once.
    left, right = (half + 0.5 * log_weights for half in (left, right))
    shift_left, shift_right = (_finite_max(half) for half in (left, right))

    def grouped(half: Array) -> Array:
        return half.reshape(*half.shape[:2], num_groups, -1)

    scaled = grouped(jnp.exp(left - shift_left)), grouped(jnp.exp(right - shift_right))
    sums = jnp.einsum("nagm,nbgm->ngab", *scaled)
    others = 1.0 - np.eye(num_groups, dtype=np.float32)
    total, without = sums.sum(axis=1), jnp.einsum("hg,ngab->nhab", others, sums)
    smallest = jnp.minimum(total, without.min(axis=1)) if num_groups > 1 else total
    is_safe = is_positive & ((smallest >= _SMALLEST_SUM) | (weight < _NEGLIGIBLE)).all()

    def fast() -> tuple[Array, Array]:
        shift = shift_left + shift_right.swapaxes(1, 2)  # [n, A, B]
        tiny = jnp.finfo(sums.dtype).tiny
        return jnp.log(total + tiny) + shift, jnp.log(without + tiny) + shift[:, None]

    def exact() -> tuple[Array, Array]:
        right_groups = grouped(_zero(right))

        def row(left_row: Array) -> Array:  # [n, M] -> [n, B, G], one a at a time
            return logsumexp(grouped(_zero(left_row)[:, None]) + right_groups, axis=-1)

        rows = jax.lax.map(row, left.swapaxes(0, 1))  # [A, n, B, G]
        return combine_groups(rows.transpose(1, 3, 0, 2))

    return jax.lax.cond(is_safe, fast, exact)


def _finite_max(values: Array) -> Array:
    largest = values.max(axis=-1, keepdims=True)
    return jnp.where(jnp.isneginf(largest), 0.0, largest)
