"""How much the random test inputs add to the standard error of a mean over `2d`.

The variance of the mean is that between problems plus, over the number of problems, that of the inputs
within each, which every score reports. Their ratio says by how much the inputs widen the error bar.

    python benchmarks/inputs.py results/      # a results directory of `pp-testbed run --suite 2d`
"""

import sys

import numpy as np

from pp_testbed.engine.store import Store
from pp_testbed.evaluation.aggregate import mean_score


def main() -> None:
    """Print one line per method and score."""
    frame = Store(sys.argv[1] if len(sys.argv) > 1 else "results").read(print)
    print("method      score        standard error  of which inputs  widening by the inputs")
    for method, cells in frame[frame.status == "ok"].groupby("method"):
        for name in ("kl_marginal", "kl_joint", "kl_dyadic", "kl_aggregate", "accuracy", "ece"):
            total = mean_score(cells, name).stderr
            inputs = np.sqrt((cells[name + "_stderr"] ** 2).sum()) / len(cells)
            widening = total / np.sqrt(total**2 - inputs**2) - 1
            print(f"{method:<11} {name:<12} {total:14.5f}  {inputs:15.5f}  {widening:21.2%}")


if __name__ == "__main__":
    main()
