"""The one evaluator: how far a posterior's predictions are from the truth, with error bars.

Every posterior, however made, is scored by `score_chunk` on its logits at test inputs. Labels are
integrated out where they can be enumerated, so what remains random is the inputs and, of a posterior
that is not finite, the draws: the error bars are of both.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pp_testbed.errors import UsageError, check_whole
from pp_testbed.evaluation import joint
from pp_testbed.evaluation.scores import COLUMNS, SCORES, Scores
from pp_testbed.inference.posterior import (
    Finite,
    Posterior,
    Sampled,
    as_posterior,
    check_logits,
    divisor,
    log_weights_of,
)
from pp_testbed.models.base import Array, Environment, check_key
from pp_testbed.problems.synthetic import Problem

BIASED = {score.name for score in SCORES if score.has_bias}
GROUPS = 10  # of draws, for the jackknife
CHUNK = 2**19  # floats of working memory for enumerating outcomes
BLOCK = 2**23  # logits of all functions in memory at once
HOST_CHUNK = 2**24  # logits per call of a posterior in plain Python


class Terms(NamedTuple):
    """What scores are means of: KLs per batch [n], others per input [n, width], `predicted` [n, width, K].

    Attributes:
        whole: of all functions.
        without: of all but each group of neighbours, [n, G, ...]; G is 1 where they are all there is.
    """

    whole: dict[str, Array]
    without: dict[str, Array]


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


def summarise(terms: Terms, config: Evaluation) -> dict[str, Array]:
    """Means, standard errors and biases, from the terms of all batches."""
    whole = per_score(terms.whole, config)
    without = jax.vmap(per_score, (1, None))(terms.without, config)  # [G, n, ...]
    summary = {}
    for name, values in whole.items():
        deviations = (without[name] - values).reshape(len(without[name]), -1)
        summary[name] = values.mean()
        summary[name + "_stderr"] = stderr_of_mean(values.ravel(), deviations)
        if name in BIASED:
            summary[name + "_bias"] = joint.jackknife(deviations.mean(axis=1))[0]
    return summary


def stderr_of_mean(values: Array, *deviations: Array) -> Array:
    """The standard error of a mean over N inputs of what finite numbers of draws make of each.

    A value is a constant + an effect of its input + one of the draws + one of both together. The variance
    over inputs, divided by N, has the first and the third effect; that over draws, the jackknife's, has the
    second and the third, which must not count twice. It is known, as the jackknife finds it larger in single
    values.

    Args:
        values: [N].
        deviations: of values without each group of a posterior's draws, [G, N]; of several posteriors.
    """
    num = values.shape[0]
    over_inputs = values.std(ddof=1) / jnp.sqrt(num)
    drawn = [part for part in deviations if len(part) > 1]
    if not drawn:
        return over_inputs
    over_draws = sum(joint.jackknife(part.mean(axis=1))[1] for part in drawn)
    of_values = sum(joint.jackknife(part)[1].mean() for part in drawn)
    of_both = (of_values - over_draws) / (num - 1)
    return jnp.sqrt(jnp.maximum(over_inputs**2 - of_both, 0.0) + over_draws)


def per_score(terms: dict[str, Array], config: Evaluation) -> dict[str, Array]:
    """The terms of one mixture whose means are its scores."""
    return {score.name: score.terms(terms, config.tau) for score in SCORES}


@partial(jax.jit, static_argnames="config")
def score(posterior: Any, environment: Environment, key: Array, config: Evaluation) -> dict[str, Array]:
    """Means, standard errors and biases of one `Finite` or `Sampled` posterior: one compiled program."""
    return summarise(score_inputs(posterior, environment, key, config), config)


@partial(jax.jit, static_argnames="config")
def score_inputs(posterior: Any, environment: Environment, key: Array, config: Evaluation) -> Terms:
    """The terms of the scores, of all batches.

    Networks are evaluated on a block of inputs, large enough for fast matrix products; outcomes are
    enumerated chunk by chunk of the block, small enough to stay in cache.
    """
    x, key_labels, key_draws = _randomness(key, environment, config)
    mixture = posterior.draw(key_draws, config.num_draws)
    num_groups = mixture.num_groups if isinstance(posterior, Finite) else config.num_groups
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


def evaluate(posterior: Posterior, problem: Problem | Environment, *, key: Array, **options: Any) -> Scores:
    """Score a posterior on a problem.

    Args:
        posterior: any; a plain function `(x, rng) -> logits` is taken as by `pt.sampled`.
        problem: a `Problem` or an `Environment`.
        key: the same key gives the same test inputs, so that scores of two posteriors are paired.
        options: of `Evaluation`, such as `num_batches=1000, tau=5`; or `config`, a whole one.

    Examples:
        >>> scores = evaluate(posterior, problem, key=problem.keys.evaluate)
        >>> scores.kl_joint > scores.kl_marginal, scores.labels
        (True, 'exact')
    """
    config = options.pop("config", None) or Evaluation(**options)
    environment = problem.environment if isinstance(problem, Problem) else problem
    if not isinstance(environment, Environment):
        raise UsageError(f"the problem is {problem!r}; expected one, as in pt.problem('2d/T30-rho0.1-s0')")
    check_key(key)
    if not hasattr(as_posterior(posterior), "logits"):
        hint = ": fit it first, as in method.fit(key, task)" if hasattr(posterior, "fit") else ""
        raise UsageError(f"{type(posterior).__name__} is no posterior{hint}")
    terms, num_draws = terms_of(posterior, environment, key, config)
    scores = scores_of(_summarise(terms, config), num_draws, environment, config)
    if np.isnan(scores.kl_joint):
        warnings.warn(f"scores are NaN: {words_on_nan(getattr(posterior, 'losses', None))}", stacklevel=2)
    return scores


def words_on_nan(losses: Any) -> str:
    """Why a posterior's logits may be NaN, from the losses of its training [..., steps], if it has any."""
    if losses is not None:
        undefined = np.isnan(np.atleast_1d(np.asarray(losses, dtype=np.float64)))
        steps = undefined.reshape(-1, undefined.shape[-1]).any(axis=0)
        if steps.any():
            return f"training gave NaN at step {steps.argmax() + 1}: lower learning_rate"
    return "the posterior's logits contain NaN"


def terms_of(
    posterior: Posterior, environment: Environment, key: Array, config: Evaluation
) -> tuple[Terms, int]:
    """As `score_inputs`, for any posterior; and how many functions were in the mixture."""
    posterior = as_posterior(posterior)
    if not isinstance(posterior, Finite | Sampled):
        return _plain_terms(posterior, environment, key, config)
    terms = score_inputs(posterior.without_history(), environment, key, config=config)
    return terms, num_draws_of(posterior, config)


_summarise = jax.jit(summarise, static_argnums=1)


def num_draws_of(posterior: Finite | Sampled, config: Evaluation) -> int:
    """How many functions are in the mixture that is scored."""
    return posterior.log_weights.shape[0] if isinstance(posterior, Finite) else config.num_draws


def _plain_terms(
    posterior: Any, environment: Environment, key: Array, config: Evaluation
) -> tuple[Terms, int]:
    """As `score_inputs`, for logits that come from Python: a loop over chunks of inputs instead of a scan."""
    x, key_labels, key_draws = _randomness(key, environment, config)
    num_classes = environment.model.num_classes
    is_finite = getattr(posterior, "is_finite", False)
    inputs_at_once = HOST_CHUNK // (num_classes * (100 if is_finite else config.num_draws))
    step = max(1, inputs_at_once // config.width) * config.width
    num_chains = getattr(posterior, "num_chains", 0)
    pieces: list[Terms] = []
    for start in range(0, len(x), step):
        inputs = x[start : start + step]
        logits = posterior.logits(key_draws, inputs, config.num_draws)
        num_draws = logits.shape[0]
        _check_plain(logits, is_finite, num_classes, config)
        num_groups = 1 if is_finite else config.num_groups
        if num_chains:
            num_groups = divisor("chains", num_draws)
        log_weights = log_weights_of(posterior, num_draws)
        if log_weights.shape != (num_draws,):
            raise UsageError(f"there are {len(log_weights)} weights for {num_draws} draws")
        truth = environment.logits(inputs)
        small = config.batches_per_chunk(num_draws, num_classes) * config.width
        for i in range(0, len(inputs), small):
            key_chunk = jax.random.fold_in(key_labels, start + i)
            part = logits[:, i : i + small], truth[i : i + small]
            pieces.append(_score_chunk(key_chunk, *part, log_weights, num_groups, config))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces), num_draws


_score_chunk = jax.jit(score_chunk, static_argnums=(4, 5))


def _check_plain(logits: Array, is_finite: bool, num_classes: int, config: Evaluation) -> None:
    """Raise a UsageError unless logits [draws, N, K] of a plain posterior have the right shape."""
    if logits.shape[2] != num_classes:
        raise UsageError(f"logits have {logits.shape[2]} classes; the problem has {num_classes}")
    check_logits(np.asarray(logits))
    if not is_finite and logits.shape[0] != config.num_draws:
        raise UsageError(f"the posterior gave {logits.shape[0]} draws; expected {config.num_draws}")


def scores_of(
    summary: dict[str, Array], num_draws: int, environment: Environment, config: Evaluation
) -> Scores:
    """The scores that `score` computed."""
    not_exact = [
        name
        for name, resampled in (("joint", False), ("dyadic", True))
        if not config.is_exact(environment.model.num_classes, resampled)
    ]
    labels = "sampled for " + " and ".join(not_exact) if not_exact else "exact"
    return Scores({name: float(summary[name]) for name in COLUMNS}, num_draws, labels)
