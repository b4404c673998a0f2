"""The distance between a posterior and the exact one.

Scores say how far predictions are from the truth; here they are held against a reference that NUTS
made: the same test inputs, paired, and the clouds of functions themselves, at probe inputs. How
references come about is in `studies.references`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.diagnostics import effective_size
from pp_testbed.evaluation.evaluator import terms_of
from pp_testbed.evaluation.joint import jackknife
from pp_testbed.evaluation.scores import lead_among
from pp_testbed.evaluation.terms import Terms, stderr_of_mean
from pp_testbed.inference.arviz import by_chain, probe_inputs
from pp_testbed.inference.posterior import as_posterior, log_weights_of
from pp_testbed.models.base import Array, check_key

POINTS = 250  # functions of a posterior in the two-sample tests, at most
MOST = 1000  # of the reference
PERMUTATIONS = 999
EXCESS = ("kl_marginal", "kl_joint", "kl_dyadic")
FEWEST = 20  # functions below which a two-sample test says nothing
MEASURES = {  # of two predictive means [..., K], at each input
    "agreement": lambda p, q: (p.argmax(axis=-1) == q.argmax(axis=-1)).astype(float),
    "total_variation": lambda p, q: 0.5 * jnp.abs(p - q).sum(axis=-1),
}


@dataclass(frozen=True)
class Comparison:
    """How far a posterior is from the reference.

    `_stderr` is over test inputs, paired, and by the jackknife over the draws of both, which is most of it
    where a posterior is drawn from.

    Attributes:
        excess_kl_marginal: the posterior's d¹ minus that of NUTS; so are the next, of d¹⁰ and d¹⁰,². `_bias`
            is what finite numbers of draws add to it, by the jackknives of both; negative where the
            reference's draws are too few for it (T and rho small).
        agreement: how often the likeliest class is the same.
        total_variation: of the predictive mean, ½ sum_k |p_k - q_k|, averaged over inputs.
        energy_distance: between functions at the probes, in units of the reference's spread there:
            2 E|X - Y| - E|X - X'| - E|Y - Y'|.
        energy_p: how often it is as large where functions are
            shuffled between the two; NaN for unequal weights or fewer than 20 functions. Of chains half
            as many functions count as are effectively independent. M and L draws of one distribution are some
            (1/M + 1/L) E|X - X'| apart, so mind the p-value, not the number.
        classifier_accuracy: of random trees that tell the two apart, on functions held out; 0.5 is best,
            NaN where `energy_p` is.
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
    if key is not None:
        check_key(key)
    key_draws, key_tests = jax.random.split(jax.random.key(0) if key is None else key)
    problem = reference.problem
    terms, _ = terms_of(posterior, problem.truth, problem.keys.evaluate, reference.evaluation)
    logits = posterior.logits(key_draws, probe_inputs(problem.model), 1000)
    if not bool(jnp.isfinite(logits).all()):
        first = int(jnp.argmin(jnp.isfinite(logits).all(axis=(1, 2))))
        raise UsageError(f"draw {first} of the posterior has logits that are not finite at the probe inputs")
    values = np.asarray(problem.task.likelihood.predictor(logits), dtype=np.float64)
    weights = np.exp(np.asarray(log_weights_of(posterior, len(values)), dtype=np.float64))
    exact = np.asarray(reference.values, dtype=np.float64).reshape(-1, *values.shape[1:])
    varies = exact.std(axis=(0, 1)) > 0  # not a noise that is known
    values, exact = values[..., varies], exact[..., varies]
    exact_size = min(MOST, int(reference.diagnostics.ess_bulk / 2))
    size = num_independent(values, getattr(posterior, "num_chains", 0))
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key_tests)))
    return Comparison(
        **_paired(terms, reference),
        **_clouds(values, weights, (size, exact_size), exact, generator),
        correlation_error=correlation_error(values, weights, exact),
    )


def num_independent(values: np.ndarray, num_chains: int) -> int:
    """How many of the functions [M, ...] of so many chains are independent; all of them if they are of none.

    As many draws of a chain as its effective size still correlate by e^-2 with their neighbours, half of them
    by e^-4.
    """
    return int(effective_size(by_chain(values, num_chains)) / 2) if num_chains else len(values)


def _same_data(task: Any, other: Any) -> bool:
    """Whether two tasks have the same rows, padding aside."""
    rows = int(other.num_train)
    return int(task.num_train) == rows and all(
        np.array_equal(a[:rows], b[:rows]) for a, b in ((task.x, other.x), (task.y, other.y))
    )


def _paired(terms: Terms, reference: Any) -> dict[str, float]:
    """Excess KLs, agreement and total variation, each with its standard error."""
    result: dict[str, float] = {}
    # Of held-out labels a difference of likelihoods is, in expectation, one of divergences.
    for field, name in zip(EXCESS, lead_among(terms.whole), strict=True):
        values, own = terms.whole[name], terms.without[name]
        deviations = jnp.moveaxis(own, 1, 0) - values
        result |= _mean(
            f"excess_{field}", values - reference.terms[name], deviations, reference.deviations[name]
        )
        bias = jackknife(deviations.reshape(len(deviations), -1).mean(axis=1))[0]
        known = getattr(reference.scores, name + "_bias", None)
        other = reference.deviations[name].astype(np.float32)
        exact_bias = jackknife(other.reshape(len(other), -1).mean(axis=1))[0] if known is None else known
        result[f"excess_{field}_bias"] = float(bias) - float(exact_bias)
    if "predicted" not in terms.whole:  # of numbers, which have no likeliest class
        unknown = {f"{name}{end}": float("nan") for name in MEASURES for end in ("", "_stderr")}
        return result | unknown
    predicted, own = terms.whole["predicted"], jnp.moveaxis(terms.without["predicted"], 1, 0)
    exact = jnp.asarray(reference.terms["predicted"])
    others = exact + reference.deviations["predicted"]
    for name, measure in MEASURES.items():
        values = measure(predicted, exact)
        of_own, of_other = measure(own, exact) - values, measure(predicted, others) - values
        result |= _mean(name, values, of_own, of_other)
    return result


def _mean(name: str, values: Array, *deviations: Array) -> dict[str, float]:
    """A mean over inputs and its standard error: see `stderr_of_mean`."""
    flat = [jnp.reshape(part, (len(part), -1)) for part in deviations]
    return {name: float(values.mean()), name + "_stderr": float(stderr_of_mean(values.ravel(), *flat))}


def _clouds(
    values: np.ndarray, weights: np.ndarray, sizes: tuple[int, int], exact: np.ndarray, rng: Any
) -> dict[str, float]:
    """The two-sample tests, on standardised values [M, probes, K - 1].

    So many of the values, and of the exact ones, are independent.
    """
    spread = exact.std(axis=0) + 1e-12
    x, exact = ((v / spread).reshape(len(v), -1) / np.sqrt(spread.size) for v in (values, exact))
    size, exact_size = sizes
    y, is_equal = _evenly(exact, exact_size), np.allclose(weights, weights[0])
    if is_equal:
        x = _evenly(x, POINTS)
        weights = np.full(len(x), 1.0 / len(x))
    tests = {
        "energy_distance": energy_distance(x, y, weights),
        "energy_p": float("nan"),
        "classifier_accuracy": float("nan"),
        "classifier_p": float("nan"),
    }
    if is_equal and size >= FEWEST and len(x) >= FEWEST:
        x = _evenly(x, size)
        tests["energy_p"] = energy_p_value(x, y, rng)
        tests["classifier_accuracy"], tests["classifier_p"] = classifier_test(x, y, rng)
    return tests


def _evenly(points: np.ndarray, most: int) -> np.ndarray:
    """At most so many of them, evenly spaced: neighbours in a chain are alike."""
    return points[np.linspace(0, len(points) - 1, min(len(points), most)).astype(int)]


def energy_distance(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'| of x [M, D] (weighted) and y [L, D].

    Székely and Rizzo, 2004, "Testing for Equal Distributions in High Dimension".
    """
    contrast = np.concatenate([weights / weights.sum(), np.full(len(y), -1.0 / len(y))])
    return float(_energies(contrast, _distances(np.concatenate([x, y]))))


def energy_p_value(x: np.ndarray, y: np.ndarray, rng: Any, permutations: int = PERMUTATIONS) -> float:
    """How often the energy distance of x [M, D] and y [L, D], shuffled together, is as large as theirs.

    The observed labelling counts as one of the permutations, so that it is never 0.
    """
    contrast = np.concatenate([np.full(len(x), 1.0 / len(x)), np.full(len(y), -1.0 / len(y))])
    distances = _distances(np.concatenate([x, y]))
    shuffled = rng.permuted(np.tile(contrast, (permutations, 1)), axis=1)
    as_large = (_energies(shuffled, distances) >= _energies(contrast, distances) * (1 - 1e-9)).sum()
    return float((1 + as_large) / (1 + permutations))


def _energies(contrasts: np.ndarray, distances: np.ndarray) -> np.ndarray:
    return -np.einsum("...i,ij,...j->...", contrasts, distances, contrasts, optimize=True)


def _distances(points: np.ndarray) -> np.ndarray:
    """Euclidean distances [M, M] of points [M, D]."""
    squares = (points**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2.0 * points @ points.T, 0.0))
    np.fill_diagonal(distances, 0.0)
    return distances


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
