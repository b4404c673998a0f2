"""URSABench's table of MNIST: every scheme at its published options, run and kept; resumable.

Usage: python benchmarks/ship_ursabench.py DIRECTORY [SEEDS]

Seeds are run one after another, 0 to 4 if none are given, and what is there is kept after each, in
`kept/ursa-mnist.parquet`: chains of temperature 1 / T, as published, and of 1, of balanced classes alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import pp_testbed as pt
from pp_testbed.engine.store import OK
from pp_testbed.inference.specs import MethodSpec

KEPT = Path(__file__).parent.parent / "kept" / "ursa-mnist.parquet"
CONFIG = pt.Evaluation(num_draws=100)  # functions of a posterior without end, as URSABench draws of dropout
CHAINS = ("sgld", "sgmcmc", "csgld", "csghmc")
SCHEMES = ("mlp", "dropout", *CHAINS, "subspace-ess", "swag", "laplace-last-layer", "ensemble")


def specs_of(model: str) -> list[MethodSpec]:
    """The schemes of a set."""
    cold = [MethodSpec(name, preset="ursabench") for name in SCHEMES]
    warm = [MethodSpec(name, (("cold", "False"),), preset="ursabench") for name in CHAINS]
    return [*cold, *warm] if model == "ursa_mnist" else cold


def keep(frame: pd.DataFrame) -> None:
    """Write the rows that ended well."""
    columns = ["model", "method", "config_hash", "seed"]
    good = frame[frame.status == OK].sort_values(columns, ignore_index=True)
    temporary = KEPT.with_suffix(".tmp")
    good.to_parquet(temporary)
    temporary.replace(KEPT)


def main(directory: str, *seeds: str) -> None:
    """Run what is missing, seed by seed."""
    for seed in map(int, seeds or range(5)):
        for problem in pt.suite("ursa-mnist").filter(seed={seed}):
            suite = pt.Suite("ursa-mnist", (problem,))
            pt.run(suite, specs_of(problem.facts["model"]), directory, jobs=2, config=CONFIG)
            keep(pd.read_parquet(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
