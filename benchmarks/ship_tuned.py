"""Tune every method and put the best options into the package's `tuned.json`; resumable, some 80 minutes.

Usage: python benchmarks/ship_tuned.py tuning/ [METHOD ...]

Expensive methods are tuned on part of their sweep, or with options held that make them cheaper, both of
which `tuned.json` records. Not tuned: samplers of the exact posterior, which have nothing to tune but
their cost, and `full-rank`, whose fit of one problem takes minutes.
"""

import sys
import time
from pathlib import Path

from pp_testbed.errors import UsageError
from pp_testbed.inference.specs import MethodSpec
from pp_testbed.studies.tune import tune

SHORT_CHAIN = {"num_steps": "100000", "burn_in": "20000", "thinning": "200"}
STEADY = {"momentum": "0.0", "steady": "1000.0"}  # where the published agent has momentum and a step of ε / T
LAPLACE = {"prior_precision": ["model", "evidence"], "predictive": ["linearised", "network"]}
RATES = {"learning_rate": [1e-3, 1e-2]}
STUDIES = {
    "mlp": {},
    "dropout": {"sampler": "tpe", "trials": 24},
    "bbb": {"grid": {"sigma": [0.3, 0.5, 0.7, 1.0], "learning_rate": [1e-3, 3e-3]}},
    "hypermodel": {},
    "sgmcmc": {
        "held": SHORT_CHAIN | STEADY,
        "ships_held": True,
        "grid": {"learning_rate": [1e-4, 5e-4], "prior_variance": [0.1, 0.2, 0.3]},
    },
    "ensemble+": {"held": {"size": "30"}},
    "ensemble": {"held": {"size": "30"}},
    "knn": {},
    "random-forest": {},
    "deep-kernel": {"grid": {"scale": [1.0, 2.0, 4.0], "noise": [1.0, 4.0]}},
    "epinet": {"grid": {"prior_scale": [0.3, 1.0, 3.0], "l2": [1.0]}},
    "swag": {"grid": {"sgd_rate": [1e-3, 1e-2, 1e-1]}},
    "multi-swag": {"grid": {"sgd_rate": [1e-3, 1e-2, 1e-1]}},
    "laplace-last-layer": {"grid": LAPLACE},
    "laplace": {"grid": LAPLACE},
    "flow": {"grid": {"subspace": ["last-layer", "pca"]}},
    "subspace-ess": {"grid": {"subspace": ["last-layer", "pca"], "dimensions": [5, 20]}},
    "ensemble-ntk": {"held": {"size": "30"}, "grid": {"prior_scale": [0.3, 1.0, 3.0]}},
    "sgld-ensemble": {"grid": {"prior_variance": [0.1, 0.2, 0.3]}},
    "mile": {"grid": {"l2": [3.0, 10.0]}},
    "mean-field": {"grid": RATES},
    "rank1": {"grid": RATES},
    "low-rank": {"grid": RATES},
    "svgd": {"grid": {"learning_rate": [3e-3, 1e-2]}},
    "functional-vi": {"grid": {"learning_rate": [3e-3, 1e-2]}},
    "pathfinder": {"grid": {"memory": [10, 30]}},
}
TUNED = Path(__file__).parent.parent / "pp_testbed" / "data" / "tuned.json"


def main(directory: Path, names: list[str]) -> None:
    """Tune methods one after another."""
    for name in names or list(STUDIES):
        options = dict(STUDIES[name])
        ships_held = options.pop("ships_held", False)
        spec = MethodSpec(name, tuple(options.pop("held", {}).items()))
        study = directory / f"{name}-{options.get('sampler', 'grid')}.journal"
        start = time.monotonic()
        try:
            found = tune(spec, study=study, jobs=2, **options)
            found.save(TUNED, with_held=ships_held)
        except UsageError as error:
            print(f"{name}: {error}", flush=True)
            continue
        print(f"{name} {found.entry()} in {time.monotonic() - start:.0f} s", flush=True)
        print(found.trials.sort_values("score").head(8).to_string(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
