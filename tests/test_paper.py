"""Figures of results: what they draw is what the results say."""

import numpy as np
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
    texts = [axis.get_title() + axis.get_xlabel() + axis.get_ylabel() for axis in figure.axes]
    assert any(texts)


def test_agents_shows_paired_ratios_and_the_exact_posterior(results):
    frame = complete_cells(results)
    assert EXACT in set(frame.label)
    figure = pt.figure("agents", results)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    lines = {
        tuple(line.get_ydata()): line.get_xdata()
        for line in figure.axes[1].lines
        if len(line.get_xdata()) > 2
    }
    (points,) = lines.values()
    base = frame[frame.label == "mlp"]
    for label, x in zip(labels, points, strict=True):
        cells = frame[frame.label == label.partition(" (6")[0]]
        assert x == pytest.approx(paired_ratio(cells, base)[0])
    assert list(points) == sorted(points, reverse=True)


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
