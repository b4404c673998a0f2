"""Tables of decisions against numbers worked out by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.problems.synthetic import make_model
from pp_testbed.report.decisions import (
    agents_by_problem,
    at_horizon,
    common_agents,
    log_correlation,
)
from pp_testbed.studies.bandits import REGRETS, Bandit

AGENTS = ("a", "b", "c", "d", "e")


def runs(regret, seeds=4, activation="relu", steps=(10, 100)):
    """Bandit runs whose regret is a function of agent, seed and step."""
    model = make_model("mlp", activation=activation)
    rows = []
    for agent, seed, step in product(AGENTS, range(seeds), steps):
        each = Bandit(model, seed)
        row = dict.fromkeys(REGRETS.schema.names, "")
        row |= {"problem": each.name, "method": agent, "config": "{}", "config_hash": agent, "seed": seed}
        row |= {"model": each.name.split("/")[0].removeprefix("bandit-"), "temperature": 0.1, "status": "ok"}
        row |= {
            "kind": each.kind,
            "revision": 1,
            "input_dim": 2,
            "num_actions": 40,
            "step": step,
            "seconds": 1.0,
        }
        rows.append(row | {"regret": regret(AGENTS.index(agent), seed) * step})
    return pd.DataFrame(rows)


def results(score, seeds=4, activations=("",)):
    """Results of the agents whose scores are a function of agent and seed."""
    rows = []
    for agent, seed, num, word in product(AGENTS, range(seeds), (10, 100), activations):
        row = {
            "problem": f"2d{word}/T{num}-rho0.1-s{seed}",
            "kind": f"2d{word}/T{num}-rho0.1",
            "model": f"2d{word}",
            "revision": 1,
            "method": agent,
            "seed": seed,
            "temperature": 0.1,
        }
        row |= {"status": "ok", "config": "{}", "config_hash": agent, "version": "1", "kl_marginal": 0.1}
        value = score(AGENTS.index(agent), seed)
        rows.append(row | {"kl_joint": value, "kl_marginal": 1.0 / value, "kl_dyadic": value})
    return pd.DataFrame(rows)


def test_regrets_are_paired_means():
    frame = runs(lambda agent, seed: (agent + 1) * (seed + 1))
    table = pt.regrets(frame, baseline="b")
    assert list(table.method) == list(AGENTS)
    assert list(table.regret) == [250.0 * (agent + 1) for agent in range(5)]
    spread = np.std([100, 200, 300, 400], ddof=1) / 2
    assert table.regret_stderr[0] == pytest.approx(spread)
    assert list(table.ratio) == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert table.ratio_stderr.max() < 1e-12  # proportional on every seed
    assert table["median"][0] == 250.0
    assert np.isnan(table.median_low[0])  # four seeds have no interval of 95 %
    twenty = pt.regrets(runs(lambda agent, seed: seed + 1.0, seeds=20), baseline="b")
    assert (twenty.median_low[0], twenty.median_high[0]) == (600.0, 1500.0)  # the 6th and the 15th
    assert pt.regrets(frame, step=10).regret[0] == 25.0
    broken = frame.assign(status=np.where((frame.method == "a") & (frame.seed == 3), "error", "ok"))
    table = pt.regrets(broken, baseline="b").set_index("method")
    assert list(table.failed) == [1, 0, 0, 0, 0]
    assert (table.seeds["a"], table.regret["a"]) == (3, 200.0)
    assert pt.regrets(runs(lambda agent, seed: agent), baseline="a").ratio.isna().all()  # of regret 0


def test_the_horizon_is_the_last_common_step():
    frame = runs(lambda agent, seed: 1.0)
    short = frame[(frame.method != "a") | (frame.step == 10)]
    assert set(at_horizon(short).step) == {10}
    with pytest.raises(pt.UsageError, match="not all runs of 2d have a regret after step 100; they share 10"):
        at_horizon(short, 100)
    other = runs(lambda agent, seed: 1.0, activation="tanh", steps=(10, 100, 200))
    steps = at_horizon(pd.concat([short, other])).groupby("model").step.unique()
    assert (list(steps["2d"]), list(steps["2d-tanh"])) == ([10], [200])  # each bandit has its own
    uneven = frame[(frame.method != "a") | (frame.step == 10)]
    uneven = pd.concat([uneven, frame[(frame.method == "a") & (frame.step == 10)].assign(step=60)])
    assert set(at_horizon(uneven).step) == {10}  # 60 and 100 are not shared
    with pytest.raises(pt.UsageError, match="ended well"):
        at_horizon(frame.assign(status="error"))


def test_correlations_of_what_is_exactly_related():
    """log regret = 2 log d10 and d1 = 1 / d10: correlations 1 and -1, in every resample."""
    frame = runs(lambda agent, seed: (agent + 1) ** 2)
    table = pt.correlations(frame, results(lambda agent, seed: agent + 1.0)).set_index("score")
    for score, value in (("kl_joint", 1.0), ("kl_marginal", -1.0)):
        for column in ("correlation", "low", "high"):
            assert table.loc[score, column] == pytest.approx(value)
    assert table.loc["kl_joint", "agents"] == 5


def test_agents_are_compared_on_problems_that_all_have():
    """Scores of T = 10 are a hundred times those of 100: without some of them a mean is of other problems."""
    scores = results(lambda agent, seed: agent + 1.0)
    scores.loc[scores.problem.str.contains("T10-"), "kl_joint"] *= 100.0
    scores = scores[~((scores.method == "e") & scores.problem.str.contains("T10-rho0.1-s0"))]
    (table,) = common_agents([agents_by_problem(scores.assign(label=scores.method), "kl_joint")])
    assert list(table[0]) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert list(table[1]) == [50.5, 101.0, 151.5, 202.0, 252.5]


def test_a_method_that_never_acted_decides_nothing():
    """One cell of another method in the results: the agents' means are over all of their own problems."""
    frame = runs(lambda agent, seed: (agent + 1.0) * (seed + 1.0))
    scores = results(lambda agent, seed: (agent + 1.0) ** (seed + 1.0))
    alone = pt.correlations(frame, scores)
    assert set(alone.problem_seeds) == {4}
    bystander = scores[(scores.method == "a") & (scores.seed == 0)].assign(method="knn", config_hash="knn")
    pd.testing.assert_frame_equal(pt.correlations(frame, pd.concat([scores, bystander])), alone)


def test_other_runs_of_the_directory_change_nothing():
    """Neither an excluded agent's short run nor another bandit's decides the horizon."""
    frame, scores = runs(lambda agent, seed: (agent + 1.0) ** 2), results(lambda agent, seed: agent + 1.0)
    short = frame[(frame.method != "e") | (frame.step == 10)].copy()
    short.loc[short.step == 10, "regret"] **= -1.0
    table = pt.correlations(short, scores, ["a", "b", "c", "d"]).set_index("score")
    assert table.loc["kl_joint", "step"] == 100
    assert table.loc["kl_joint", "correlation"] == pytest.approx(1.0)
    table = pt.correlations(short, scores).set_index("score")
    assert table.loc["kl_joint", "step"] == 10
    assert table.loc["kl_joint", "correlation"] == pytest.approx(-1.0)


def test_scores_may_be_of_another_model():
    frame = runs(lambda agent, seed: (agent + 1) ** 2, activation="tanh")
    scores = results(lambda agent, seed: agent + 1.0)
    table = pt.correlations(frame, scores, testbed="2d").set_index("score")
    assert table.loc["kl_joint", "correlation"] == pytest.approx(1.0)
    assert set(table.testbed) == {"2d, ρ = 0.1"}
    assert len(pt.plots.correlation(frame, scores, testbed="2d")) == 3
    with pytest.raises(pt.UsageError, match="none in common"):
        pt.correlations(frame, scores)


def test_a_correlation_of_means_without_noise_has_fishers_interval():
    x, y = np.exp(np.random.default_rng(1).normal(size=(2, 8)))
    tables = [pd.DataFrame({0: values, 1: values}, index=range(8)) for values in (x, y)]
    value, low, high = log_correlation(tables)
    assert value == pytest.approx(np.corrcoef(np.log(x), np.log(y))[0, 1])
    reach = 1.959964 / np.sqrt(5)
    assert (low, high) == pytest.approx(tuple(np.tanh(np.arctanh(value) + np.array([-reach, reach]))))


def test_seeds_of_both_tables_widen_the_interval():
    rng = np.random.default_rng(0)
    calm = [pd.DataFrame(np.outer(np.exp(rng.normal(size=30)), np.ones(4))) for _ in range(2)]
    noisy = calm[1] * np.exp(rng.normal(size=(30, 4)))
    widths = [np.ptp(np.arctanh(log_correlation([calm[0], table])[1:])) for table in (calm[1], noisy)]
    assert widths[0] == pytest.approx(2 * 1.959964 / np.sqrt(27))
    assert widths[1] > 1.02 * widths[0]


def test_models_agree_or_not():
    frame = results(lambda agent, seed: agent + 1.0, activations=("", "-tanh"))
    flipped = frame[frame.problem.str.startswith("2d-tanh")].assign(kl_joint=lambda f: 1.0 / f.kl_joint)
    table = pt.across_models(pd.concat([frame[frame.problem.str.startswith("2d/")], flipped])).set_index(
        "score"
    )
    assert table.loc["kl_joint", "correlation"] == pytest.approx(-1.0)
    assert table.loc["kl_dyadic", "correlation"] == pytest.approx(1.0)
    bandits = pd.concat([runs(lambda a, s: a + 1.0), runs(lambda a, s: (a + 1.0) ** 2, activation="tanh")])
    both = pt.across_models(frame, bandits)
    assert both[both.score == "regret"].correlation.iloc[0] == pytest.approx(1.0)
    axes = pt.plots.robustness(frame, bandits)
    shown = {axis.get_title(): axis.images[0].get_array() for axis in axes}
    assert shown["regret"][0, 1] == both[both.score == "regret"].correlation.iloc[0]
    assert list(shown) == ["d¹", "d¹⁰", "d¹⁰,²", "regret"]
    other = runs(lambda a, s: a + 1.0, activation="gelu")  # a model without scores: in regret's panel alone
    axes = pt.plots.robustness(frame, pd.concat([bandits, other]))
    assert [axis.images[0].get_array().shape for axis in axes] == [(2, 2)] * 3 + [(3, 3)]


def test_what_cannot_be_correlated_is_said():
    frame, scores = runs(lambda agent, seed: agent + 1.0), results(lambda agent, seed: agent + 1.0)
    for arguments, words in [
        ((frame, scores[scores.method.isin(["a", "b"])]), "2 agents in common"),
        ((frame, scores, ["a", "x"]), "unknown method 'x'"),
        ((frame.assign(model="3d"), scores), "none in common"),
        ((frame.assign(regret=0.0), scores), "regret 0"),
        ((frame.assign(regret=1.0), scores), "these agents are all equal"),
        ((frame, scores[(scores.method != "a") | (scores.seed == 0)]), "fewer than two seeds"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            pt.correlations(*arguments)
    with pytest.raises(pt.UsageError, match="one generative model"):
        pt.across_models(scores)


def test_pictures_show_every_agent(tmp_path):
    frame, scores = (
        runs(lambda agent, seed: agent + 1.0),
        results(lambda agent, seed: agent + 1.0 + 0.1 * seed),
    )
    curves = pt.plots.regret(frame)
    assert [line.get_label() for line in curves[0].get_lines()] == list(AGENTS)
    picture = pt.plots.correlation(frame, scores)
    assert len(picture) == 3
    pt.plots.save(picture, tmp_path / "correlation.pdf")
    assert (tmp_path / "correlation.pdf").stat().st_size > 5000


def learnt(ratio):
    """Scores of active learning: those of bald are a multiple of those of uniform."""
    rows = [
        {"method": "m", "priority": p, "problem": f"2d/T1000-rho0.1-s{s}", "num_labelled": n, "status": "ok",
         "config": '{"method": {"name": "m"}}', "config_hash": p, "version": "1",
         "kind": "2d/T1000-rho0.1", "revision": 1,
         "kl_joint": (s + 1) / n * (ratio if p == "bald" else 1.0)}
        for p, s, n in product(("uniform", "bald"), range(3), (10, 20))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_learning_is_compared_with_random_labels():
    table = pt.learning(learnt(0.5)).set_index("priority")
    assert table.loc["bald", "ratio"] == pytest.approx(0.5)
    assert table.loc["bald", "ratio_stderr"] == pytest.approx(0.0, abs=1e-12)
    assert table.loc["uniform", "kl_joint at 10"] == pytest.approx(0.2)
    again = learnt(0.5).assign(config='{"method": {"name": "m"}, "budgets": [10]}', config_hash="other")
    again = again[again.num_labelled == 10].assign(config_hash=lambda f: "other " + f.priority)
    table = pt.learning(pd.concat([learnt(0.5), again]))  # other budgets are another row, not more pools
    assert list(table.pools) == [3, 3, 3, 3]
    broken = learnt(0.5)
    fails = (broken.priority == "bald") & (broken.num_labelled == 20) & broken.problem.str.endswith("s2")
    table = pt.learning(broken.assign(status=np.where(fails, "error", "ok"))).set_index("priority")
    assert (table.pools["bald"], table.failed["bald"]) == (2, 1)
    assert table.loc["bald", "kl_joint at 10"] == pytest.approx(0.075)  # of the pools that got to the end
    (axis,) = pt.plots.learning(learnt(0.5))
    assert axis.get_legend_handles_labels()[1] == ["uniform", "bald"]
