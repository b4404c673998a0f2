"""Scores are declared once: the page prints the declaration, and everything else follows from it."""

from pathlib import Path

import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.evaluation.scores import COLUMNS, METRICS, SCORES, Scores
from pp_testbed.studies.scoring import RESULTS

PAGE = Path(__file__).parent.parent.parent / "docs" / "scores.md"
BETTER = {True: "less is better", False: "more is better", None: ""}


def table():
    """The page's table."""
    lines = ["| column | symbol | what it is | needs | |", "| --- | --- | --- | --- | --- |"]
    for score in SCORES:
        needs = ", ".join(sorted(score.needs)) or "any"
        better = BETTER[score.is_less_better]
        lines.append(f"| `{score.name}` | {score.symbol} | {score.summary} | {needs} | {better} |")
    return "\n".join(lines)


def test_the_page_prints_what_is_declared():
    assert table() in PAGE.read_text(encoding="utf-8")


def test_schema_scores_and_metrics_follow():
    assert set(COLUMNS) <= set(RESULTS.schema.names)
    assert "mce" in METRICS
    assert "accuracy" not in METRICS
    problem = pt.problem("2d/T3-rho0.1-s0")
    posterior = pt.method("uniform").fit(problem.keys.fit, problem.task)
    scores = pt.evaluate(posterior, problem, key=problem.keys.evaluate, num_batches=10)
    known = [score for score in SCORES if score.needs <= problem.truth.offers]
    assert list(scores.values) == [column for score in known for column in score.columns]
    assert scores.mce >= scores.ece > 0  # the worst bin, and the mean of all
    assert Scores.of(scores.asdict()) == scores
    with pytest.raises(AttributeError, match="no 'kl_jiont'"):
        _ = scores.kl_jiont


@pytest.mark.slow
def test_a_file_without_a_column_is_usable(tmp_path):
    """Results from before there was MCE, in one directory with those of today."""
    out = tmp_path / "out"
    pt.run("smoke", ["uniform"], out, progress=False)
    for path in out.glob("*.parquet"):
        pd.read_parquet(path).drop(columns=["mce", "mce_stderr"]).to_parquet(path, index=False)
    frame = pt.run("smoke", ["uniform", "prior"], out, progress=False)
    missing = frame.set_index("method").mce.isna()
    assert missing["uniform"].all()
    assert not missing["prior"].any()
    assert len(pt.leaderboard(frame)) == 2
