"""An epoch of MLP200 on MNIST's shape, against a plain PyTorch loop of the same network, batch and data.

    python benchmarks/epoch.py            # needs torch, which the package does not

Each side trains in a process of its own on one thread, by SGD with momentum on batches of 128 of 60,000 rows
of noise: time does not depend on what the rows say. Times are differences between runs of few and of more
epochs, so that neither counts its start. Then five seeds: ours in two processes, PyTorch's one after another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

ROWS, BATCH, WIDTH = 60_000, 128, 200
FEW, MORE = 1, 6  # epochs
STEPS = -(-ROWS // BATCH)


def ours() -> float:
    """Seconds of an epoch."""
    import jax
    import jax.numpy as jnp

    import pp_testbed as pt
    from pp_testbed.models.networks import MLP, NetworkModel

    network = MLP(784, (WIDTH, WIDTH), 10)
    x = jax.random.normal(jax.random.key(0), (ROWS, 784))
    task = pt.task(NetworkModel(network, 784, 10), x, jnp.arange(ROWS) % 10)
    method = pt.method("mlp", network=network, optimizer="sgd", learning_rate=0.1, batch_size=BATCH)
    return _per_epoch(lambda epochs: _fit(replace(method, num_steps=epochs * STEPS), task))


def _fit(method: Any, task: Any) -> float:
    import jax

    program = jax.jit(lambda key, task: method.fit(key, task)).lower(jax.random.key(0), task).compile()
    start = time.perf_counter()
    jax.block_until_ready(program(jax.random.key(0), task))
    return time.perf_counter() - start


def _per_epoch(seconds: Any) -> float:
    few, more = min(seconds(FEW) for _ in range(3)), min(seconds(MORE) for _ in range(3))
    return float(more - few) / (MORE - FEW)


def theirs() -> float:
    """Seconds of an epoch of a plain loop."""
    import torch

    torch.set_num_threads(1)
    x, y = torch.randn(ROWS, 784), torch.arange(ROWS) % 10

    def run(epochs: int) -> float:
        torch.manual_seed(0)
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        network = torch.nn.Sequential(
            linear(784, WIDTH), relu(), linear(WIDTH, WIDTH), relu(), linear(WIDTH, 10)
        )
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=3e-4)
        start = time.perf_counter()
        for _ in range(epochs):
            order = torch.randperm(ROWS)
            for rows in order.split(BATCH):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
        return time.perf_counter() - start

    return _per_epoch(run)


def in_process(side: str) -> float:
    """What a side takes in a process of its own on one thread."""
    environment = os.environ | {"NPROC": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, side], check=True, capture_output=True, text=True, env=environment
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print both, and their ratios."""
    alone = {side: in_process(side) for side in ("ours", "theirs")}
    with ThreadPoolExecutor(2) as pool:
        beside = list(pool.map(in_process, ["ours", "ours"]))
    five = 5 * alone["theirs"] / (5 * sum(beside) / 4)  # two processes share five seeds
    print(f"an epoch on one thread: {alone['ours']:.3f} s, PyTorch {alone['theirs']:.3f} s")
    print(f"PyTorch's / ours: {alone['theirs'] / alone['ours']:.2f}")
    print(f"an epoch of two processes side by side: {beside[0]:.3f} and {beside[1]:.3f} s")
    print(f"five seeds on two cores against PyTorch's one after another: {five:.2f} times as fast")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"ours": ours, "theirs": theirs}[sys.argv[1]]()))
    else:
        main()
