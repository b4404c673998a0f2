"""The store of all studies: a Parquet file per cell in one directory, and arrays beside it if it has some.

`pandas.read_parquet(directory)` reads it. Files appear whole or not at all (temporary name, fsync,
rename), and are named by what the cell is, so that two runs into one directory write the same files.
Directories of earlier versions are read too: their configurations are put into today's words.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pp_testbed.engine.identity import config_hash, renewed
from pp_testbed.errors import UsageError

OK = "ok"
STATUSES = (OK, "error", "nan")
TEXT = 2**18  # characters of the longest text of a file that is ours
DEPTH = 50  # of a configuration
HOUR = 3600.0
TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")  # the names of files that are being written


def file_words(*texts: str) -> str:
    """Texts as a part of a file's name, for people."""
    return "_".join(re.sub(r"[^\w.+-]+", "_", text) for text in texts)


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


class Column(NamedTuple):
    """A column of a store, and where it must have a value: ALWAYS, in GOOD rows, or MAYBE."""

    name: str
    type: pa.DataType
    need: str


ALWAYS, GOOD, MAYBE = "always", "good", "maybe"
HEAD = (
    *(Column(name, pa.string(), ALWAYS) for name in ("problem", "method", "config", "config_hash")),
    Column("kind", pa.string(), MAYBE),
    Column("revision", pa.int64(), MAYBE),
    Column("seed", pa.int64(), ALWAYS),
)
TAIL = (
    *(Column(name, pa.string(), ALWAYS) for name in ("status", "error", "version")),
    Column("provenance", pa.string(), MAYBE),
)


@dataclass(frozen=True)
class Layout:
    """What the files of a study hold.

    Attributes:
        what: in words.
        own: the columns besides those that all studies have.
        order: the columns that rows are sorted by.
        step: the column that numbers the rows of a cell, if it can have several.
    """

    what: str
    own: tuple[Column, ...]
    order: tuple[str, ...] = ("method", "config_hash", "problem")
    step: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order."""
        return (*HEAD, *self.own, *TAIL)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def names(self, *needs: str) -> set[str]:
        """The columns that have one of these needs."""
        return {column.name for column in self.columns if column.need in needs}


class Store:
    """A directory of files of one layout."""

    def __init__(self, directory: str | os.PathLike[str], layout: Layout) -> None:
        self.directory, self.layout = Path(directory), layout

    def create(self) -> None:
        """Make the directory, or say in one line why it cannot be written to."""
        create_directory(self.directory, self.layout.what)

    def write(self, stem: str, rows: list[dict[str, Any]], arrays: Mapping[str, Any]) -> None:
        """Write a cell, its arrays first. One that ended well is not replaced by a failure, nor by itself."""
        path = self.directory / f"{stem}.parquet"
        old = read_table(path, self.layout)
        if old is not None and set(old["status"].to_pylist()) == {OK}:
            return
        table = pa.Table.from_pylist(rows, schema=self.layout.schema)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)  # another run may have ended, and left nothing
            if arrays:
                write_whole(path.with_suffix(".npz"), lambda file: np.savez(file, **arrays))
            write_whole(path, lambda file: pq.write_table(table, file, compression="none"))
        except OSError as error:
            what = f"cannot write {self.layout.what} to {self.directory}"
            raise UsageError(f"{what}: {error.strerror}") from None

    def read(self, report: Callable[[str], None] = lambda line: None) -> pd.DataFrame:
        """All rows, each once. Files that are not of this layout are reported, by name, and ignored.

        A failure does not count where the same cell has ended well, or has got farther.
        """
        if not self.directory.is_dir():
            raise UsageError(f"there is no directory {self.directory}")
        found = []
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith(".") or (path.suffix == ".npz" and path.with_suffix(".parquet").exists()):
                continue
            table = read_table(path, self.layout)
            if table is None:
                report(f"ignored {path}: not a complete file of {self.layout.what} of pp_testbed")
            else:
                found.append(table)
        table = pa.concat_tables(found) if found else self.layout.schema.empty_table()
        return _sorted(_once(table.to_pandas(), self.layout.step), self.layout)


def _once(frame: pd.DataFrame, step: str) -> pd.DataFrame:
    frame = frame.assign(id=cell_ids(frame), failed=frame.status != OK)
    frame = frame.sort_values("failed", kind="stable").drop_duplicates(["id", *filter(None, [step])])
    if step:
        reached = frame.id.map(frame[~frame.failed].groupby("id")[step].max())
        frame = frame[~frame.failed | ~(reached >= frame[step])]
    return frame.drop(columns=["id", "failed"])


def _sorted(frame: pd.DataFrame, layout: Layout) -> pd.DataFrame:
    return frame.sort_values([*layout.order, *filter(None, [layout.step])], ignore_index=True)


def cell_ids(frame: pd.DataFrame) -> list[str]:
    """The identities of the cells of a frame of results, row by row."""
    return [cell_id(*key) for key in zip(frame.problem, frame.revision, frame.config_hash, strict=True)]


def cell_id(problem: str, revision: int, config_hash: str) -> str:
    """What identifies a cell: the problem, the revision of its family, and the configuration."""
    return hashlib.sha256(f"{problem}\n{revision}\n{config_hash}".encode()).hexdigest()[:16]


def read_results(
    path: str | os.PathLike[str], layout: Layout, report: Callable[[str], None] = lambda line: None
) -> pd.DataFrame:
    """The rows of a directory, or of one Parquet file that `frame.to_parquet` wrote."""
    path = Path(path)
    if not path.is_file():
        return Store(path, layout).read(report)
    table = read_table(path, layout)
    if table is None:
        raise UsageError(f"{path} is not a file of {layout.what} of pp_testbed")
    return _sorted(table.to_pandas(), layout)


def read_table(path: Path, layout: Layout) -> pa.Table | None:
    """The rows of a file of a layout, if it is one that this package could have written.

    It need not be: anything may lie in a directory. Types are looked at before anything is converted. Columns
    that need not be there are missing values where they are not.
    """
    if not path.is_file():  # a pipe, say, which would be waited for
        return None
    schema = layout.schema
    try:
        with path.open("rb") as source:
            file = pq.ParquetFile(source)
            found = file.schema_arrow
            names = [name for name in schema.names if found.get_field_index(name) >= 0]
            types = ((found.field(name).type, schema.field(name).type) for name in names)
            if layout.names(ALWAYS, GOOD) - set(names) or not all(_is_like(*pair) for pair in types):
                return None
            table = file.read(columns=names)
            table.validate(full=True)  # that texts are texts
        for name in set(schema.names) - set(names):
            table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
        table = table.select(schema.names).cast(schema)
        return _renewed(table) if _is_ours(table, layout) else None
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None


def read_arrays(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray] | None:
    """Arrays of a file (all if no names), checked against their checksums; None where it is damaged."""
    if path.exists() and not path.is_file():  # a pipe, say, which would be waited for
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names or file.files}
    except PermissionError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except Exception:  # whatever zipfile, zlib and numpy make of a damaged byte: there are many
        return None


def _renewed(table: pa.Table) -> pa.Table:
    """Rows of 0.1.0 and 0.2.0, which had no revisions; what 0.2.0 computed is revision 1 of everything."""
    if not table["revision"].null_count:
        return table
    frame = table.to_pandas()
    frame["revision"] = (frame.version == "0.2.0").astype(int)
    pairs = frame[["config", "revision"]].drop_duplicates().itertuples(index=False)
    texts = {pair: renewed(*pair) for pair in map(tuple, pairs)}
    frame["config"] = [texts[pair] for pair in zip(frame.config, frame.revision, strict=True)]
    frame["config_hash"] = frame.config.map(config_hash)
    frame["kind"] = frame.problem.str.rpartition("-s")[0]
    if "model" in frame and frame.model.isna().any():
        frame["model"] = frame.problem.str.partition("/")[0]
    return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type are of another one, as pandas may have written them."""
    if pa.types.is_string(wanted):
        return pa.types.is_string(found) or pa.types.is_large_string(found)
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(found) or pa.types.is_floating(found)  # with nulls it is floating
    if pa.types.is_list(wanted):  # with nulls alone it is of nothing
        return pa.types.is_null(found) or (
            (pa.types.is_list(found) or pa.types.is_large_list(found))
            and pa.types.is_floating(found.value_type)
        )
    return pa.types.is_floating(found)


def _is_ours(table: pa.Table, layout: Layout) -> bool:
    """Whether rows have what every row must have."""
    for column in layout.columns:
        if column.type == pa.string() and (pc.max(pc.utf8_length(table[column.name])).as_py() or 0) > TEXT:
            return False
    good = table.filter(pc.equal(table["status"], OK))
    if any(table[name].null_count for name in layout.names(ALWAYS)):
        return False
    if any(good[name].null_count for name in layout.names(GOOD)):
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
