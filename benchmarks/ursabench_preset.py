"""The published options of URSABench's MNIST schemes, in this package's words: writes the preset `ursabench`.

    python benchmarks/ursabench_preset.py

The table is of the benchmark's files, in epochs of batches of 128 rows, with σ the prior's standard deviation
and α the friction. Here chains count steps, a prior of real data is N(0, λ / 2), so that λ is 2 σ², and the
momentum is 1 - α; of a weight decay w, λ is w T / 2. Chains with minibatches are cold, of temperature 1 / T;
HMC is not. Steps ε of HMC with a mass m are steps ε / √m with a mass of 1.

Where nothing is published the options are ours: an ensemble is of ten SGD solutions, SWAG and Laplace's
method begin at one, and SWAG's path has a tenth of SGD's rate. The path of the subspace begins where a cosine
has ended, not a line, and its prior is that of the weights, not N(0, 4) of coordinates. Dropout's cycle
rises to the published rate, not to five times that, with which it diverges: here a mask is of a whole batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BATCH = 128
ROWS = {"ursa_mnist": 60_000, "ursa_mnist_imbalanced": 47_727}
FILE = Path(__file__).parent.parent / "pp_testbed" / "data" / "ursabench.json"

# learning rate, σ, α, epochs of burn-in, of samples
CHAINS = {"sgld": (0.1, 0.16642, 1.0, 50, 100), "sgmcmc": (0.03135, 0.14047, 0.10200, 50, 100)}
# learning rate, σ, α, epochs of a cycle, samples of it, cycles
CYCLES = {"csgld": (0.05867, 0.17959, 1.0, 21, 3, 10), "csghmc": (0.06825, 0.33043, 0.21257, 22, 4, 10)}
# epochs, learning rate, momentum, weight decay, schedule
SGD = (50, 0.1, 0.9, 3.0406e-4, "cosine")
PCA = (50, 0.04394, 0.53576, 4e-4, "cosine")
TRAINED = {
    "mlp": SGD,
    "ensemble": SGD,
    "laplace-last-layer": SGD,
    "swag": SGD,
    "multi-swag": SGD,
    "subspace-ess": PCA,
    "dropout": (50, 0.08323, 0.90408, 3e-4, "one-cycle"),
}
MASS = 0.19192
HMC = {
    "num_chains": 1,
    "num_leapfrog": 40,
    "adapts": False,
    "step_size": 2.0897e-4 / MASS**0.5,
    "warmup": 200,
    "num_draws": 100,
}


def options_of(rows: int) -> dict[str, dict[str, Any]]:
    """The options of each method where there are so many rows."""
    epoch = -(-rows // BATCH)
    made: dict[str, dict[str, Any]] = {}
    for name, (rate, sigma, friction, burn_in, samples) in CHAINS.items():
        made[name] = _chain(rate, sigma, friction, epoch) | {
            "num_steps": (burn_in + samples) * epoch,
            "burn_in": burn_in * epoch,
            "schedule": "cosine",
        }
    for name, (rate, sigma, friction, cycle, samples, cycles) in CYCLES.items():
        made[name] = _chain(rate, sigma, friction, epoch) | {
            "num_steps": cycles * cycle * epoch,
            "num_cycles": cycles,
            "draws_per_cycle": samples,
            "exploration": 1.0 - (samples + 1) / cycle,  # noise begins an epoch before samples are taken
        }
    for name, (epochs, rate, momentum, decay, schedule) in TRAINED.items():
        made[name] = {
            "optimizer": "sgd",
            "num_steps": epochs * epoch,
            "batch_size": BATCH,
            "learning_rate": rate,
            "momentum": momentum,
            "l2": decay * rows / 2,
            "schedule": schedule,
        }
    path = {"sgd_batch_size": BATCH, "snapshots": 50, "sgd_steps": epoch}
    made["ensemble"] |= {"size": 10}
    made["dropout"] |= {"rate": 0.2, "mask_inputs": False}
    made["swag"] |= path | {"sgd_rate": 0.01}
    made["multi-swag"] |= path | {"sgd_rate": 0.01, "size": 5}
    slices = {"dimensions": 20, "likelihood_power": 1 / 5000, "warmup": 10, "num_draws": 30, "thinning": 1}
    made["subspace-ess"] |= path | {"sgd_rate": 0.0017} | slices
    made["hmc"] = dict(HMC)
    return made


def _chain(rate: float, sigma: float, friction: float, epoch: int) -> dict[str, Any]:
    return {
        "learning_rate": rate,
        "steady": 1.0,
        "prior_variance": 2 * sigma**2,
        "momentum": 1.0 - friction,
        "cold": True,
        "thinning": epoch,
        "batch_size": BATCH,
    }


def preset() -> dict[str, Any]:
    """The preset's file."""
    by_set = {model: options_of(rows) for model, rows in ROWS.items()}
    names = by_set["ursa_mnist"]
    return {
        name: {
            "options": {},
            "where": [
                {"facts": {"model": model}, "options": {k: str(v) for k, v in options[name].items()}}
                for model, options in by_set.items()
            ],
        }
        for name in names
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(preset(), indent=1, sort_keys=True) + "\n")
    print(FILE.name, *preset())
