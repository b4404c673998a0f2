"""What all scorers share: how precisely is measured, the terms of scores, their means and errors.

What the terms are computed from depends on the truth: an environment of classes (`evaluator`), one of numbers
(`numbers`), or labels that were held out (`held_out`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pp_testbed.errors import UsageError, check_whole
from pp_testbed.evaluation import joint
from pp_testbed.evaluation.doubt import Parts
from pp_testbed.evaluation.scores import SCORES
from pp_testbed.evaluation.selective import curves_of
from pp_testbed.inference.posterior import Finite, Sampled
from pp_testbed.models.base import Array

BIASED = {score.name for score in SCORES if score.has_bias}
GROUPS = 10  # of draws, for the jackknife
CHUNK = 2**19  # floats of working memory for enumerating outcomes
BLOCK = 2**23  # outputs of all functions in memory at once
OF_CLASSES = frozenset({"probabilities", "classes"})


class Terms(NamedTuple):
    """What scores are means of: KLs per batch [n], others per input [n, width], `predicted` [n, width, K].

    Attributes:
        whole: of all functions.
        without: of all but each group of neighbours, [n, G, ...]; G is 1 where they are all there is.
        rows: which of the rows that were held out are in each batch [n, width], if any were.
    """

    whole: Parts
    without: Parts
    rows: Array | None = None


@dataclass(frozen=True)
class Evaluation:
    """What is measured, and how precisely. Frozen and hashable: it is part of a cell's identity.

    Args:
        num_batches: test batches of `tau` inputs each. With labels integrated out, the default adds
            less than a tenth to the standard error of a mean over the 210 problems of `2d`
            (`benchmarks/inputs.py` measures it).
        tau: how many labels a joint prediction is about.
        kappa: how many anchors the inputs of a polyadic prediction are resampled from; 2 is dyadic.
        num_draws: functions drawn from a posterior that is not finite, a multiple of ten.
        labels: "auto" integrates labels out where outcomes can be enumerated; "sampled" draws them.
        num_label_samples: outcomes per batch where labels are sampled.
    """

    revision: ClassVar[int] = 1
    num_batches: int = 300
    tau: int = 10
    kappa: int = 2
    num_draws: int = 1000
    labels: str = "auto"
    num_label_samples: int = 100

    def __post_init__(self) -> None:
        for name in ("num_batches", "num_draws"):
            check_whole(name, getattr(self, name), least=2)
        for name in ("tau", "kappa", "num_label_samples"):
            check_whole(name, getattr(self, name), least=1)
        if self.num_draws % self.num_groups:
            raise UsageError(f"num_draws is {self.num_draws}; expected a multiple of {GROUPS}")
        if self.labels not in ("auto", "sampled"):
            raise UsageError(f"labels is {self.labels!r}; expected 'auto' or 'sampled'")

    @property
    def num_groups(self) -> int:
        """Groups of draws, for the jackknife."""
        return min(GROUPS, self.num_draws)

    @property
    def width(self) -> int:
        """Inputs per batch: tau, the first kappa of which are also the anchors."""
        return max(self.tau, self.kappa)

    def is_exact(self, num_classes: int, resampled: bool) -> bool:
        """Whether the labels of joint (or, resampled, of polyadic) predictions are integrated out."""
        inputs = self.kappa if resampled else self.tau
        size = joint.num_outcomes(inputs, num_classes, self.tau, resampled)
        return self.labels == "auto" and size <= joint.MAX_OUTCOMES

    def batches_per_chunk(self, num_draws: int, num_classes: int) -> int:
        """How many batches are in memory at once."""
        outcomes = sum(
            joint.num_outcomes(self.kappa if resampled else self.tau, num_classes, self.tau, resampled)
            if self.is_exact(num_classes, resampled)
            else self.num_label_samples * num_draws
            for resampled in (False, True)
        )
        per_batch = num_draws * (self.width * num_classes * 4 + 200) + 4 * outcomes
        return int(np.clip(CHUNK // per_batch, 1, self.num_batches))

    def chunks_per_block(self, num_draws: int, num_classes: int) -> int:
        """How many such chunks the networks are evaluated on together."""
        chunk = self.batches_per_chunk(num_draws, num_classes)
        most = BLOCK // (num_draws * num_classes * self.width * chunk)
        return int(np.clip(100 // chunk, 1, max(1, most)))


PAPER = Evaluation(num_batches=1000, num_draws=1000)


def marginal_terms(log_truth: Array, log_probs: Array, log_weights: Array, num_groups: int) -> Terms:
    """Scores of the predictive mean at each input, with labels integrated out.

    Args:
        log_truth: [n, width, K].
        log_probs: [n, width, K, M].
        log_weights: [M].
    """
    grouped = (log_probs + log_weights).reshape(*log_probs.shape[:3], num_groups, -1)
    groups = jnp.moveaxis(logsumexp(grouped, axis=-1), -1, 1)  # [n, G, width, K]
    log_predicted, log_without = joint.combine_groups(groups)
    truth, num_classes = jnp.exp(log_truth), log_truth.shape[-1]
    # Every input is a batch of its own, whose outcomes are the classes.
    log_true, weight, log_mixture = (
        scores.reshape(-1, num_classes, 1) for scores in (log_truth, truth, log_predicted)
    )
    without = jnp.moveaxis(log_without, 1, 2).reshape(-1, num_groups, num_classes, 1)
    kl, kl_without = joint.kl_of_mixture(log_true, weight, log_mixture, without, log_weights)
    kl_without = jnp.moveaxis(kl_without.reshape(*truth.shape[:2], num_groups), 2, 1)
    if num_groups > 1:
        log_without -= joint.log_share_without(log_weights, num_groups)[:, None, None]
    else:
        log_without = log_predicted[:, None]
    return Terms(
        {"kl_marginal": kl.reshape(truth.shape[:2]), **mean_terms(truth, log_predicted)},
        {"kl_marginal": kl_without, **jax.vmap(mean_terms, (None, 1), 1)(truth, log_without)},
    )


def mean_terms(truth: Array, log_predicted: Array) -> dict[str, Array]:
    """Scores [n, width] of a predictive mean, from its logarithm and the truth, both [n, width, K]."""
    predicted = jnp.exp(log_predicted)
    top = predicted.argmax(axis=-1, keepdims=True)
    return {
        "nll": -jnp.where(truth > 0, truth * log_predicted, 0.0).sum(axis=-1),
        "brier": 1.0 + (predicted * (predicted - 2.0 * truth)).sum(axis=-1),
        "accuracy": jnp.take_along_axis(truth, top, axis=-1)[..., 0],
        "predicted": predicted,
    }


def mixture_of(posterior: Any, key: Array, config: Evaluation) -> tuple[Finite, int]:
    """The functions of a posterior that are scored, and into how many groups the jackknife divides them."""
    mixture = posterior.draw(key, config.num_draws)
    return mixture, mixture.num_groups if isinstance(posterior, Finite) else config.num_groups


def log_mixture(log_probs: Array, log_weights: Array, num_groups: int) -> tuple[Array, Array]:
    """log Σ_m w_m p_m [n, ...] of log probabilities [n, ..., M]; and [n, G, ...] without each group."""
    grouped = (log_probs + log_weights).reshape(*log_probs.shape[:-1], num_groups, -1)
    groups = jnp.moveaxis(logsumexp(grouped, axis=-1), -1, 1)
    whole, without = joint.combine_groups(groups)
    if num_groups == 1:
        return whole, whole[:, None]
    shares = joint.log_share_without(log_weights, num_groups)
    return whole, without - shares.reshape(-1, *[1] * (whole.ndim - 1))


def summarise(
    terms: Terms, config: Evaluation, offers: frozenset[str] = OF_CLASSES, num_rows: int = 0
) -> dict[str, Array]:
    """Means, standard errors and biases, from the terms of all batches.

    Args:
        offers: what the truth offers; scores that need more are left out.
        num_rows: that were held out.
    """
    whole = per_score(terms.whole, config, offers)
    without = jax.vmap(per_score, (1, None, None))(terms.without, config, offers)  # [G, n, ...]
    if num_rows:  # the numbers of one row are one observation
        whole, without = jax.tree.map(_of_rows, whole), jax.tree.map(jax.vmap(_of_rows), without)
    summary = {}
    for name, values in whole.items():
        deviations = (without[name] - values).reshape(len(without[name]), -1)
        over_inputs = None
        if terms.rows is not None and values.ndim == 1:  # of batches, which share rows
            used = config.kappa if name == "nll_dyadic" else config.tau
            over_inputs = stderr_of_batches(values, terms.rows[:, :used], num_rows)
        summary[name] = values.mean()
        summary[name + "_stderr"] = stderr_of_mean(values.ravel(), deviations, over_inputs=over_inputs)
        if name in BIASED:
            summary[name + "_bias"] = joint.jackknife(deviations.mean(axis=1))[0]
    return summary | (curves_of(terms.whole) if num_rows else {})


def _of_rows(values: Array) -> Array:
    """Terms of rows [N, 1], the mean over the numbers of each [N, T]; those of batches [n] as they are."""
    return values.mean(axis=1, keepdims=True) if values.ndim == 2 else values


def stderr_of_batches(values: Array, rows: Array, num_rows: int) -> Array:
    """The standard error of the mean of values [n] of batches of b of N rows, which are the sample.

    Batches of few rows share them, so that their own spread says little. With ζ the variance over rows of
    what a row's batches are on average, v that over batches, and c_i of them with row i, it is
    √(ζ Σ c_i² / n² + (v - b ζ) / n) (Hoeffding, 1948, "A Class of Statistics with Asymptotically Normal
    Distribution"). The mean over a row's batches tells ζ but for noise, v / c_i, and the rest of each is of
    the other N - 1 rows, whence the factor ((N - 1) / (N - b))². It is not known where a batch has all rows.

    Args:
        rows: of each batch [n, b], all of them different.
    """
    num, size = rows.shape
    if size >= num_rows:
        return jnp.full((), jnp.nan)
    counts = jnp.zeros(num_rows).at[rows.ravel()].add(1.0)
    sums = jnp.zeros(num_rows).at[rows.ravel()].add(jnp.repeat(values - values.mean(), size))
    seen, inverse = counts > 0, 1.0 / jnp.maximum(counts, 1.0)
    between = jnp.where(seen, (sums * inverse) ** 2, 0.0).sum() / jnp.maximum(seen.sum() - 1, 1)
    alone = jnp.where(seen, inverse, 0.0).sum() / seen.sum()  # the share of v in it; 1 where no row is shared
    variance = values.var(ddof=1)
    share = jnp.where(
        alone < 1.0, (between - alone * variance) / jnp.where(alone < 1.0, 1.0 - alone, 1.0), 0.0
    )
    share = jnp.clip(share, 0.0, variance / size) * ((num_rows - 1) / (num_rows - size)) ** 2
    rest = jnp.maximum(variance - size * share, 0.0) / num
    return jnp.sqrt(share * (counts**2).sum() / num**2 + rest)


def stderr_of_mean(values: Array, *deviations: Array, over_inputs: Array | None = None) -> Array:
    """The standard error of a mean over N inputs of what finite numbers of draws make of each.

    A value is a constant + an effect of its input + one of the draws + one of both together. The variance
    over inputs, divided by N, has the first and the third effect; that over draws, the jackknife's, has the
    second and the third, which must not count twice. It is known, as the jackknife finds it larger in single
    values.

    Args:
        values: [N].
        deviations: of values without each group of a posterior's draws, [G, N]; of several posteriors.
        over_inputs: the standard error over inputs, where values are not of independent ones.
    """
    num = values.shape[0]
    if over_inputs is None:
        over_inputs = values.std(ddof=1) / jnp.sqrt(num)
    drawn = [part for part in deviations if len(part) > 1]
    if not drawn:
        return over_inputs
    over_draws = sum(joint.jackknife(part.mean(axis=1))[1] for part in drawn)
    of_values = sum(joint.jackknife(part)[1].mean() for part in drawn)
    of_both = (of_values - over_draws) / (num - 1)
    return jnp.sqrt(jnp.maximum(over_inputs**2 - of_both, 0.0) + over_draws)


def per_score(terms: Parts, config: Evaluation, offers: frozenset[str]) -> dict[str, Array]:
    """The terms of one mixture whose means are its scores: those that a truth allows."""
    return {score.name: score.terms(terms, config.tau) for score in SCORES if score.needs <= offers}


def num_draws_of(posterior: Finite | Sampled, config: Evaluation) -> int:
    """How many functions are in the mixture that is scored."""
    return posterior.log_weights.shape[0] if isinstance(posterior, Finite) else config.num_draws
