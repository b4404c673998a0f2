"""Sets of rows with labels: what one is, and how data of one's own become one, checked.

Named sets, and where they are found, are in `datasets`; tables with columns of any kind in `tables`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pp_testbed.errors import UsageError

MOST_CATEGORIES = 100
MOST_CLASSES = 20  # different whole numbers that are taken as classes, where types do not say


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
        network: of `models.vision`, that agents train on it; the testbed's if there is none.
        elsewhere: inputs [N, d] that are of other sets, by their names, of which a method should say so.
        costs: C [K, K], of a true class and of a decision, if errors have costs.
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
    network: str = ""
    elsewhere: dict[str, np.ndarray] = field(default_factory=dict)
    costs: np.ndarray | None = None

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

    @property
    def unseen(self) -> np.ndarray:
        """The test part's inputs, or all where there is none: to those who learn from another set."""
        return self.x if self.x_test is None else self.x_test

    @cached_property
    def kinds(self) -> tuple[np.ndarray, bool]:
        """Which rows are equal: see `kinds_of_rows`."""
        return kinds_of_rows(self.x)


def own_set(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    name: str = "data",
    elsewhere: dict[str, Any] | None = None,
    costs: Any = None,
    **details: Any,
) -> DataSet:
    """Data of one's own, checked: classes if y is of integers or words, numbers if it is of type float."""
    made = set_of(x, y, x_test, y_test, name=name, **details)
    check_apart(made)
    if elsewhere or costs is not None:
        made = _judged(made, elsewhere or {}, costs)
    note = "most rows have an equal: these are taken as different cases, and may be learnt from and scored"
    return made if made.kinds[1] else replace(made, notes=(*made.notes, note))


def _judged(data: DataSet, elsewhere: dict[str, Any], costs: Any) -> DataSet:
    """A set of classes with inputs from elsewhere and costs of errors, whose digest its name has, too."""
    if not data.num_classes:
        raise UsageError(
            "labels are numbers; expected classes, for inputs from elsewhere and costs of errors"
        )
    inputs = {
        name: _checked(np.asarray(x), np.zeros(len(x), int), f" of {name}")[0]
        for name, x in elsewhere.items()
    }
    for name, x in inputs.items():
        if x.shape[1:] != data.x.shape[1:]:
            raise UsageError(f"inputs of {name} have {x.shape[1]} columns; the data have {data.x.shape[1]}")
    table = None if costs is None else _checked_costs(costs, data.num_classes)
    digest = _digest(np.array(list(inputs)), *inputs.values(), table)
    return replace(data, name=f"{data.name}{digest}", elsewhere=inputs, costs=table)


def _checked_costs(costs: Any, num_classes: int) -> np.ndarray:
    """Costs [K, K] of a true class and of a decision, or a UsageError."""
    table = np.asarray(costs)
    if table.shape != (num_classes, num_classes) or table.dtype.kind not in "biuf":
        expected = f"numbers ({num_classes}, {num_classes}), of each true class and each decision"
        raise UsageError(f"costs are {table.dtype} {table.shape}; expected {expected}")
    wrong = np.argwhere(~(np.isfinite(table) & (table >= 0)))
    if len(wrong):
        true, decision = wrong[0]
        raise UsageError(
            f"the cost of decision {decision} where class {true} is true is {table[true, decision]}; "
            "expected a finite number, at least 0"
        )
    return table.astype(np.float64)


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


def check_apart(data: DataSet) -> None:
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


def _flat(x: Any) -> np.ndarray:
    """Rows of single precision; pixels between 0 and 1."""
    x = np.asarray(x)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    with np.errstate(over="ignore"):  # which is said where rows are checked
        return x.reshape(len(x), -1).astype(np.float32) / np.float32(scale)
