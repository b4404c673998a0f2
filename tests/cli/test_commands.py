"""The command line as a user meets it: what it prints, and what it ends with."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import pp_testbed
from pp_testbed.cli import app

QUICK = ["--inputs", "100", "--draws", "20", "--jobs", "1"]


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_run_and_leaderboard(tmp_path):
    options = ["--suite", "smoke", "--methods", "uniform,mlp", "--set", "mlp.num_steps=10", "--out", tmp_path]
    result = call("run", *options, *QUICK)
    assert result.exit_code == 0
    for word in ("mlp", "uniform", "d¹⁰,²", "fit [s]", "±", "1.000 ± 0.000", f"results are in {tmp_path}"):
        assert word in result.output
    again = call("run", *options, *QUICK, "--format", "csv")
    assert "4 of 4 cells are in" in again.stderr
    assert again.stdout.startswith("method,problems,failed,kl_marginal,")
    assert len(again.stdout.splitlines()) == 3
    rows = json.loads(call("leaderboard", tmp_path, "--format", "json", "--by", "num_train").stdout)
    assert [row["num_train"] for row in rows] == [3, 3, 30, 30]
    assert call("leaderboard", tmp_path, "--format", "markdown").stdout.startswith("| method |")
    assert "\\begin{tabular}" in call("leaderboard", tmp_path, "--format", "latex").stdout
    page = tmp_path.with_name(f"{tmp_path.name}.html")
    assert f"a report of them in {page}" in result.stderr.replace("\n", "")
    assert "4 cells" in page.read_text(encoding="utf-8")
    assert call("report", tmp_path, "--out", page).exit_code == 0  # a report may be replaced
    picture = tmp_path.with_name("agents.pdf")
    assert call("figure", "agents", tmp_path, "--out", picture).exit_code == 0
    assert picture.exists()


@pytest.mark.slow
def test_references_are_built_listed_and_shown(tmp_path):
    short = [f"nuts.{option}" for option in ("num_chains=2", "warmup=20", "num_draws=10", "max_depth=3")]
    settings = [word for option in short for word in ("--set", option)]
    arguments = ["--problem", "2d/T3-rho0.1-s1", "--store", tmp_path, "--jobs", "2"]
    result = call("reference", "build", *arguments, *settings)
    assert result.exit_code == 1  # so short a chain does not pass the gate, and that is said
    assert "not converged: 2d/T3-rho0.1-s1: R-hat is " in result.stderr
    listed = json.loads(call("reference", "list", "--store", tmp_path, "--format", "json").stdout)
    assert [row["converged"] for row in listed if row["origin"] == "store"] == [False]
    assert len(listed) == 151
    shown = call("reference", "show", "2d/T10-rho0.1-s0", "--store", tmp_path)
    assert "2d/T10-rho0.1-s0  converged" in shown.stdout


def test_compare_prints_scores_beside_distances(tmp_path):
    figure = tmp_path / "fields.png"
    result = call("compare", "--methods", "uniform,mlp", "--set", "mlp.num_steps=10", "--figure", figure)
    assert result.exit_code == 0
    for word in ("nuts (reference)", "d¹⁰ (kl_joint)", "excess_kl_joint", "energy_distance", "±"):
        assert word in result.stdout
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
def test_bandits_are_played_drawn_and_correlated(tmp_path):
    names, bandits, results = "mlp,logistic,dropout,sgld", tmp_path / "bandits", tmp_path / "results"
    options = ["--steps", "30", "--seeds", "2", "--out", bandits, "--jobs", "1"]
    figure = ["--figure", tmp_path / "regret.png"]
    result = call("bandit", "--methods", f"oracle,{names}", *options, *figure)
    assert result.exit_code == 0
    assert call("figure", "regret", bandits, "--out", tmp_path / "again.svg").exit_code == 0
    for word in ("oracle", "0.000 ± 0.000", "regret", f"regrets are in {bandits}", "the picture is"):
        assert word in result.output
    again = call("bandit", "--methods", names, *options, "--format", "csv")
    assert "8 of 8 runs are in" in again.stderr
    assert again.stdout.startswith(
        "model,temperature,num_actions,step,method,seeds,failed,regret,regret_stderr,"
    )
    short = [f"--set=sgld.{option}" for option in ("num_steps=20", "burn_in=0", "thinning=1")]
    problems = ["--suite", "2d", "--seeds", "0-1", "--limit", "12"]
    short += [f"--set={name}.num_steps=20" for name in ("mlp", "logistic", "dropout")]
    call("run", *problems, "--methods", names, *short, "--out", results, *QUICK)
    picture = tmp_path / "correlation.pdf"
    table = json.loads(call("correlate", bandits, results, "--format", "json", "--figure", picture).stdout)
    assert [row["score"] for row in table] == ["kl_marginal", "kl_joint", "kl_dyadic"]
    assert {row["agents"] for row in table} == {4}
    assert picture.exists()
    call("bandit", "--methods", names, *options, "--activation", "tanh")
    table = json.loads(call("robustness", "--bandits", bandits, "--format", "json").stdout)
    assert [(row["score"], row["model"], row["other"]) for row in table] == [
        ("regret", "2d, ρ = 0.1", "2d-tanh, ρ = 0.1")
    ]


def test_active_learning_prints_a_table(tmp_path):
    options = ["--methods", "uniform", "--priorities", "uniform,entropy", "--budgets", "5,10", "--seeds", "0"]
    result = call(
        "active", *options, "--out", tmp_path, "--jobs", "1", "--figure", tmp_path.parent / "active.svg"
    )
    assert result.exit_code == 0
    for word in ("kl_joint at 10", "entropy", "1.000"):
        assert word in result.output
    assert (tmp_path.parent / "active.svg").exists()


def test_active_learning_that_fails_after_its_first_budget_is_said(tmp_path):
    file = Path(__file__).parent.parent / "methods_for_tests.py"
    options = ["--priorities", "uniform", "--budgets", "2,3", "--seeds", "0-1", "--jobs", "1"]
    result = call("active", "--methods", f"uniform,{file}:RAISES", *options, "--out", tmp_path)
    assert result.exit_code == 1
    assert "failed: Raises on 2 cells, such as 2d/T1000-rho0.1-s0: RuntimeError" in result.stderr
    assert "uniform" in result.stdout
    assert "Raises" not in result.stdout  # a mean over what has not failed yet would be of other pools


def test_sbc_prints_a_table_and_feeds_the_leaderboard(tmp_path):
    options = ["--problems", "20", "--out", tmp_path / "sbc", "--jobs", "1"]
    picture = ["--figure", tmp_path / "ranks.png"]
    rows = json.loads(call("sbc", "--method", "uniform", *options, *picture, "--format", "json").stdout)
    assert rows[0]["problems"] == 20
    assert not rows[0]["passed"]
    assert (tmp_path / "ranks.png").exists()
    call("run", "--suite", "smoke", "--methods", "uniform", "--out", tmp_path / "out", *QUICK)
    board = call("leaderboard", tmp_path / "out", "--sbc", tmp_path / "sbc").stdout
    assert "SBC error" in board


def test_sbc_is_of_as_many_inputs_as_are_asked_for(tmp_path):
    options = ["--problems", "20", "--out", tmp_path, "--jobs", "1", "--input-dim", "3"]
    assert call("sbc", "--method", "uniform", *options).exit_code == 0
    assert pd.read_parquet(tmp_path).kind.unique().tolist() == ["3d/T10-rho0.1"]


def test_a_path_with_a_t_is_a_path(tmp_path):
    (tmp_path / "Tests").mkdir()
    model = (Path(__file__).parent.parent / "models_for_tests.py").read_text()
    (tmp_path / "Tests" / "mine.py").write_text(model)
    options = ["--problem", f"{tmp_path}/Tests/mine.py:line", "--input-dim", "2", "--num-train", "3"]
    result = call("run", *options, "--methods", "prior", "--out", tmp_path / "out", *QUICK)
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_what_is_held_while_tuning_is_saved(tmp_path):
    options = ["--suite", "smoke", "--set", "mlp.num_steps=7", "--grid", "l2=1", "--jobs", "1"]
    files = ["--study", tmp_path / "study.journal", "--save", tmp_path / "mine.json"]
    result = call("tune", "--method", "mlp", *options, *files)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "mine.json").read_text())["mlp"]["options"]["num_steps"] == "7"


def test_failed_cells_end_with_1(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class M:\n    def fit(self, key, task):\n        raise ValueError('[no]')\nM = M()\n")
    result = call("run", "--suite", "smoke", "--methods", f"{file}:M", "--out", tmp_path / "out", *QUICK)
    assert result.exit_code == 1
    assert (
        "failed: M on 2 cells, such as 2d/T3-rho0.1-s0: ValueError: [no] (mine.py, line 3)" in result.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--suite", "2d-light"], "unknown suite '2d-light'; did you mean '2d-lite' or '2d-tune'?"),
        (["run", "--methods", "ensembel"], "unknown method 'ensembel'; did you mean 'ensemble'"),
        (["run", "--methods", "mlp", "--set", "mlp.l3=1"], "unknown option of mlp 'l3'; did you mean 'l2'?"),
        (["run", "--methods", "mlp", "--set", "mlp.l2=high"], "mlp.l2=high: expected float, as in 1.0"),
        (["run", "--methods", "mlp", "--set", "l2=1"], "expected METHOD.OPTION=VALUE"),
        (["run", "--methods", "mlp", "--set", "ensemble.l2=1"], "it is not among --methods"),
        (["run", "--seeds", "a"], "expected numbers, as in 0-4 or 0,3"),
        (["run", "--seeds", "77"], "no problem with seed 77"),
        (["run", "--seeds", "3-1"], "expected numbers, as in 0-4 or 0,3"),
        (["run", "--methods", "mlp", "--set", "mlp.l2=nan"], "mlp.l2=nan: expected a finite number"),
        (
            ["run", "--methods", "mlp", "--set", "mlp.size=0"],
            "mlp.size=0: expected a whole number, at least 1",
        ),
        (["reference", "show", "2d/T7-rho0.1-s0", "--store", "/nowhere"], "there is no reference of 2d/T7"),
        (["reference", "show", "2d/T30-rho01-s0"], "did you mean '2d/T30-rho1.0-s0'?"),
        (["compare", "--figure", "x.foo"], "expected a name that ends in .png, .pdf or .svg"),
        (["sbc", "--figure", "/nowhere/x.png"], "there is no directory /nowhere"),
        (["reference", "build", "--max-num-train", "0"], "no problem has at most 0 data"),
        (["reference", "show", "2d-T7"], "does not name a problem"),
        (
            ["reference", "build", "--problem", "2d/T3-rho0.1-s0", "--store", "/dev/null/x"],
            "cannot write references",
        ),
        (["reference", "verify", "--store", "/nowhere"], "there are no references in the store"),
        (["compare", "--methods", "mpl"], "unknown method 'mpl'; did you mean 'mlp'"),
        (["sbc", "--method", "nutts"], "unknown method 'nutts'; did you mean 'nuts'"),
        (["sbc", "--set", "nuts.warm_up=3"], "did you mean 'warmup'"),
        (["leaderboard", "--sbc", "/nowhere"], "there is no "),
        (["run", "--format", "tabel"], "unknown format 'tabel'; did you mean 'table'?"),
        (["run", "--methods", "nothing.py:X"], "there is no file nothing.py"),
        (["leaderboard", "nowhere"], "there is no directory nowhere"),
        (["bandit", "--methods", "mlq"], "did you mean 'mlp'"),
        (["bandit", "--methods", "knn"], "knn cannot learn online"),
        (["bandit", "--select", "ucb:x"], "expected thompson, ucb:SCALE"),
        (["bandit", "--dim", "0"], "must be positive"),
        (["bandit", "--hidden", "a"], "expected whole numbers"),
        (["bandit", "--activation", "tanj"], "did you mean 'tanh'"),
        (["bandit", "--figure", "a.txt"], "ends in .png"),
        (["active", "--priorities", "bold"], "did you mean 'bald'"),
        (["active", "--budgets", "20,10"], "increasing"),
        (["active", "--suite", "smoke"], "no problem with 1000 data"),
        (["correlate", "nowhere", "nothing"], "there is no directory nowhere"),
        (["robustness"], "give --results, --bandits or both"),
        (["report", "nowhere"], "there is no directory nowhere"),
        (["run", "--methods", "mlp", "--baseline", "ensemble"], "unknown baseline 'ensemble'"),
        (["bandit", "--methods", "mlp", "--baseline", "ensemble"], "unknown baseline 'ensemble'"),
        (["report", "--out", "/nowhere/x.html"], "there is no directory /nowhere"),
        (["run", "--report", "/nowhere/x.html"], "there is no directory /nowhere"),
        (["figure", "agent"], "unknown figure 'agent'; did you mean 'agents'"),
        (["figure", "regret", "kept/bandits", "--baseline", "mlp"], "leave --baseline out"),
        (["figure", "regret", "nowhere"], "there is no directory nowhere"),
    ],
)
def test_mistakes_are_one_line_and_2(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not any(tmp_path.glob("results/*.parquet"))


def test_a_mistake_in_a_method_is_one_line_of_compare(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class M:\n    name = 'mine'\n    def fit(self, key, task):\n        raise ValueError('a')\nM = M()\n"
    )
    result = call("compare", "--methods", f"{file}:M")
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("error: mine: ValueError: a (mine.py, line 4)")


def test_a_guide_is_not_a_method(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def guide(x, y=None):\n    pass\n")
    result = call("run", "--methods", f"{file}:guide", "--out", tmp_path / "out")
    assert "a guide? pt.SVI(guide) is one" in result.stderr


def test_lists():
    assert call("--version").stdout.strip() == pp_testbed.__version__
    methods = json.loads(call("methods", "--format", "json").stdout)
    assert {"mlp", "ensemble", "ensemble+"} <= {row["method"] for row in methods}
    assert "2d-lite" in call("suites").stdout
    assert "2d/T3-rho0.1-s0" in call("suites", "--verbose").stdout


def test_help_is_quick_and_does_not_import_jax():
    code = "import sys, pp_testbed.cli; sys.exit('jax' in sys.modules)"
    start = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert time.perf_counter() - start < 10  # the import alone; JAX would be seen above


def test_help_teaches():
    for command in (
        "run",
        "report",
        "figure",
        "leaderboard",
        "bandit",
        "active",
        "correlate",
        "robustness",
        "methods",
        "suites",
    ):
        assert command in call("--help").output
        assert call(command, "--help").exit_code == 0
    assert "--set" in call("run", "--help").output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --suite smoke --problem 2d/T3-rho0.1-s0", "three ways to say the same"),
        ("run --suite smoke --model own.py:MODEL", "--model does not apply here"),
        ("run --data iris --target kind", "--target, --drop and --test are of tables"),
        ("run --data iris --num-train ,", "expected whole numbers"),
        ("run --data iris --num-train 500", "iris has 120 training data; 500 are asked for"),
        ("run --data iris --model mlp", "the model of data is a program"),
        ("run --data nowhere.csv", "say which column has the labels"),
        ("run --data nowhere.csv --target y", "there is no file nowhere.csv"),
        ("run --problem 2d/T3-rho0.1-s0 --seeds 0-3", "is one problem, which says its data and seed"),
        ("run --problem nowhere.py:MODEL", "there is no file nowhere.py"),
        ("run --suite smoke --num-train 5", "a suite says itself how many"),
        ("data show irsi", "did you mean 'iris'"),
    ],
)
def test_mistakes_about_models_and_data_are_one_line(line, words):
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
