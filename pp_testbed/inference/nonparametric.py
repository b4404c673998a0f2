"""Predictors of scikit-learn: nearest neighbours and random forests. One function, no epistemic part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

from pp_testbed.inference.options import Sweep, check_choice, check_positive
from pp_testbed.inference.posterior import Plain, finite
from pp_testbed.models.base import Array, Task

BOUNDS = 0.01, 0.99  # of probabilities, as in the paper: an infinite KL would hide all else


def predictor(model: Any, task: Task) -> Plain:
    """A classifier of scikit-learn, fitted here, as a posterior of one function.

    Classes that are not among the data have the lowest probability there is.
    """
    model.fit(np.asarray(task.x), np.asarray(task.y))

    def logits(x: np.ndarray) -> np.ndarray:
        probabilities = np.zeros((len(x), task.num_classes))
        probabilities[:, model.classes_] = model.predict_proba(x)
        return np.log(np.clip(probabilities, *BOUNDS))[None]

    return finite(logits)


@dataclass(frozen=True)
class Knn:
    """k nearest neighbours: Cover and Hart, 1967, "Nearest Neighbor Pattern Classification".

    p(y | x) is the share of y among the labels of the k nearest data (all of them where there are fewer),
    kept in [0.01, 0.99]. The paper's agent has k = 3 too, and one more datum of each class, at the origin.

    Args:
        k: neighbours.
        weights: "uniform", or "distance" for shares in proportion to 1 / distance.
    """

    revision: ClassVar[int] = 1
    k: int = 3
    weights: str = "uniform"
    name: str = "knn"
    sweep: ClassVar[Sweep] = ({"k": (1, 5, 10, 30, 50, 100), "weights": ("uniform", "distance")},)

    def __post_init__(self) -> None:
        check_positive(self, "k")
        check_choice(self, "weights", ("uniform", "distance"))

    def fit(self, key: Array, task: Task) -> Plain:
        neighbors = min(self.k, len(task.y))
        return predictor(KNeighborsClassifier(n_neighbors=neighbors, weights=self.weights), task)


@dataclass(frozen=True)
class RandomForest:
    """A random forest: Breiman, 2001, "Random Forests"; probabilities are kept in [0.01, 0.99].

    Args:
        trees: how many.
        criterion: of a split, "gini" or "entropy".
    """

    revision: ClassVar[int] = 1
    trees: int = 100
    criterion: str = "gini"
    name: str = "random-forest"
    sweep: ClassVar[Sweep] = ({"trees": (10, 100, 1000), "criterion": ("gini", "entropy")},)

    def __post_init__(self) -> None:
        check_positive(self, "trees")
        check_choice(self, "criterion", ("gini", "entropy"))

    def fit(self, key: Array, task: Task) -> Plain:
        seed = int(jax.random.bits(key, dtype="uint32"))
        forest = RandomForestClassifier(self.trees, criterion=self.criterion, random_state=seed)
        return predictor(forest, task)
