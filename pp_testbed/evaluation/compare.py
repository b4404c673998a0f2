"""The distance between a posterior and the exact one.

Scores say how far predictions are from the truth; here they are held against a reference that NUTS
made: the same test inputs, paired, and the clouds of functions themselves, at probe inputs. How
references come about is in `experiments.references`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.diagnostics import probe_inputs
from pp_testbed.evaluation.evaluator import terms_of
from pp_testbed.inference.base import as_posterior, log_weights_of
from pp_testbed.models.base import Array

POINTS = 250  # functions of each posterior in the two-sample tests, far enough apart to be independent
PERMUTATIONS = 999
EXCESS = ("kl_marginal", "kl_joint", "kl_dyadic")
FEWEST = 20  # functions below which a two-sample test says nothing


@dataclass(frozen=True)
class Comparison:
    """How far a posterior is from the reference. `_stderr` is over test inputs, paired.

    Attributes:
        excess_kl_marginal: the posterior's d¹ minus that of NUTS; so are the next, of d¹⁰ and d¹⁰,². `_bias`
            is what finite numbers of draws add to it, by the jackknives of both; negative where the
            reference's draws are too few for it (T and rho small).
        agreement: how often the likeliest class is the same.
        total_variation: of the predictive mean, ½ sum_k |p_k - q_k|, averaged over inputs.
        energy_distance: between functions at the probes, in units of the reference's spread there:
            2 E|X - Y| - E|X - X'| - E|Y - Y'|.
        energy_p: how often it is as large where functions are
            shuffled between the two; NaN for unequal weights or fewer than 20 functions. M and L draws
            of one distribution are some (1/M + 1/L) E|X - X'| apart, so mind the p-value, not the number.
        classifier_accuracy: of random trees that tell the two apart, on functions held out; 0.5 is best,
            NaN for unequal weights or fewer than 20 functions.
        classifier_p: how often chance does so well.
        correlation_error: root mean square, over pairs of probes, of the difference of the correlations
            between predicted probabilities; those of a posterior of one function count as 0.
    """

    excess_kl_marginal: float
    excess_kl_marginal_stderr: float
    excess_kl_marginal_bias: float
    excess_kl_joint: float
    excess_kl_joint_stderr: float
    excess_kl_joint_bias: float
    excess_kl_dyadic: float
    excess_kl_dyadic_stderr: float
    excess_kl_dyadic_bias: float
    agreement: float
    agreement_stderr: float
    total_variation: float
    total_variation_stderr: float
    energy_distance: float
    energy_p: float
    classifier_accuracy: float
    classifier_p: float
    correlation_error: float

    def asdict(self) -> dict[str, float]:
        """The comparison as a row of a table."""
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        for name, value in self.asdict().items():
            if name.endswith(("_stderr", "_bias", "_p")):
                continue
            error = getattr(self, name + "_stderr", None)
            p_value = getattr(self, name.partition("_")[0] + "_p", None)
            note = (
                f" ± {error:.4f}"
                if error is not None
                else f" (p = {p_value:.2g})"
                if p_value is not None
                else ""
            )
            lines.append(f"{name:<20} {value:8.4f}{note}")
        return "\n".join(lines)


def compare(posterior: Any, reference: Any, *, key: Array | None = None) -> Comparison:
    """Hold a posterior against the exact one of the same problem.

    Args:
        posterior: any, as for `evaluate`.
        reference: of `pt.reference`.
        key: for what is drawn at the probes and shuffled.

    Examples:
        >>> comparison = compare(posterior, reference)
        >>> comparison.excess_kl_joint > 0, comparison.agreement > 0.5
        (True, True)
    """
    if not hasattr(reference, "diagnostics") or not (callable(posterior) or hasattr(posterior, "logits")):
        given = f"{type(posterior).__name__} and {type(reference).__name__}"
        raise UsageError(f"compare takes a posterior and a reference (of pt.reference), not {given}")
    task = getattr(posterior, "task", None)
    if task is not None and not _same_data(task, reference.problem.task):
        raise UsageError(
            f"these chains were conditioned on other data than those of {reference.problem.name}"
        )
    if not reference.converged:
        raise UsageError(
            f"the reference of {reference.problem.name} has not converged "
            f"({'; '.join(reference.diagnostics.failures)}): nothing is compared to it"
        )
    posterior = as_posterior(posterior)
    key_draws, key_tests = jax.random.split(jax.random.key(0) if key is None else key)
    problem = reference.problem
    terms, _ = terms_of(posterior, problem.environment, problem.keys.evaluate, reference.evaluation)
    logits = posterior.logits(key_draws, probe_inputs(problem.model), 1000)
    values = np.asarray(logits[..., 1:] - logits[..., :1], dtype=np.float64)
    weights = np.exp(np.asarray(log_weights_of(posterior, len(values)), dtype=np.float64))
    exact = np.asarray(reference.values, dtype=np.float64).reshape(-1, *values.shape[1:])
    return Comparison(
        **_paired(terms, reference.terms),
        **{
            f"excess_{name}_bias": float(
                terms[name + "_bias"].mean() - getattr(reference.scores, name + "_bias")
            )
            for name in EXCESS
        },
        **_clouds(values, weights, exact, np.random.default_rng(np.asarray(jax.random.key_data(key_tests)))),
        correlation_error=correlation_error(values, weights, exact),
    )


def _same_data(task: Any, other: Any) -> bool:
    """Whether two tasks have the same rows, padding aside."""
    rows = int(other.num_train)
    return int(task.num_train) == rows and all(
        np.array_equal(a[:rows], b[:rows]) for a, b in ((task.x, other.x), (task.y, other.y))
    )


def _paired(terms: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """Excess KLs, agreement and total variation, each with its standard error over batches."""
    predicted, best = np.asarray(terms["predicted"]), np.asarray(exact["predicted"])
    per_batch = {
        f"excess_{name}": np.asarray(terms[name], dtype=np.float64) - np.asarray(exact[name])
        for name in EXCESS
    }
    per_batch["agreement"] = (predicted.argmax(axis=-1) == best.argmax(axis=-1)).astype(float)
    per_batch["total_variation"] = 0.5 * np.abs(predicted - best).sum(axis=-1)
    result = {}
    for name, values in per_batch.items():
        flat = values.ravel()
        result[name] = float(flat.mean())
        result[name + "_stderr"] = float(flat.std(ddof=1) / np.sqrt(flat.size))
    return result


def _clouds(values: np.ndarray, weights: np.ndarray, exact: np.ndarray, rng: Any) -> dict[str, float]:
    """The two-sample tests, on standardised values [M, probes, K - 1]."""
    spread = exact.std(axis=0) + 1e-12
    x, exact = ((v / spread).reshape(len(v), -1) / np.sqrt(spread.size) for v in (values, exact))
    y, is_equal = _evenly(exact), np.allclose(weights, weights[0])
    if is_equal:
        x, weights = _evenly(x), _evenly(weights)
    is_testable = is_equal and len(x) >= FEWEST
    distance, p_value = energy_test(x, y, weights / weights.sum(), rng, PERMUTATIONS if is_testable else 0)
    accuracy, classifier_p = classifier_test(x, y, rng) if is_testable else (float("nan"), float("nan"))
    return {
        "energy_distance": distance,
        "energy_p": p_value,
        "classifier_accuracy": accuracy,
        "classifier_p": classifier_p,
    }


def _evenly(points: np.ndarray) -> np.ndarray:
    """At most `POINTS` of them, evenly spaced: neighbours in a chain are alike."""
    if len(points) <= POINTS:
        return points
    return points[np.linspace(0, len(points) - 1, POINTS).astype(int)]


def energy_test(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, rng: Any, permutations: int
) -> tuple[float, float]:
    """Energy distance of x [M, D] (weighted) and y [L, D], and its permutation p-value.

    Székely and Rizzo, 2004, "Testing for Equal Distributions in High Dimension". The p-value counts
    the observed labelling as one of the permutations, so that it is never 0.
    """
    pooled = np.concatenate([x, y])
    squares = (pooled**2).sum(axis=1)
    gram = squares[:, None] + squares[None] - 2.0 * pooled @ pooled.T
    distances = np.sqrt(np.maximum(gram, 0.0))
    np.fill_diagonal(distances, 0.0)
    contrast = np.concatenate([weights, np.full(len(y), -1.0 / len(y))])

    def energy(contrasts: np.ndarray) -> np.ndarray:
        return -np.einsum("...i,ij,...j->...", contrasts, distances, contrasts, optimize=True)

    observed = float(energy(contrast))
    if not permutations:
        return observed, float("nan")
    shuffled = rng.permuted(np.tile(contrast, (permutations, 1)), axis=1)
    as_large = (energy(shuffled) >= observed * (1 - 1e-9)).sum()
    return observed, float((1 + as_large) / (1 + permutations))


def classifier_test(x: np.ndarray, y: np.ndarray, rng: Any) -> tuple[float, float]:
    """Accuracy of random trees on x against y, and the probability of it by chance.

    Lopez-Paz and Oquab, 2017, "Revisiting Classifier Two-Sample Tests". Trained on one half and tested on
    the other: predictions by cross-validation would depend on each other, and not be binomial.
    """
    from scipy.stats import binom
    from sklearn.ensemble import ExtraTreesClassifier

    half = min(len(x), len(y)) // 2
    x, y = (points[rng.choice(len(points), 2 * half, replace=False)] for points in (x, y))
    labels = np.repeat([0, 1], half)
    trees = ExtraTreesClassifier(200, min_samples_leaf=3, random_state=int(rng.integers(2**31)))
    trees.fit(np.concatenate([x[:half], y[:half]]), labels)
    right = int((trees.predict(np.concatenate([x[half:], y[half:]])) == labels).sum())
    return right / len(labels), float(binom.sf(right - 1, len(labels), 0.5))


def correlation_error(values: np.ndarray, weights: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square difference of correlations of predictions at pairs of probes."""

    def correlations(logits: np.ndarray, mass: np.ndarray) -> np.ndarray:
        padded = np.concatenate([np.zeros_like(logits[..., :1]), logits], axis=-1)
        probs = np.asarray(jax.nn.softmax(jnp.asarray(padded), axis=-1), dtype=np.float64)[..., 1:]
        centred = probs - np.einsum("m,mpk->pk", mass, probs)
        covariance = np.einsum("m,mpk,mqk->pqk", mass, centred, centred, optimize=True)
        scale = np.sqrt(np.einsum("ppk->pk", covariance))
        scales = scale[:, None] * scale[None]
        return np.divide(covariance, scales, out=np.zeros_like(covariance), where=scales > 1e-12)

    equal = np.full(len(exact), 1.0 / len(exact))
    difference = correlations(values, weights) - correlations(exact, equal)
    pairs = np.triu_indices(difference.shape[0], 1)
    return float(np.sqrt((difference[pairs] ** 2).mean()))
