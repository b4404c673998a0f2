"""The one evaluator: how far a posterior's predictions are from the truth, with error bars.

`evaluate` is the door. What is scored depends on what the truth offers: an environment knows probabilities
(`classes`, `numbers`), data have labels that were held out (`held_out`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.evaluation import held_out, numbers
from pp_testbed.evaluation.classes import check_width, terms_of_inputs, terms_of_plain, weights_of_plain
from pp_testbed.evaluation.scores import COLUMNS, Scores
from pp_testbed.evaluation.selective import CURVES
from pp_testbed.evaluation.terms import OF_CLASSES, Evaluation, Terms, mixture_of, num_draws_of, summarise
from pp_testbed.inference.posterior import Finite, Posterior, Sampled, as_posterior
from pp_testbed.models.base import Array, check_key
from pp_testbed.problems.base import BaseProblem

Truth: TypeAlias = Any  # an `Environment`, or `HeldOut` labels


class Scorer(NamedTuple):
    """How functions are scored on a kind of truth: at which inputs, and what the terms are."""

    inputs: Callable[..., Array]
    terms: Callable[..., Terms]


OF_ROWS = Scorer(held_out.inputs_of, held_out.terms_of_rows)
OF_NUMBERS = Scorer(numbers.inputs_of, numbers.terms_of_batches)


def scorer_of(truth: Truth) -> Scorer:
    """How functions are scored on a truth that is no environment of classes."""
    return OF_ROWS if "labels" in truth.offers else OF_NUMBERS


@partial(jax.jit, static_argnames="config")
def score(posterior: Any, truth: Truth, key: Array, config: Evaluation) -> dict[str, Array]:
    """Means, standard errors and biases of one `Finite` or `Sampled` posterior: one compiled program."""
    return summarise(score_inputs(posterior, truth, key, config), config, truth.offers, truth.num_rows)


@partial(jax.jit, static_argnames="config")
def score_inputs(posterior: Any, truth: Truth, key: Array, config: Evaluation) -> Terms:
    """The terms of the scores."""
    if truth.offers == OF_CLASSES:
        return terms_of_inputs(posterior, truth, key, config)
    key_inputs, key_terms, key_draws = jax.random.split(key, 3)
    scorer, (mixture, num_groups) = scorer_of(truth), mixture_of(posterior, key_draws, config)
    x = scorer.inputs(truth, key_inputs, config)
    check_width(jax.eval_shape(mixture.values, x[:1]).shape[-1], truth)
    return scorer.terms(mixture.values, x, x, truth, mixture.log_weights, num_groups, key_terms, config)


def evaluate(posterior: Posterior, problem: BaseProblem | Truth, *, key: Array, **options: Any) -> Scores:
    """Score a posterior on a problem.

    Args:
        posterior: any; a plain function `(x, rng) -> logits` is taken as by `pt.sampled`.
        problem: a problem, or the truth of one.
        key: the same key gives the same test inputs, so that scores of two posteriors are paired.
        options: of `Evaluation`, such as `num_batches=1000, tau=5`; or `config`, a whole one.

    Examples:
        >>> scores = evaluate(posterior, problem, key=problem.keys.evaluate)
        >>> scores.kl_joint > scores.kl_marginal, scores.labels
        (True, 'exact')
    """
    config = options.pop("config", None) or Evaluation(**options)
    truth: Truth = getattr(problem, "truth", problem)
    if not hasattr(truth, "offers"):
        raise UsageError(f"the problem is {problem!r}; expected one, as in pt.problem('2d/T30-rho0.1-s0')")
    check_key(key)
    if not hasattr(as_posterior(posterior), "logits"):
        hint = ": fit it first, as in method.fit(key, task)" if hasattr(posterior, "fit") else ""
        raise UsageError(f"{type(posterior).__name__} is no posterior{hint}")
    terms, num_draws = terms_of(posterior, truth, key, config)
    scores = scores_of(_summarise(terms, config, truth.offers, truth.num_rows), num_draws, truth, config)
    if np.isnan(scores.nll):
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


def terms_of(posterior: Posterior, truth: Truth, key: Array, config: Evaluation) -> tuple[Terms, int]:
    """As `score_inputs`, for any posterior; and how many functions were in the mixture."""
    posterior = as_posterior(posterior)
    if isinstance(posterior, Finite | Sampled):
        terms = score_inputs(posterior.without_history(), truth, key, config=config)
        return terms, num_draws_of(posterior, config)
    if truth.offers == OF_CLASSES:
        return terms_of_plain(posterior, truth, key, config)
    key_inputs, key_terms, key_draws = jax.random.split(key, 3)
    x = scorer_of(truth).inputs(truth, key_inputs, config)
    outputs = posterior.logits(key_draws, x, config.num_draws)
    log_weights, num_groups = weights_of_plain(posterior, outputs, truth, config)
    terms = _terms_of_table(jnp.moveaxis(outputs, 1, 0), x, truth, log_weights, num_groups, key_terms, config)
    return terms, len(outputs)


@partial(jax.jit, static_argnums=(4, 6))
def _terms_of_table(
    table: Array,
    x: Array,
    truth: Truth,
    log_weights: Array,
    num_groups: int,
    key: Array,
    config: Evaluation,
) -> Terms:
    """The terms of functions that are known by their outputs [N, M, D] at all inputs."""
    terms = scorer_of(truth).terms
    return terms(lambda part: jnp.moveaxis(part, 1, 0), table, x, truth, log_weights, num_groups, key, config)


_summarise = jax.jit(summarise, static_argnums=(1, 2, 3))


def scores_of(summary: dict[str, Array], num_draws: int, truth: Truth, config: Evaluation) -> Scores:
    """The scores that `score` computed."""
    values = {name: float(summary[name]) for name in COLUMNS if name in summary}
    curves = {name: np.asarray(summary[name]).tolist() for name in CURVES if name in summary}
    return Scores(values, num_draws, _words_on_labels(truth, config), curves)


def _words_on_labels(truth: Truth, config: Evaluation) -> str:
    """Where labels come from."""
    if "labels" in truth.offers:
        return "held out"
    if "numbers" in truth.offers:
        return "sampled"
    not_exact = [
        name
        for name, resampled in (("joint", False), ("dyadic", True))
        if not config.is_exact(truth.num_classes, resampled)
    ]
    return "sampled for " + " and ".join(not_exact) if not_exact else "exact"
