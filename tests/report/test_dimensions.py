"""Tables of the dyadic paper against frames whose answers are known."""

from io import StringIO
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import pp_testbed as pt
from pp_testbed.cli import app
from pp_testbed.report.dimensions import advantage, by_dimension, transfer

AGENTS = ("mlp", "ensemble", "ensemble+", "dropout", "bbb")
LEVELS = dict(zip(AGENTS, (1.0, 0.9, 0.5, 0.95, 1.1), strict=True))


def of_truth(spread=0.1):
    """Dyadic scores that are an agent's level times the problem's; others are nearly equal."""
    rng, rows = np.random.default_rng(0), []
    for dim, ratio, seed in product((2, 100), (1, 10), range(5)):
        size = 1.0 + spread * rng.uniform()
        for agent in AGENTS:
            kind = f"{dim}d/T{ratio * dim}-rho0.1"
            row = {"problem": f"{kind}-s{seed}", "kind": kind, "input_dim": dim, "num_train": ratio * dim}
            row |= {"method": agent, "config_hash": agent, "config": "{}", "revision": 1, "seed": seed}
            near = size * LEVELS[agent] ** 0.01
            row |= {"kl_marginal": 0.1 * near, "kl_joint": near, "kl_dyadic": LEVELS[agent] * size * ratio}
            rows.append(row | {"status": "ok", "model": f"{dim}d", "version": "1", "temperature": 0.1})
    return pd.DataFrame(rows)


def of_data(power):
    """Likelihoods relative to mlp's that are a power of the levels, of single labels all the same."""
    rows = []
    for name, seed in product(("iris", "wine"), range(5)):
        for agent in AGENTS:
            row = {"problem": f"{name}/T10-s{seed}", "kind": f"{name}/T10", "input_dim": 4, "num_train": 10}
            row |= {"method": agent, "config_hash": agent, "config": "{}", "revision": 1, "seed": seed}
            level = LEVELS[agent] ** (1.0 + 0.01 * seed)
            row |= {"nll": 1.0 + 0.1 / LEVELS[agent], "nll_joint": 10.0, "nll_dyadic": 9.0 * level**power}
            rows.append(row | {"status": "ok", "model": name, "version": "1", "temperature": 0.1})
    frame = pd.DataFrame(rows)
    frame["nll_joint"] += frame.seed + frame.method.map(LEVELS)
    return frame


def test_ratios_in_each_dimension_are_those_of_the_levels():
    table = by_dimension(of_truth()).set_index(["input_dim", "method"])
    for dim, agent in product((2, 100), AGENTS):
        row = table.loc[dim, agent]
        assert row.kl_dyadic_ratio == pytest.approx(LEVELS[agent])
        assert row.kl_joint_ratio == pytest.approx(LEVELS[agent] ** 0.01)
        assert row.kl_dyadic_ratio_stderr == pytest.approx(0.0, abs=1e-9)
        assert row.problems == 10


def test_an_advantage_is_paired_and_has_its_interval():
    """Differences of 0.4 of a problem's own size: the interval is Student's of those."""
    from scipy.stats import t

    frame = of_truth()
    table = advantage(frame).set_index(["input_dim", "per_dimension"])
    cells = frame[(frame.input_dim == 2) & (frame.num_train == 2)]
    sizes = cells[cells.method == "mlp"].kl_dyadic.to_numpy()
    row = table.loc[2, 1.0]
    assert row.difference == pytest.approx(-0.4 * sizes.mean())
    reach = t.ppf(0.975, 4) * 0.4 * sizes.std(ddof=1) / np.sqrt(5)
    assert (row.low, row.high) == pytest.approx((row.difference - reach, row.difference + reach))
    assert row.ratio == pytest.approx(0.5 / 0.9)
    with pytest.raises(pt.UsageError, match="did you mean 'ensemble'"):
        advantage(frame, baseline="ensembel")


@pytest.mark.parametrize(("power", "sign"), [(0.3, 1.0), (-0.3, -1.0)])
def test_what_is_a_power_of_the_other_correlates_wholly(power, sign):
    table = transfer(of_truth(), of_data(power)).set_index("data")
    assert table.loc["NLL¹⁰,²"].correlation == pytest.approx(sign, abs=1e-3)
    assert table.loc["NLL¹⁰,²"].agents == 5


def test_the_order_of_results_is_said():
    with pytest.raises(pt.UsageError, match="in this order"):
        transfer(of_data(1.0), of_truth())
    negative = of_data(1.0).assign(nll_dyadic=-1.0)
    with pytest.raises(pt.UsageError, match="nll_dyadic is not above 0 everywhere"):
        transfer(of_truth(), negative)
    with pytest.raises(pt.UsageError, match="these results have no kl_dyadic"):
        advantage(of_data(1.0))
    with pytest.raises(pt.UsageError, match="these results are of held-out labels"):
        pt.plots.dimensions(of_data(1.0))


def test_pictures_show_the_tables():
    frame = of_truth()
    axes = pt.plots.dimensions(frame)
    lines = {line.get_label(): line for line in axes[2].containers if hasattr(line, "lines")}
    assert set(lines) == set(AGENTS)
    np.testing.assert_allclose(lines["ensemble+"].lines[0].get_ydata().astype(float), 0.5)
    axis = pt.plots.per_dimension(frame)
    assert axis.get_ylabel() == "d¹⁰,² of ensemble+ / ensemble"
    names = [text.get_text() for text in pt.plots.transfer(frame, of_data(0.3))[1].texts]
    assert sorted(names) == sorted(AGENTS)
    plt.close("all")


def test_the_command_prints_and_draws(tmp_path, monkeypatch):
    from pp_testbed.cli import options as given

    frames = {"testbed": of_truth(), "data": of_data(0.3), "more": of_data(-1.0)}
    frames["more"]["problem"] = "more-" + frames["more"].problem
    monkeypatch.setattr(given, "results_of", lambda path: frames[path.name])
    picture = tmp_path / "transfer.png"
    done = CliRunner().invoke(
        app, ["transfer", "testbed", "data", "more", "--format", "csv", "--figure", str(picture)]
    )
    assert done.exit_code == 0, done.output
    found = pd.read_csv(StringIO(done.stdout))
    pd.testing.assert_frame_equal(found, transfer(of_truth(), pd.concat([frames["data"], frames["more"]])))
    assert picture.stat().st_size > 1000
