"""Problems: names, suites, and that the same name is the same problem everywhere."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pp_testbed as pt
from pp_testbed.problems.suites import SUITES


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("smoke", 2),
        ("2d-lite", 42),
        ("2d", 210),
        ("2d-tune", 42),
        ("highdim", 180),
        ("decisions", 180),
        ("logistic", 40),
        ("coins", 30),
        ("activations", 105),
        ("widths", 75),
    ],
)
def test_suites(name, size):
    suite = pt.suite(name)
    names = [problem.name for problem in suite]
    assert len(names) == len(set(names)) == size
    assert [pt.problem(one) for one in names] == list(suite)


def test_every_suite_is_tested():
    assert len(SUITES) == 16


def test_lite_is_part_of_the_whole():
    assert set(pt.suite("2d-lite")) == set(pt.suite("2d").filter(seed=(0, 1)))
    assert set(pt.suite("smoke")) <= set(pt.suite("2d"))


def test_filter():
    assert len(pt.suite("2d").filter(num_train=100, temperature=[0.1, 0.5])) == 20
    with pytest.raises(pt.UsageError, match="did you mean 'num_train'"):
        pt.suite("2d").filter(num_trains=3)


def test_a_problem_is_the_same_whenever_it_is_made():
    one, other = pt.problem("2d/T30-rho0.1-s3"), pt.problem(num_train=30, temperature=0.1, seed=3)
    for a, b in zip(jax.tree.leaves(one.task), jax.tree.leaves(other.task), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.environment.logits(one.task.x), other.environment.logits(one.task.x))


def test_problems_have_not_changed():
    """Published results name problems: these numbers may change only with a new major version."""
    task = pt.problem("2d/T3-rho0.1-s0").task
    np.testing.assert_allclose(task.x[0], PINNED_X, rtol=1e-5)
    np.testing.assert_array_equal(task.y, PINNED_Y)
    logits = pt.problem("2d/T3-rho0.1-s0").environment.logits(jnp.ones((1, 2)))
    np.testing.assert_allclose(logits, PINNED_LOGITS, rtol=1e-4)


PINNED_X, PINNED_Y = [-0.97653705, 0.30736402], [0, 1, 1]
PINNED_LOGITS = [[-8.597194, 4.590816]]


def test_padding_repeats_the_data():
    problem = pt.problem("2d/T3-rho0.1-s0")
    padded, _ = problem.draw()
    assert padded.x.shape == (10, 2)
    np.testing.assert_array_equal(padded.x[:3], problem.task.x)
    np.testing.assert_array_equal(padded.x[3:6], problem.task.x)
    np.testing.assert_array_equal(padded.data_weights, [1] * 3 + [0] * 7)
    sizes = {t: pt.problem(num_train=t).padded_size for t in (1, 10, 11, 30, 31, 100, 101, 1000, 2000)}
    expected = {1: 10, 10: 10, 11: 30, 30: 30, 31: 100, 100: 100, 101: 1000, 1000: 1000, 2000: 10000}
    assert sizes == expected


def test_seeds_temperatures_and_sizes_differ():
    names = ["2d/T10-rho0.1-s0", "2d/T10-rho0.1-s1", "2d/T10-rho0.5-s0", "2d/T30-rho0.1-s0"]
    first = [float(pt.problem(name).task.x[0, 0]) for name in names]
    assert len(set(first)) == len(names)


def test_a_task_does_not_hold_the_truth():
    """Nothing that can be reached from the task is the environment, its latents, a key or a name."""
    problem = pt.problem(num_train=10)
    fields = {field.name: getattr(problem.task, field.name) for field in dataclasses.fields(problem.task)}
    assert set(fields) == {"model", "x", "y", "num_train", "is_of_data"}
    truth = {leaf.tobytes() for leaf in map(np.asarray, problem.environment.latents.values())}
    assert not truth & {np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(problem.task)}
    assert set(vars(fields["model"])) == {f.name for f in dataclasses.fields(pt.GenerativeMLP)}


class Tempered(pt.GenerativeMLP):
    """A user's model: it must not pass for the problem of its parent."""


def test_mistakes_are_answered_in_one_line():
    for call, words in [
        (lambda: pt.suite("2d-light"), "did you mean '2d-lite'"),
        (lambda: pt.problem("2d/T10"), "does not name a problem"),
        (lambda: pt.problem(num_trian=3), "did you mean 'num_train'"),
        (lambda: pt.problem(model="mpl"), "did you mean 'mlp'"),
        (lambda: pt.problem(num_train=0), "num_train is 0; expected a whole number, at least 1"),
        (lambda: pt.problem(temperature=0.0), "temperature is 0.0; expected a number from 1e-06 to 1e"),
        (lambda: pt.problem(hidden=(0,)), "expected numbers of units"),
        (lambda: pt.problem("2d/T10-rhoabc-s0"), "does not name a problem"),
        (lambda: pt.Problem(Tempered(), 10, 0).name, "Tempered has no name"),
        (lambda: pt.problem(num_train=float("nan")), "num_train is nan; expected a whole number, at least 1"),
        (lambda: pt.problem(num_train=1.5), "num_train is 1.5; expected a whole number"),
        (lambda: pt.problem(seed=-1), "seed is -1; expected a whole number, at least 0"),
        (lambda: pt.problem(hidden=5), r"hidden is 5; expected numbers of units, as in \(50, 50\)"),
        (lambda: pt.problem(hidden="ab"), "hidden is 'ab'; expected numbers of units"),
        (lambda: pt.problem(hidden=(-5,)), r"hidden is \(-5,\); expected numbers of units"),
        (lambda: pt.GenerativeMLP(hidden=(0,)), r"hidden is \(0,\); expected numbers of units"),
        (lambda: pt.problem(input_dim=0), "input_dim is 0; expected a whole number, at least 1"),
        (lambda: pt.problem(num_classes=1), "num_classes is 1; expected a whole number, at least 2"),
        (lambda: pt.problem(temperature=1e-50), "temperature is 1e-50; expected a number from 1e-06"),
        (lambda: pt.problem(temperature=1e30), "temperature is 1e.30; expected a number from 1e-06"),
        (lambda: pt.problem(temperature=float("inf")), "temperature is inf; expected a number"),
        (lambda: pt.problem(temperature="warm"), "temperature is 'warm'; expected a number"),
        (lambda: pt.problem(temperature=[0.1]), r"temperature is \[0.1\]; expected a number"),
        (lambda: pt.problem(temperature=jnp.array(-1.0)), "temperature is -1.0; expected a number from"),
        (lambda: pt.problem(num_train=True), "num_train is True; expected a whole number"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            call()


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 0.1, 3, 12345.678, 1e6])
def test_every_name_comes_back(temperature):
    problem = pt.problem(temperature=temperature, num_train=7, seed=3, hidden=[3], num_classes=4)
    assert pt.problem(problem.name) == problem
