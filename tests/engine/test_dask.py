"""Dask: the same bits, from workers that have the package and nothing else, whoever dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.engine import dask as module
from tests import methods_for_tests as user

distributed = pytest.importorskip("distributed")
QUICK = pt.Evaluation(num_batches=10, num_draws=20)
SMALL = pt.method("ensemble", size=2, num_steps=20)
SECONDS = ["fit_seconds", "evaluate_seconds"]
MINE = """
import numpy as np, os, pp_testbed as pt
class Mine:
    def fit(self, key, task):
        assert not os.path.exists("mine.py")
        return pt.finite(lambda x: np.zeros((1, len(x), 2)))
MINE = Mine()
"""


def start(folder, workers=2):
    """A scheduler and workers, in a folder of their own, as somebody else may have started them."""
    environment = {**os.environ, **module.NANNY, "DASK_LOGGING__DISTRIBUTED": "critical"}
    environment.pop("PYTHONPATH", None)
    file = folder / "scheduler.json"
    at = ["--no-dashboard", "--scheduler-file", str(file)]
    commands = [["scheduler", "--port", "0", *at]]
    one = ["worker", "--nworkers", str(workers), "--nthreads", "1", "--local-directory", str(folder), *at]
    options = {"cwd": folder, "env": environment, "start_new_session": True}
    made = [
        subprocess.Popen([sys.executable, "-m", "dask", *command], **options) for command in [*commands, one]
    ]
    return module._address(file), made


def kill(process):
    """A process and what it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    address, made = start(tmp_path_factory.mktemp("elsewhere"))
    yield address
    for process in made:
        kill(process)


@pytest.fixture
def client(address):
    with distributed.Client(address, set_as_default=False) as client:
        yield client


def run(methods, out, suite="smoke", **options):
    return pt.run(suite, methods, out, progress=False, config=QUICK, **options)


def same(one, other):
    pd.testing.assert_frame_equal(one.drop(columns=SECONDS), other.drop(columns=SECONDS))


@pytest.mark.slow
def test_dask_gives_the_bits_of_local_workers(tmp_path, client):
    suite = pt.suite("2d-lite").limit(4)
    methods = [SMALL, pt.method("mean-field", num_steps=20), "prior", user.KNN]
    local = run(methods, tmp_path / "local", suite, jobs=2)
    same(run(methods, tmp_path / "dask", suite, executor=pt.Dask(client)), local)
    assert (local.status == "ok").all()


@pytest.mark.slow
def test_a_users_file_travels_as_its_source(tmp_path, client, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    frame = run(["mine.py:MINE"], "out", executor=pt.Dask(client))
    assert list(frame.status) == ["ok", "ok"], frame.error[0]


def test_what_is_defined_here_travels_by_value(tmp_path, client):
    class Local:
        def fit(self, key, task):
            return pt.finite(lambda x: np.zeros((1, len(x), 2)))

    assert (run([Local()], tmp_path, executor=pt.Dask(client)).status == "ok").all()


@pytest.mark.slow
def test_every_study_runs_there(tmp_path, client):
    where = {"executor": pt.Dask(client), "progress": False}
    regrets = pt.bandit(["mlp"], steps=30, seeds=2, out=tmp_path / "bandits", **where)
    again = pt.bandit(["mlp"], steps=30, seeds=2, out=tmp_path / "local", jobs=1, progress=False)
    assert regrets.regret.equals(again.regret)
    assert not (tmp_path / "bandits" / ".scratch").exists()
    assert pt.sbc("uniform", num_problems=20, out=tmp_path / "sbc", **where).ranks.shape == (20, 5)
    pool = pt.Suite("mine", (pt.problem(num_train=20),))
    options = {"priorities": ["uniform"], "budgets": [2, 4], "out": tmp_path / "active"}
    assert list(pt.active([SMALL], pool, config=QUICK, **options, **where).num_labelled) == [2, 4]
    tuned = pt.tune(
        "knn", suite="smoke", grid={"k": [1]}, study=tmp_path / "s.journal", config=QUICK, **where
    )
    assert len(tuned.trials) == 2


@pytest.mark.slow
def test_a_worker_that_dies_costs_nothing_or_its_own_cells(tmp_path, client):
    once = user.KilledOnce(str(tmp_path / "once"))
    assert list(run([once], tmp_path / "a", executor=pt.Dask(client)).status) == ["ok", "ok"]
    frame = run([user.KILLED, "uniform"], tmp_path / "b", executor=pt.Dask(client))
    status = frame.set_index(["method", "num_train"]).status
    assert status["Killed"].to_dict() == {3: "error", 30: "ok"}
    assert (status["uniform"] == "ok").all()
    assert "died" in frame.error[frame.status == "error"].item()


COMMAND = [
    sys.executable,
    "-m",
    "pp_testbed",
    "run",
    "--suite",
    "2d-lite",
    "--limit",
    "12",
    "--format",
    "csv",
]
COMMAND += ["--methods", "ensemble,uniform", "--set", "ensemble.size=2", "--set", "ensemble.num_steps=20"]
COMMAND += ["--inputs", "100", "--draws", "20"]


@pytest.mark.slow
def test_a_scheduler_that_dies_loses_nothing(tmp_path):
    """One line, and the run goes on elsewhere: every cell once, with the same numbers."""
    address, made = start(tmp_path, workers=1)
    out = tmp_path / "out"
    command = [*COMMAND, "--out", str(out), "--scheduler", address]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and len(list(out.glob("*.parquet"))) < 2:
        time.sleep(0.05)
    for process in made:
        kill(process)
    _, said = running.communicate(timeout=120)
    if running.returncode:  # it may have been as good as done
        assert running.returncode == 2, said
        assert "error: the Dask scheduler is gone: run the same again" in said
        assert "Traceback" not in said
    for place in (out, tmp_path / "calm"):
        subprocess.run([*COMMAND, "--out", str(place), "--jobs", "2"], check=True, capture_output=True)
    kept, calm = (pd.read_parquet(place).drop(columns="provenance") for place in (out, tmp_path / "calm"))
    order = ["method", "problem"]
    same(*(frame.sort_values(order, ignore_index=True) for frame in (kept, calm)))
    assert len(kept) == 24


@pytest.mark.slow
def test_a_cluster_of_this_machine_is_started_and_ended(tmp_path):
    command = [*COMMAND, "--out", str(tmp_path / "out"), "--executor", "dask", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(pd.read_parquet(tmp_path / "out")) == 24
    assert "Traceback" not in done.stderr
    assert "a worker was started" not in done.stderr


@pytest.mark.slow
def test_workers_of_a_cluster_end_with_the_command(tmp_path):
    """Also of one that is killed while they compute."""
    file = tmp_path / "pid"
    method = f"{Path(user.__file__)}:BUSY"
    command = [sys.executable, "-m", "pp_testbed", "run", "--suite", "smoke", "--methods", method]
    command += ["--set", f"{method}.path={file}", "--baseline", "Busy", "--executor", "dask", "--jobs", "1"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "out")])
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    stat, end = Path("/proc") / file.read_text() / "stat", time.monotonic() + 5.0
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < end, "the worker goes on"
        time.sleep(0.05)


def test_what_is_wrong_is_one_line(tmp_path, client, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 1.0)
    with pytest.raises(pt.UsageError, match=r"there is no Dask scheduler at tcp://127\.0\.0\.1:1:"):
        run(["uniform"], tmp_path, executor=pt.Dask(scheduler="tcp://127.0.0.1:1"))
    with pytest.raises(pt.UsageError, match="there is no Dask scheduler at nowhere:"):
        run(["uniform"], tmp_path, executor=pt.Dask(scheduler="nowhere:"))
    monkeypatch.setattr(pt, "__version__", "9.9")
    with pytest.raises(pt.UsageError, match=r"a worker has pp_testbed .*, this is 9.9: install the same"):
        run(["uniform"], tmp_path, executor=pt.Dask(client))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(pt.UsageError, match=r"pip install 'pp_testbed\[dask\]'"):
        run(["uniform"], tmp_path, executor=pt.Dask(client))


def test_a_worker_says_what_it_is_too_late_for():
    code = "import sys; {}\nfrom pp_testbed.engine.remote import prepare; print(prepare())"
    said = {}
    for name, first, seed in (("early", "", "0"), ("jax", "import jax", "0"), ("seed", "", "1")):
        environment = {key: value for key, value in os.environ.items() if key != "NPROC"}
        done = subprocess.run(
            [sys.executable, "-c", code.format(first)],
            env=environment | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said[name] = done.stdout.strip()
    assert said["early"] == ""
    assert said["jax"].startswith("a worker was started without NPROC=1:")
    assert said["seed"].startswith("a worker was started without PYTHONHASHSEED=0:")


def test_jobs_are_sized_by_what_was_measured():
    """Single batches while nothing is known, then as many as take half a minute, but not all at once."""
    from pp_testbed.engine.jobs import Queue
    from pp_testbed.engine.study import Cell

    head = {"problem": "p", "revision": 1, "config_hash": "c"}
    queue = Queue([Cell(head, i, "program", 10) for i in range(1000)])
    first = queue.take(set(), 30.0, 2)
    assert len(first.batches) == 1
    assert len(first.batches[0]) == 10
    queue.measured("program", 5.0)
    assert len(queue.take(set(), 30.0, 2).batches) == 6
    queue.measured("program", 0.01)
    assert len(queue.take(set(), 30.0, 2).batches) == 24  # of 93 a quarter
