"""What the repository keeps is of the code that is here, and its pages print these numbers."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from benchmarks import ship_agents
from pp_testbed.evaluation.aggregate import paired_ratio
from pp_testbed.evaluation.scores import OF_LABELS
from pp_testbed.inference.specs import MethodSpec
from pp_testbed.report.dimensions import labelled, relative
from pp_testbed.studies import bandits
from pp_testbed.studies.scoring import configuration

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "kept"
SUITE = pd.read_parquet(KEPT / "2d.parquet")
SUITES = {
    suite: pd.read_parquet(KEPT / f"{suite}.parquet") for suite in ("highdim", "tables", "images", "numbers")
}
HIGHDIM = SUITES["highdim"]
OF_CLASSES = {suite: SUITES[suite] for suite in ("tables", "images")}
DYADIC = "docs/dyadic.md"
DIVERGED = ("sgmcmc", "protein/T1000-s2")  # a chain whose functions are NaN, as the page says
LEADS = ("kl_marginal", "kl_joint", "kl_dyadic")
RUNS = pt.read_bandits(KEPT / "bandits")
REGRETS = pt.regrets(RUNS).set_index(["model", "method"])


def rows_of(page: str, head: str) -> dict[str, list[str]]:
    """The cells of the table of a page whose first line begins with `head`, by the first cell."""
    _, found, text = (ROOT / page).read_text(encoding="utf-8").partition(f"| {head} |")
    assert found, f"{page} has no table of {head}"
    lines = text.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def interval(row: Any, name: str = "correlation", digits: int = 2) -> str:
    """A correlation, or another number, as the pages print it."""
    value, low, high = (f"{number:.{digits}f}" for number in (getattr(row, name), row.low, row.high))
    return f"{value} [{low}, {high}]".replace("-", "−")


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


AGENTS = [(suite, agent) for suite in SUITES for agent in ship_agents.PLANS[suite].agents]


@pytest.mark.parametrize(("suite", "agent"), AGENTS, ids=lambda one: getattr(one, "name", one))
def test_kept_agents_are_those_of_todays_presets(suite, agent):
    plan = ship_agents.PLANS[suite]
    spec = MethodSpec(agent.name, tuple(agent.run.items()), preset=suite)
    rows = SUITES[suite][SUITES[suite].method == agent.name]
    for facts, cells in rows.groupby(list(plan.by)):
        made = spec.resolve(dict(zip(plan.by, facts, strict=True)))
        assert set(cells.config) == {configuration(made, plan.config, suite)}, facts


def test_all_agents_did_all_problems_of_many_dimensions():
    names = sorted(problem.name for problem in pt.suite("highdim"))
    for name, cells in HIGHDIM.groupby("method"):
        assert sorted(cells.problem) == names, name


@pytest.mark.parametrize(
    ("suite", "sets", "kinds"), [("tables", 12, 43), ("images", 5, 20), ("numbers", 9, 32)]
)
def test_all_agents_did_all_problems_of_data(suite, sets, kinds):
    frame = SUITES[suite]
    assert set(frame.method) == {agent.name for agent in ship_agents.PLANS[suite].agents}
    assert (frame.model.nunique(), frame.kind.nunique()) == (sets, kinds)
    for (name, kind), cells in frame.groupby(["method", "kind"]):
        seeds = [seed for seed in range(5) if (name, f"{kind}-s{seed}") != DIVERGED]
        assert sorted(cells.seed) == seeds, (name, kind)


def test_many_dimensions_are_as_the_page_says():
    table = pt.by_dimension(HIGHDIM).set_index(["method", "input_dim"])
    shown = rows_of(DYADIC, "relative to mlp: d¹, d¹⁰, d¹⁰,²")
    assert set(shown) == set(HIGHDIM.method) - {"mlp"}
    for name, cells in shown.items():
        rows = [table.loc[(name, dim)] for dim in (2, 10, 100)]
        assert cells == [" · ".join(f"{row[f'{lead}_ratio']:.2f}" for lead in LEADS) for row in rows]
    gained = pt.advantage(HIGHDIM).set_index(["input_dim", "per_dimension"])
    for name, cells in rows_of(DYADIC, "ensemble+ − ensemble in d¹⁰,² at T / d").items():
        rows = [gained.loc[(int(name.removeprefix("d = ")), ratio)] for ratio in (1, 10, 100, 1000)]
        assert cells == [interval(row, "difference", 3) for row in rows]
    text = (ROOT / DYADIC).read_text(encoding="utf-8")
    for row in pt.advantage(HIGHDIM, by=["input_dim"]).itertuples():
        assert f"{interval(row, 'difference', 3)} at d = {row.input_dim}" in text
        assert row.high < 0
    far = table.xs(100, level="input_dim")
    marginal, joint, dyadic = (far[lead].max() / far[lead].min() for lead in LEADS)
    assert f"{marginal:.2f} apart in d¹, {joint:.2f} in d¹⁰, and {dyadic:.2f} in d¹⁰,²" in text


def test_only_dyadic_scores_tell_agents_apart_in_a_hundred_dimensions():
    frame = HIGHDIM[HIGHDIM.input_dim == 100]
    cells = dict(list(frame.groupby("method")))
    alike = set()
    for one, other in combinations(sorted(cells), 2):
        ratios = [paired_ratio(cells[one], cells[other], lead).value for lead in LEADS]
        marginal, joint, dyadic = np.abs(np.log(ratios))
        if max(marginal, joint) >= dyadic:
            alike.add((one, other))
    assert alike == {("dropout", "ensemble"), ("ensemble+", "sgmcmc")}  # as docs/dyadic.md says


def test_transfer_to_data_is_as_the_page_says():
    beds, data = {"2d": SUITE, "highdim": HIGHDIM}, OF_CLASSES | {"both": pd.concat(OF_CLASSES.values())}
    for name, cells in rows_of(DYADIC, "correlation over agents").items():
        pair, _, left_out = name.partition(", without ")
        bed, _, of = pair.partition(" → ")
        table = pt.transfer(beds[bed], data[of][data[of].method != left_out])
        assert cells == [interval(row) for row in table.itertuples()], name
    for size, cells in rows_of(DYADIC, "highdim → both, at T =").items():
        table = pt.transfer(HIGHDIM, data["both"][data["both"].kind.str.endswith(f"/T{size}")])
        assert cells == [interval(row) for row in table.itertuples()], size


def test_agents_on_data_are_as_the_page_says():
    text = (ROOT / DYADIC).read_text(encoding="utf-8")
    ratios = {
        suite: pd.DataFrame({lead: relative(labelled(frame), lead).mean(axis=1) for lead in OF_LABELS})
        for suite, frame in OF_CLASSES.items()
    }
    shown = rows_of(DYADIC, "relative to mlp: NLL, NLL¹⁰, NLL¹⁰,²")
    assert set(shown) == set(HIGHDIM.method) - {"mlp"}
    for name, cells in shown.items():
        assert cells == [" · ".join(f"{ratio:.2f}" for ratio in table.loc[name]) for table in ratios.values()]
    for suite, table in ratios.items():
        others = table.drop("sgmcmc")
        apart = [f"{ratio:.2f}" for ratio in others.max() / others.min()]
        assert "{} of one label, {} of ten, {} of ten at two anchors".format(*apart) in text, suite
    for name, cells in rows_of(DYADIC, "bias of NLL¹⁰ and NLL¹⁰,²").items():
        means = [frame[frame.method == name].mean(numeric_only=True) for frame in OF_CLASSES.values()]
        scores = ("nll_joint", "nll_dyadic")
        assert cells == [f"{of[f'{one}_bias']:.1f} of {of[one]:.1f}" for of in means for one in scores], name


def test_agents_on_numbers_are_as_the_page_says():
    frame = SUITES["numbers"]
    columns = ["rmse", "crps", "coverage", "nll", "nll_joint", "nll_dyadic"]
    table = frame[frame.problem != DIVERGED[1]].groupby("method")[columns].mean().sort_values("nll_dyadic")
    shown = rows_of(DYADIC, "numbers")
    assert list(shown) == list(table.index)
    for name, cells in shown.items():
        assert cells == [f"{value:.2f}".replace("-", "−") for value in table.loc[name]], name


def test_agents_cost_what_the_page_says():
    shown = rows_of(DYADIC, "core-hours")
    for index, frame in enumerate(SUITES.values()):
        cost = ship_agents.core_hours(frame).sum(axis=1)
        cost["all"] = cost.sum()
        assert {name: cells[index] for name, cells in shown.items()} == {
            name: f"{hours:.2f}" for name, hours in cost.items()
        }
