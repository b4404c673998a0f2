"""Tables of users, CSV or Parquet, as data sets: types, missing values and categories, all of it said.

Numbers stay what they are; a missing one becomes the column's mean, and a column of its own says so. Words
are categories, one column each. Rows without a label are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pp_testbed.errors import UsageError, unknown
from pp_testbed.problems.rows import MOST_CATEGORIES, MOST_CLASSES, DataSet, own_set

KINDS = ("auto", "classes", "numbers")


def read_table(
    path: str | Path,
    target: str,
    *,
    drop: Iterable[str] = (),
    kind: str = "auto",
    test: str | Path | None = None,
) -> DataSet:
    """A file as a data set.

    Args:
        path: a CSV or Parquet file with a row of names.
        target: the column of labels.
        drop: columns that are left out.
        kind: "classes" or "numbers", what labels are; "auto" takes words, truth values and few whole numbers
            as classes.
        test: another file with the same columns, of which the test part is; else it is a part of the rows.
    """
    frame = _read(Path(path))
    extra = None if test is None else _read(Path(test))
    return of_frame(frame, target, drop=drop, kind=kind, test=extra, name=Path(path).name)


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        return pd.read_parquet(path) if path.suffix in (".parquet", ".pq") else pd.read_csv(path)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} cannot be read as a table: {first}") from None


def of_frame(
    frame: pd.DataFrame,
    target: str,
    *,
    drop: Iterable[str] = (),
    kind: str = "auto",
    test: pd.DataFrame | None = None,
    name: str = "table",
) -> DataSet:
    """A frame as a data set: as `read_table`.

    Examples:
        >>> frame = pd.DataFrame({"age": [30, None, 50], "city": ["a", "b", "a"], "ill": ["no", "yes", "no"]})
        >>> made = of_frame(frame, "ill")
        >>> made.columns, made.num_classes
        (('age', 'age is missing', 'city = a', 'city = b'), 2)
    """
    if isinstance(drop, str):
        raise UsageError(f"drop is a text; expected names of columns, as [{drop!r}]")
    drop = set(drop)
    frame, test = (None if part is None else _with_names(part) for part in (frame, test))
    for column in (target, *drop):
        if column not in frame:
            raise unknown("column", column, frame.columns)
    if test is not None and set(test.columns) != set(frame.columns):
        other = sorted(set(test.columns) ^ set(frame.columns))
        raise UsageError(
            f"one of the table and the test table lacks {', '.join(other)}; expected the same columns"
        )
    if kind not in KINDS:
        raise unknown("kind of labels", kind, KINDS)
    notes: list[str] = []
    both = frame if test is None else pd.concat([frame, test], ignore_index=True)
    is_test = np.arange(len(both)) >= len(frame)
    has_label = both[target].notna().to_numpy()
    if not has_label.all():
        notes.append(f"{int((~has_label).sum())} rows without {target} are dropped")
    both, is_test = both[has_label].reset_index(drop=True), is_test[has_label]
    y = _labels(both[target], kind, notes)
    columns: dict[str, np.ndarray] = {}
    for column in both.columns:
        if column != target and column not in drop:
            columns |= _encoded(str(column), both[column], notes)
    if not columns:
        raise UsageError(f"the table has no column besides {target} that says anything")
    x = np.stack(list(columns.values()), axis=1)
    held_out = {} if test is None else {"x_test": x[is_test], "y_test": y[is_test]}
    return own_set(
        x[~is_test], y[~is_test], **held_out, name=name, columns=tuple(columns), notes=tuple(notes)
    )


def _with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose columns have different names, which are texts."""
    names = [str(name) for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"there are several columns of the name {twice[0]}; expected one of each")
    return frame.set_axis(names, axis=1)


def _labels(column: pd.Series, kind: str, notes: list[str]) -> np.ndarray:
    """Labels as words and whole numbers, which are classes, or as numbers with a point."""
    is_numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if kind == "numbers" and not is_numeric:
        raise UsageError(f"{column.name} is not a column of numbers, such as {column.iloc[0]!r}")
    if is_numeric:
        values = column.to_numpy(dtype=np.float64)
        is_whole = bool((values == np.round(values)).all()) and column.nunique() <= MOST_CLASSES
        if kind == "numbers" or (kind == "auto" and not is_whole):
            notes.append(f"{column.name} is a number")
            return values
    if column.nunique() > MOST_CATEGORIES:
        raise UsageError(
            f"{column.name} has {column.nunique()} different values; expected at most {MOST_CATEGORIES}"
        )
    if is_numeric and not np.isfinite(column.to_numpy(dtype=np.float64)).all():
        raise UsageError(f"{column.name} is infinite in some rows")
    known = column.astype(str).value_counts()
    shown = ", ".join(f"{value} ({number})" for value, number in known.head(5).items())
    notes.append(f"{column.name} has {len(known)} classes: {shown}")
    if is_numeric:
        return np.unique(column.to_numpy(dtype=np.float64), return_inverse=True)[1].reshape(-1)
    return column.astype(str).to_numpy().astype(str)


def _encoded(name: str, column: pd.Series, notes: list[str]) -> dict[str, np.ndarray]:
    """A column as columns of numbers, in which NaN is missing."""
    if any(isinstance(value, list | dict | set | np.ndarray) for value in column):
        raise UsageError(f"{name} has lists in it: make numbers of them, or leave it out with --drop {name}")
    if column.nunique(dropna=False) < 2:
        notes.append(f"{name} is dropped: it has one value")
        return {}
    if pd.api.types.is_datetime64_any_dtype(column):
        raise UsageError(
            f"{name} is a column of dates: make numbers of it, or leave it out with --drop {name}"
        )
    missing = column.isna().to_numpy()
    if pd.api.types.is_complex_dtype(column):
        raise UsageError(
            f"{name} has complex numbers: make real ones of them, or leave it out with --drop {name}"
        )
    if pd.api.types.is_numeric_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isinf(values).any():
            raise UsageError(f"{name} is infinite, first at row {int(np.argmax(np.isinf(values)))}")
        if not missing.any():
            return {name: values}
        notes.append(
            f"{name}: {int(missing.sum())} missing values become the mean, said by a column of its own"
        )
        return {name: values, f"{name} is missing": missing.astype(float)}
    words = column.astype(object).where(~missing, "(missing)").astype(str)
    known = sorted(set(words))
    if len(known) > MOST_CATEGORIES:
        raise UsageError(
            f"{name} has {len(known)} different texts; at most {MOST_CATEGORIES} make categories: leave it "
            f"out with --drop {name}"
        )
    notes.append(f"{name}: {len(known)} categories, a column each")
    return {f"{name} = {word}": (words == word).to_numpy().astype(float) for word in known}


def words_on(made: DataSet) -> Any:
    """What was made of a table, in lines."""
    labels = f"{made.num_classes} classes" if made.num_classes else "numbers"
    return [f"{made.name}: {len(made.x)} rows, {made.num_columns} columns, labels are {labels}", *made.notes]
