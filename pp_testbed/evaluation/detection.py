"""Whether doubt is where the errors are: scores of rankings, which are no means of one input's terms.

Each is a function f(w) of weights of N inputs, the same for any multiple of them. To first order its error is
that of a mean of N terms, f + N ∂f/∂w_i at w = 1, whose own mean is f (the infinitesimal jackknife: Jaeckel,
1972; of the area under the ROC curve it is DeLong et al., 1988). Of inputs of equal doubt all orders are as
likely. Where nothing is there to be found, or nothing else, the areas are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ops import segment_sum

from pp_testbed.models.base import Array


class Ranking(NamedTuple):
    """Inputs by their doubt, the least first: their order [N], and the group of equal doubt of each [N]."""

    order: Array
    group: Array

    @classmethod
    def by(cls, doubt: Array) -> Ranking:
        """Of doubts [N]."""
        order = jnp.argsort(doubt)
        is_new = jnp.diff(doubt[order]) != 0
        return cls(order, jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(is_new.astype(int))]))

    def sums(self, values: Array) -> Array:
        """The sum of values [N] in each group [N], 0 of groups that there are not."""
        return segment_sum(values[self.order], self.group, len(self.order))

    def means(self, values: Array, weights: Array) -> Array:
        """The mean of values [N] of the group of each input, in their order [N]."""
        sums, every = self.sums(weights * values), self.sums(weights)
        return (sums / jnp.where(every > 0, every, 1.0))[self.group]


def linearised(score: Callable[[Array], Array], num: int) -> Array:
    """Terms [N] whose mean is a score of weights, and whose spread is its error.

    Examples:
        >>> marks = jnp.array([0.0, 1.0, 0.0, 1.0])
        >>> linearised(lambda w: auroc(w, jnp.array([0.1, 0.9, 0.5, 0.3]), marks), 4).mean().item()
        0.75
    """
    value, slope = jax.value_and_grad(score)(jnp.ones(num))
    return value + num * slope


def auroc(weights: Array, doubt: Array, mark: Array) -> Array:
    """P(doubt of one that is marked > doubt of one that is not) + P(they are equal) / 2.

    Args:
        weights: of the inputs [N].
        doubt: [N].
        mark: 1 of what should be doubted, such as an error, else 0: [N].
    """
    ranking = Ranking.by(doubt)
    marked, others = ranking.sums(weights * mark), ranking.sums(weights * (1.0 - mark))
    below = jnp.cumsum(others) - others
    return (marked * (below + 0.5 * others)).sum() / (marked.sum() * others.sum())


def average_precision(weights: Array, doubt: Array, mark: Array) -> Array:
    """Σ (recall_i - recall_{i-1}) precision_i over thresholds of doubt, as scikit-learn has it."""
    ranking = Ranking.by(doubt)
    marked, every = ranking.sums(weights * mark), ranking.sums(weights)
    above = [jnp.cumsum(part[::-1])[::-1] for part in (marked, every)]
    precision = above[0] / jnp.where(above[1] > 0, above[1], 1.0)
    return (marked * precision).sum() / marked.sum()


def aurc(weights: Array, doubt: Array, loss: Array) -> Array:
    """The mean, over how many of the least doubtful are covered, of the mean loss of those.

    Geifman and El-Yaniv, 2017, "Selective Classification for Deep Neural Networks".
    """
    ranking = Ranking.by(doubt)
    shared, sorted_weights = ranking.means(loss, weights), weights[ranking.order]
    covered = jnp.cumsum(sorted_weights)
    return (sorted_weights * jnp.cumsum(sorted_weights * shared) / covered).sum() / weights.sum()


def augrc(weights: Array, doubt: Array, loss: Array) -> Array:
    """∫ P(covered) E[loss | covered] dP(covered): the risk of a silent failure at a random coverage.

    Traub et al., 2024, "Overcoming Common Flaws in the Evaluation of Selective Classification Systems".
    """
    ranking = Ranking.by(doubt)
    losses, every = ranking.sums(weights * loss), ranking.sums(weights)
    below = jnp.cumsum(losses) - losses
    return (every * (below + 0.5 * losses)).sum() / weights.sum() ** 2
