"""The registry of methods, and their presets. A new method is a new file and a line in `METHODS`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pp_testbed.errors import UsageError, unknown
from pp_testbed.inference.options import Method, with_options

Facts = dict[str, Any]


class Entry(NamedTuple):
    """Where a registered method lives, what it changes of its class's defaults, and what it is."""

    path: str
    options: dict[str, Any]
    summary: str


_HERE = "pp_testbed.inference"
_MAP = f"{_HERE}.map_ensemble"
_SVI = f"{_HERE}.svi"
_MCMC = f"{_HERE}.mcmc"
_SGMCMC = f"{_HERE}.sgmcmc"
METHODS = {
    "uniform": Entry(f"{_HERE}.baselines:Uniform", {}, "every class equally likely everywhere"),
    "prior": Entry(f"{_HERE}.baselines:Prior", {}, "the prior predictive: no data seen"),
    "logistic": Entry(f"{_MAP}:Ensemble", {"hidden": (), "size": 1}, "MAP logistic regression"),
    "mlp": Entry(f"{_MAP}:Ensemble", {"size": 1}, "one MAP network: training with weight decay"),
    "ensemble": Entry(f"{_MAP}:Ensemble", {}, "MAP networks from many starts"),
    "ensemble+": Entry(f"{_MAP}:EnsemblePlus", {}, "an ensemble with prior functions"),
    "ensemble-ntk": Entry(f"{_HERE}.ntk:EnsembleNTK", {}, "an ensemble with priors of the tangent kernel"),
    "dropout": Entry(f"{_HERE}.dropout:Dropout", {}, "Monte Carlo dropout"),
    "bbb": Entry(f"{_HERE}.bbb:BayesByBackprop", {}, "Bayes by backprop: mean-field VI of the agent"),
    "hypermodel": Entry(
        f"{_HERE}.hypermodel:Hypermodel", {}, "weights linear in an index, with a prior function"
    ),
    "epinet": Entry(f"{_HERE}.epinet:Epinet", {}, "an indexed head on the last hidden layer"),
    "mean-field": Entry(f"{_SVI}:MeanField", {}, "VI: independent normals for all weights"),
    "rank1": Entry(f"{_SVI}:LowRank", {"rank": 1}, "VI: a normal of diagonal + rank 1 covariance"),
    "low-rank": Entry(f"{_SVI}:LowRank", {}, "VI: a normal of diagonal + low-rank covariance"),
    "full-rank": Entry(f"{_SVI}:FullRank", {}, "VI: a normal of any covariance"),
    "functional-vi": Entry(f"{_HERE}.functional_vi:FunctionalVI", {}, "VI with a KL between functions"),
    "flow": Entry(f"{_HERE}.subspace:Flow", {}, "VI: a normalizing flow on a subspace of the weights"),
    "laplace": Entry(f"{_HERE}.laplace:Laplace", {}, "Laplace's method, all weights, linearised"),
    "laplace-last-layer": Entry(
        f"{_HERE}.laplace:Laplace", {"subset": "last-layer"}, "Laplace's method on the last layer"
    ),
    "swag": Entry(f"{_HERE}.swag:SWAG", {}, "a normal with the moments of SGD's iterates"),
    "multi-swag": Entry(f"{_HERE}.swag:SWAG", {"size": 10}, "a mixture of ten of them"),
    "subspace-ess": Entry(f"{_HERE}.subspace:SubspaceSlice", {}, "slice sampling where training went"),
    "mile": Entry(f"{_HERE}.mile:MILE", {}, "microcanonical Langevin chains from an ensemble's members"),
    "pathfinder": Entry(f"{_HERE}.pathfinder:Pathfinder", {}, "normals along the paths of L-BFGS"),
    "svgd": Entry(f"{_HERE}.svgd:SVGD", {}, "Stein variational gradient descent"),
    "deep-kernel": Entry(f"{_HERE}.deep_kernel:DeepKernel", {}, "a Gaussian process on the last layer"),
    "knn": Entry(f"{_HERE}.nonparametric:Knn", {}, "nearest neighbours"),
    "random-forest": Entry(f"{_HERE}.nonparametric:RandomForest", {}, "a random forest"),
    "nuts": Entry(f"{_MCMC}:NUTS", {}, "the no-U-turn sampler on the generative model: the exact posterior"),
    "hmc": Entry(f"{_MCMC}:HMC", {}, "Hamiltonian Monte Carlo with trajectories of fixed length"),
    "mala": Entry(f"{_MCMC}:MALA", {}, "Metropolis-adjusted Langevin"),
    "mclmc": Entry(f"{_MCMC}:MCLMC", {}, "microcanonical Langevin Monte Carlo, unadjusted"),
    "elliptical-slice": Entry(f"{_MCMC}:EllipticalSlice", {}, "elliptical slice sampling"),
    "sgmcmc": Entry(
        f"{_SGMCMC}:SGLD",
        {"momentum": 0.9, "steady": 1.0},
        "the paper's agent: SGLD on the agent's network, its step in units of the mean loss",
    ),
    "sgld-ensemble": Entry(
        f"{_SGMCMC}:SGLD",
        {"num_chains": 10, "num_steps": 20_000, "burn_in": 10_000},
        "ten short chains of SGLD",
    ),
    "sgld": Entry(f"{_SGMCMC}:SGLD", {}, "stochastic gradient Langevin dynamics"),
    "sghmc": Entry(f"{_SGMCMC}:SGHMC", {}, "stochastic gradient Hamiltonian Monte Carlo"),
    "sgnht": Entry(f"{_SGMCMC}:SGNHT", {}, "stochastic gradient Nosé-Hoover thermostat"),
    "csgld": Entry(
        f"{_SGMCMC}:SGLD",
        {"schedule": "cyclical", "learning_rate": 5e-4},
        "cyclical SGLD: cosine cycles, exploration and sampling phases",
    ),
    "csghmc": Entry(
        f"{_SGMCMC}:SGLD",
        {"schedule": "cyclical", "learning_rate": 5e-5, "momentum": 0.9},
        "cyclical SGHMC: the same with momentum",
    ),
}


# Files of presets, in the package's data.
SHIPPED = (
    "tuned",
    "highdim",
    "tables",
    "images",
    "numbers",
    "ursabench",
)
PRESETS = ("paper", *SHIPPED)  # by name; others are files of users


def method(name: str, /, *, preset: str = "tuned", facts: Facts | None = None, **options: Any) -> Method:
    """A registered method by its name, with some of its hyperparameters changed.

    Args:
        preset: "tuned", the best on the problems of `pp-testbed tune`, where the method was tuned; "paper",
            the published defaults (of methods that are not in the paper, their classes'); "highdim",
            "tables", "images" or "numbers", the best of an agent for each d and T, or set and T, of that
            suite; or a JSON file of `pp-testbed tune --save`. All but the first two are over the tuned ones.
        facts: of the problem that it is for, where a preset has other options for each kind of problem.

    Examples:
        >>> method("ensemble", size=30).size
        30
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    entry = METHODS[name]
    module, attribute = entry.path.split(":")
    made = getattr(import_module(module), attribute)(name=name, **entry.options)
    entries = [read_presets(preset).get(name), read_presets("tuned").get(name) if preset != "paper" else None]
    return with_options(with_options(made, options_for(entries, facts or {})), options)


def options_for(entries: Iterable[Facts | None], facts: Facts) -> Facts:
    """The options for a problem, of the first entry of presets that has some.

    An entry with groups has those of the first group whose facts the problem has, none for other problems.

    Examples:
        >>> small = {"facts": {"num_train": 10}, "options": {"l2": "3.0"}}
        >>> options_for([{"options": {}, "where": [small]}, {"options": {"l2": "1.0"}}], {"num_train": 10})
        {'l2': '3.0'}
    """
    for entry in filter(None, entries):
        if "where" not in entry:
            return entry["options"]
        for group in entry["where"]:
            if group["facts"].items() <= facts.items():
                return group["options"]
    return {}


def read_presets(preset: str | Path) -> dict[str, dict[str, Any]]:
    """What tuning found, by method: `options`, `score`, `stderr`, `metric`, `suite`, `trials`, `version`.

    Where it was tuned for each kind of problem, `where` has groups of `facts` and `options`.
    """
    if preset == "paper":
        return {}
    source: Any = Path(preset)
    if preset in SHIPPED:
        source = files("pp_testbed").joinpath("data", f"{preset}.json")
    elif source.suffix != ".json":
        raise unknown("preset", str(preset), PRESETS)
    try:
        found = json.loads(source.read_text() if source.is_file() else "")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{preset} is not a file of presets: {error}") from None
    if not isinstance(found, dict) or not all(
        isinstance(one, dict) and isinstance(one.get("options"), dict) for one in found.values()
    ):
        raise UsageError(
            f"{preset} is not a file of presets: expected options by method, as `tune --save` writes"
        )
    return found
