"""Predictors of scikit-learn: nearest neighbours and random forests. One function, no epistemic part."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from pp_testbed.inference.options import Sweep, check_choice, check_positive
from pp_testbed.inference.posterior import Plain, finite
from pp_testbed.models.base import Array, Task

LEAST_SHARE = 0.01  # of all classes but one, as in the paper: an infinite KL would hide all else
UNKNOWN, LEAST = 1.0, 0.01  # standard deviations of labels, which are of size 1


def classifier(model: Any, task: Task) -> Plain:
    """A classifier of scikit-learn, fitted here, as a posterior of one function.

    Classes that are not among the data have the lowest probability there is.
    """
    model.fit(np.asarray(task.x), np.asarray(task.y))

    def logits(x: np.ndarray) -> np.ndarray:
        probabilities = np.zeros((len(x), task.num_classes))
        probabilities[:, model.classes_] = model.predict_proba(x)
        least = LEAST_SHARE / (task.num_classes - 1)  # so that one class that has all of it sums to 1
        return np.log(np.clip(probabilities, least, 1.0 - LEAST_SHARE))[None]

    return finite(logits)


def regressor(predict: Callable[[np.ndarray], np.ndarray], residuals: np.ndarray, task: Task) -> Plain:
    """A predictor of numbers as a posterior of one function, with the spread of its errors on other data."""
    known = residuals[np.isfinite(residuals).reshape(len(residuals), -1).all(axis=1)]
    spread = np.sqrt(np.mean(known**2, axis=0)) if len(known) > 1 else UNKNOWN
    spread = np.maximum(spread, LEAST)

    def outputs(x: np.ndarray) -> np.ndarray:
        return np.asarray(task.likelihood.around(jnp.asarray(predict(x)).reshape(len(x), -1), spread))[None]

    return finite(outputs)


@dataclass(frozen=True)
class Knn:
    """k nearest neighbours: Cover and Hart, 1967, "Nearest Neighbor Pattern Classification".

    p(y | x) is the share of y among the labels of the k nearest data (all of them where there are fewer),
    kept in [0.01 / (K - 1), 0.99]; a number is their mean, with the spread of errors on the data, each left
    out. The paper's agent has k = 3 too, and one more datum of each class, at the origin.

    Args:
        k: neighbours.
        weights: "uniform", or "distance" for shares in proportion to 1 / distance.
    """

    revision: ClassVar[int] = 2
    k: int = 3
    weights: str = "uniform"
    name: str = "knn"
    sweep: ClassVar[Sweep] = ({"k": (1, 5, 10, 30, 50, 100), "weights": ("uniform", "distance")},)

    def __post_init__(self) -> None:
        check_positive(self, "k")
        check_choice(self, "weights", ("uniform", "distance"))

    def fit(self, key: Array, task: Task) -> Plain:
        neighbors = min(self.k, len(task.y))
        if task.likelihood.is_of_classes:
            return classifier(KNeighborsClassifier(n_neighbors=neighbors, weights=self.weights), task)
        model = KNeighborsRegressor(n_neighbors=neighbors, weights=self.weights)
        x, y = np.asarray(task.x), np.asarray(task.y)
        model.fit(x, y)
        if len(y) == 1:
            return regressor(model.predict, np.zeros(1), task)
        others = model.kneighbors(
            n_neighbors=min(neighbors, len(y) - 1), return_distance=False
        )  # without itself
        return regressor(model.predict, y - y[others].mean(axis=1), task)


@dataclass(frozen=True)
class RandomForest:
    """A random forest: Breiman, 2001, "Random Forests"; probabilities are kept in [0.01 / (K - 1), 0.99].

    Numbers have the spread of the errors on data that trees have not seen.

    Args:
        trees: how many.
        criterion: of a split between classes, "gini" or "entropy".
    """

    revision: ClassVar[int] = 2
    trees: int = 100
    criterion: str = "gini"
    name: str = "random-forest"
    sweep: ClassVar[Sweep] = ({"trees": (10, 100, 1000), "criterion": ("gini", "entropy")},)

    def __post_init__(self) -> None:
        check_positive(self, "trees")
        check_choice(self, "criterion", ("gini", "entropy"))

    def fit(self, key: Array, task: Task) -> Plain:
        seed = int(jax.random.bits(key, dtype="uint32"))
        if task.likelihood.is_of_classes:
            forest = RandomForestClassifier(self.trees, criterion=self.criterion, random_state=seed)
            return classifier(forest, task)
        x, y = np.asarray(task.x), np.asarray(task.y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of data that all trees have seen
            trees = RandomForestRegressor(self.trees, oob_score=len(y) > 1, random_state=seed).fit(x, y)
        rows = np.arange(len(y))
        seen_by_all = np.all([np.isin(rows, seen) for seen in trees.estimators_samples_], axis=0)
        residuals = y - getattr(trees, "oob_prediction_", y.mean(axis=0))
        residuals[seen_by_all & (len(y) > 1)] = np.nan  # for which scikit-learn predicts 0
        return regressor(trees.predict, residuals, task)
