"""Arithmetic speed of training, next to this machine's own matrix products, in one run.

A step of Adam on one 50-50 network of two inputs and two classes at batch B takes 6 · 2700 · B operations
(2700 multiply-adds forward, twice that backward, 2 operations each). Two threads run two programs,
as two workers do.

    NPROC=1 python benchmarks/training.py      # one core
    python benchmarks/training.py              # XLA's own threads, as in a notebook
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp

import pp_testbed as pt
from pp_testbed.engine.programs import stack

CASES = [  # method, T, how many fits at once
    ("mlp", 10, 10),
    ("mlp", 30, 10),
    ("mlp", 100, 10),
    ("mlp", 1000, 10),
    ("ensemble", 100, 1),
    ("ensemble", 1000, 1),
    ("ensemble+", 100, 1),
]


def gflops(run, operations: float, threads: int) -> float:
    """Operations per second of `threads` concurrent runs, the best of three."""
    run()
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(lambda _: run(), range(threads)))
            best = max(best, threads * operations / (time.perf_counter() - start) / 1e9)
    return best


def matrix_product() -> tuple[object, float]:
    """A large product, the most that the machine can do."""
    a = jnp.ones((2000, 2000))
    product = jax.jit(lambda a: a @ a)
    return (lambda: product(a).block_until_ready()), 2 * 2000**3


def training(name: str, num_train: int, copies: int) -> tuple[object, float]:
    """`copies` fits of one method at once."""
    made = pt.method(name)
    problems = [pt.problem(num_train=num_train, seed=seed) for seed in range(copies)]
    tasks = stack([problem.draw()[0] for problem in problems])
    keys = jnp.stack([problem.keys.fit for problem in problems])
    fit = jax.jit(jax.vmap(made.fit)).lower(keys, tasks).compile()
    batch = min(made.batch_size, problems[0].padded_size)
    operations = copies * made.size * made.num_steps * batch * 2700 * 6
    return (lambda: jax.block_until_ready(fit(keys, tasks))), operations


def main() -> None:
    """Print GFLOP/s and the share of this machine's matrix product."""
    threads = os.cpu_count() or 1 if "NPROC" not in os.environ else 1
    run, operations = matrix_product()
    peak = gflops(run, operations, threads)
    print(f"{threads} concurrent programs\n2000 x 2000 product           {peak:6.1f} GFLOP/s   1.00")
    for name, num_train, copies in CASES:
        speed = gflops(*training(name, num_train, copies), threads)
        print(
            f"{name:<10} T={num_train:<5}             {speed:6.1f} GFLOP/s   {speed / peak:.2f}", flush=True
        )


if __name__ == "__main__":
    main()
