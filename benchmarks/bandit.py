"""Arithmetic speed of the bandit: 20 seeds at d = 2 together, as `pp-testbed bandit` runs them.

The difference between two horizons leaves out start and compilation. Operations of the networks alone:
of W weights, W1 of them in the first layer, a step of training on 128 rows takes 2 W forward, 2 W for
the weights' gradients and 2 (W - W1) for the hidden layers', per row and member; a choice among 40 actions
2 W per action, of one member. ensemble+ has its prior functions too, forward only, in both.

    python benchmarks/bandit.py
"""

import os
import tempfile
from pathlib import Path

from measure import COMMAND, measured

SEEDS, ROWS, ACTIONS, DIM, HIDDEN = 20, 128, 40, 2, 50
CASES = [("mlp", 1, (2000, 22_000)), ("ensemble", 30, (500, 2000)), ("ensemble+", 100, (500, 1000))]


def operations(name: str, size: int) -> float:
    """Of one step of one seed."""
    weights = DIM * HIDDEN + HIDDEN * HIDDEN + HIDDEN * 2
    prior = 2 * weights if name == "ensemble+" else 0
    training = 4 * weights + 2 * (weights - DIM * HIDDEN) + prior
    return size * ROWS * training + ACTIONS * (2 * weights + prior)


def main() -> None:
    """Print steps per second and GFLOP/s."""
    for name, size, horizons in CASES:
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "XDG_CACHE_HOME": directory}
            seconds = []
            for steps in (horizons[0], *horizons):  # the first fills the compilation cache
                command = [
                    *COMMAND,
                    "bandit",
                    "--methods",
                    name,
                    "--steps",
                    str(steps),
                    "--seeds",
                    str(SEEDS),
                ]
                command += ["--preset", "paper", "--out", str(Path(directory) / f"out{len(seconds)}")]
                command += [] if name == "mlp" else ["--set", f"{name}.size={size}"]
                seconds.append(measured(command, environment)[0])
        rate = (horizons[1] - horizons[0]) / (seconds[2] - seconds[1])  # of each seed
        speed = rate * SEEDS * operations(name, size) / 1e9
        print(
            f"{name:<10} {size:>3} members  {rate:8.0f} steps/s of each of {SEEDS} seeds  "
            f"{operations(name, size) / 1e6:7.2f} MFLOP a step  {speed:6.1f} GFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
