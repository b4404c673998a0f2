"""Directories of results in which anything may lie: what is not ours is named in a line, and ignored."""

import json
import os
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pp_testbed as pt
from pp_testbed.engine.identity import config_hash
from pp_testbed.engine.store import Store, read_results, read_table
from pp_testbed.studies.bandits import REGRETS
from pp_testbed.studies.calibration import calibrations
from pp_testbed.studies.scoring import RESULTS

NESTED = "[" * 1000 + "]" * 1000
TEXTS = ("problem", "method", "version", "config_hash", "config", "status", "suite", "error")
MUTATIONS = {
    **{f"{name} null": {name: None} for name in (*TEXTS, "seed", "num_train", "temperature", "labels")},
    **{f"{name} a number": {name: 3} for name in TEXTS},
    **{f"{name} bytes": {name: b"\xff\xfe"} for name in TEXTS},
    **{f"{name} a list": {name: [["x"]]} for name in ("method", "kl_joint", "config")},
    **{f"{name} text": {name: "abc"} for name in ("kl_joint", "seed", "num_draws", "temperature")},
    **{
        f"config {text[:5]}": {"config": text}
        for text in ("not JSON", "[1]", "3", '{"method":' + NESTED + "}")
    },
    "config nested": {"config": '{"method":' + "[" * 60 + "]" * 60 + "}"},
    "config of another hash": {"config_hash": "0"},
    "config of megabytes": {"config": json.dumps({"method": "x" * 10**6})},
    "method of megabytes": {"method": "x" * 10**6},
    "an unknown status": {"status": "fine"},
    "score null": {"nll": None},
}


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    config = pt.Evaluation(num_batches=10, num_draws=20)
    frame = pt.run("smoke", ["uniform"], tmp_path_factory.mktemp("good"), progress=False, config=config)
    return frame.iloc[0].to_dict()


def write(row, changes, directory):
    """A file that would pass for a cell, but for the changes."""
    changed = row | changes
    if "config" in changes and "config_hash" not in changes and isinstance(changed["config"], str):
        changed["config_hash"] = config_hash(changed["config"])
    arrays = {}
    for field in RESULTS.schema:
        value = changed[field.name]
        is_text = field.type == pa.string()
        keeps_type = value is None or (isinstance(value, str) == is_text and not isinstance(value, list))
        arrays[field.name] = pa.array([value], type=field.type if keeps_type else None)
    pq.write_table(pa.table(arrays), directory / "x.parquet")


@pytest.mark.parametrize("changes", MUTATIONS.values(), ids=MUTATIONS)
def test_a_file_that_is_nearly_ours_is_named_and_ignored(row, changes, tmp_path):
    write(row, changes, tmp_path)
    lines = []
    assert Store(tmp_path, RESULTS).read(lines.append).empty
    assert len(lines) == 1
    assert "not a complete file of results" in lines[0]
    with pytest.raises(pt.UsageError, match="is not a file of results"):
        read_results(next(tmp_path.iterdir()), RESULTS)


def test_a_file_as_it_is_written_is_read(row, tmp_path):
    write(row, {}, tmp_path)
    assert len(Store(tmp_path, RESULTS).read()) == 1
    Store(tmp_path, RESULTS).read().to_parquet(tmp_path / "all.pq")
    pd.testing.assert_frame_equal(read_results(tmp_path / "all.pq", RESULTS), Store(tmp_path, RESULTS).read())


def test_files_with_columns_twice_or_texts_that_are_none(row, tmp_path):
    write(row, {}, tmp_path)
    path = next(tmp_path.iterdir())
    table = pq.read_table(path)
    pq.write_table(table.append_column("problem", table["problem"]), path)
    assert Store(tmp_path, RESULTS).read().empty
    broken = pa.array([b"\xff\xfe"]).cast(pa.binary()).view(pa.string())
    pq.write_table(table.set_column(table.column_names.index("error"), "error", broken), path)
    assert Store(tmp_path, RESULTS).read().empty


def test_an_infinite_score_is_a_score(row, tmp_path):
    write(row, {"kl_joint": float("inf"), "kl_joint_stderr": None, "kl_joint_bias": None}, tmp_path)
    frame = Store(tmp_path, RESULTS).read()
    assert np.isinf(frame.kl_joint[0])
    frame.to_parquet(tmp_path / "all.pq")
    assert np.isinf(read_results(tmp_path / "all.pq", RESULTS).kl_joint[0])


def test_pipes_are_not_waited_for(row, tmp_path):
    write(row, {}, tmp_path)
    for name in ("a.parquet", "b.json", "c.npz"):
        os.mkfifo(tmp_path / name)
    assert len(Store(tmp_path, RESULTS).read()) == 1
    assert read_table(tmp_path / "a.parquet", REGRETS) is None
    assert calibrations(tmp_path) == []
    assert not pt.references(tmp_path).empty
    with pytest.raises(pt.UsageError, match="not a file of presets"):
        pt.method("mlp", preset=str(tmp_path / "b.json"))


def test_old_leftovers_of_killed_processes_are_removed(tmp_path):
    old, new, held = (tmp_path / f".{letter * 32}.tmp" for letter in "abc")
    mine = tmp_path / ".notes.tmp"
    mine.touch()
    os.utime(mine, (0, 0))
    for path in (old, new, held):
        path.touch()
    for path in (old, held):
        os.utime(path, (time.time() - 4000, time.time() - 4000))
    with held.open():
        Store(tmp_path, RESULTS).create()
    assert [path.exists() for path in (old, new, held)] == [False, True, os.path.exists("/proc")]
    assert mine.exists()


def test_bandit_rows_are_checked_too(tmp_path):
    frame = pt.bandit(["oracle"], steps=5, seeds=1, out=tmp_path, progress=False)
    path = next(tmp_path.glob("*.parquet"))
    for changes in ({"method": 3}, {"config": "[]"}, {"step": np.nan}, {"version": None}):
        frame.assign(**changes).to_parquet(path, index=False)
        lines = []
        assert pt.read_bandits(tmp_path, lines.append).empty
        assert len(lines) == 1


class Unreadable:
    """What a worker cannot make again."""

    name = "unreadable"

    def __reduce__(self):
        return _refuse, ()

    def fit(self, key, task):
        raise AssertionError


def _refuse():
    raise pt.UsageError("it is not what it was")


def test_what_a_worker_cannot_read_is_a_row(tmp_path):
    frame = pt.run("smoke", [Unreadable()], tmp_path, jobs=1, progress=False)
    assert frame.error.tolist() == ["it is not what it was"] * 2
