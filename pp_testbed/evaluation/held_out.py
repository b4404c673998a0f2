"""Scores against labels that were held out: the truth says what was seen, and with which probability nothing.

All joint scores are made of one table, the log probability (or density) of each row's label under each
function, [N, M]: labels are independent given a function, so that of τ of them it is a sum. Of two anchors
that are resampled with their labels only the number of times each was taken is random: τ + 1 binomial terms,
whatever the number of classes. Nothing is sampled but which rows are together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr, logsumexp

from pp_testbed.errors import UsageError
from pp_testbed.evaluation import joint
from pp_testbed.evaluation.terms import BLOCK, Evaluation, Terms, log_mixture, marginal_terms
from pp_testbed.models.base import Array, HeldOut
from pp_testbed.models.likelihoods import Likelihood

OF_DOUBT = ("predicted", "knowledge")  # what doubts are made of
NODES = 100  # of quadrature on either side of a label, for CRPS


def inputs_of(truth: HeldOut, _key: Array, config: Evaluation) -> Array:
    """The inputs of all rows [N, ...], and after them those from elsewhere."""
    if len(truth.x) < config.width:
        raise UsageError(f"{len(truth.x)} rows are held out; expected at least {config.width}, a batch")
    return jnp.concatenate([truth.x, *(x for _, x in truth.others)])


def terms_of_rows(
    read: Callable[[Any], Array],
    at: Any,
    _x: Array,
    truth: HeldOut,
    log_weights: Array,
    num_groups: int,
    key: Array,
    config: Evaluation,
) -> Terms:
    """The terms of all rows [N, 1], of batches of them, and of inputs from elsewhere.

    Args:
        read: the outputs [M, b, D] of all functions at a part of `at`.
        at: what is read at, with a leading axis of all rows, and then of inputs from elsewhere.
        log_weights: of the functions, [M].
    """
    num, every = len(truth.y), len(jax.tree.leaves(at)[0])
    y = jnp.concatenate([truth.y, jnp.zeros((every - num, *truth.y.shape[1:]), truth.y.dtype)])
    outputs = truth.likelihood.num_outputs(truth.num_classes)
    size = max(1, min(every, BLOCK // (log_weights.shape[0] * outputs)))
    num_blocks = -(-every // size)
    parts = jax.tree.map(lambda leaf: _blocks(leaf, num_blocks, size), (at, y))

    def block(part: tuple[Any, Array]) -> tuple[Terms, Array]:
        there, y = part
        outputs = read(there)
        terms = _of_classes if truth.likelihood.is_of_classes else _of_numbers
        log_probs = truth.likelihood.distribution(outputs).log_prob(y)  # [M, b]
        return terms(outputs, y, log_probs, log_weights, num_groups, truth.likelihood), log_probs.T

    found = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(block, parts))
    terms, log_probs = jax.tree.map(lambda leaf: leaf[:num], found)
    if truth.elsewhere:
        _add_elsewhere(terms, found[0], truth)
    if truth.costs is not None:
        cost = partial(decision_cost, truth.costs, truth.y)
        terms.whole["cost"] = cost(terms.whole["predicted"])
        terms.without["cost"] = jax.vmap(cost, 1, 1)(terms.without["predicted"])
    rows = batches_of_rows(key, num, config)
    for name, log_prob in (
        ("nll_joint", joint_log_prob(log_probs, rows[:, : config.tau])),
        ("nll_dyadic", dyadic_log_prob(log_probs, rows[:, : config.kappa], config.tau)),
    ):
        terms.whole[name], terms.without[name] = _negative(*log_prob(log_weights, num_groups))
    return Terms(terms.whole, terms.without, rows)


def _add_elsewhere(terms: Terms, found: Terms, truth: HeldOut) -> None:
    """What is predicted at inputs from elsewhere, by the names of their sets."""
    ends = np.cumsum([len(truth.y), *(len(x) for _, x in truth.others)]).tolist()
    places = {name: slice(*ends[place : place + 2]) for place, (name, _) in enumerate(truth.others)}
    for to, of in ((terms.whole, found.whole), (terms.without, found.without)):
        to["elsewhere"] = {
            name: {part: of[part][place] for part in OF_DOUBT} for name, place in places.items()
        }


def decision_cost(costs: Array, y: Array, predicted: Array) -> Array:
    """What the decision of least expected cost costs where classes y [N] are true: [N, 1].

    Args:
        costs: C [K, K], of a true class and of a decision.
        predicted: probabilities [N, 1, K].
    """
    decision = (predicted @ costs).argmin(axis=-1)
    return costs[y[:, None], decision]


def _blocks(leaf: Array, number: int, size: int) -> Array:
    """Rows in blocks of one size, the last of which starts over."""
    return leaf[jnp.arange(number * size) % len(leaf)].reshape(number, size, *leaf.shape[1:])


def batches_of_rows(key: Array, num: int, config: Evaluation) -> Array:
    """Which rows are in each batch [n, width]: all different, and each row in as many as any other, nearly.

    There are `num_batches`, or more where each row shall be in one.
    """
    whole = num // config.width  # batches of a permutation of the rows
    permutations = -(-config.num_batches // whole)
    orders = jax.vmap(lambda k: jax.random.permutation(k, num))(jax.random.split(key, permutations))
    return orders[:, : whole * config.width].reshape(-1, config.width)


LogProb = Callable[[Array, int], tuple[Array, Array]]


def joint_log_prob(log_probs: Array, rows: Array) -> LogProb:
    """log P(y_1, ..., y_τ) of rows [n, τ], from log probabilities [N, M]: of given weights, in groups."""
    return lambda log_weights, num_groups: log_mixture(log_probs[rows].sum(axis=1), log_weights, num_groups)


def dyadic_log_prob(log_probs: Array, rows: Array, tau: int) -> LogProb:
    """E log P(y_1, ..., y_τ) where the τ rows are taken from anchors [n, κ], uniformly, with their labels."""
    counts, weights = joint.label_counts_of(tau, rows.shape[1])  # [O, κ] and [O]

    def log_prob(log_weights: Array, num_groups: int) -> tuple[Array, Array]:
        def of(rows: Array) -> tuple[Array, Array]:
            anchors = log_probs[rows]  # [n, κ, M]
            # A row that is not taken says nothing, be its label impossible.
            taken = jnp.where(counts[:, :, None] > 0, counts[:, :, None] * anchors[:, None], 0.0)
            whole, without = log_mixture(taken.sum(axis=2), log_weights, num_groups)  # [n, O], [n, G, O]
            return (whole * weights).sum(axis=-1), (without * weights).sum(axis=-1)

        at_once = max(1, BLOCK // (counts.size * len(log_weights)))
        blocks = _blocks(rows, -(-len(rows) // at_once), min(at_once, len(rows)))
        parts = jax.lax.map(of, blocks)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: len(rows)], parts)

    return log_prob


def _negative(whole: Array, without: Array) -> tuple[Array, Array]:
    return -whole, -without


def _of_classes(
    outputs: Array, y: Array, _log_probs: Array, log_weights: Array, num_groups: int, _likelihood: Likelihood
) -> Terms:
    """The terms [b, 1] of single labels that are classes."""
    num_classes = outputs.shape[-1]
    log_truth = jnp.log(jax.nn.one_hot(y, num_classes))[:, None]
    by_input = jax.nn.log_softmax(jnp.moveaxis(outputs, 0, -1), axis=1)[:, None]  # [b, 1, K, M]
    of_mean = marginal_terms(log_truth, by_input, log_weights, num_groups)
    weights = _weights_without(log_weights, num_groups)  # [1 + G, M], or [1, M]
    probs = jnp.exp(jnp.moveaxis(by_input[:, 0], -1, 0))  # [M, b, K]
    knowledge = entr(_mixed(weights, probs)).sum(axis=-1) - _mixed(weights, entr(probs).sum(axis=-1))
    votes = _mixed(weights, jax.nn.one_hot(outputs.argmax(axis=-1), num_classes))  # [1 + G, b, K]
    every = {
        # One function has none, and what rounding leaves of it must not rank inputs.
        "knowledge": knowledge if len(outputs) > 1 else jnp.zeros_like(knowledge),
        "disagreement": 1.0 - (votes**2).sum(axis=-1),
    }
    of_functions = _parted(every, num_groups)
    return Terms(of_mean.whole | of_functions.whole, of_mean.without | of_functions.without)


def _of_numbers(
    outputs: Array, y: Array, log_probs: Array, log_weights: Array, num_groups: int, likelihood: Likelihood
) -> Terms:
    """The terms [b, 1] of single labels that are numbers.

    They are the density's logarithm, the squared error of the mean location, the probability integral
    transform P(Y <= y), and the continuous ranked probability score ∫ (P(Y <= z) - 1{y <= z})² dz.
    """
    density, density_without = log_mixture(log_probs.T, log_weights, num_groups)
    weights = _weights_without(log_weights, num_groups)  # [1 + G, M], or [1, M]
    margins = likelihood.margins(outputs)  # of each number [M, b, ...]
    means = _mixed(weights, margins.loc)
    nodes, lengths = _nodes(y, margins, jnp.exp(log_weights))  # [Q, b, ...] both
    below = _mixed(weights, margins.cdf(y))  # [1 + G, b, ...]

    def at_node(node: tuple[Array, Array]) -> Array:
        z, length = node
        return length * (_mixed(weights, margins.cdf(z)) - (y <= z)) ** 2

    crps = jax.lax.map(at_node, (nodes, lengths)).sum(axis=0)
    every = {"squared_error": (y - means) ** 2, "pit": below, "crps": crps}
    whole, without, _ = _parted(every, num_groups)
    whole["nll"], without["nll"] = -density[:, None], -density_without[:, :, None]
    return Terms(whole, without)


def _parted(every: dict[str, Array], num_groups: int) -> Terms:
    """Terms of values [1 + G, b, ...] of all functions, and of all but each group, if there are some."""
    rest = slice(1, None) if num_groups > 1 else slice(None)
    whole = {name: values[0].reshape(values.shape[1], -1) for name, values in every.items()}
    without = {
        name: jnp.moveaxis(values[rest], 1, 0).reshape(values.shape[1], -1, whole[name].shape[1])
        for name, values in every.items()
    }
    return Terms(whole, without)


def _mixed(weights: Array, values: Array) -> Array:
    """Sums over functions with weights [G, M] of their values [M, b, ...]: [G, b, ...]."""
    return (weights @ values.reshape(len(values), -1)).reshape(len(weights), *values.shape[1:])


def _weights_without(log_weights: Array, num_groups: int) -> Array:
    """Normalised weights of all functions and, where there are groups, of all but each: [1 + G, M]."""
    if num_groups == 1:
        return jnp.exp(log_weights)[None]
    others = 1.0 - jnp.repeat(jnp.eye(num_groups), log_weights.shape[0] // num_groups, axis=1)
    logs = log_weights + jnp.log(others)
    return jnp.exp(jnp.concatenate([log_weights[None], logs - logsumexp(logs, axis=1, keepdims=True)]))


def _nodes(y: Array, margins: Any, weights: Array) -> tuple[Array, Array]:
    """Where and with which weights [2 Q, b, ...] integrals over the line are sums, which has a kink at y.

    Gauss-Legendre in u, z = y ± s u / (1 - u), with s the spread of the prediction about y.
    """
    from numpy.polynomial.legendre import leggauss

    u, length = leggauss(NODES)
    column = (-1, *[1] * y.ndim)
    u, length = ((u + 1.0) / 2.0).reshape(column), (length / 2.0).reshape(column)
    squares = (margins.loc - y) ** 2 + margins.scale**2
    spread = jnp.sqrt(jnp.tensordot(weights, squares, axes=1))
    reach = jnp.asarray(u / (1.0 - u)) * spread
    lengths = jnp.asarray(length / (1.0 - u) ** 2) * spread
    return jnp.concatenate([y + reach, y - reach]), jnp.concatenate([lengths, lengths])
