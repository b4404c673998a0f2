"""Ranks of the truth among the draws of a posterior, and whether they are uniform.

Under the exact posterior the truth is as likely to be at any rank among the draws as at any other. Here
is the arithmetic of ranks; which problems they are of is in `studies.calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.inference.posterior import Finite
from pp_testbed.models.base import Array

NUM_PROBES = 4
NUM_RANKS = 99  # draws among which the truth is ranked, far enough apart in a chain to be independent
LEVEL = 0.99
SIMULATIONS = 20_000  # of uniform ranks, for the simultaneous band
QUANTITIES = [f"logit {i + 1}" for i in range(NUM_PROBES)] + ["log likelihood"]


@dataclass(frozen=True)
class Calibration:
    """The ranks of one method, and what they say.

    Attributes:
        method: its name.
        num_train: of the problems.
        temperature: of the problems.
        ranks: normalised to [0, 1], uniform if calibrated, [problems, quantities].
    """

    method: str
    num_train: int
    temperature: float
    ranks: np.ndarray

    @property
    def p_values(self) -> dict[str, float]:
        """Of each quantity: how likely uniform ranks leave their band as far."""
        return dict(zip(QUANTITIES, map(uniformity_p_value, self.ranks.T), strict=True))

    @property
    def p_value(self) -> float:
        """Of all quantities together: the smallest, times their number (Bonferroni)."""
        return min(1.0, len(QUANTITIES) * min(self.p_values.values()))

    @property
    def passed(self) -> bool:
        """Whether all ranks stay in the simultaneous 99 % band."""
        return self.p_value >= 1.0 - LEVEL

    @property
    def error(self) -> float:
        """The calibration score: mean over quantities of the largest |ECDF(u) - u|.

        That of uniform ranks is about 0.87 / √N, so compare errors of equal numbers of problems.
        """
        return float(np.mean([largest_gap(ranks) for ranks in self.ranks.T]))

    def asdict(self) -> dict[str, Any]:
        """The calibration as a row of a table."""
        return {
            "method": self.method,
            "num_train": self.num_train,
            "temperature": self.temperature,
            "problems": len(self.ranks),
            "calibration_error": self.error,
            "p_value": self.p_value,
            "passed": self.passed,
            **{f"p {name}": value for name, value in self.p_values.items()},
        }


def thinned(mixture: Finite) -> Finite:
    """At most `NUM_RANKS` draws of a chain, evenly spaced; a complete posterior as it is."""
    num = mixture.log_weights.shape[0]
    if is_complete(mixture) or num <= NUM_RANKS:
        return mixture
    rows = evenly(num)
    return Finite.equal(mixture.function, jax.tree.map(lambda leaf: leaf[rows], mixture.draws))


def evenly(num: int) -> np.ndarray:
    """The places of at most `NUM_RANKS` of so many draws."""
    return np.linspace(0, num - 1, NUM_RANKS).astype(int)


def is_complete(posterior: Any) -> bool:
    """Whether a posterior is all of its functions, and not a sample: an ensemble, not a chain."""
    if isinstance(posterior, Finite):
        return posterior.num_groups == 1
    return bool(getattr(posterior, "is_finite", False)) and not getattr(posterior, "num_chains", 0)


def normalised_rank(drawn: Array, true: Array, log_weights: Array, key: Array, complete: bool) -> Array:
    """The rank in [0, 1] of true values [Q] among drawn ones [M, Q].

    u = F(true-) + V (F(true) - F(true-)), V uniform, with F the distribution function of the draws where
    they are all there is; and where they are a sample of M, (rank + V) / (M + 1) with ties at random.
    Either is uniform if the truth is a draw of the posterior.
    """
    weights = jnp.exp(log_weights)[:, None]
    below = (weights * (drawn < true)).sum(axis=0)
    equal = (weights * (drawn == true)).sum(axis=0)
    # What is NaN has no rank, and must not pass for one of 0.
    uniform = jnp.where(jnp.isnan(drawn).any(axis=0), jnp.nan, jax.random.uniform(key, true.shape))
    if complete:
        return jnp.clip(below + uniform * equal, 0.0, 1.0)
    num = drawn.shape[0]
    return (num * below + uniform * (num * equal + 1.0)) / (num + 1.0)


def ecdf_gap(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ECDF(z) - z on the grid z = 1/N, ..., (N - 1)/N of N ranks."""
    grid = np.arange(1, len(ranks)) / len(ranks)
    return grid, np.searchsorted(np.sort(ranks), grid, side="right") / len(ranks) - grid


def largest_gap(ranks: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance of ranks to uniform."""
    ordered, num = np.sort(ranks), len(ranks)
    return float(max((np.arange(1, num + 1) / num - ordered).max(), (ordered - np.arange(num) / num).max()))


def uniformity_p_value(ranks: np.ndarray) -> float:
    """How often N uniform ranks are as extreme, at the worst point of the grid, as these.

    Säilynoja, Bürkner and Vehtari, 2022, "Graphical Test for Discrete Uniformity": the count below each
    point is binomial; the smallest of the pointwise two-sided tail probabilities is the statistic,
    and its distribution is simulated.
    """
    null = _null_statistics(len(ranks))
    observed = _smallest_tail(ranks[None])[0]
    return float((1 + (null <= observed * (1 + 1e-12)).sum()) / (1 + len(null)))


def band(num: int, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A simultaneous band of ECDF(z) - z for N uniform ranks: z, lower and upper."""
    from scipy.stats import binom

    gamma = np.quantile(_null_statistics(num), 1.0 - level)
    grid = np.arange(1, num) / num
    lower, upper = binom.ppf(gamma / 2, num, grid), binom.ppf(1 - gamma / 2, num, grid)
    return grid, lower / num - grid, upper / num - grid


@lru_cache
def _null_statistics(num: int) -> np.ndarray:
    uniform = np.random.default_rng(0).uniform(size=(SIMULATIONS, num))
    return np.concatenate([_smallest_tail(part) for part in np.array_split(uniform, 20)])


def _smallest_tail(ranks: np.ndarray) -> np.ndarray:
    """The smallest two-sided binomial tail probability over the grid, of ranks [R, N]: [R]."""
    tails = _tails(ranks.shape[1])
    num = ranks.shape[1]
    # A rank in ((j - 1)/N, j/N] counts at grid points j, j + 1, ...
    bins = np.clip(np.ceil(ranks * num).astype(int), 1, num) - 1
    counts = np.zeros((len(ranks), num), dtype=int)
    np.add.at(counts, (np.arange(len(ranks))[:, None], bins), 1)
    below = counts.cumsum(axis=1)[:, :-1]
    return tails[np.arange(num - 1), below].min(axis=1)


@lru_cache
def _tails(num: int) -> np.ndarray:
    """Two-sided tail probability of each count [N - 1, N + 1] at each grid point."""
    from scipy.stats import binom

    grid, counts = np.arange(1, num)[:, None] / num, np.arange(num + 1)[None]
    return 2.0 * np.minimum(binom.cdf(counts, num, grid), binom.sf(counts - 1, num, grid))
