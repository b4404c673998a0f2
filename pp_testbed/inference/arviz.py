"""Posteriors as objects of ArviZ, 0.23 (Python 3.11) and 1.x alike: the one module that imports it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.models.base import Array, Model, Task

NUM_PROBES = 128


@lru_cache
def arviz() -> Any:
    """ArviZ, imported when it is first needed: it takes a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces 1.0
        try:
            import arviz as module
        except FileNotFoundError:  # of two processes that import 0.23 for the first time of a day, one fails
            import arviz as module

    return module


def probe_inputs(model: Model, num: int = NUM_PROBES) -> Array:
    """Inputs [num, d] at which functions are compared, the same for all problems of a model."""
    return model.inputs(jax.random.key(0), num)


def to_arviz(
    posterior: Any, task: Task | None = None, probes: Array | None = None, num_draws: int = 1000
) -> Any:
    """A posterior as ArviZ's `InferenceData` (0.23) or `DataTree` (1.x).

    Groups: `posterior` (parameters where there are some, and `probe`, the logit differences at probe inputs),
    `sample_stats`, `log_likelihood`, `posterior_predictive` (labels drawn at the data's inputs),
    `observed_data`, `constant_data`.

    Args:
        posterior: chains, or any other posterior, which is taken as one chain.
        task: the data; that of the chains if None.
        probes: inputs [N, d]; 128 fixed ones of the task's model if None.
        num_draws: of a posterior that is not finite.
    """
    task = task_of(posterior, task, "to_arviz(problem.task)")
    key_draws, key_labels = jax.random.split(jax.random.key(0))
    x_probe = probe_inputs(task.model) if probes is None else jnp.asarray(probes)
    rows = slice(0, int(task.num_train))
    # At once, so that the functions at the data are those at the probes.
    logits = posterior.logits(key_draws, jnp.concatenate([x_probe, task.x[rows]]), num_draws)
    log_weights = getattr(posterior, "log_weights", None)
    if log_weights is not None and not np.allclose(log_weights, log_weights[0]):
        raise UsageError("ArviZ knows no weights, and these draws have unequal ones")
    at_probes, at_data = jnp.split(logits, [len(x_probe)], axis=1)
    labels = task.likelihood.distribution(at_data)
    num_chains, draws = getattr(posterior, "num_chains", 0) or 1, getattr(posterior, "draws", {})
    parameters = _leaves(draws if isinstance(draws, dict) else {"draw": draws})
    variables = {**parameters, "probe": task.likelihood.predictor(at_probes)}
    groups = {
        "posterior": {name: by_chain(leaf, num_chains) for name, leaf in variables.items()},
        "sample_stats": {name: np.array(leaf) for name, leaf in getattr(posterior, "stats", {}).items()},
        "log_likelihood": {"y": by_chain(labels.log_prob(task.y[rows]), num_chains)},
        "posterior_predictive": {"y": by_chain(labels.sample(key_labels), num_chains)},
        "observed_data": {"y": np.asarray(task.y[rows])},
        "constant_data": {"x": np.asarray(task.x[rows]), "x_probe": np.asarray(x_probe)},
    }
    return arviz_object(groups)


def arviz_object(groups: Mapping[str, Mapping[str, np.ndarray]]) -> Any:
    """An object of ArviZ, of whichever version, with those groups that have something in them."""
    groups = {name: group for name, group in groups.items() if group}
    az = arviz()
    return az.from_dict(**groups) if az.__version__.startswith("0.") else az.from_dict(groups)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as a flat one."""
    flat: dict[str, Any] = {}
    for name, item in tree.items():
        flat |= _leaves(item, f"{prefix}{name}.") if isinstance(item, Mapping) else {prefix + name: item}
    return flat


def by_chain(values: Any, num_chains: int) -> np.ndarray:
    """[M, ...] as [chains, draws, ...], writable, as ArviZ sorts in place."""
    array = np.array(values)
    return array.reshape(num_chains, -1, *array.shape[1:])


def task_of(posterior: Any, task: Task | None, call: str) -> Task:
    """The task, that which the posterior knows, or a UsageError that says how to give one."""
    task = task or getattr(posterior, "task", None)
    if task is None:
        raise UsageError(f"the posterior does not know its task: say it, as in {call}")
    return task
