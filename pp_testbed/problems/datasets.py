"""Data sets by name: what there is, and where it is found.

Some come with scikit-learn. Others are files `NAME.npz` in the directory of the environment variable
`PP_TESTBED_DATA`, or where `pp-testbed data fetch` puts them, with arrays `x, y` or, where a set has a
standard test part, `x_train, y_train, x_test, y_test`. Nothing is standardised here, and nothing split: that
is for `data`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pp_testbed.errors import UsageError, unknown
from pp_testbed.problems.downloads import SOURCES
from pp_testbed.problems.rows import DataSet, check_apart, set_of
from pp_testbed.problems.shifts import resized, shot_noise

PLACE = "PP_TESTBED_DATA"
Arrays = dict[str, np.ndarray]


class Judged(NamedTuple):
    """What a benchmark makes of a named set of classes.

    Attributes:
        network: see `DataSet`.
        elsewhere: the sets whose test inputs are elsewhere.
        critical: classes, and what it costs to take one of them for another.
        usual: what any other error costs.
    """

    network: str = ""
    elsewhere: tuple[str, ...] = ()
    critical: tuple[tuple[int, float], ...] = ()
    usual: float = 0.1

    def costs(self, num_classes: int) -> np.ndarray | None:
        """C [K, K]: of a true class, and of a decision; None if nothing costs anything.

        Examples:
            >>> Judged(critical=((1, 100.0),)).costs(2).tolist()
            [[0.0, 0.1], [100.0, 0.0]]
        """
        if not self.critical:
            return None
        costs = np.full((num_classes, num_classes), self.usual)
        for known, cost in self.critical:
            costs[known] = cost
        np.fill_diagonal(costs, 0.0)
        return costs


class Entry(NamedTuple):
    """What is known of a named set before it is read."""

    summary: str
    rows: int
    columns: int
    num_classes: int
    bundled: str = ""  # scikit-learn's loader
    made_of: tuple[str, str] = ("", "")  # another set, and what is done to it: see `MAKERS`
    judged: Judged = Judged()


def _table(rows: int, columns: int, num_classes: int, summary: str, bundled: str = "") -> Entry:
    return Entry(summary, rows, columns, num_classes, bundled)


def _as_classes(arrays: Arrays) -> Arrays:
    return arrays | {"y": arrays["y"].astype(int)}


def _with_shot_noise(arrays: Arrays) -> Arrays:
    rows = {part: shot_noise(arrays[part], seed) for seed, part in enumerate(("x_train", "x_test"))}
    return arrays | rows


def _turned(arrays: Arrays) -> Arrays:
    """Each image as `shifts.rotation` by 90 degrees has it, but that no pixel is between others."""
    return arrays | {part: np.rot90(arrays[part], axes=(1, 2)) for part in ("x_train", "x_test")}


def _of_28_pixels(arrays: Arrays) -> Arrays:
    return arrays | {part: resized(arrays[part], (28, 28)) for part in ("x_train", "x_test")}


def _with_few(arrays: Arrays) -> Arrays:
    """The first 61 threes and 62 sevens of the training part, and all others."""
    y = arrays["y_train"]
    kept = np.ones(len(y), bool)
    for label, number in ((3, 61), (7, 62)):
        kept[np.flatnonzero(y == label)[number:]] = False
    return arrays | {"x_train": arrays["x_train"][kept], "y_train": y[kept]}


MAKERS: dict[str, Callable[[Arrays], Arrays]] = {
    "classes": _as_classes,
    "shot noise": _with_shot_noise,
    "turned by 90 degrees": _turned,
    "28 x 28 pixels": _of_28_pixels,
    "the same": lambda arrays: arrays,
    "few threes and sevens": _with_few,
}
URSA_MNIST = Judged("mlp200", ("fashion_mnist", "usps_28", "mnist_turned"), ((3, 100.0), (7, 100.0)))


SETS = {
    "iris": _table(150, 4, 3, "three kinds of iris, by their leaves", "load_iris"),
    "wine": _table(178, 13, 3, "three cultivars, by chemistry", "load_wine"),
    "breast_cancer": _table(569, 30, 2, "malignant or benign, by cell nuclei", "load_breast_cancer"),
    "digits": _table(1797, 64, 10, "handwritten digits of 8 x 8 pixels", "load_digits"),
    "diabetes": _table(442, 10, 0, "progression after a year", "load_diabetes"),
    "german_credit": _table(1000, 24, 2, "good and bad credits; the numeric version"),
    "wine_quality_white": _table(4898, 11, 0, "quality of white wines, a number"),
    "wine_quality_red": _table(1599, 11, 0, "quality of red wines, a number"),
    "wine_quality": Entry(
        "quality of white wines, as seven classes", 4898, 11, 7, "", ("wine_quality_white", "classes")
    ),
    "adult": _table(48842, 108, 2, "income above 50,000; the census of 1994"),
    "covertype": _table(581012, 54, 7, "kinds of forest, by maps"),
    "wdbc": _table(569, 30, 2, "malignant or benign; KEEL's copy, of three decimals"),
    "sonar": _table(208, 60, 2, "mines or rocks, by sonar"),
    "ionosphere": _table(351, 33, 2, "radar returns, good or bad"),
    "satimage": _table(6435, 36, 6, "soils, by satellite"),
    "letter": _table(20000, 16, 26, "letters, by features of their shapes"),
    "phoneme": _table(5404, 5, 2, "nasal or oral vowels"),
    "boston": _table(506, 13, 0, "prices of houses"),
    "concrete": _table(1030, 8, 0, "strength of concrete"),
    "energy": _table(768, 8, 0, "heating load of buildings"),
    "kin8nm": _table(8192, 8, 0, "kinematics of a robot's arm"),
    "naval": _table(11934, 16, 0, "decay of a ship's propulsion"),
    "power_plant": _table(9568, 4, 0, "output of a power plant"),
    "protein": _table(45730, 9, 0, "structure of proteins"),
    "yacht": _table(308, 6, 0, "resistance of yachts"),
    "mnist": _table(70000, 784, 10, "handwritten digits of 28 x 28 pixels"),
    "fashion_mnist": _table(70000, 784, 10, "clothes of 28 x 28 pixels"),
    "usps": _table(9298, 256, 10, "digits of envelopes, 16 x 16 pixels"),
    "cifar10": _table(60000, 3072, 10, "photographs of 32 x 32 pixels in colours"),
    "mnist_shot_noise": Entry(
        "mnist with shot noise of severity 5", 70000, 784, 10, "", ("mnist", "shot noise")
    ),
    "mnist_turned": Entry(
        "mnist turned by 90 degrees", 70000, 784, 10, "", ("mnist", "turned by 90 degrees")
    ),
    "usps_28": Entry("usps of 28 x 28 pixels", 9298, 784, 10, "", ("usps", "28 x 28 pixels")),
    "ursa_mnist": Entry(
        "mnist as URSABench judges it", 70000, 784, 10, "", ("mnist", "the same"), URSA_MNIST
    ),
    "ursa_mnist_imbalanced": Entry(
        "the same with few threes and sevens to learn from",
        57727,
        784,
        10,
        "",
        ("mnist", "few threes and sevens"),
        URSA_MNIST,
    ),
}


# The first digits of the SHA-256 of their arrays, as they are known; a file with others is another set.
DIGESTS = {
    "adult": "53568ce5",
    "boston": "209f4611",
    "cifar10": "6b3883dc",
    "concrete": "5633c929",
    "covertype": "f5fcda7d",
    "energy": "4f07b376",
    "fashion_mnist": "ece17261",
    "german_credit": "89991cac",
    "ionosphere": "2b6531d8",
    "kin8nm": "4a22bb7a",
    "letter": "e4a8e2a7",
    "mnist": "1e35582d",
    "naval": "8d766096",
    "phoneme": "c3eb60e0",
    "power_plant": "2fd5fe7b",
    "protein": "62e9d3ea",
    "satimage": "8733fc7b",
    "sonar": "84f9230e",
    "usps": "c342bdef",
    "wdbc": "0b7a2fec",
    "wine_quality_red": "0ddcf5da",
    "wine_quality_white": "b4e4535a",
    "yacht": "06d30795",
}


@lru_cache(maxsize=64)
def data_set(name: str) -> DataSet:
    """A data set by its name.

    Examples:
        >>> data_set("iris").x.shape
        (150, 4)
    """
    if name not in SETS:
        raise unknown("data set", name, SETS)
    entry = SETS[name]
    arrays = _arrays_of(name)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        parts = [arrays[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    elif {"x", "y"} <= arrays.keys():
        parts = [arrays["x"], arrays["y"]]
    else:
        expected = "x and y, or x_train, y_train, x_test and y_test"
        raise UsageError(f"{name}.npz has {', '.join(arrays)}; expected {expected}")
    if not entry.num_classes:
        parts[1::2] = [np.asarray(labels, dtype=np.float32) for labels in parts[1::2]]
    made = set_of(*parts, name=name)
    if (made.num_columns, made.num_classes) != (entry.columns, entry.num_classes):
        has = f"{made.num_columns} columns and {made.num_classes} classes"
        raise UsageError(f"{name}.npz has {has}; expected {entry.columns} and {entry.num_classes}")
    is_known = bool(entry.bundled or entry.made_of[0]) or made.name == f"{name}@{DIGESTS.get(name)}"
    if not is_known:
        check_apart(made)
    return replace(
        made,
        name=name if is_known else made.name,
        is_named=is_known,
        network=entry.judged.network,
        elsewhere={other: data_set(other).unseen for other in entry.judged.elsewhere},
        costs=entry.judged.costs(entry.num_classes),
    )


def _arrays_of(name: str) -> Arrays:
    """What a set is made of: scikit-learn's, a file's, or another set's."""
    entry = SETS[name]
    source, maker = entry.made_of
    if source:
        if not data_set(source).is_named:
            raise UsageError(f"{name} is made of {source}, and {source}.npz has other data than are known")
        return MAKERS[maker](_arrays_of(source))
    if not entry.bundled:
        return _local(name)
    from sklearn import datasets

    found = getattr(datasets, entry.bundled)()
    return {"x": found.data, "y": found.target}


def data_directory() -> Path:
    """Where files of data are: the user's own directory, or one of the cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(PLACE) or Path(home) / "pp_testbed" / "data")


def local_file(name: str) -> Path | None:
    """The file of a set, if it is here."""
    path = data_directory() / f"{name}.npz"
    return path if path.is_file() else None


def is_here(name: str) -> bool:
    """Whether a set can be read."""
    return bool(SETS[name].bundled) or local_file(SETS[name].made_of[0] or name) is not None


def _local(name: str) -> dict[str, np.ndarray]:
    path = local_file(name)
    if path is None:
        hint = f"`pp-testbed data fetch {name}` downloads it; or " if name in SOURCES else ""
        raise UsageError(
            f"the data set {name} is not here: {name}.npz is not in {data_directory()}. {hint}set {PLACE} to "
            f"a directory with {name}.npz, which has arrays x and y, or x_train, y_train, x_test and y_test"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # whatever zipfile, zlib and numpy make of a damaged byte
        raise UsageError(f"{path} cannot be read: {error}") from None
