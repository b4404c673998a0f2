"""The results store: one Parquet file per cell in one directory.

`pandas.read_parquet(directory)` reads it. Files appear whole or not at all (temporary name, fsync,
rename), and are named by what the cell is, so that two runs into one directory write the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pp_testbed.errors import CannotWriteError, UsageError
from pp_testbed.experiments.identity import config_hash

_SCORES = [
    name + suffix
    for name in ("kl_marginal", "kl_joint", "kl_dyadic", "kl_aggregate")
    for suffix in ("", "_stderr", "_bias")
] + [name + suffix for name in ("accuracy", "nll", "brier", "ece") for suffix in ("", "_stderr")]

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("suite", "problem", "method", "config", "config_hash")]
    + [("seed", pa.int64()), ("input_dim", pa.int64()), ("num_train", pa.int64())]
    + [("temperature", pa.float64()), ("num_classes", pa.int64())]
    + [(name, pa.float64()) for name in [*_SCORES, "fit_seconds", "evaluate_seconds"]]
    + [("num_draws", pa.int64())]
    + [(name, pa.string()) for name in ("labels", "status", "error", "version", "provenance")]
)

OK = "ok"
STATUSES = (OK, "error", "nan")
NEWER = {"provenance"}  # columns that complete files of earlier days do not have
OF_GOOD_CELLS = {"num_draws", "labels"} | {  # which failed ones may leave empty
    name
    for name in _SCORES
    if not name.endswith(("_stderr", "_bias"))  # that an infinite score has none of
}
TEXT = 2**18  # characters of the longest text of a file that is ours
DEPTH = 50  # of a configuration
HOUR = 3600.0
TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")  # the names of files that are being written


def cell_id(problem: str, config_hash: str, version: str) -> str:
    """What identifies a cell: the problem, the configuration, and the version of the package."""
    return hashlib.sha256("\n".join((problem, config_hash, version)).encode()).hexdigest()[:16]


def cell_ids(frame: pd.DataFrame) -> list[str]:
    """The identities of the cells of a frame of results, row by row."""
    return [cell_id(*key) for key in zip(frame.problem, frame.config_hash, frame.version, strict=True)]


def file_words(*texts: str) -> str:
    """Texts as a part of a file's name, for people."""
    return "_".join(re.sub(r"[^\w.+-]+", "_", text) for text in texts)


def file_name(row: dict[str, Any]) -> str:
    """The file of a cell; the words are for people, the hash is what counts."""
    words = file_words(row["problem"], row["method"])
    return f"{words[:150]}_{cell_id(row['problem'], row['config_hash'], row['version'])}.parquet"


def create_directory(directory: Path, what: str) -> None:
    """Make a directory that can be written to, or raise a UsageError that says why not.

    What killed processes have left in it, temporary files older than an hour, is removed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".{uuid.uuid4().hex}.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {what} to {directory}: {error.strerror}") from None
    _remove_leftovers(directory)


def _remove_leftovers(directory: Path) -> None:
    old = []
    for path in directory.glob(".*.tmp"):
        with suppress(OSError):  # which another process has just removed
            if (
                TEMPORARY.fullmatch(path.name)
                and path.is_file()
                and time.time() - path.stat().st_mtime > HOUR
            ):
                old.append(path)
    in_use = _open_files() if old else set()
    for path in old:
        if path.resolve() not in in_use:
            with suppress(OSError):  # of another user
                path.unlink()


def _open_files() -> set[Path]:
    """The files that processes have open, where the system tells."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # of processes that have ended, or of other users
            found.add(link.readlink())
    return found


def write_whole(path: Path, write: Callable[[Any], object]) -> None:
    """A file that appears whole or not at all: a temporary name, fsync, rename."""
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Store:
    """A results directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def create(self) -> None:
        """Make the directory, or say in one line why it cannot be written to."""
        create_directory(self.directory, "results")

    def write(self, row: dict[str, Any]) -> None:
        """Add a cell. One that is there and complete stays as it is; a failed one is replaced."""
        path = self.directory / file_name(row)
        if path.exists() and (old := _read(path)) is not None and old["status"] == OK:
            return
        table = pa.Table.from_pylist([row], schema=SCHEMA)
        write_whole(path, lambda file: pq.write_table(table, file, compression="none"))

    def read(self, report: Callable[[str], None] = lambda line: None) -> pd.DataFrame:
        """All cells, one row each. Files that are not cells are reported, by name, and ignored."""
        if not self.directory.is_dir():
            raise UsageError(f"there is no results directory {self.directory}")
        rows = []
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith("."):
                continue
            row = _read(path)
            if row is None:
                report(f"ignored {path}: not a complete result file of pp_testbed")
            else:
                rows.append(row)
        return frame(rows)


def read_results(
    path: str | os.PathLike[str], report: Callable[[str], None] = lambda line: None
) -> pd.DataFrame:
    """The cells of a results directory, or of one Parquet file that `frame.to_parquet` wrote."""
    path = Path(path)
    if not path.is_file():
        return Store(path).read(report)
    table = read_table(path, SCHEMA)
    if table is None:
        raise UsageError(f"{path} is not a file of results of pp_testbed")
    return table.to_pandas()


def read_table(path: Path, schema: pa.Schema) -> pa.Table | None:
    """The rows of a file with the columns of a schema, if it is one that this package could have written.

    It need not be: anything may lie in a directory. Types are looked at before anything is converted.
    """
    if not path.is_file():  # a pipe, say, which would be waited for
        return None
    try:
        with path.open("rb") as source:
            file = pq.ParquetFile(source)
            names = [name for name in schema.names if name in file.schema_arrow.names]
            types = ((file.schema_arrow.field(name).type, schema.field(name).type) for name in names)
            if set(schema.names) - set(names) - NEWER or not all(_is_like(*pair) for pair in types):
                return None
            table = file.read(columns=names)
            table.validate(full=True)  # that texts are texts
        for name in set(schema.names) - set(names):
            table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        table = table.select(schema.names).cast(schema)
        return table if _is_ours(table) else None
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type are of another one, as pandas may have written them."""
    if pa.types.is_string(wanted):
        return pa.types.is_string(found) or pa.types.is_large_string(found)
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(found) or pa.types.is_floating(found)  # with nulls it is floating
    return pa.types.is_floating(found)


def _is_ours(table: pa.Table) -> bool:
    """Whether rows have what every row must have."""
    texts = [name for name in table.column_names if pa.types.is_string(table.schema.field(name).type)]
    for name in texts:
        if (pc.max(pc.utf8_length(table[name])).as_py() or 0) > TEXT:
            return False
    floats = {name for name in table.column_names if pa.types.is_floating(table.schema.field(name).type)}
    good = table.filter(pc.equal(table["status"], OK))
    needed = set(table.column_names) - NEWER - OF_GOOD_CELLS - floats
    if any(table[name].null_count for name in needed | {"temperature"}):
        return False
    if any(good[name].null_count for name in OF_GOOD_CELLS & set(table.column_names)):
        return False
    if not set(table["status"].unique().to_pylist()) <= set(STATUSES):
        return False
    pairs = set(zip(table["config"].to_pylist(), table["config_hash"].to_pylist(), strict=True))
    return all(config_hash(text) == digest and _is_configuration(text) for text, digest in pairs)


def _is_configuration(text: str) -> bool:
    """Whether a text is the description of a method, as JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "method" in found and _depth(found) <= DEPTH


def _depth(value: Any) -> int:
    """How deep lists and dictionaries of JSON, which the parser has let pass, are nested."""
    depth, level = 0, [value]
    while level:
        depth += 1
        containers = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [item for one in containers for item in one if isinstance(item, dict | list)]
    return depth


class Tables:
    """A directory of Parquet files of one schema, each of which has the rows of one run.

    The rows have a `status`; a file appears whole or not at all.
    """

    def __init__(self, directory: str | os.PathLike[str], schema: pa.Schema, what: str) -> None:
        self.directory, self.schema, self.what = Path(directory), schema, what

    def create(self) -> None:
        """Make the directory, or say in one line why it cannot be written to."""
        create_directory(self.directory, self.what)

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write a file. One of the same run is replaced, but a run that ended well not by a failure."""
        is_good = all(row["status"] == OK for row in rows)
        if not is_good and (old := self.rows(name)) is not None and (old.status == OK).all():
            return
        table = pa.Table.from_pylist(rows, schema=self.schema)
        self.write_whole(name, lambda file: pq.write_table(table, file))

    def write_whole(self, name: str, write: Callable[[Any], object]) -> None:
        """Any file of the directory, or a UsageError that says why it cannot be written."""
        try:
            write_whole(self.directory / name, write)
        except OSError as error:
            raise CannotWriteError(f"cannot write {self.directory / name}: {error.strerror}") from None

    def rows(self, name: str) -> pd.DataFrame | None:
        """The rows of a file; None where there is none, or it is another thing."""
        table = read_table(self.directory / name, self.schema)
        return None if table is None else table.to_pandas()

    def read(self, report: Callable[[str], None] = lambda line: None) -> pd.DataFrame:
        """All rows, file after file. What is not one of these is reported, by name, and ignored."""
        if not self.directory.is_dir():
            raise UsageError(f"there is no directory {self.directory}")
        found = [self.schema.empty_table().to_pandas()]
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith("."):
                continue
            rows = self.rows(path.name)
            if rows is None:
                report(f"ignored {path}: not a file of {self.what}")
            else:
                found.append(rows)
        return pd.concat(found[1:] or found, ignore_index=True)


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """A data frame with the columns of the store, in the order of problems."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA).to_pandas()
    order = ["method", "config_hash", "input_dim", "num_train", "temperature", "seed", "problem"]
    return table.sort_values(order, ignore_index=True)


def _read(path: Path) -> dict[str, Any] | None:
    """The row of a cell's file; None where the file is not one."""
    table = read_table(path, SCHEMA)
    if table is None or table.num_rows != 1:
        return None
    row = table.to_pylist()[0]
    return row if path.name == file_name(row) else None
