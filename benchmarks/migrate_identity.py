"""Put what 0.2.0 kept and shipped into the words of revisions, and show that no number has changed.

    python benchmarks/migrate_identity.py 0ed5e83

What lies under `kept/` and what is shipped is read from a commit of 0.2.0, renewed (names without modules,
revision 1 of everything, the verdict of the gate left to the gate), written, read again by the package, and
compared to the commit's, number by number, bit by bit.
"""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from pp_testbed.engine.identity import config_hash, renewed
from pp_testbed.engine.store import Layout, read_arrays, read_table
from pp_testbed.studies.bandits import REGRETS
from pp_testbed.studies.reference_files import (
    SHIPPED,
    TABLE,
    file_name,
    load,
    references,
    write_arrays,
)
from pp_testbed.studies.scoring import RESULTS

ROOT = Path(__file__).parent.parent
OLD, OLD_SHIPPED = "benchmarks/results", "pp_testbed/data/references"


def of_commit(commit: str, path: str) -> bytes:
    """A file of a commit."""
    return subprocess.run(["git", "show", f"{commit}:{path}"], check=True, capture_output=True).stdout


def listed(commit: str, folder: str) -> list[str]:
    """The files below a folder of a commit."""
    command = ["git", "ls-tree", "-r", "--name-only", commit, folder]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def same(one: pd.DataFrame, other: pd.DataFrame, names: list[str]) -> int:
    """How many values were compared; an error if one differs, be it by a bit."""
    for name in names:
        a, b = one[name].to_numpy(), other[name].to_numpy()
        is_number = a.dtype.kind in "fiu"
        if not (np.array_equal(a, b, equal_nan=True) if is_number else list(a) == list(b)):
            raise SystemExit(f"{name} differs")
    return len(one) * len(names)


def kept(old: pd.DataFrame, layout: Layout, path: Path) -> int:
    """Write the rows of a file of 0.2.0 anew."""
    texts = {text: renewed(text, 1) for text in old.config.unique()}
    new = old.assign(
        config=old.config.map(texts),
        config_hash=[config_hash(texts[text]) for text in old.config],
        kind=old.problem.str.rpartition("-s")[0],
        model=old.problem.str.partition("/")[0].str.removeprefix("bandit-"),
        revision=1,
    )
    names = [name for name in layout.schema.names if name in new]
    schema = pa.schema([layout.schema.field(name) for name in names])
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(new[names], schema=schema, preserve_index=False)
    pa.parquet.write_table(table, path, compression="zstd")
    again = read_table(path, layout)
    return same(old, again.to_pandas(), [name for name in old if name not in ("config", "config_hash")])


def shipped(commit: str, path: str) -> int:
    """Write a shipped reference anew; its text is renewed, its arrays are as they are."""
    with np.load(io.BytesIO(of_commit(commit, path))) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(str(arrays["about"]))
    about |= {"settings": renewed(about["settings"], 1), "revision": 1}
    old_path = ROOT / path
    old_path.unlink(missing_ok=True)
    write_arrays(old_path, arrays | {"about": np.array(json.dumps(about))})
    found = load(old_path)
    new_path = SHIPPED / file_name(found.problem, about["settings"])
    old_path.rename(new_path)
    again = read_arrays(new_path)
    for name, array in arrays.items():
        if name != "about" and not (
            again[name].tobytes() == array.tobytes() and again[name].dtype == array.dtype
        ):
            raise SystemExit(f"{new_path}: {name} differs")
    same_text = [about[name] == json.loads(str(arrays["about"]))[name] for name in ("scores", "diagnostics")]
    if not all(same_text):
        raise SystemExit(f"{new_path}: its scores differ")
    return sum(array.size for array in arrays.values()) + len(about["scores"]) + len(about["diagnostics"])


def table_of_references(commit: str, settings: str) -> int:
    """Write the table of references anew: as text, without the verdict."""
    old = pd.read_csv(io.BytesIO(of_commit(commit, "pp_testbed/data/references.csv")), dtype=str)
    new = old.drop(columns="converged").assign(settings=config_hash(settings))
    new.insert(new.columns.get_loc("problem") + 1, "revision", "1")
    new.to_csv(TABLE, index=False)
    again = pd.read_csv(TABLE, dtype=str)
    derived, stored = (table.set_index("problem").converged for table in (references("/nonexistent"), old))
    if not (derived[stored.index].astype(str) == stored).all():
        raise SystemExit("the gate says something else of a reference")
    return same(old, again, [name for name in old if name not in ("converged", "settings")])


def main(commit: str) -> None:
    """Migrate all."""
    for path in listed(commit, OLD):
        old = pd.read_parquet(io.BytesIO(of_commit(commit, path)))
        layout = RESULTS if "suite" in old else REGRETS
        where = ROOT / "kept" / Path(path).relative_to(OLD)
        print(f"{where.relative_to(ROOT)}: {kept(old, layout, where)} values compared, none differs")
    for path in listed(commit, OLD_SHIPPED):
        print(f"{path}: {shipped(commit, path)} values compared, none differs")
    settings = json.loads(str(read_arrays(next(SHIPPED.iterdir()))["about"]))["settings"]
    print(f"{TABLE.name}: {table_of_references(commit, settings)} values compared, none differs")


if __name__ == "__main__":
    main(sys.argv[1])
