"""What the gold standard costs: references from nothing, and SGLD on 30 problems together.

    python benchmarks/gold_standard.py [references|sgld]

Each line gives seconds on this machine and the ratio to what the project asks of two cores. References are
built in a new store, by two processes, compilation included; SGLD runs its 5e5 steps.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import pp_testbed as pt
from pp_testbed.studies.references import build_references, load

ASKED = {"2d/T10-rho0.1-s0": 15.0, "2d/T10-rho0.01-s0": 15.0, "2d/T100-rho0.1-s0": 60.0}
ASKED_SGLD = 30.0


def measure_references() -> None:
    """The time of a whole reference: chains, scores, diagnostics, file."""
    for name, asked in ASKED.items():
        with tempfile.TemporaryDirectory() as store:
            os.environ["XDG_CACHE_HOME"] = store  # no program is compiled yet
            start = time.perf_counter()
            path = build_references([pt.problem(name)], store=store, jobs=2, progress=False)[0]
            seconds = time.perf_counter() - start
            chains = load(path).seconds
            print(
                f"{name}: {seconds:.1f} s, {chains:.1f} s of chains, ratio {seconds / asked:.2f}", flush=True
            )


def measure_sgld() -> None:
    """The time per problem, fit and scores, of 30 problems in two processes."""
    problems = [problem for problem in pt.suite("2d-lite") if problem.num_train <= 100]
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        pt.run(problems, ["sgld"], out=out, jobs=2)
        seconds = (time.perf_counter() - start) / len(problems)
    print(f"sgld, {len(problems)} problems: {seconds:.1f} s per problem, ratio {seconds / ASKED_SGLD:.2f}")


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["references", "sgld"]
    for name in wanted:
        {"references": measure_references, "sgld": measure_sgld}[name]()
