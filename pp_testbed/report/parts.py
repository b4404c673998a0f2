"""What the report is put together from: tables that can be sorted, pictures, sections."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from pp_testbed.errors import UsageError
from pp_testbed.report import plots
from pp_testbed.report.leaderboard import as_text, with_error


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it says, what it is sorted by, and an error bar in percent of the column."""

    text: str
    value: float | str | None = None
    bar: tuple[float, float, float] | None = None  # low, middle and high
    is_strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table that can be sorted, and saved as CSV."""

    name: str
    heads: list[str]
    rows: list[list[Cell]]
    frame: pd.DataFrame

    @property
    def csv(self) -> str:
        """The table's numbers in full, as an address that needs no network."""
        return address(self.frame.to_csv(index=False).encode(), "text/csv")


@dataclass(frozen=True)
class Section:
    """A heading, what it means, its pictures and tables."""

    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[tuple[str, str]] = field(default_factory=list)  # addresses, and words in their place
    notes: list[str] = field(default_factory=list)


def table_of(name: str, frame: pd.DataFrame, groups: list[str], columns: dict[str, str]) -> Table:
    """A table of a frame: columns with a `_stderr` get error bars, all on the scale of their column."""
    bars = {column: _bars(frame, column) for column in columns if column + "_stderr" in frame}
    rows = []
    for i, row in enumerate(frame.to_dict("records")):
        cells = [_cell(row[group]) for group in groups]
        if row.get("failed") and "problems" in groups:
            cells[-1] = Cell(f"{row['problems']} (+{row['failed']} failed)", row["problems"])
        for column in columns:
            if column in bars:
                text = with_error(row[column], row[column + "_stderr"])
                cells.append(Cell(text, sortable(row[column]), bars[column][i]))
            else:
                cells.append(_cell(row[column]))
        rows.append(cells)
    return Table(name, [*groups, *columns.values()], rows, frame)


def _cell(value: Any) -> Cell:
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no", int(value))
    if isinstance(value, float):
        return Cell(as_text(value), sortable(value))
    return Cell(str(value), value)


def sortable(value: float) -> float | str | None:
    """A number to sort by, as JavaScript has it; None, which is last, where there is none."""
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None if np.isnan(value) else float(value)


def _bars(frame: pd.DataFrame, column: str) -> list[tuple[float, float, float] | None]:
    """Low end, middle and high end of each error bar, in percent of the column's width."""
    values = frame[column].to_numpy(dtype=float)
    errors = np.nan_to_num(frame[column + "_stderr"].to_numpy(dtype=float))
    finite = np.isfinite(values) & np.isfinite(errors)
    if finite.sum() < 2:
        return [None] * len(frame)
    low, high = (values - errors)[finite].min(), (values + errors)[finite].max()
    scale = 100.0 / max(high - low, 1e-12)
    ends = np.stack([values - errors, values, values + errors], axis=1)
    places = np.round((ends - low) * scale, 2)
    return [tuple(map(float, row)) if good else None for row, good in zip(places, finite, strict=True)]  # type: ignore[misc]


def pictures_of(drawers: dict[str, Callable[[], Any]]) -> tuple[list[tuple[str, str]], list[str]]:
    """The pictures that can be drawn, and why others cannot."""
    pictures, notes = [], []
    for words, draw in drawers.items():
        try:
            axes = draw()
        except UsageError as error:
            notes.append(f"{words} are not drawn: {error}.")
            continue
        figure = np.array(axes, dtype=object).flat[0].figure
        buffer = io.BytesIO()
        with plots.style():
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        plt.close(figure)
        pictures.append((address(buffer.getvalue(), "image/svg+xml"), words))
    return pictures, notes


def address(content: bytes, kind: str) -> str:
    """Content as an address that needs no network."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
