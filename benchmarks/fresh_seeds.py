"""Is `mlp` the published one? Its scores over 2100 problems of the grid of `2d`, seeds 10 to 109.

The 210 problems of `2d` are a small sample: the standard error of their mean d10 is 0.09. For a single
network the joint KL is additive, so that d10 is ten times d1 in expectation; published are 0.129 and 1.367.

    python benchmarks/fresh_seeds.py
"""

import tempfile

import pp_testbed as pt
from pp_testbed.problems.suites import GRID_RHO, GRID_T


def main() -> None:
    """Print means and standard errors, of all problems and for each T."""
    problems = [
        pt.problem(num_train=t, temperature=rho, seed=seed)
        for t in GRID_T
        for rho in GRID_RHO
        for seed in range(10, 110)
    ]
    with tempfile.TemporaryDirectory() as out:
        frame = pt.run(problems, ["mlp"], out, jobs=2, config=pt.Evaluation(num_batches=100))
    columns = ["method", "problems", "kl_marginal", "kl_marginal_stderr", "kl_joint", "kl_joint_stderr"]
    print(pt.leaderboard(frame)[columns].to_string(index=False))
    print(pt.leaderboard(frame, by=["num_train"])[["num_train", *columns]].to_string(index=False))


if __name__ == "__main__":
    main()
