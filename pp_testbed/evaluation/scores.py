"""The scores, each declared once: the schema of results, tables, tuning's metrics and the docs follow.

A score is the mean of terms over test inputs, or behaves like one: a function of all inputs, such as the
worst bin of calibration, is written as the mean of its linearised terms, whose spread is its error. What
the terms are made of is the evaluator's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pp_testbed.evaluation.detection import augrc, aurc, auroc, average_precision
from pp_testbed.evaluation.doubt import (
    DOUBTS,
    OF_SETS,
    Parts,
    knowledge_uncertainty,
    of_errors,
    of_sets,
    total_uncertainty,
)
from pp_testbed.models.base import Array

NUM_BINS = 10  # of confidence, for calibration errors
INTERVAL = 0.9  # the probability of the interval whose coverage is looked at
DECILES = np.arange(1, 10) / 10


PROBABILITIES, LABELS, CLASSES, NUMBERS, ELSEWHERE, COSTS = (
    frozenset({word}) for word in ("probabilities", "labels", "classes", "numbers", "elsewhere", "costs")
)


class Score(NamedTuple):
    """One score.

    Attributes:
        name: of its column; `_stderr` and, where it has one, `_bias` follow.
        symbol: what people call it.
        summary: what it is, in a line.
        terms: `(parts, tau)` to an array whose mean it is.
        needs: of the truth, all of these: "probabilities" of labels, or "labels" that were held out;
            "classes", or "numbers"; inputs from "elsewhere"; "costs" of errors.
        is_less_better: its direction; None if neither less nor more of it is better.
        has_bias: whether finite numbers of draws add to it, which the jackknife then measures.
        place: "column" of leaderboards, "other", or "detail", of results alone; `Lead` says which three lead.
        may_lack: whether it is NaN of some truths, such as how errors are told where there are none.
    """

    name: str
    symbol: str
    summary: str
    terms: Callable[[Parts, int], Array]
    needs: frozenset[str] = CLASSES
    is_less_better: bool | None = True
    has_bias: bool = False
    place: str = "other"
    may_lack: bool = False

    @property
    def columns(self) -> list[str]:
        """Its columns in results."""
        return [self.name, self.name + "_stderr", *[self.name + "_bias"] * self.has_bias]


def _part(name: str) -> Callable[[Parts, int], Array]:
    return lambda parts, tau: parts[name]


def _binned(parts: Parts) -> tuple[Array, Array, Array]:
    """Of every input: its bin of confidence [N], and confidence minus accuracy [N]; and inputs of bins."""
    confidence, accuracy = parts["predicted"].max(axis=-1).ravel(), parts["accuracy"].ravel()
    bins = jnp.clip((confidence * NUM_BINS).astype(int), 0, NUM_BINS - 1)
    gap = confidence - accuracy
    return bins, gap, jnp.zeros(NUM_BINS).at[bins].add(gap)


def ece_terms(parts: Parts, _tau: int = 0) -> Array:
    """Terms whose mean is the expected calibration error, sum_bins |sum (confidence - accuracy)| / N."""
    bins, gap, sums = _binned(parts)
    return (jnp.sign(sums)[bins] * gap).reshape(parts["accuracy"].shape)


def mce_terms(parts: Parts, _tau: int = 0) -> Array:
    """Terms whose mean is the maximum calibration error, max_bins |mean (confidence - accuracy)|.

    With g that of the worst bin, of n inputs, they are g + N / n (±gap - g) in the bin and g elsewhere: their
    spread is the error of g to first order (of a ratio of means; the delta method).
    """
    bins, gap, sums = _binned(parts)
    counts = jnp.zeros(NUM_BINS).at[bins].add(1.0)
    means = jnp.abs(sums) / jnp.maximum(counts, 1.0)
    worst = means.argmax()
    deviations = (jnp.sign(sums[worst]) * gap - means[worst]) * len(gap) / counts[worst]
    return (means[worst] + (bins == worst) * deviations).reshape(parts["accuracy"].shape)


def _aggregate(parts: Parts, tau: int) -> Array:
    return parts["kl_marginal"].mean(axis=1) + parts["kl_joint"] / tau


def rmse_terms(parts: Parts, _tau: int = 0) -> Array:
    """Terms whose mean is the root mean square error r of the mean: r + (e² - r²) / 2 r."""
    squares = parts["squared_error"]
    root = jnp.sqrt(squares.mean())
    return root + jnp.where(root > 0, (squares - root**2) / (2.0 * root), 0.0)


def coverage_terms(parts: Parts, _tau: int = 0) -> Array:
    """Whether labels are in the central interval of probability `INTERVAL`."""
    return (jnp.abs(parts["pit"] - 0.5) <= INTERVAL / 2).astype(float)


def pit_terms(parts: Parts, _tau: int = 0) -> Array:
    """Terms whose mean is that, over nine deciles q, of |share of labels below the predicted q - q|."""
    gaps = (parts["pit"][..., None] <= DECILES) - DECILES
    return (jnp.sign(gaps.mean(axis=(0, 1))) * gaps).mean(axis=-1)


def _kl(name: str, symbol: str, summary: str, terms: Any = None) -> Score:
    return Score(name, symbol, summary, terms or _part(name), PROBABILITIES, True, True)


def _plain(name: str, symbol: str, summary: str, terms: Any = None, **options: Any) -> Score:
    return Score(name, symbol, summary, terms or _part(name), **options)


def _detail(
    name: str, symbol: str, summary: str, terms: Any = None, needs: frozenset[str] = CLASSES, **options: Any
) -> Score:
    return Score(name, symbol, summary, terms or _part(name), LABELS | needs, place="detail", **options)


UNCERTAINTIES = (
    _detail(
        "total_uncertainty",
        "TU",
        "entropy of the predictive mean",
        total_uncertainty,
        is_less_better=None,
        has_bias=True,
    ),
    _detail(
        "knowledge_uncertainty",
        "MU",
        "total uncertainty minus the mean entropy of single functions",
        knowledge_uncertainty,
        is_less_better=None,
        has_bias=True,
    ),
    _detail(
        "disagreement",
        "disagreement",
        "probability that the likeliest classes of two functions differ",
        is_less_better=None,
        has_bias=True,
    ),
)
DETECTION = (
    *(
        _detail(
            f"{prefix}_{name}",
            symbol + doubt.short,
            f"{words}, by {doubt.words}",
            of_errors(score, doubt),
            is_less_better=False,
            may_lack=True,
        )
        for prefix, symbol, words, score in (
            ("auroc", "AUROC", "how often an error is doubted more than what is right", auroc),
            ("precision", "AP", "average precision of errors among what is doubted most", average_precision),
        )
        for name, doubt in DOUBTS.items()
    ),
    _detail(
        "aurc",
        "AURC",
        "area under the curve of the errors of what is covered, against coverage",
        of_errors(aurc, DOUBTS["confidence"]),
    ),
    _detail(
        "augrc",
        "AUGRC",
        "the same of errors that are covered, of all inputs",
        of_errors(augrc, DOUBTS["confidence"]),
    ),
    *(
        _detail(
            f"elsewhere_{name}",
            f"OOD{DOUBTS[name].short}",
            f"how often an input of another set is doubted more, by {DOUBTS[name].words}; the mean over sets",
            of_sets(DOUBTS[name]),
            needs=CLASSES | ELSEWHERE,
            is_less_better=False,
        )
        for name in OF_SETS
    ),
    _detail("cost", "cost", "mean cost of the decisions of least expected cost", needs=CLASSES | COSTS),
)


SCORES = (
    _kl("kl_marginal", "d¹", "E KL(P*(y|x) ‖ P(y|x)), one label"),
    _kl("kl_joint", "d¹⁰", "the same of τ labels at τ i.i.d. inputs"),
    _kl("kl_dyadic", "d¹⁰,²", "the same of τ labels at inputs resampled from κ anchors"),
    _kl("kl_aggregate", "d¹ + d¹⁰/10", "d¹ + d^τ / τ", _aggregate),
    _plain(
        "accuracy",
        "accuracy",
        "probability under the truth of the likeliest class",
        is_less_better=False,
        place="column",
    ),
    _plain(
        "nll",
        "NLL",
        "negative log likelihood of the predictive mean, expected under the truth",
        needs=frozenset(),
    ),
    _plain("brier", "Brier", "Brier score of the predictive mean, expected under the truth"),
    _plain("ece", "ECE", "expected calibration error, 10 bins of confidence", ece_terms, place="column"),
    _plain("mce", "MCE", "maximum calibration error: that of the worst bin", mce_terms),
    _plain(
        "nll_joint", "NLL¹⁰", "of τ labels at τ i.i.d. inputs", needs=LABELS, has_bias=True, place="headline"
    ),
    _plain(
        "nll_dyadic",
        "NLL¹⁰,²",
        "of τ labels at inputs resampled from κ anchors, with their labels",
        needs=LABELS,
        has_bias=True,
    ),
    _plain(
        "rmse",
        "RMSE",
        "root mean square error of the mean",
        rmse_terms,
        needs=LABELS | NUMBERS,
        place="column",
    ),
    _plain("crps", "CRPS", "continuous ranked probability score", needs=LABELS | NUMBERS, place="column"),
    _plain(
        "coverage",
        "in 90 %",
        "how often labels are in the central 90 % interval; 0.9 is best",
        coverage_terms,
        needs=LABELS | NUMBERS,
        is_less_better=False,
    ),
    _plain(
        "pit_error",
        "PIT error",
        "mean over deciles of |share of labels below the predicted decile - that decile|",
        pit_terms,
        needs=LABELS | NUMBERS,
    ),
    *UNCERTAINTIES,
    *DETECTION,
)
COLUMNS = [column for score in SCORES for column in score.columns]
SYMBOLS = {score.name: score.symbol for score in SCORES}


class Lead(NamedTuple):
    """The three scores that lead a table, of one label, of τ, and of τ at resampled inputs."""

    marginal: str
    joint: str
    dyadic: str

    @property
    def symbols(self) -> dict[str, str]:
        """What people call them."""
        return {name: SYMBOLS[name] for name in self}


OF_TRUTH = Lead("kl_marginal", "kl_joint", "kl_dyadic")
OF_LABELS = Lead("nll", "nll_joint", "nll_dyadic")
HEADLINES = OF_TRUTH.symbols


def lead_among(names: Any) -> Lead:
    """Which scores lead, of those that there are."""
    return OF_TRUTH if OF_TRUTH.joint in names else OF_LABELS


METRICS = [score.name for score in SCORES if score.is_less_better]
MAY_LACK = {score.name for score in SCORES if score.may_lack}


@dataclass(frozen=True)
class Scores:
    """The scores of one posterior on one problem, in nats where they are divergences.

    Each is an attribute: `scores.kl_joint`, with `kl_joint_stderr`, the standard error over test inputs and,
    by the jackknife, over draws, and `kl_joint_bias`, how much the finite number of draws adds on average.
    Finite posteriors are used whole, and have neither bias nor error by draws; but chains are draws too.
    `SCORES` says what there is.

    Attributes:
        values: by the names of columns.
        num_draws: functions in the mixture.
        labels: "exact", or which KLs sampled them.
        curves: of rows that were held out: see `evaluation.selective`.
    """

    values: dict[str, float]
    num_draws: int
    labels: str
    curves: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, row: dict[str, Any]) -> Scores:
        """The scores of a row of a table."""
        return cls({name: row[name] for name in COLUMNS if name in row}, row["num_draws"], row["labels"])

    def __getattr__(self, name: str) -> float:
        values: dict[str, float] = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"scores have no {name!r}")
        return values[name]

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self.values])

    def asdict(self) -> dict[str, Any]:
        """The scores as a row of a table."""
        return {**self.values, **self.curves, "num_draws": self.num_draws, "labels": self.labels}

    def __str__(self) -> str:
        lines = [
            f"{score.name:<13} {self.values[score.name]:8.4f} ± {self.values[score.name + '_stderr']:.4f}"
            for score in SCORES
            if score.name in self.values and score.place != "detail"
        ]
        return "\n".join([*lines, f"{self.num_draws} draws, {self.labels} labels"])
