"""Data sets by name: what there is, and where it is found.

Some come with scikit-learn. Others are files `NAME.npz` in the directory of the environment variable
`PP_TESTBED_DATA`, or where `pp-testbed data fetch` puts them, with arrays `x, y` or, where a set has a
standard test part, `x_train, y_train, x_test, y_test`. Nothing is standardised here, and nothing split: that
is for `data`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pp_testbed.errors import UsageError, unknown
from pp_testbed.problems.downloads import SOURCES
from pp_testbed.problems.shifts import shot_noise

PLACE = "PP_TESTBED_DATA"
MOST_CATEGORIES = 100
MOST_CLASSES = 20  # different whole numbers that are taken as classes, where types do not say
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Rows with labels; two of one name, which has a digest of them, are equal.

    Attributes:
        name: what it is called; of data of one's own with a digest, so that a name says which data.
        x: inputs [N, d], in which NaN is a missing value.
        y: labels [N]: classes 0, ..., K-1, or numbers; or vectors of numbers [N, targets].
        num_classes: K, or 0 of numbers.
        x_test, y_test: a part that is only for tests, if there is a standard one.
        is_named: whether it can be found again by its name.
        shape: of an input before it was made a row, such as (28, 28).
        columns: the names of the columns, if they have some.
        notes: what was done to make it of a table, in words.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    num_classes: int
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    is_named: bool = False
    shape: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataSet) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def num_columns(self) -> int:
        """How many inputs a row has."""
        return int(np.prod(self.x.shape[1:]))

    @property
    def num_targets(self) -> int:
        """How many numbers a label is."""
        return int(np.prod(self.y.shape[1:]))

    @cached_property
    def kinds(self) -> tuple[np.ndarray, bool]:
        """Which rows are equal: see `kinds_of_rows`."""
        return kinds_of_rows(self.x)


class Entry(NamedTuple):
    """What is known of a named set before it is read."""

    summary: str
    rows: int
    columns: int
    num_classes: int
    bundled: str = ""  # scikit-learn's loader
    made_of: tuple[str, str] = ("", "")  # another set, and what is done to it: see `MAKERS`


def _table(rows: int, columns: int, num_classes: int, summary: str, bundled: str = "") -> Entry:
    return Entry(summary, rows, columns, num_classes, bundled)


def _as_classes(arrays: Arrays) -> Arrays:
    return arrays | {"y": arrays["y"].astype(int)}


def _with_shot_noise(arrays: Arrays) -> Arrays:
    rows = {part: shot_noise(arrays[part], seed) for seed, part in enumerate(("x_train", "x_test"))}
    return arrays | rows


MAKERS: dict[str, Callable[[Arrays], Arrays]] = {"classes": _as_classes, "shot noise": _with_shot_noise}


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
        _check_apart(made)
    return replace(made, name=name if is_known else made.name, is_named=is_known)


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


def _flat(x: Any) -> np.ndarray:
    """Rows of single precision; pixels between 0 and 1."""
    x = np.asarray(x)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    with np.errstate(over="ignore"):  # which is said where rows are checked
        return x.reshape(len(x), -1).astype(np.float32) / np.float32(scale)


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


def own_set(
    x: Any, y: Any, x_test: Any = None, y_test: Any = None, *, name: str = "data", **details: Any
) -> DataSet:
    """Data of one's own, checked: classes if y is of integers or words, numbers if it is of type float."""
    made = set_of(x, y, x_test, y_test, name=name, **details)
    _check_apart(made)
    note = "most rows have an equal: these are taken as different cases, and may be learnt from and scored"
    return made if made.kinds[1] else replace(made, notes=(*made.notes, note))


def set_of(
    x: Any, y: Any, x_test: Any = None, y_test: Any = None, *, name: str = "data", **details: Any
) -> DataSet:
    """As `own_set`, of data whose test part is known to be apart."""
    x, x_test = (None if part is None else np.asarray(part) for part in (x, x_test))
    y, y_test = (None if part is None else _as_labels(part) for part in (y, y_test))
    if (x_test is None) != (y_test is None):
        raise UsageError("the test part has inputs or labels alone; expected both, as test=(x_test, y_test)")
    rows, labels = _checked(x, y, "")
    test_rows, test_labels = (None, None) if x_test is None else _checked(x_test, y_test, " of the test part")
    if test_labels is not None and test_labels.shape[1:] != labels.shape[1:]:
        raise UsageError(
            f"labels have shape {labels.shape}, those of the test part {test_labels.shape}; expected one kind"
        )
    known = np.unique(labels)
    if len(known) == 1:
        raise UsageError(f"all labels are {known[0]!r}: there is nothing to learn")
    is_number = np.issubdtype(labels.dtype, np.floating)
    if not is_number:
        if test_labels is not None and (new := sorted(set(test_labels.tolist()) - set(known.tolist()))):
            raise UsageError(f"the test part has labels that the data lack: {', '.join(map(str, new[:5]))}")
        labels = np.searchsorted(known, labels)
        test_labels = None if test_labels is None else np.searchsorted(known, test_labels)
    kind = np.float32 if is_number else np.int32
    return DataSet(
        f"{name}@{_digest(x, y, x_test, y_test)}",
        rows,
        labels.astype(kind),
        0 if is_number else len(known),
        test_rows,
        None if test_labels is None else test_labels.astype(kind),
        **{"shape": x.shape[1:], **details},
    )


def _as_labels(y: Any) -> np.ndarray:
    """Labels as an array; words as words, and not as where they are in memory, which is what pandas has."""
    y = np.asarray(y)
    is_of_words = y.dtype.kind == "O" and all(isinstance(label, str) for label in y.ravel())
    return y.astype(str) if is_of_words else y


def notes_on_kind(data: DataSet) -> list[str]:
    """What labels were taken for by their type alone, where that may not be what was meant."""
    different = len(np.unique(data.y))
    if not data.num_classes and different <= MOST_CLASSES and (data.y == np.round(data.y)).all():
        return [
            f"labels are {different} whole numbers of type float, taken as numbers: for classes give integers"
        ]
    if data.num_classes > MOST_CATEGORIES:
        return [f"labels are taken as {data.num_classes} classes: for numbers give type float"]
    return []


def _digest(*parts: np.ndarray | None) -> str:
    """The first digits of the SHA-256 of arrays as they were given."""
    given = b"".join(np.ascontiguousarray(part).tobytes() for part in parts if part is not None)
    return hashlib.sha256(given).hexdigest()[:8]


def kinds_of_rows(x: np.ndarray) -> tuple[np.ndarray, bool]:
    """A number for each row [N], the same for equal ones, and whether those are one case: not where most
    have an equal.
    """
    given = np.nan_to_num(x, nan=float(np.finfo(np.float32).max)) + 0.0  # of -0 and 0 one
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in given]
    kinds = np.frombuffer(b"".join(digests), dtype=np.uint64)
    return kinds, len(np.unique(kinds)) >= len(x) / 2


def _check_apart(data: DataSet) -> None:
    """Raise a UsageError where more rows of a test part are among the data than chance makes equal.

    How many that is, is seen in the data: as many as have an equal there, and three standard deviations.
    """
    if data.x_test is None:
        return
    if data.x.shape[1] != data.x_test.shape[1]:
        raise UsageError(f"the test part has {data.x_test.shape[1]} columns; the data have {data.x.shape[1]}")
    kinds, are_cases = data.kinds
    known, numbers = np.unique(kinds, return_counts=True)
    places = np.flatnonzero(np.isin(kinds_of_rows(data.x_test)[0], known))
    chance = numbers[numbers > 1].sum() / len(data.x) * len(data.x_test)
    if are_cases and len(places) > chance + 3.0 * np.sqrt(chance):
        raise UsageError(
            f"{len(places)} rows of the test part are among the data, first row {places[0]}: what was learnt "
            "from is no test; expected other rows"
        )


def _checked(x: np.ndarray, y: np.ndarray, words: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [N, d] of single precision, finite or missing, and a label for each; or a UsageError."""
    if x.ndim < 2 or len(x) == 0 or x.dtype.kind not in "biuf":
        raise UsageError(f"inputs{words} are {x.dtype} {x.shape}; expected numbers [N, d]")
    if y.shape[:1] != x.shape[:1] or y.ndim > 2 or (y.ndim == 2 and y.dtype.kind != "f"):
        raise UsageError(
            f"labels{words} are {y.dtype} {y.shape}; expected ({len(x)},), one per row, or numbers with a "
            "point [N, targets]"
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "biufUS":
        raise UsageError(f"labels{words} are of type {y.dtype}; expected whole numbers, words or numbers")
    rows = _flat(x)
    infinite = np.argwhere(np.isinf(rows))
    if len(infinite):
        row, column = infinite[0]
        raise UsageError(f"inputs{words} are infinite, first at row {row}, column {column}")
    finite = np.isfinite(y).reshape(len(y), -1).all(axis=1) if y.dtype.kind == "f" else np.ones(len(y), bool)
    if not finite.all():
        raise UsageError(f"labels{words} are NaN or infinite, first at row {int(np.argmin(finite))}")
    return rows, y.astype(int) if y.dtype.kind == "b" else y
