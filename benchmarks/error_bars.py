"""What stands behind the ± of `evaluate`: the spread of scores over keys, in units of the mean claimed error.

    python benchmarks/error_bars.py [METHOD ...]

Each method is fitted once to a problem of 100 data, and its posterior scored with 100 keys: other test inputs
and other draws. The ratio should be 1; its own error is 7 %. Accuracy and calibration error of a posterior
that prefers no class, such as `prior`, are jumps of it, for which no error bar is right.
"""

import sys

import jax
import numpy as np

import pp_testbed as pt

PROBLEM = "2d/T100-rho0.1-s0"
KEYS = 100
SCORES = ("kl_marginal", "kl_joint", "kl_dyadic", "nll", "brier", "accuracy", "ece")


def main(names: list[str]) -> None:
    """Print a line per method."""
    problem = pt.problem(PROBLEM)
    print(f"{'method':<20}" + "".join(f"{name:>13}" for name in SCORES))
    for name in names:
        posterior = pt.method(name).fit(problem.keys.fit, problem.task)
        keys = jax.random.split(jax.random.key(1), KEYS)
        rows = [pt.evaluate(posterior, problem, key=key).asdict() for key in keys]
        ratios = []
        for score in SCORES:
            claimed = np.sqrt(np.mean([row[score + "_stderr"] ** 2 for row in rows]))
            ratios.append(np.std([row[score] for row in rows], ddof=1) / claimed)
        print(f"{name:<20}" + "".join(f"{ratio:13.2f}" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["mlp", "prior", "dropout", "laplace-last-layer", "mean-field"])
