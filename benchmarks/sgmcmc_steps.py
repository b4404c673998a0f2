"""SG-MCMC where data are many: d¹⁰ of `sghmc` and `sgnht` at their defaults, next to that of `sgld`.

    python benchmarks/sgmcmc_steps.py work/

Their Euler steps heat a direction of curvature Λ, which grows like T, by √ε Λ / 2. Resumable; ten minutes
on two cores. Each line ends with the ratios to sgld, which should be within 10 % of 1.
"""

import sys

import pp_testbed as pt

PROBLEMS = [f"2d/T{num}-rho{rho}-s0" for num in (300, 1000) for rho in (0.01, 0.1, 0.5)]


def main(work: str) -> None:
    """Run what is missing and print the ratios."""
    frame = pt.run(map(pt.problem, PROBLEMS), ["sgld", "sghmc", "sgnht"], out=work, jobs=2)
    scores = frame.pivot_table(index="problem", columns="method", values="kl_joint").reindex(PROBLEMS)
    for name in ("sghmc", "sgnht"):
        scores[f"{name} / sgld"] = scores[name] / scores.sgld
    print(scores.round(4).to_string())


if __name__ == "__main__":
    main(sys.argv[1])
