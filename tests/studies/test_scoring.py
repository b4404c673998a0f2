"""The runner and its store: nothing lost, nothing twice, and a failure costs its own cells."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from numpyro.infer.autoguide import AutoNormal

import pp_testbed as pt
from pp_testbed.engine.store import Store
from pp_testbed.studies.scoring import RESULTS, configuration
from tests import methods_for_tests as user

QUICK = pt.Evaluation(num_batches=10, num_draws=20)
SMALL = pt.method("ensemble", size=2, num_steps=20)
SECONDS = ["fit_seconds", "evaluate_seconds"]
FILE = str(Path(user.__file__))
KEY = jax.random.key(0)


def run(methods, out, suite="smoke", **options):
    return pt.run(suite, methods, out, progress=False, config=QUICK, **options)


def same(one, other):
    pd.testing.assert_frame_equal(one.drop(columns=SECONDS), other.drop(columns=SECONDS))


def test_results_are_a_directory_of_rows(tmp_path):
    frame = run([SMALL, "uniform"], tmp_path)
    assert list(frame.columns) == RESULTS.schema.names
    assert len(frame) == 4
    assert (frame.status == "ok").all()
    assert (frame.version == pt.__version__).all()
    read = pd.read_parquet(tmp_path).sort_values(["method", "num_train"], ignore_index=True)
    same(read, frame.sort_values(["method", "num_train"], ignore_index=True))
    row = frame[frame.method == "ensemble"].iloc[0]
    assert row.kl_joint > 0
    assert row.num_draws == 2
    assert '"size": 2' in row.config


def test_a_cell_does_not_depend_on_the_others(tmp_path):
    """Alone, with others, in one batch or several: the same bits."""
    suite = pt.suite("2d-lite").filter(num_train=(1, 3), temperature=0.1)
    together = run([SMALL, "mlp"], tmp_path / "a", suite)
    few = run([SMALL], tmp_path / "b", list(suite)[2:3])
    problem = few.problem[0]
    same(
        together[(together.method == "ensemble") & (together.problem == problem)]
        .reset_index(drop=True)
        .assign(suite="custom"),
        few,
    )


def test_python_api_agrees_with_the_runner(tmp_path):
    problem = pt.problem("2d/T30-rho0.1-s0")
    row = run([SMALL], tmp_path, [problem]).iloc[0]
    posterior = SMALL.fit(problem.keys.fit, problem.draw()[0])
    scores = pt.evaluate(posterior, problem, key=problem.keys.evaluate, config=QUICK)
    assert scores.kl_joint == pytest.approx(row.kl_joint, rel=1e-3)


def test_a_second_run_does_only_what_is_missing(tmp_path):
    first = run([SMALL], tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    run([SMALL, "uniform"], tmp_path)
    assert all(path.stat().st_mtime_ns == before for path, before in times.items())
    assert len(list(tmp_path.iterdir())) == 4
    next(iter(times)).unlink()
    same(run([SMALL], tmp_path), first)


def test_another_configuration_is_another_cell(tmp_path):
    run([SMALL], tmp_path)
    frame = run([pt.method("ensemble", size=2, num_steps=20, l2=3.0)], tmp_path)
    assert len(frame) == 2
    assert len(Store(tmp_path, RESULTS).read()) == 4
    labels = pt.leaderboard(Store(tmp_path, RESULTS).read()).method
    assert sorted(labels) == ["ensemble (l2=1.0)", "ensemble (l2=3.0)"]


@pytest.mark.parametrize("jobs", [0, 1])
def test_failures_cost_their_own_cells(tmp_path, jobs):
    names = ["KNN", "RAISES", "NAN", "HUNGRY", "WRONG", "GUIDE"]
    frame = run([f"{FILE}:{name}" for name in names] + ["uniform"], tmp_path, jobs=jobs)
    status = frame.set_index(["method", "num_train"]).status
    assert (status["Knn"] == "ok").all()
    assert (status["uniform"] == "ok").all()
    assert status["Raises"].to_dict() == {3: "error", 30: "ok"}
    errors = frame.drop_duplicates("method").set_index("method").error
    assert errors["Raises"].startswith("RuntimeError: no luck with three (methods_for_tests.py, line ")
    assert (status["Nan"] == "nan").all()
    assert "logits contain NaN" in errors["Nan"]
    assert "memory" in errors["OutOfMemory"].lower() or "allocat" in errors["OutOfMemory"].lower()
    assert "returned int; expected a posterior" in errors["NotAPosterior"]
    assert "the guide samples weights, which the model does not have" in errors["GUIDE"]
    assert frame[frame.method == "Nan"].kl_joint.isna().all()


def test_a_killed_worker_costs_its_own_cells(tmp_path):
    frame = run([f"{FILE}:KILLED", "uniform"], tmp_path, jobs=2)
    status = frame.set_index(["method", "num_train"]).status.to_dict()
    assert status == {
        ("Killed", 3): "error",
        ("Killed", 30): "ok",
        ("uniform", 3): "ok",
        ("uniform", 30): "ok",
    }
    assert "signal 9" in frame[frame.status == "error"].error.item()


def test_a_worker_killed_from_outside_is_tried_again(tmp_path):
    frame = run([user.KilledOnce(str(tmp_path / "once"))], tmp_path / "out", jobs=1)
    assert list(frame.status) == ["ok", "ok"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked at in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path, number):
    """While they compute, and within a second, without a traceback."""
    file = tmp_path / "pid"
    command = [sys.executable, "-m", "pp_testbed", "run", "--suite", "smoke", "--methods", f"{FILE}:BUSY"]
    command += ["--set", f"{FILE}:BUSY.path={file}", "--out", str(tmp_path / "out"), "--baseline", "Busy"]
    process = subprocess.Popen([*command, "--jobs", "1"], stderr=subprocess.PIPE, text=True)
    while not file.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(10) == -number
    stat = Path("/proc") / file.read_text() / "stat"
    end = time.monotonic() + 1.0
    while is_computing(stat) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_computing(stat)
    assert "Traceback" not in process.stderr.read()


def is_computing(stat):
    """Whether a process is there; one that has ended may wait for its parent."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_method_sees_no_row_that_is_not_data(tmp_path):
    """By the runner as by hand, unless it promises to weigh rows; and then it can learn online."""
    problem = pt.problem("2d/T3-rho0.1-s0")
    made = user.Unweighted()
    row = run([made], tmp_path, [problem]).iloc[0]
    scores = pt.evaluate(made.fit(KEY, problem.task), problem, key=problem.keys.evaluate, config=QUICK)
    assert row.kl_joint == pytest.approx(scores.kl_joint, rel=1e-5)
    with pytest.raises(pt.UsageError, match="weighs_rows = True"):
        pt.bandit([made], steps=1, out=tmp_path / "bandit", progress=False)


def test_what_is_wrong_is_said_without_a_bar(tmp_path):
    with pytest.warns(
        UserWarning, match="1 of 2 cells failed, such as Raises on 2d/T3-rho0.1-s0: RuntimeError"
    ):
        run([user.RAISES], tmp_path)
    with pytest.warns(UserWarning, match="2 of 2 cells failed"):
        frame = run([pt.method("mlp", learning_rate=1e30, num_steps=10)], tmp_path)
    assert "training gave NaN at step" in frame.error[0]
    assert "lower learning_rate" in frame.error[0]

    class Old:
        def fit(self, task):
            return None

    with pytest.raises(pt.UsageError, match=r"Old has fit\(task\); expected fit\(self, key, task\)"):
        run([Old()], tmp_path)
    with pytest.raises(pt.UsageError, match="methods is a string; expected a list"):
        run("mlp", tmp_path)


def test_cores_are_those_that_the_container_allows(tmp_path):
    from pp_testbed.engine.provenance import _quotas

    (tmp_path / "a" / "b").mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/x\n0::/a/b\n")
    assert _quotas(tmp_path, membership) == []
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert _quotas(tmp_path, membership) == [1.5]
    assert _quotas(tmp_path, tmp_path / "nothing") == []


def test_failed_cells_run_again(tmp_path):
    run([user.RAISES], tmp_path)
    before = Store(tmp_path, RESULTS).read()
    after = run([user.RAISES], tmp_path)
    assert (before.status == after.status).all()
    assert len(after) == 2


@pytest.mark.slow
def test_one_and_two_workers_and_this_process_agree(tmp_path):
    suite = pt.suite("2d-lite").limit(4)
    methods = [SMALL, "prior", f"{FILE}:KNN"]
    frames = [run(methods, tmp_path / str(jobs), suite, jobs=jobs) for jobs in (0, 1, 2)]
    same(frames[0], frames[1])
    same(frames[1], frames[2])


def test_functions_defined_here_reach_workers(tmp_path):
    class Local:
        def fit(self, key, task):
            return pt.finite(lambda x: np.zeros((1, len(x), 2)))

    assert (run([Local()], tmp_path, jobs=1).status == "ok").all()


def test_editing_a_method_makes_another_configuration(tmp_path):
    """What it does counts, also through what it refers to; comments and places do not."""
    from pp_testbed.inference.specs import MethodSpec

    template = "SCALE = {}\ndef help():\n    return {}\nclass M:\n    def fit(self, key, task):\n"
    template += "        return SCALE + help()  # {}\nMINE = M()\n"
    file, texts = tmp_path / "mine.py", []
    for values in [(1, 1, "a"), (2, 1, "a"), (1, 2, "a"), (1, 1, "b")]:
        file.write_text(template.format(*values))
        texts.append(configuration(MethodSpec(f"{file}:MINE").resolve(), QUICK))
    assert len(set(texts[:3])) == 3
    assert texts[3] == texts[0]


FILES = {
    "helper.py": "LEVEL = 1\ndef shift():\n    return LEVEL\n",
    "later.py": "def now():\n    return 1\n",
    "base.py": "class Base:\n    offset = 1\n    def move(self):\n        return self.offset\n",
    "mine.py": """
import helper
from base import Base
import re
import numpy as np
import optax
OPTIONS = {"scale": 1.0, "list": [1, 2]}
from functools import partial
from typing import NamedTuple
def add(x, level=0):
    return x + level
class Pair(NamedTuple):
    one: int = 1
    def both(self):
        return self.one * 10
add.bonus = 5
PAIR = Pair()
OPTIMISER, PATTERN, WORDS = optax.adam(1e-2), re.compile("a"), np.array(["a", None], dtype=object)
def outer():
    def inner():
        from later import now
        return OPTIONS["scale"] + len(WORDS) + bool(PATTERN) + bool(OPTIMISER) + now()
    return inner
class Mine(Base):
    more = partial(add, level=7)
    def fit(self, key, task):
        return outer()() + helper.shift() + self.move() + PAIR.both() + add.bonus
MINE = Mine()
""",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("mine.py", '"scale": 1.0', '"scale": 2.0', True),  # a dict, used by a function inside a function
        ("mine.py", "[1, 2]", "[1, 3]", True),
        ("helper.py", "LEVEL = 1", "LEVEL = 2", True),  # an imported module's constant
        ("base.py", "offset = 1", "offset = 2", True),  # a base class's
        ("later.py", "return 1", "return 2", True),  # imported when it is called
        ("mine.py", "1e-2", "1e-3", True),  # what a library's function closes over
        ("mine.py", 'compile("a")', 'compile("b")', True),
        ("mine.py", '["a", None]', '["b", None]', True),
        ("mine.py", "level=7", "level=8", True),  # of a partial that is an attribute of the class
        ("mine.py", "self.one * 10", "self.one * 20", True),  # a method of a NamedTuple
        ("mine.py", "bonus = 5", "bonus = 6", True),
        ("mine.py", "import helper", "import helper  # as it was", False),
        ("helper.py", "LEVEL = 1", "LEVEL, OTHER = 1, 2", False),  # which nobody uses
        ("mine.py", "MINE", "\n\nMINE", False),
    ],
)
def test_all_that_a_plain_class_uses_is_what_it_is(tmp_path, file, old, new, changes):
    """In a fresh process each time, as a user runs it."""
    code = "import sys; sys.path.insert(0, '.')\nfrom pp_testbed.inference.specs import resolve\n"
    code += "from pp_testbed.engine.identity import describe\nprint(describe(resolve('mine.py:MINE')))"
    found = []
    for texts in (FILES, FILES | {file: FILES[file].replace(old, new)}):
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        done = subprocess.run(
            [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert (found[0] != found[1]) == changes


def test_a_guide_is_the_same_by_its_file_and_imported(tmp_path, monkeypatch):
    """What the README's shell and its Python call one method is one."""
    from pp_testbed.inference.specs import resolve

    text = "import pp_testbed as pt\nSCALE = 0.1\ndef help():\n    return SCALE\ndef guide(x, y=None):\n"
    (tmp_path / "guide_of_a_test.py").write_text(
        text + "    return help()\nMETHOD = pt.SVI(guide, name='mine')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from guide_of_a_test import METHOD

    by_file = resolve(f"{tmp_path / 'guide_of_a_test.py'}:METHOD")
    assert configuration(by_file, QUICK) == configuration(METHOD, QUICK)


def test_what_is_loaded_counts_not_what_lies_on_the_disk(tmp_path, monkeypatch):
    """In a notebook: an edited file that was not imported again computes, and is called, what it did."""
    from pp_testbed.engine.identity import describe

    file = tmp_path / "helper_of_a_test.py"
    file.write_text("LEVEL = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import helper_of_a_test

    class Mine:
        def fit(self, key, task):
            return helper_of_a_test.LEVEL

    before = describe(Mine())
    file.write_text("LEVEL = 2\n")
    assert describe(Mine()) == before
    helper_of_a_test.LEVEL = 2
    assert describe(Mine()) != before


def test_a_table_may_be_a_global():
    from pp_testbed.engine.identity import describe

    tables = [pd.DataFrame({"a": [1.0, level], "b": ["x", "y"]}) for level in (1.0, 2.0, 1.0)]

    def method(table):
        class Mine:
            def fit(self, key, task):
                return table

        return Mine()

    found = [describe(method(table)) for table in tables]
    assert found[0] == found[2] != found[1]


def test_the_time_left_is_by_kind():
    """Two processes; of `slow`, whose guess is ten times too small, one half is left, of `fast` nothing."""
    from pp_testbed.engine.progress import Progress

    bar = Progress(False)
    with bar.over([("slow", 10.0), ("slow", 10.0), ("fast", 10.0), ("new", 5.0)], 4):
        bar.advance("slow", 10.0, 1, 100.0)
        bar.advance("fast", 10.0, 1, 10.0)
        # 110 seconds of work in 55: two processes. Of `new` nothing is known but what all guesses were worth.
        assert bar._left(55.0) == pytest.approx((10.0 * 10.0 + 5.0 * 5.5) / 2.0)


def test_different_functions_have_different_identities():
    class Bound:
        def __init__(self, level):
            self.level = level

        def guide(self, x, y=None):
            return self.level

    def keyword(value):
        def guide(x, y=None, *, level=value):
            return level

        return guide

    def recursive(x, y=None):
        return recursive

    pairs = [
        (Bound(1).guide, Bound(2).guide),
        (keyword(1), keyword(2)),
        (lambda x: 1, lambda x: 2),
        (lambda x, a=1: a, lambda x, a=2: a),
    ]
    for one, other in pairs:
        assert configuration(pt.SVI(one), QUICK) != configuration(pt.SVI(other), QUICK)
        assert configuration(pt.SVI(one), QUICK) == configuration(pt.SVI(one), QUICK)
    key = jax.random.key(0)
    assert configuration(pt.SVI(recursive), QUICK) != configuration(pt.SVI(lambda x: key), QUICK)
    assert configuration(pt.method("mlp"), QUICK) == configuration(pt.method("mlp"), QUICK)


def test_a_repaired_method_leaves_no_failure_behind(tmp_path):
    frame = run([user.RAISES], tmp_path)
    repaired = frame.assign(status="ok", config_hash="other", kl_joint=1.0)
    table = pt.leaderboard(pd.concat([frame, repaired]))
    assert table.failed.sum() == 0


def test_nothing_twice(tmp_path):
    with pytest.raises(pt.UsageError, match="given twice"):
        run(["mlp", "mlp"], tmp_path)
    with pytest.raises(pt.UsageError, match="no cells to run"):
        run([], tmp_path)
    with pytest.raises(pt.UsageError, match="no cells to run"):
        run(["mlp"], tmp_path, [])


def test_a_subclass_that_is_no_pytree_is_told_so(tmp_path):
    class Mine(pt.SVI):
        pass

    with pytest.raises(pt.UsageError, match="Mine derives from SVI, which JAX knows"):
        run([Mine(AutoNormal)], tmp_path)


def test_settings_of_a_users_dataclass(tmp_path):
    from pp_testbed.inference.specs import MethodSpec

    made = MethodSpec(f"{FILE}:LEVEL", (("level", "2.5"),)).resolve()
    assert (made.level, made.name) == (2.5, "LEVEL")
    for text, words in [
        ("nowhere.py:X", "there is no file nowhere.py"),
        (f"{FILE}:KNM", "did you mean 'KNN'"),
        (FILE, "say which object"),
        (f"{FILE}:Knn", "Knn is a class: make an instance of it"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            run([text], tmp_path)
