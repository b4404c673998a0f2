"""Suites: named lists of problems. A new one is a function with a line in `SUITES`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pp_testbed.errors import unknown
from pp_testbed.models.mlp import ACTIVATIONS
from pp_testbed.problems.base import BaseProblem
from pp_testbed.problems.named import problem
from pp_testbed.problems.synthetic import TUNING_SEEDS


@dataclass(frozen=True)
class Suite:
    """A named, ordered list of problems."""

    name: str
    problems: tuple[BaseProblem, ...]

    def __iter__(self) -> Iterator[BaseProblem]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> BaseProblem:
        return self.problems[index]

    def filter(self, **values: Any) -> Suite:
        """The problems whose attributes have these values, or one of several values.

        Examples:
            >>> len(suite("2d").filter(num_train=100, temperature=[0.1, 0.5]))
            20
        """
        known = ("name", "seed", "input_dim", "num_train", "temperature", "num_classes")
        for attribute in values:
            if attribute not in known:
                raise unknown("attribute of a problem", attribute, known)

        def keeps(problem: BaseProblem) -> bool:
            return all(
                getattr(problem, attribute) in _collection(wanted) for attribute, wanted in values.items()
            )

        return Suite(self.name, tuple(filter(keeps, self.problems)))

    def limit(self, number: int) -> Suite:
        """The first so many problems."""
        return Suite(self.name, self.problems[:number])


def _collection(wanted: Any) -> Collection[Any]:
    return wanted if isinstance(wanted, Collection) and not isinstance(wanted, str) else (wanted,)


GRID_T = (1, 3, 10, 30, 100, 300, 1000)
GRID_RHO = (0.01, 0.1, 0.5)


def _grid(seeds: Collection[int]) -> list[BaseProblem]:
    return [
        problem(num_train=t, temperature=rho, seed=seed) for t in GRID_T for rho in GRID_RHO for seed in seeds
    ]


def _highdim() -> list[BaseProblem]:
    return [
        problem(num_train=ratio * d, temperature=rho, seed=seed, input_dim=d)
        for d in (2, 10, 100)
        for ratio in (1, 10, 100, 1000)
        for rho in GRID_RHO
        for seed in range(5)
    ]


def _variants(variants: list[dict[str, Any]]) -> list[BaseProblem]:
    return [
        problem(num_train=t, temperature=0.1, seed=seed, **variant)
        for variant in variants
        for t in (10, 100, 1000)
        for seed in range(5)
    ]


def _decisions() -> list[BaseProblem]:
    return [
        problem(num_train=ratio * d, temperature=0.1, seed=seed, input_dim=d)
        for d in (2, 10, 50)
        for ratio in (1, 10, 100)
        for seed in range(20)
    ]


def _logistic() -> list[BaseProblem]:
    return [
        problem(num_train=ratio * d, seed=seed, model="logistic", input_dim=d)
        for d in (2, 10, 100, 1000)
        for ratio in (1, 10)
        for seed in range(5)
    ]


def _coins() -> list[BaseProblem]:
    return [
        problem(model="coins", input_dim=number, num_train=ratio * number, seed=seed)
        for number in (2, 10, 100)
        for ratio in (1, 10)
        for seed in range(5)
    ]


TABULAR = ("iris", "wine", "breast_cancer", "digits", "diabetes")


def _tabular() -> list[BaseProblem]:
    """The tables that come with scikit-learn, of 10, 100 and all data."""
    return [
        problem(data=name, num_train=number, seed=seed)
        for name in TABULAR
        for number in (10, 100, None)
        for seed in range(5)
    ]


TABLES = (
    *("iris", "wine_quality", "german_credit", "adult", "covertype", "letter", "satimage", "phoneme"),
    *("sonar", "ionosphere", "wdbc", "digits"),
)
IMAGES = ("mnist", "fashion_mnist", "mnist_shot_noise", "usps", "cifar10")
UCI = (
    "boston",
    "concrete",
    "energy",
    "kin8nm",
    "naval",
    "power_plant",
    "protein",
    "wine_quality_red",
    "yacht",
)
SIZES = (10, 100, 1000)  # and all


def _of_sets(names: Collection[str]) -> list[BaseProblem]:
    """Of 10, 100, 1000 and all training data, where there are more."""
    whole = [problem(data=name, seed=seed) for name in names for seed in range(5)]
    return [
        problem(data=one.data, num_train=number, seed=one.seed)
        for one in whole
        for number in (*(size for size in SIZES if size < one.num_train), one.num_train)
    ]


def _ursa_mnist() -> list[BaseProblem]:
    """All training data, balanced and not; five seeds of each."""
    return [
        problem(data=name, seed=seed) for name in ("ursa_mnist", "ursa_mnist_imbalanced") for seed in range(5)
    ]


def _uci() -> list[BaseProblem]:
    """The published splits: 20 of each, 5 of protein."""
    return [
        problem(data=name, seed=seed, split="gal")
        for name in UCI
        for seed in range(5 if name == "protein" else 20)
    ]


SUITES: dict[str, tuple[str, Callable[[], list[BaseProblem]]]] = {
    "smoke": (
        "two small problems, for trying things out",
        lambda: [problem(num_train=t, temperature=0.1) for t in (3, 30)],
    ),
    "2d-lite": ("the grid of 2d with seeds 0 and 1", lambda: _grid(range(2))),
    "2d": ("the 2-D testbed: 7 sizes, 3 temperatures, 10 seeds", lambda: _grid(range(10))),
    "2d-tune": ("the grid of 2d with the seeds on which methods are tuned", lambda: _grid(TUNING_SEEDS)),
    "highdim": ("inputs of 2, 10 and 100 dimensions, 1 to 1000 data per dimension", _highdim),
    "decisions": ("the dimensions of the bandits, rho = 0.1: 1, 10, 100 data per dimension", _decisions),
    "logistic": ("logistic regression in 2 to 1000 dimensions, rho = 0.01", _logistic),
    "coins": ("bags of 2 to 100 coins, flipped once and ten times each", _coins),
    "tabular": ("five tables that come with scikit-learn: 10, 100 and all data, labels held out", _tabular),
    "tables": ("twelve tables of classes: 10, 100, 1000 and all data", lambda: _of_sets(TABLES)),
    "images": ("five sets of images: 10, 100, 1000 and all data", lambda: _of_sets(IMAGES)),
    "numbers": ("nine regression sets: 10, 100, 1000 and all data", lambda: _of_sets(UCI)),
    "uci": ("the same nine on their published splits, a tenth held out", _uci),
    "ursa-mnist": (
        "URSABench's MNIST, all training data, balanced and with few threes and sevens",
        _ursa_mnist,
    ),
    "activations": (
        "generative models with each activation",
        lambda: _variants([{"activation": activation} for activation in ACTIVATIONS]),
    ),
    "widths": (
        "generative models with 5 to 100 hidden units",
        lambda: _variants([{"hidden": (units, units)} for units in (5, 10, 20, 50, 100)]),
    ),
}


def suite(name: str) -> Suite:
    """A suite by its name: see `SUITES`, or `pp-testbed suites`.

    Examples:
        >>> len(suite("2d"))
        210
    """
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return Suite(name, tuple(SUITES[name][1]()))


def tuning_suite(reported: Suite) -> Suite:
    """The problems that methods are tuned on: of environments with seeds 1000 and 1001 instead, of data with
    a part of the training data held out.

    Examples:
        >>> tuning_suite(suite("2d"))[0].name, tuning_suite(suite("tabular"))[0].name
        ('2d/T1-rho0.01-s1000', 'iris/T10-validation-s0')
    """
    problems = {one.name: one for problem in reported for one in problem.tuned_on}
    return Suite(reported.name.removesuffix("-tune") + "-tune", tuple(problems.values()))
