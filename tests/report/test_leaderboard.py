"""The leaderboard's means, standard errors and ratios, by hand and by simulation."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pp_testbed as pt
from pp_testbed.engine.identity import config_hash, describe
from pp_testbed.evaluation.aggregate import mean_over, paired_ratio
from pp_testbed.report.leaderboard import render, with_error, words_on_incomplete
from pp_testbed.studies.calibration import Calibration
from pp_testbed.studies.reference_files import settings_of
from pp_testbed.studies.scoring import RESULTS


def results(scores, method="mlp", num_seeds=None, **columns):
    """Rows with these kl_joint, for T = 1, 2, ... by seeds."""
    num_seeds = num_seeds or len(scores)
    rows = [
        {
            "problem": f"2d/T{1 + i // num_seeds}-rho0.1-s{i % num_seeds}",
            "kind": f"2d/T{1 + i // num_seeds}-rho0.1",
            "model": "2d",
            "revision": 1,
            "method": method,
            "config": "{}",
            "config_hash": method,
            "num_train": 1 + i // num_seeds,
            "status": "ok",
            "version": "1",
            **dict.fromkeys(["kl_marginal", "kl_dyadic", "accuracy", "ece", "fit_seconds"], 0.5),
            "kl_joint": score,
            **columns,
        }
        for i, score in enumerate(scores)
    ]
    return pa.Table.from_pylist(rows, schema=RESULTS.schema).to_pandas()


def test_standard_error_is_across_seeds():
    frame = results([1.0, 3.0, 10.0, 14.0], num_seeds=2)
    row = pt.leaderboard(frame).iloc[0]
    assert row.kl_joint == 7.0
    # Variances 2 and 8 of two values each: sqrt(2 · 2 + 2 · 8) / 4.
    assert row.kl_joint_stderr == pytest.approx(np.sqrt(20) / 4)
    assert row.problems == 4


def test_a_stratum_of_one_borrows_its_variance():
    values, stratum = pd.Series([1.0, 3.0, 100.0]), pd.Series(["a", "a", "b"])
    assert mean_over(values, stratum).stderr == pytest.approx(np.sqrt(2 * 2.0 + 2.0) / 3)
    assert mean_over(values, pd.Series(["a", "b", "c"])).stderr == pytest.approx(values.sem())
    assert np.isnan(mean_over(values[:1], stratum[:1]).stderr)


def test_degrees_of_freedom_are_those_of_the_strata_that_vary():
    """By hand: parts 2 · 2 and 2 · 8 of one degree each; equal variances give n minus the strata."""
    values, stratum = pd.Series([1.0, 3.0, 10.0, 14.0]), pd.Series(["a", "a", "b", "b"])
    assert mean_over(values, stratum).freedom == pytest.approx((4 + 16) ** 2 / (4**2 + 16**2))
    assert mean_over(pd.Series([1.0, 3.0, 5.0, 7.0]), stratum).freedom == pytest.approx(2.0)


def test_ratio_is_paired():
    rng = np.random.default_rng(1)
    base = rng.exponential(size=(3000, 20)) + 1
    ratios, errors = [], []
    for values in base:
        mlp = results(values)
        other = results(0.8 * values + 0.05 * rng.normal(size=20), "other")
        ratio, error, _ = paired_ratio(other, mlp)
        ratios.append(ratio)
        errors.append(error)
        if len(ratios) == 300:
            break
    assert np.mean(ratios) == pytest.approx(0.8, abs=4 * np.std(ratios) / np.sqrt(300))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(ratios), rel=0.2)
    assert np.mean(errors) < 0.1 * np.std(base.mean(axis=1)), "the pairing did not help"


def test_only_common_and_complete_problems_are_compared():
    mlp, other = results([1.0, 2.0, 4.0]), results([3.0, 6.0], "other")
    failed = results([np.nan, np.nan, np.nan], "other", status="error").iloc[2:]
    table = pt.leaderboard(pd.concat([mlp, other, failed])).set_index("method")
    assert table.loc["other", "ratio"] == pytest.approx(3.0)
    assert table.loc["other", "failed"] == 1
    assert table.loc["mlp", "ratio_stderr"] == 0.0


def test_who_fails_on_some_problems_is_after_who_does_not():
    """A method that has only the easy problems: its mean is the least, and it is not first."""
    hard, easy = results([1.0, 9.0]), results([0.5], "easy")
    failed = results([np.nan, np.nan], "easy", status="error").iloc[1:]
    worse = results([1.5, 9.5], "worse")
    lacking = results([2.0], "lacking")
    board = pt.leaderboard(pd.concat([easy, failed, lacking, hard, worse]))
    assert list(board.method) == ["mlp", "worse", "easy", "lacking"]
    words = words_on_incomplete(board)
    assert words.startswith("Not on all problems: easy, lacking.")
    assert words_on_incomplete(pt.leaderboard(pd.concat([hard, worse]))) == ""


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.23456, 0.0567, "1.235 ± 0.057"),
        (0.123456, 0.00234, "0.1235 ± 0.0023"),
        (12.3456, 3.2, "12.35 ± 3.20"),
        (np.nan, np.nan, "–"),
        (np.inf, np.nan, "∞"),
        (0.5, np.nan, "0.500"),
    ],
)
def test_digits(value, error, text):
    assert with_error(value, error) == text


def test_formats():
    table = pt.leaderboard(pd.concat([results([1.0, 2.0]), results([2.0, 2.0], "a|b_c")]))
    markdown = render(table, "markdown")
    assert markdown.splitlines()[0].count("|") == 10
    assert "a\\|b_c" in markdown
    assert "a|b\\_c" in render(table, "latex")
    assert "d$^{10}$" in render(table, "latex")
    assert [row["method"] for row in json.loads(render(table, "json"))] == ["mlp", "a|b_c"]
    with pytest.raises(pt.UsageError, match="did you mean 'markdown'"):
        render(table, "markdwon")
    with pytest.raises(pt.UsageError, match="did you mean 'num_train'"):
        pt.leaderboard(results([1.0]), by=["num_trian"])
    with pytest.raises(pt.UsageError, match="unknown baseline 'nope'"):
        pt.leaderboard(results([1.0]), baseline="nope")


DEFAULT = config_hash(settings_of(pt.method("nuts")))


def references_table(scores, **columns):
    rows = [
        {
            "problem": f"2d/T1-rho0.1-s{i}",
            "revision": 1,
            "kl_joint": score,
            "converged": True,
            "settings": DEFAULT,
            **columns,
        }
        for i, score in enumerate(scores)
    ]
    return pd.DataFrame(rows)


def test_excess_over_the_exact_posterior_is_paired_and_only_where_it_is_known():
    config = json.dumps({"method": {}, "evaluation": describe(pt.Evaluation())})
    frame = results([2.0, 3.0, 7.0], config=config)
    table = references_table([1.5, 2.0])  # none for the third problem
    row = pt.leaderboard(frame, references=table).iloc[0]
    assert row.excess_kl_joint == pytest.approx(0.75)
    assert row.excess_kl_joint_stderr == pytest.approx(np.std([0.5, 1.0], ddof=1) / np.sqrt(2))
    assert "d¹⁰ − NUTS" in render(pt.leaderboard(frame, references=table), "markdown")
    unconverged = pd.concat([table, references_table([0.0, 0.0], converged=False)])
    assert pt.leaderboard(frame, references=unconverged).excess_kl_joint[0] == pytest.approx(0.75)
    tempered = pd.concat([references_table([0.0, 0.0], settings="other"), table])
    assert pt.leaderboard(frame, references=tempered).excess_kl_joint[0] == pytest.approx(0.75)
    scored_otherwise = frame.assign(config=json.dumps({"method": {}, "evaluation": {"num_batches": 7}}))
    other = pt.leaderboard(scored_otherwise, references=table)
    assert np.isnan(other.excess_kl_joint[0])
    assert "NUTS" not in render(other, "markdown")


def test_calibration_errors_become_a_column_of_their_method():
    frame = results([2.0, 3.0], config=json.dumps({"method": {"size": 1}, "evaluation": {}}))
    ranks = np.linspace(0.0, 1.0, 50)[:, None] ** 2 * np.ones((1, 5))
    calibrations = [('{"size": 1}', Calibration("mlp", t, 0.1, ranks)) for t in (3, 10)]
    table = pt.leaderboard(frame, calibrations=calibrations)
    assert table.calibration_error[0] == pytest.approx(calibrations[0][1].error)
    assert "SBC error" in render(table, "latex")
    assert "SBC error" not in render(
        pt.leaderboard(frame, calibrations=[("{}", calibrations[0][1])]), "latex"
    )


def test_how_many_problems_have_a_reference_is_said(tmp_path):
    from pp_testbed.report.leaderboard import words_on_exact

    problems = [pt.problem("2d/T10-rho0.1-s0"), pt.problem("2d/T10-rho0.1-s77")]
    frame = pt.run(problems, ["uniform"], tmp_path, progress=False)
    assert "is of the 1 of 2 problems that have a reference" in words_on_exact(pt.leaderboard(frame))
    assert words_on_exact(pt.leaderboard(frame[:1])) == ""


@pytest.mark.slow
def test_a_single_problem_of_data_has_the_error_of_its_rows(tmp_path):
    frame = pt.run([pt.problem("iris/T10-s0")], ["uniform", "prior"], tmp_path, progress=False)
    board = pt.leaderboard(frame).set_index("method")
    own = frame.set_index("method").nll_joint_stderr
    assert board.nll_joint_stderr["prior"] == pytest.approx(own["prior"])
