"""What the repository keeps is of the code that is here, and its pages print these numbers."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.inference.specs import MethodSpec
from pp_testbed.studies import bandits
from pp_testbed.studies.scoring import configuration

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "kept"
SUITE = pd.read_parquet(KEPT / "2d.parquet")
RUNS = pt.read_bandits(KEPT / "bandits")
REGRETS = pt.regrets(RUNS).set_index(["model", "method"])


def rows_of(page: str, head: str) -> dict[str, list[str]]:
    """The cells of the table of a page whose first line begins with `head`, by the first cell."""
    _, found, text = (ROOT / page).read_text(encoding="utf-8").partition(f"| {head} |")
    assert found, f"{page} has no table of {head}"
    lines = text.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def interval(row: Any) -> str:
    """A correlation as the pages print it."""
    return f"{row.correlation:.2f} [{row.low:.2f}, {row.high:.2f}]".replace("-", "−")


@pytest.mark.parametrize("name", sorted(SUITE.method.unique()))
def test_kept_scores_are_those_of_todays_configurations(name):
    assert list(SUITE[SUITE.method == name].config.unique()) == [
        configuration(pt.method(name), pt.Evaluation())
    ]


@pytest.mark.parametrize("name", sorted(set(REGRETS.index.get_level_values("method"))))
def test_kept_regrets_are_those_of_todays_configurations(name):
    agent = bandits.agent(MethodSpec(name, (), "paper"))
    assert list(RUNS[RUNS.method == name].config.unique()) == [bandits.configuration(agent, "thompson")]


def test_the_readme_prints_what_is_kept():
    board = pt.leaderboard(SUITE, published=True).set_index("method")
    regret = REGRETS.loc["10d"]
    for name, cells in rows_of("README.md", "method").items():
        row, acting = board.loc[name], regret.loc["sgld" if name == "sgmcmc" else name]
        ratio = f"{row.ratio:.3f} ± {row.ratio_stderr:.3f}" if name != "mlp" else "1"
        paper = f"{row.published_ratio:.3f}" if name != "mlp" else "1"
        expected = [
            f"{row.kl_marginal:.3f}",
            f"{row.kl_joint:.3f} ± {row.kl_joint_stderr:.3f}",
            f"{row.kl_dyadic:.3f}",
            ratio,
            paper,
            f"{row.excess_kl_joint:.3f} ± {row.excess_kl_joint_stderr:.3f}",
            f"{acting.regret:.0f} ± {acting.regret_stderr:.0f}",
        ]
        assert cells[:-1] == expected, name
        assert float(cells[-1]) == pytest.approx(row.fit_seconds, rel=0.25)


def test_the_page_of_decisions_prints_what_is_kept():
    for name, cells in rows_of("docs/decisions.md", "regret, mean ± standard error over 20 seeds").items():
        rows = [REGRETS.loc[(model, name)] for model in ("2d", "10d", "50d")]
        assert cells == [f"{row.regret:.0f} ± {row.regret_stderr:.0f}" for row in rows], name
    scores = pd.read_parquet(KEPT / "decisions.parquet")
    table = pt.correlations(RUNS, scores, testbed="2d").set_index(["score", "model"])
    shown = rows_of("docs/decisions.md", "log regret against the log of")
    for cells, score in zip(shown.values(), ("kl_marginal", "kl_joint", "kl_dyadic"), strict=True):
        rows = [table.loc[(score, f"{model}, ρ = 0.1")] for model in ("2d", "10d", "50d")]
        assert cells == [interval(row) for row in rows], score


@pytest.mark.parametrize("file", ["decisions", "decisions-acting"])
def test_the_page_says_what_ten_dimensions_say_of_themselves(file):
    table = pt.correlations(RUNS[RUNS.model == "10d"], pd.read_parquet(KEPT / f"{file}.parquet"))
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    for row in table.itertuples():
        assert interval(row) in page


def test_a_horizon_of_the_page_is_that_of_the_runs():
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    for dim, steps in re.findall(r"d = (\d+), ([\d,]+) steps", text):
        assert set(REGRETS.loc[f"{dim}d"].step) == {int(steps.replace(",", ""))}
