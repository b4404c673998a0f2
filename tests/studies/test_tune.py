"""Tuning: studies that resume and are shared, on problems that are never reported."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import optuna
import pandas as pd
import pytest
from numpyro.infer.autoguide import AutoNormal
from typer.testing import CliRunner

import pp_testbed as pt
from pp_testbed.cli import app
from pp_testbed.inference.map_ensemble import Ensemble
from pp_testbed.inference.options import with_options
from pp_testbed.inference.registry import METHODS, method, read_presets
from pp_testbed.inference.specs import MethodSpec, resolve
from pp_testbed.problems.suites import Suite, tuning_suite
from pp_testbed.report.leaderboard import PUBLISHED, method_labels
from pp_testbed.studies.trials import SharedTrials, _storage, suggest
from pp_testbed.studies.tune import distinct_points, parse_grid, sweep_of, tune

FAST = MethodSpec("mlp", (("num_steps", "20"),))
GRID = {"l2": [0.1, 1.0, 10.0]}


def fast(path, **options):
    options = {"suite": "smoke", "grid": GRID} | options
    return tune(FAST, study=path, progress=False, **options)


def test_tuned_problems_are_never_reported():
    reported = {problem.name for name in ("2d", "2d-lite", "smoke") for problem in pt.suite(name)}
    tuned_on = [problem.name for problem in tuning_suite(pt.suite("2d"))]
    assert not reported & set(tuned_on)
    assert tuned_on == [problem.name for problem in pt.suite("2d-tune")]
    assert len(tuned_on) == 42
    assert {problem.seed for problem in tuning_suite(pt.suite("highdim"))} == {1000, 1001}


def test_a_grid_is_the_mean_score_of_each_point(tmp_path):
    found = fast(tmp_path / "s.journal")
    assert [trial["l2"] if trial else "1.0" for trial in found.trials.options] == ["1.0", "0.1", "10.0"]
    frame = pt.run(
        tuning_suite(pt.suite("smoke")),
        [method("mlp", num_steps=20, l2=10.0, preset="paper")],
        tmp_path / "r",
    )
    last = found.trials.iloc[-1]
    assert last.score == pytest.approx(frame.kl_aggregate.mean(), rel=1e-6)
    by_kind = frame.groupby(frame.problem.str.rsplit("-s", n=1).str[0]).kl_aggregate
    assert last.stderr == pytest.approx(np.sqrt((by_kind.var() * 2).sum()) / 4, rel=1e-6)
    assert found.best["score"] == found.trials.score.min()


def test_a_grid_resumes_repeats_nothing_and_needs_no_study(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as if there were no Optuna
    path = tmp_path / "s.journal"
    two = fast(path, trials=2)
    assert len(two.trials) == 2
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()}
    whole = fast(path)
    assert len(whole.trials) == 3
    assert list(whole.trials.score[:2]) == list(two.trials.score)
    assert all(file.stat().st_mtime_ns == before for file, before in times.items())
    assert not path.exists()


def test_a_study_resumes_and_repeats_nothing(tmp_path, monkeypatch):
    path = tmp_path / "s.journal"
    two = fast(path, sampler="random", trials=2)
    whole = fast(path, sampler="random", trials=3)
    assert list(whole.trials.score[:2]) == list(two.trials.score)
    monkeypatch.setattr("pp_testbed.studies.tune.run", pytest.fail)  # nothing is left to run
    assert list(fast(path, sampler="random", trials=3).trials.score) == list(whole.trials.score)


@pytest.mark.parametrize(("sampler", "name"), [("random", "s.journal"), ("tpe", "s.db")])
def test_samplers_draw_from_the_ranges_and_are_the_same_again(tmp_path, sampler, name):
    scores = []
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        found = fast(tmp_path / part / name, sampler=sampler, trials=4)
        assert found.trials.options[0] == {}
        drawn = [float(options["l2"]) for options in found.trials.options[1:]]
        assert all(0.1 <= value <= 10 for value in drawn)
        assert len(set(drawn)) == 3
        scores.append(list(found.trials.score))
    assert scores[0] == scores[1]
    resumed = fast(tmp_path / "a" / name, sampler=sampler, trials=6)
    assert len({json.dumps(options) for options in resumed.trials.options}) == 6


def _tune_here(path):
    fast(path, sampler="random", trials=3)


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):
    """Fewer trials than one process takes at once: the other waits for them, and both end well."""
    path = tmp_path / "s.journal"
    code = f"from tests.studies.test_tune import _tune_here; _tune_here({str(path)!r})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    trials = fast(path, sampler="random", trials=3).trials
    assert len({json.dumps(options) for options in trials.options}) == len(trials) == 3


def test_a_trial_that_another_process_is_just_beginning_has_its_place():
    study = optuna.create_study()
    other = study.ask()
    threading.Timer(0.3, begin, [other, f"{socket.gethostname()}:{os.getpid()}"]).start()
    shared = SharedTrials(study, "random", 0, ({"l2": (0.1, 1.0)},), 1)
    assert shared.claim() == []
    assert shared.elsewhere() == 1


def begin(trial, process):
    """What a process says of a trial that it has claimed."""
    for key, value in [("process", process), ("version", pt.__version__), ("options", '{"l2": "0.1"}')]:
        trial.set_user_attr(key, value)


def _begin_a_trial_and_die(path):
    study = optuna.load_study(study_name="mlp", storage=_storage(path))
    trial = study.ask()
    process = f"{socket.gethostname()}:{os.getpid()}"
    begin(trial, process)
    os._exit(1)


def test_a_trial_whose_process_died_runs_again(tmp_path):
    path = tmp_path / "s.journal"
    fast(path, sampler="random", trials=1)
    process = multiprocessing.get_context("spawn").Process(target=_begin_a_trial_and_die, args=(path,))
    process.start()
    process.join()
    found = fast(path, sampler="random", trials=3)
    assert len(found.trials) == 3
    assert found.elsewhere == 0


def test_a_trial_of_another_machine_is_left_to_it(tmp_path):
    path = tmp_path / "s.journal"
    fast(path, sampler="random", trials=1)
    study = optuna.load_study(study_name="mlp", storage=_storage(path))
    trial = study.ask()
    for key, value in {
        "process": "elsewhere:7",
        "version": pt.__version__,
        "options": '{"l2": "0.1"}',
    }.items():
        trial.set_user_attr(key, value)
    found = fast(path, sampler="random", trials=2)
    assert list(found.trials.options) == [{}]
    assert found.elsewhere == 1


def test_other_settings_code_or_revisions_are_another_study(tmp_path, monkeypatch):
    path = tmp_path / "s.journal"
    fast(path, sampler="random", trials=1)
    slower = MethodSpec("mlp", (("num_steps", "30"),))
    with pytest.raises(pt.UsageError, match="holds a study with another mlp: other --set, other code"):
        tune(slower, suite="smoke", sampler="random", grid=GRID, study=path, progress=False)
    monkeypatch.setattr(Ensemble, "revision", 2)
    with pytest.raises(pt.UsageError, match="holds a study with another mlp: other --set, other code"):
        fast(path, sampler="random", trials=1)


def test_options_of_a_guide_are_tuned_too():
    """Those that a `partial` was given: as text, as of any option, in a method that is another one."""
    made = pt.SVI(partial(AutoNormal, init_scale=0.1), num_steps=5, name="mine")
    space = sweep_of(made, made, {"init_scale": ["0.01", "0.1"], "num_steps": [5]})
    points = distinct_points(made, space)
    assert points == [{}, {"init_scale": "0.01", "num_steps": "5"}]
    changed = with_options(made, points[1])
    assert changed.guide.func is AutoNormal
    assert changed.guide.keywords == {"init_scale": 0.01}
    assert made.guide.keywords == {"init_scale": 0.1}
    with pytest.raises(pt.UsageError, match="unknown option of mine 'init_scal'; did you mean 'init_scale'"):
        sweep_of(made, made, {"init_scal": [1.0]})


def test_a_plain_class_has_nothing_to_tune(tmp_path):
    class Plain:
        def fit(self, key, task):
            return None

    with pytest.raises(pt.UsageError, match="Plain is not a dataclass: it has no options to tune"):
        tune(Plain(), suite="smoke", grid=GRID, study=tmp_path / "s.journal", progress=False)


@pytest.mark.slow
def test_numbers_of_a_grid_span_a_range_for_samplers(tmp_path):
    grid = {"l2": ["0.1", "10"], "hidden": ["20", "30,30"]}
    found = tune(
        FAST,
        suite="smoke",
        grid=grid,
        study=tmp_path / "s.journal",
        sampler="random",
        trials=5,
        progress=False,
    )
    drawn = [options for options in found.trials.options if options]
    assert len({options["l2"] for options in drawn}) == 4
    assert {options["hidden"] for options in drawn} <= {"20", "30,30"}


@pytest.mark.slow
def test_options_that_a_method_refuses_are_failed_trials(tmp_path):
    spec = MethodSpec("swag", (("num_steps", "5"), ("sgd_steps", "1")))
    options = {"suite": "smoke", "sampler": "random", "trials": 3, "progress": False}
    small = pt.Evaluation(num_batches=2, num_draws=10)
    grid = {"rank": [0, 4], "snapshots": [3]}
    found = tune(spec, grid=grid, study=tmp_path / "s.journal", config=small, **options)
    errors = [error for error in found.trials.error if error]
    assert errors == ["swag.rank=4: expected 0, or 2 to 3 (snapshots)"]
    assert len(found.trials) == 3


def test_a_trial_that_fails_says_why_and_the_others_go_on(tmp_path):
    grid = {"learning_rate": [1e-3, 1e38]}
    found = tune(FAST, suite="smoke", grid=grid, study=tmp_path / "s.journal", progress=False)
    assert found.trials.error[1].startswith("kl_")
    assert found.best["options"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"grid": {"l3": [1]}}, "unknown option of mlp 'l3'; did you mean 'l2'?"),
        ({"sampler": "tp"}, "unknown sampler 'tp'; did you mean 'tpe'"),
        ({"metric": "kl"}, "unknown metric 'kl'; expected one of kl_marginal"),
        ({"method": "prior", "grid": None}, "prior has no sweep: say what to vary"),
        ({"suite": "3d"}, "unknown suite '3d'"),
        ({"suite": "2d"}, "holds a study with suite smoke-tune, not 2d-tune"),
        ({"metric": "nll"}, "holds a study with metric kl_aggregate, not nll"),
        ({"method": "ensemble"}, "holds a study of mlp, not of ensemble"),
        ({"study": __file__}, "expected a name that ends in .journal, .db, .sqlite"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, words):
    path = tmp_path / "s.journal"
    fast(path, sampler="random", trials=1)
    defaults = {"method": FAST, "suite": "smoke", "grid": GRID, "study": path, "progress": False}
    defaults["sampler"] = "random"
    with pytest.raises(pt.UsageError) as caught:
        tune(**{**defaults, **arguments})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_study(tmp_path):
    path = tmp_path / "s.journal"
    path.write_text("not a study")
    with pytest.raises(pt.UsageError, match=r"s\.journal is not a study that can be opened"):
        fast(path, sampler="random")


def test_a_sampler_knows_its_sweep(tmp_path):
    path = tmp_path / "s.journal"
    fast(path, sampler="random", trials=1)
    with pytest.raises(pt.UsageError, match="holds a study with another sweep; name another with --study"):
        tune(FAST, suite="smoke", sampler="random", grid={"l2": [3.0]}, study=path, progress=False)


@pytest.mark.parametrize(("sampler", "package"), [("gp", "torch"), ("tpe", "optuna")])
def test_a_sampler_that_is_not_installed(tmp_path, monkeypatch, sampler, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else True)
    with pytest.raises(pt.UsageError, match=f"sampler {sampler} needs {package}, which is not installed"):
        fast(tmp_path / "s.journal", sampler=sampler)


def test_points_and_ranges():
    made = method("dropout", preset="paper")
    points = distinct_points(made, sweep_of(MethodSpec("dropout"), made, None))
    assert points[0] == {}
    assert len(points) == 10 * 3 * 4 + 3  # of which the defaults are one
    held = sweep_of(MethodSpec("mlp"), method("mlp"), None)
    assert all("size" not in grid for grid in held)
    trial = optuna.trial.FixedTrial({"rate": 0.25, "l2": 2.0, "hidden": "50,50", "mask_inputs": "True"})
    assert suggest(trial, made.sweep) == {
        "rate": "0.25",
        "l2": "2.0",
        "hidden": "50,50",
        "mask_inputs": "True",
    }
    assert parse_grid(["l2=0.1,1", "hidden=50,50;100"]) == {"l2": ["0.1", "1"], "hidden": ["50,50", "100"]}
    with pytest.raises(pt.UsageError, match="expected OPTION=VALUES"):
        parse_grid(["l2"])


@pytest.mark.parametrize("name", METHODS)
def test_every_sweep_is_one_of_options_that_the_method_has(name):
    made = method(name, preset="paper")
    if hasattr(made, "sweep"):
        space = sweep_of(MethodSpec(name), made, None)
        assert len(distinct_points(made, space)) > 1


def test_shipped_presets():
    assert set(PUBLISHED) <= set(read_presets("tuned"))
    for name, entry in read_presets("tuned").items():
        assert entry["suite"] == "2d-tune"
        assert entry["score"] <= entry["default_score"]
        assert method(name) == method(name, preset="paper", **entry["options"])
    assert method("nuts") == method("nuts", preset="paper")
    assert method("mlp", l2=3.0).l2 == 3.0


@pytest.mark.slow
def test_the_command_line_tunes_saves_and_runs_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [
        "tune",
        "--method",
        "mlp",
        "--suite",
        "smoke",
        "--grid",
        "l2=1,10",
        "--set",
        "mlp.num_steps=20",
    ]
    result = CliRunner().invoke(app, [*command, "--save", "tuned.json", "--format", "csv", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    entry = json.loads((tmp_path / "tuned.json").read_text())["mlp"]
    assert entry["held"] == {"num_steps": "20"}
    assert entry["trials"] == 2
    assert entry["version"] == pt.__version__
    assert method("mlp", preset="tuned.json").l2 == float(entry["options"].get("l2", 1.0))
    assert method("bbb", preset="tuned.json") == method("bbb")  # which is not in the file
    (tmp_path / "broken.json").write_text("{")
    for arguments, words in [
        (["--save", "broken.json"], "broken.json is not a file of presets"),
        (["--format", "tabel"], "unknown format 'tabel'; did you mean 'table'"),
        (["--method", "mlp,ensemble"], "expected one method"),
    ]:
        result = CliRunner().invoke(app, [*command, *arguments])
        assert result.exit_code == 2
        assert words in result.output
    assert len(list((tmp_path / "tuning" / "cells").glob("*.parquet"))) == 8
    result = CliRunner().invoke(app, [*command, "--sampler", "grids"])
    assert result.exit_code == 2
    assert "unknown sampler 'grids'; did you mean 'grid'" in result.output


def test_each_group_of_problems_has_its_own_best(tmp_path):
    """A method whose best option depends on T: a preset that was saved gives each problem its own."""
    suite = pt.suite("smoke")
    found = fast(tmp_path / "s.journal", by=("num_train",))
    assert [group["facts"] for group in found.groups] == [{"num_train": 3}, {"num_train": 30}]
    assert list(found.table().num_train) == [3, 30]
    assert str(found) == "the best on smoke-tune for each of 2 groups; 3 trials"
    for group, problem in zip(found.groups, suite, strict=True):
        alone = fast(tmp_path / "a.journal", suite=Suite("one", (problem,)))
        assert alone.best == {name: group[name] for name in ("options", "score", "stderr")}
    path = tmp_path / "mine.json"
    found.save(path)
    saved = read_presets(path)["mlp"]
    assert [group["facts"] for group in saved["where"]] == [{"num_train": 3}, {"num_train": 30}]
    spec = MethodSpec("mlp", (("num_steps", "20"),), preset=str(path))
    options = [group["options"] for group in found.groups]
    assert [resolve(spec, problem.facts).l2 for problem in suite] == [
        float(one.get("l2", 1.0)) for one in options
    ]
    frame = pt.run(suite, [spec], tmp_path / "r", progress=False)
    board = pt.leaderboard(frame.assign(method=method_labels(frame)))
    assert list(board.method) == ["mlp"]
    assert list(board.problems) == [2]
    copy = tmp_path / "copy.json"
    copy.write_text(path.read_text())
    by_presets = [MethodSpec("mlp", spec.options, preset=str(one)) for one in (path, copy)]
    few, many = (
        pt.run(pt.suite("smoke").filter(num_train=size), [one], tmp_path / "r", progress=False)
        for size, one in zip((3, 30), by_presets, strict=True)
    )
    assert set(method_labels(pd.concat([few, many], ignore_index=True))) == {"mlp"}
    assert method_labels(pd.concat([frame, many], ignore_index=True)).nunique() == 2  # on the same problem
    other = MethodSpec("mlp", (("num_steps", "30"),), preset=str(path))
    both = pt.run(suite, [spec, other], tmp_path / "r", progress=False)
    assert method_labels(both).nunique() == 4  # which are not averaged
    assert resolve(spec, {"num_train": 7}).l2 == pt.method("mlp").l2


def test_facts_that_problems_do_not_have_are_said(tmp_path):
    with pytest.raises(pt.UsageError, match="unknown fact of problems 'num_trains'"):
        fast(tmp_path / "s.journal", by=("num_trains",))
    with pytest.raises(pt.UsageError, match="expected grid, with by"):
        fast(tmp_path / "s.journal", by=("num_train",), sampler="random")


def test_data_are_tuned_on_a_part_of_what_is_learnt_from(tmp_path):
    suite = Suite("mine", (pt.problem("iris/T10-s0"), pt.problem("iris/T10-s1")))
    grid = {"l2": [0.1, 10.0]}
    found = fast(tmp_path / "s.journal", suite=suite, grid=grid, by=("seed",))
    assert found.metric == "nll_joint"
    cells = pd.read_parquet(tmp_path / "cells")
    assert set(cells.problem) == {"iris/T10-validation-s0", "iris/T10-validation-s1"}
    best = cells[cells.seed == 1].nll_joint.min()
    assert found.groups[1]["score"] == pytest.approx(best)
