"""The dyadic paper's examples, exactly: logistic regression (Figures 1 and 2) and the bag of coins (Example
1).

    python -m benchmarks.dyadic            # writes kept/dyadic.parquet, which docs/dyadic.md prints; 15
    minutes

Osband et al., 2022, "Evaluating High-Order Predictive Distributions in Deep Learning". The environment is
p(y = 1 | x) = sigmoid(s φᵀx), φ, x ~ N(0, I_D). Three agents have seen nothing: *uniform*; *marginal*, which
draws λ ~ N(0, 1) and predicts sigmoid(s λ ‖x‖); and *prior*, which draws φ. At given inputs φᵀx is normal
with the inputs' Gram matrix, so that no vector of D numbers is drawn: a million functions cost what ten
inputs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from pp_testbed.evaluation import joint

TAU = 10
DRAWS = 50_000  # functions of an agent; a sign pattern of ten labels has probability 1 / 1024 and more
BATCHES = 100
DIMENSIONS = (1, 10, 100, 1000)
KEPT = Path(__file__).parent.parent / "kept" / "dyadic.parquet"
AGENTS = ("uniform", "marginal", "prior")


def inputs_of(key: jax.Array, dim: int, anchors: int) -> tuple[jax.Array, jax.Array]:
    """Inputs [a, D] as their lengths [a], and a root of their Gram matrix [a, a]."""
    x = jax.random.normal(key, (anchors, dim))
    gram = x @ x.T
    values, vectors = jnp.linalg.eigh(gram)
    return jnp.sqrt(jnp.diag(gram)), vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def log_probs_of(logits: jax.Array) -> jax.Array:
    """[..., inputs] as [inputs, 2, ...]: of labels 0 and 1."""
    both = jnp.stack([jax.nn.log_sigmoid(-logits), jax.nn.log_sigmoid(logits)])
    return jnp.moveaxis(both, -1, 0)


@partial(jax.jit, static_argnums=(1, 2, 3))
def scores(key: jax.Array, dim: int, kappa: int, draws: int, scale: jax.Array) -> jax.Array:
    """d of each agent in one batch of ten labels: at i.i.d. inputs (kappa = 0), or resampled from anchors."""
    key_inputs, key_truth, key_prior, key_marginal = jax.random.split(key, 4)
    lengths, root = inputs_of(key_inputs, dim, kappa or TAU)
    truth = scale * (root @ jax.random.normal(key_truth, lengths.shape))
    prior = scale * (jax.random.normal(key_prior, (draws, len(lengths))) @ root.T)
    marginal = scale * jax.random.normal(key_marginal, (draws, 1)) * lengths
    outcomes = joint.label_counts(TAU, kappa, 2) if kappa else joint.label_sequences(TAU, 2)
    log_truth = log_probs_of(truth)[None]
    log_weights = jnp.full(draws, -math.log(draws))

    def score(logits: jax.Array, log_weights: jax.Array) -> jax.Array:
        log_probs = log_probs_of(logits)[None]
        return joint.kl_of_outcomes(outcomes, log_truth, log_probs, log_weights, 1)[0][0]

    uniform = score(jnp.zeros((1, len(lengths))), jnp.zeros(1))
    return jnp.stack([uniform, score(marginal, log_weights), score(prior, log_weights)])


def figure_two(
    scale: float, dimensions: Sequence[int] = DIMENSIONS, batches: int = BATCHES, draws: int = DRAWS
) -> pd.DataFrame:
    """Mean scores of the agents against D, with standard errors over batches, paired ones of differences."""
    rows = []
    for dim in dimensions:
        for kappa in (0, 1, 2):
            keys = jax.random.split(jax.random.key(dim), batches)
            found = np.stack([np.asarray(scores(key, dim, kappa, draws, jnp.asarray(scale))) for key in keys])
            row = {"scale": scale, "D": dim, "inputs": f"kappa = {kappa}" if kappa else "i.i.d."}
            row |= dict(zip(AGENTS, found.mean(axis=0), strict=True))
            with np.errstate(invalid="ignore"):
                error = (found[:, 2] - found[:, 0]).std(ddof=1) / math.sqrt(batches)
            rows.append(row | {"prior - uniform, error": error})
    return pd.DataFrame(rows)


def log_dichotomies(tau: int, dim: int) -> float:
    """log C(τ, D), how many sign patterns hyperplanes through 0 make of τ points: Cover, 1965."""
    return math.log(2 * sum(math.comb(tau - 1, k) for k in range(dim)))


def figure_one(dimensions: Sequence[int] = (1, 2, 5, 10, 100, 1000)) -> pd.DataFrame:
    """The first τ at which prior's score is less than half of uniform's, without noise, at the latest.

    There uniform's is τ log 2, and prior's, an information about the signs, is at most log C(τ, D).
    """
    rows = []
    for dim in dimensions:
        low, high = 1, 64 * dim  # the ratio falls with tau
        while low < high:
            middle = (low + high) // 2
            is_half = log_dichotomies(middle, dim) < 0.5 * middle * math.log(2)
            low, high = (low, middle) if is_half else (middle + 1, high)
        rows.append({"D": dim, "tau at most": low, "tau / D": low / dim})
    return pd.DataFrame(rows)


def information_of_coin(num: int) -> float:
    """E[log p(y | p) - log ∫ p(y | q) dq] of n flips of a coin, p ~ U(0, 1).

    It is -n / 2 - E log B(h + 1, n - h + 1), h heads, which are any number with the same probability.
    """
    if num == 0:
        return 0.0
    logs = [math.lgamma(h + 1) + math.lgamma(num - h + 1) - math.lgamma(num + 2) for h in range(num + 1)]
    return -num / 2 - sum(logs) / (num + 1)


def coins(tau: int, number: int, kappa: int = 0) -> dict[str, float]:
    """d of the agents of a bag of coins that have seen nothing: closed forms.

    *independent* predicts 1/2 for each flip, *posterior* p_x ~ U(0, 1), one for each coin. Coins are drawn
    from the bag for each flip (kappa = 0), or flips are of anchors.
    """

    def binomial(share: float) -> float:
        weights = [math.comb(tau, n) * share**n * (1 - share) ** (tau - n) for n in range(tau + 1)]
        return sum(weight * information_of_coin(n) for n, weight in enumerate(weights))

    if kappa == 0:
        posterior = number * binomial(1 / number)
    elif kappa == 1:
        posterior = information_of_coin(tau)
    else:
        posterior = (1 - 1 / number) * 2 * binomial(0.5) + information_of_coin(tau) / number
    return {"independent": tau * (math.log(2) - 0.5), "posterior": posterior}


def main() -> None:
    """Print all of it, and keep what takes time."""
    print(figure_one().to_string(index=False))
    both = []
    for scale, dimensions in ((100.0, DIMENSIONS), (0.01, DIMENSIONS[-1:])):
        both.append(figure_two(scale, dimensions))
        print(f"\nFigure 2, s = {scale:g}")
        print(both[-1].round(4).to_string(index=False), flush=True)
    pd.concat(both, ignore_index=True).to_parquet(KEPT)
    bag = [{"M": m, "inputs": k or "i.i.d.", **coins(TAU, m, k)} for m in (2, 10, 100) for k in (0, 1, 2)]
    print("\nA bag of coins, tau = 10")
    print(pd.DataFrame(bag).round(5).to_string(index=False))


if __name__ == "__main__":
    main()
