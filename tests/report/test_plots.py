"""Figures of results: what they draw is what the results say."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.engine.identity import config_hash
from pp_testbed.evaluation.aggregate import paired_ratio
from pp_testbed.evaluation.scores import OF_TRUTH
from pp_testbed.report.plots import FIGURES, STYLE, styles
from pp_testbed.report.plots.scores import EXACT, complete_cells, settings_of, shared_problems
from pp_testbed.report.plots.style import PALETTE, log_ticks


@pytest.fixture(scope="module")
def results():
    """Kept scores of three methods on six problems, and made-up ones of another option of two of them."""
    kept = pd.read_parquet(Path(__file__).parent.parent.parent / "kept" / "2d.parquet")
    kept = kept[(kept.seed == 0) & (kept.num_train <= 10) & (kept.temperature > 0.05)]
    parts = [kept[kept.method.isin(["mlp", "ensemble", "ensemble+"])]]
    for method, option, value in (("ensemble+", "prior_scale", 3.0), ("ensemble", "size", 3)):
        cells = kept[kept.method == method]
        config = json.loads(cells.config.iloc[0])
        text = json.dumps(config | {"method": config["method"] | {option: value}})
        scores = {lead: 1.1 * cells[lead] for lead in OF_TRUTH}
        parts.append(cells.assign(config=text, config_hash=config_hash(text), **scores))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def of_data(tmp_path_factory):
    """Scores of held-out labels, of which some pictures are."""
    problems = [pt.problem(f"iris/T{number}-s0") for number in (10, 50)]
    return pt.run(problems, ["uniform", "knn"], tmp_path_factory.mktemp("data"), progress=False)


@pytest.fixture(scope="module")
def single(results):
    """One configuration of each method."""
    first = results.drop_duplicates("method").config_hash
    return results[results.config_hash.isin(first)]


OTHERS = {"reliability": "of_data", "risk": "of_data", "uncertainty": "of_data", "per-dimension": "single"}
OF_RESULTS = [name for name, picture in FIGURES.items() if picture.source == "results"]


@pytest.fixture(autouse=True)
def _closed_figures():
    plt.close("all")  # what others have left
    yield
    plt.close("all")


@pytest.mark.parametrize("name", OF_RESULTS)
def test_every_figure_is_drawn_on_its_own_axes_or_on_the_users(request, name, tmp_path):
    results = request.getfixturevalue(OTHERS.get(name, "results"))
    draw = FIGURES[name].draw
    axes = np.array(draw(results), dtype=object).ravel()
    assert all(axis.has_data() and axis.get_title() + axis.get_xlabel() for axis in axes)
    for suffix in ("png", "pdf", "svg"):
        pt.plots.save(axes, tmp_path / f"figure.{suffix}")
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".pdf", ".svg"}
    figure, mine = plt.subplots(1, len(axes), squeeze=False)
    drawn = np.array(draw(results, ax=mine), dtype=object).ravel()
    assert list(drawn) == list(mine.ravel())
    assert all(len(a.lines) == len(b.lines) for a, b in zip(axes, drawn, strict=True))
    assert plt.get_fignums() == [figure.number], "a figure was made although axes were given"
    with pytest.raises(pt.UsageError, match=f"needs {len(axes)} axes"):
        draw(results, ax=[mine[0, 0]] * (len(axes) + 1))


@pytest.mark.parametrize("high", [0.13, 0.3, 0.79, 0.81, 5.0, 40.0, 4e3])
def test_a_logarithmic_axis_has_numbers_that_can_be_read(high):
    _, axis = plt.subplots()
    axis.set(xscale="log", xlim=(0.11, high))
    log_ticks(axis.xaxis)
    shown = [label.get_text() for label in axis.get_xticklabels(which="both") if label.get_text()]
    inside = [float(text) for text in shown if 0.11 <= float(text) <= high]
    assert 2 <= len(inside) == len(set(inside)) <= 7


def test_looks_are_apart_in_colour_and_in_grey():
    names = [f"method {i}" for i in range(21)]
    looks = styles([*names, EXACT, "uniform"])
    assert len({tuple(look.values()) for look in looks.values()}) == 24
    assert len({(look["color"], look["ls"]) for look in looks.values()}) == 24
    assert len({(look["marker"], look["ls"]) for look in looks.values()}) == 24
    assert styles(reversed(names)) == styles(names), "the order of rows changes a method's look"
    before = dict(plt.rcParams)
    pt.plots.tau_growth(pt.problem(num_train=1), {"mlp": pt.finite(lambda x: 0.0 * x[None])}, [1, 2])
    assert dict(plt.rcParams) == before
    assert plt.gcf().axes[0].title.get_fontsize() == STYLE["axes.titlesize"]


def test_figures_are_saved_whole_or_refused(results, tmp_path):
    axis = pt.plots.cost(results)
    with pytest.raises(pt.UsageError, match="expected a name that ends in"):
        pt.plots.save(axis, tmp_path / "cost.jpg")
    with pytest.raises(pt.UsageError, match="cannot write"):
        pt.plots.save(axis, tmp_path / "nowhere" / "cost.png")
    assert list(tmp_path.iterdir()) == []


def test_agents_shows_paired_ratios_and_the_exact_posterior(results):
    frame = complete_cells(results)
    assert EXACT in set(frame.label)
    axes = pt.plots.agents(results)
    labels = [text.get_text() for text in axes[0].get_yticklabels()]
    dots = [line for line in axes[1].lines if line.get_marker() == "o"]
    points = [x for _, x in sorted((line.get_ydata()[0], line.get_xdata()[0]) for line in dots)]
    base = frame[frame.label == "mlp"]
    for label, x in zip(labels, points, strict=True):
        cells = frame[frame.label == label.partition(" (6")[0]]
        assert x == pytest.approx(paired_ratio(cells, base).value)
    assert points == sorted(points, reverse=True)
    assert {line.get_markerfacecolor() for line in dots} == {PALETTE[0]}


def test_a_method_on_fewer_problems_is_hollow_and_counted(results):
    fewer = results[(results.method != "ensemble") | (results.num_train == 1)]
    axis = pt.plots.agents(fewer)[1]
    dots = sorted((line.get_ydata()[0], line) for line in axis.lines if line.get_marker() == "o")
    labels = [text.get_text() for text in axis.figure.axes[0].get_yticklabels()]
    for (_, dot), label in zip(dots, labels, strict=True):
        assert (dot.get_markerfacecolor() == "white") == ("(2 problems)" in label)
    assert sum("(2 problems)" in label for label in labels) == 2


def test_regimes_are_paired_by_problem(results):
    """A problem that the baseline does not have is left out of a method's mean too."""
    twice = pd.concat(
        [results, results.assign(problem=results.problem.str.replace("-s0", "-s1"), kl_joint=100.0)]
    )
    without = twice[(twice.method != "mlp") | ~twice.problem.str.endswith("-s1")]
    texts = [
        [text.get_text() for axis in pt.plots.regimes(frame) for text in axis.texts]
        for frame in (results, without)
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_sweeps_of_guides_are_drawn(tmp_path):
    """A configuration may hold what is no number: the description of a guide."""
    made = [pt.method("mean-field", num_steps=5, learning_rate=rate, preset="paper") for rate in (1e-3, 1e-2)]
    frame = pt.run([pt.problem(num_train=3)], made, tmp_path, progress=False)
    assert pt.plots.sweep(frame)[0].get_title() == "mean-field: learning_rate, 1 problems"


def test_profiles_leave_out_configurations_that_are_not_complete(results):
    part = results[(results.method != "ensemble+") | (results.num_train == 1)]
    added = pd.concat([part, results[results.method == "ensemble"].iloc[:1].assign(config=results.config[0])])
    assert pt.plots.size(added)[0].get_title() == "ensemble: size, 6 problems"


def test_published_numbers_stand_only_where_they_belong(results):
    first = results[results.problem == results.problem.iloc[0]]
    whole = pd.concat([first.assign(problem=problem.name) for problem in pt.suite("2d")], ignore_index=True)
    table = pt.leaderboard(whole, published=True).set_index("method")
    assert table.published_kl_joint["mlp"] == 1.367
    assert table.published_kl_joint.notna().sum() == 1  # the others are variants
    for options in ({"by": ["num_train"]}, {"baseline": "ensemble+ (prior_scale=1.0)"}):
        with pytest.raises(pt.UsageError, match="the published means are of all problems"):
            pt.leaderboard(whole, published=True, **options)
    with pytest.raises(pt.UsageError, match="the published means are over the suite 2d"):
        pt.leaderboard(results, published=True)


def test_curves_are_means_over_the_other_properties(results):
    axes = pt.plots.data(results)
    curve = next(line for line in axes[1].lines if list(line.get_xdata()) == [1, 3, 10])
    label = sorted(set(complete_cells(results).label))[0]
    frame = shared_problems(complete_cells(results))
    expected = frame[frame.label == label].groupby("num_train").kl_joint.mean()
    np.testing.assert_allclose(curve.get_ydata(), expected)


def test_profiles_are_the_lowest_mean_for_each_value(results):
    axes = pt.plots.prior(results)
    (line,) = [line for line in axes[0].lines if line.get_label() == "d¹⁰"]
    cells = results[results.method == "ensemble+"]
    means = cells.groupby("config").kl_joint.mean()
    scale = settings_of(cells).prior_scale.reindex(means.index)
    assert sorted(line.get_xdata()) == [1.0, 3.0]
    np.testing.assert_allclose(line.get_ydata(), means.groupby(scale).min() / means.min())


def test_results_that_cannot_be_drawn_say_so(results):
    one = results[results.method == "mlp"]
    with pytest.raises(pt.UsageError, match="no method of these results has several values of size"):
        pt.plots.size(one)
    with pytest.raises(pt.UsageError, match=r"are of one temperature only, 0\.1"):
        pt.plots.temperature(one[one.temperature == 0.1])
    with pytest.raises(pt.UsageError, match="unknown baseline 'mpl'"):
        pt.plots.agents(results, baseline="mpl")
    with pytest.raises(pt.UsageError, match="no cell that ended well"):
        pt.plots.agents(results.assign(status="error"))


def test_cost_is_mean_seconds_against_mean_score(results):
    axis = pt.plots.cost(results)
    frame = shared_problems(complete_cells(results))
    containers = {each.get_label(): each.lines[0].get_xydata()[0] for each in axis.containers}
    for label, cells in frame.groupby("label"):
        np.testing.assert_allclose(containers[label], (cells.fit_seconds.mean(), cells.kl_joint.mean()))


def test_growth_with_tau_is_the_evaluators():
    problem = pt.problem(num_train=3)
    posterior = pt.method("mlp", num_steps=10, preset="paper").fit(problem.keys.fit, problem.task)
    axes = pt.plots.tau_growth(problem, {"mlp": posterior}, taus=[1, 4])
    joint, dyadic = (axis.containers[0].lines[0].get_ydata() for axis in axes)
    assert joint[0] == pytest.approx(dyadic[0], rel=0.2)  # both are d¹, on other inputs
    scores = pt.evaluate(posterior, problem, key=problem.keys.evaluate, tau=4)
    assert (joint[1], dyadic[1]) == pytest.approx((scores.kl_joint, scores.kl_dyadic))


def test_fields_show_the_truth_the_mean_and_single_draws():
    problem = pt.problem(num_train=10)
    posterior = pt.method("ensemble", size=2, num_steps=5, preset="paper").fit(problem.keys.fit, problem.task)
    fields = {"two": posterior, "prior": pt.method("prior").fit(problem.keys.fit, problem.task)}
    axes = pt.plots.predictive_fields(problem, fields)
    assert [axis.get_title() for axis in axes] == ["truth", "two", "prior"]
    axes = pt.plots.predictive_fields(problem, fields, draws=3)
    titles = ["truth", "two", "two, draw 1", "two, draw 2", "two has no draw 3"]
    assert [axis.get_title() for axis in axes[:5]] == titles
    mean, one, other = (np.asarray(axis.images[0].get_array()) for axis in axes[1:4])
    np.testing.assert_allclose(mean, (one + other) / 2, atol=1e-6)
    assert np.abs(one - other).max() > 0.01, "two draws are one"
    with pytest.raises(pt.UsageError, match="a field needs two"):
        pt.plots.predictive_fields(pt.problem(input_dim=10), fields)
