"""Whoever is killed, whatever lies in the directory: every study ends as if nothing had happened.

`PP_TESTBED_KILLS=20` kills twenty times instead of once; for those who have an hour.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.engine.run import missing_cells
from pp_testbed.engine.store import Store
from pp_testbed.engine.study import Cell
from pp_testbed.studies.active import LEARNING
from pp_testbed.studies.bandits import REGRETS
from pp_testbed.studies.calibration import RANKS
from pp_testbed.studies.scoring import RESULTS

KILLS = int(os.environ.get("PP_TESTBED_KILLS", "1"))
FEW, BASE = ["--inputs", "100", "--draws", "20"], ["--baseline", "uniform"]
SMALL = ["--set", "ensemble.size=2", "--set", "ensemble.num_steps=20"]
QUICK = pt.Evaluation(num_batches=10, num_draws=20)
# Of each study: its layout, its command, and the columns that identify a row.
STUDIES = {
    "scoring": (
        RESULTS,
        ["run", "--suite", "2d-lite", "--limit", "12", "--methods", "ensemble,uniform", *SMALL, *FEW],
        ["method", "problem"],
    ),
    "bandit": (
        REGRETS,
        ["bandit", "--methods", "ensemble,uniform", *SMALL, "--steps", "600", "--seeds", "3", *BASE],
        ["method", "problem", "step"],
    ),
    "active": (
        LEARNING,
        [
            "active",
            "--methods",
            "uniform",
            "--budgets",
            "2,4",
            "--seeds",
            "0-1",
            "--priorities",
            "uniform,bald",
        ],
        ["priority", "problem", "num_labelled"],
    ),
    "sbc": (RANKS, ["sbc", "--method", "ensemble", *SMALL, "--problems", "30"], ["problem"]),
}


def command(name, out, executor="local"):
    options = ["--out", str(out), "--jobs", "2", "--executor", executor, "--format", "csv"]
    return [sys.executable, "-m", "pp_testbed", *STUDIES[name][1], *options]


def rows(name, out):
    """What is kept, but for what differs from run to run."""
    layout, _, order = STUDIES[name]
    lines = []
    frame = Store(out, layout).read(lines.append).drop(columns="provenance")
    seconds = [column for column in frame if "seconds" in column]
    assert not lines
    assert not pd.read_parquet(out).duplicated(order).any()
    return frame.drop(columns=seconds).sort_values(order, ignore_index=True)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Every study, undisturbed; run when it is first asked for."""
    made = {}

    def of(name):
        if name not in made:
            out = tmp_path_factory.mktemp(name)
            subprocess.run(command(name, out), check=True, capture_output=True)
            made[name] = rows(name, out)
        return made[name]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "dask"])
@pytest.mark.parametrize("name", STUDIES)
def test_killed_runs_lose_nothing(tmp_path, calm, name, executor):
    rng, expected = random.Random(int(time.time())), calm(name)
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(name, tmp_path, executor), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(1.0, 12.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command(name, tmp_path, executor), check=True, capture_output=True)
    pd.testing.assert_frame_equal(rows(name, tmp_path), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_two_runs_into_one_directory(tmp_path, calm, name):
    options = {"stdout": subprocess.DEVNULL}
    both = [subprocess.Popen(command(name, tmp_path, one), **options) for one in ("local", "dask")]
    assert [process.wait() for process in both] == [0, 0]
    pd.testing.assert_frame_equal(rows(name, tmp_path), calm(name))


def ask(name, out):
    """A study in this process."""
    if name == "scoring":
        return pt.run("smoke", ["uniform"], out, progress=False, config=QUICK)
    if name == "bandit":
        return pt.bandit(["oracle"], steps=5, seeds=2, out=out, progress=False)
    if name == "active":
        options = {"priorities": ["uniform"], "budgets": [2, 4], "config": QUICK, "progress": False}
        return pt.active(["uniform"], pt.Suite("mine", (pt.problem(num_train=20),)), out=out, **options)
    pt.sbc("uniform", num_problems=20, out=out, progress=False)
    return Store(out, RANKS).read()


@pytest.mark.parametrize("name", STUDIES)
def test_truncated_and_foreign_files_are_named_and_ignored(tmp_path, name):
    before = ask(name, tmp_path)
    good = sorted(tmp_path.glob("*.parquet"))
    (tmp_path / "notes.txt").write_text("mine")
    good[0].write_bytes(good[0].read_bytes()[:500])
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    lines = []
    Store(tmp_path, STUDIES[name][0]).read(lines.append)
    assert len(lines) == 3
    for file in (good[0].name, "notes.txt", "other.parquet"):
        assert any(file in line for line in lines)
    assert len(ask(name, tmp_path)) == len(before)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", STUDIES)
def test_a_disk_that_is_full_is_one_line(tmp_path, monkeypatch, name):
    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pp_testbed.engine.store.write_whole", full)
    what = STUDIES[name][0].what
    with pytest.raises(pt.UsageError, match=f"cannot write {what} to .*: No space left on device"):
        ask(name, tmp_path)


@pytest.mark.parametrize("name", STUDIES)
def test_a_directory_that_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(pt.UsageError, match=f"cannot write {STUDIES[name][0].what} to"):
        ask(name, Path(tmp_path / "file"))


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_says_what_made_it(tmp_path, name):
    frame = ask(name, tmp_path)
    assert (frame.version == pt.__version__).all()
    assert frame.provenance.str.contains('"jax"').all()
    assert (frame.revision == 1).all()
    assert frame.config.str.contains('"revision": 1').all()


def test_what_cannot_be_pickled_is_one_line(tmp_path):
    class Locked:
        def __init__(self):
            self.own = threading.Lock()

        def fit(self, key, task):
            return None

    with pytest.raises(pt.UsageError, match=r"a method cannot be sent to a worker: .*; use jobs=0"):
        pt.run("smoke", [Locked()], tmp_path, jobs=1, progress=False)


def test_a_run_that_failed_on_its_way_is_not_complete():
    """A row is good at the goal, and one before it is not."""
    head = {"problem": "p", "revision": 1, "config_hash": "c"}
    cell = Cell(head, None, goal={"step": 10})
    frame = pd.DataFrame(
        [head | {"step": step, "status": status} for step, status in ((5, "nan"), (10, "ok"))]
    )
    assert missing_cells([cell], frame, "step") == [cell]
    assert missing_cells([cell], frame.iloc[1:], "step") == []
    assert missing_cells([cell], frame.assign(step=[20, 10]), "step") == []  # it fails only later
