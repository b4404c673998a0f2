"""Figures of results: what they draw is what the results say."""

import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.experiments.aggregate import paired_ratio
from pp_testbed.report.paper import EXACT, FIGURES, complete_cells, settings_of, shared_problems


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Scores of four configurations on six problems."""
    problems = [pt.problem(num_train=t, temperature=rho) for t in (1, 3, 10) for rho in (0.1, 0.5)]
    options = {"num_steps": 20, "size": 2, "preset": "paper"}
    methods = [
        pt.method("mlp", num_steps=20, preset="paper"),
        pt.method("ensemble", **options),
        pt.method("ensemble+", **options),
        pt.method("ensemble+", **{**options, "prior_scale": 1.0}),
        pt.method("ensemble", **{**options, "size": 3}),
    ]
    return pt.run(problems, methods, tmp_path_factory.mktemp("results"), progress=False)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(results, name, tmp_path):
    figure = pt.figure(name, results)
    figure.savefig(tmp_path / "figure.png")
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert all(axis.has_data() and axis.get_title() + axis.get_xlabel() for axis in shown)


def test_agents_shows_paired_ratios_and_the_exact_posterior(results):
    frame = complete_cells(results)
    assert EXACT in set(frame.label)
    figure = pt.figure("agents", results)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    dots = [line for line in figure.axes[1].lines if line.get_marker() == "o"]
    points = [x for _, x in sorted((line.get_ydata()[0], line.get_xdata()[0]) for line in dots)]
    base = frame[frame.label == "mlp"]
    for label, x in zip(labels, points, strict=True):
        cells = frame[frame.label == label.partition(" (6")[0]]
        assert x == pytest.approx(paired_ratio(cells, base)[0])
    assert points == sorted(points, reverse=True)
    assert {line.get_markerfacecolor() for line in dots} == {"tab:blue"}


def test_a_method_on_fewer_problems_is_hollow_and_counted(results):
    fewer = results[(results.method != "ensemble") | (results.num_train == 1)]
    axis = pt.figure("agents", fewer).axes[1]
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
        [text.get_text() for axis in pt.figure("regimes", frame).axes for text in axis.texts]
        for frame in (results, without)
    ]
    assert texts[0] == texts[1]


def test_sweeps_of_guides_are_drawn(tmp_path):
    """A configuration may hold what is no number: the description of a guide."""
    made = [pt.method("mean-field", num_steps=5, learning_rate=rate, preset="paper") for rate in (1e-3, 1e-2)]
    frame = pt.run([pt.problem(num_train=3)], made, tmp_path, progress=False)
    assert pt.figure("sweep", frame).axes[0].get_title() == "mean-field: learning_rate, 1 problems"


def test_profiles_leave_out_configurations_that_are_not_complete(results):
    part = results[(results.method != "ensemble+") | (results.num_train == 1)]
    added = pd.concat([part, results[results.method == "ensemble"].iloc[:1].assign(config=results.config[0])])
    assert pt.figure("size", added).axes[0].get_title() == "ensemble: size, 6 problems"


def test_published_numbers_stand_only_where_they_belong(results):
    table = pt.leaderboard(results.assign(suite="2d"), published=True).set_index("method")
    assert table.published_kl_joint["mlp"] == 1.367
    assert table.published_kl_joint.notna().sum() == 1  # the others are variants
    for options in ({"by": ["num_train"]}, {"baseline": "ensemble+ (prior_scale=1.0)"}):
        with pytest.raises(pt.UsageError, match="the published means are of all problems"):
            pt.leaderboard(results.assign(suite="2d"), published=True, **options)
    with pytest.raises(pt.UsageError, match="the published means are over the suite 2d"):
        pt.leaderboard(results, published=True)


def test_curves_are_means_over_the_other_properties(results):
    figure = pt.figure("data", results)
    curve = next(line for line in figure.axes[1].lines if list(line.get_xdata()) == [1, 3, 10])
    label = sorted(set(complete_cells(results).label))[0]
    frame = shared_problems(complete_cells(results))
    expected = frame[frame.label == label].groupby("num_train").kl_joint.mean()
    np.testing.assert_allclose(curve.get_ydata(), expected)


def test_profiles_are_the_lowest_mean_for_each_value(results):
    figure = pt.figure("prior", results)
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "d¹⁰"]
    cells = results[results.method == "ensemble+"]
    means = cells.groupby("config").kl_joint.mean()
    scale = settings_of(cells).prior_scale.reindex(means.index)
    assert sorted(line.get_xdata()) == [1.0, 3.0]
    np.testing.assert_allclose(line.get_ydata(), means.groupby(scale).min() / means.min())


def test_results_that_cannot_be_drawn_say_so(results):
    with pytest.raises(pt.UsageError, match="unknown figure 'agent'; did you mean 'agents'"):
        pt.figure("agent", results)
    one = results[results.method == "mlp"]
    with pytest.raises(pt.UsageError, match="no method of these results has several values of size"):
        pt.figure("size", one)
    with pytest.raises(pt.UsageError, match=r"one temperature only, 0\.1"):
        pt.figure("temperature", one[one.temperature == 0.1])
    with pytest.raises(pt.UsageError, match="unknown baseline 'mpl'"):
        pt.figure("agents", results, baseline="mpl")
    with pytest.raises(pt.UsageError, match="no cell that ended well"):
        pt.figure("agents", results.assign(status="error"))
