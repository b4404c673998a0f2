"""What is asked of `pt.problem` is what comes, or is refused: nothing is left out without a word."""

import pickle

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.models.regression import RegressionMLP
from pp_testbed.problems.datasets import data_set
from pp_testbed.problems.suites import _of_sets

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(100, 3)), RNG.integers(2, size=100)


def test_a_model_that_is_made_keeps_its_temperature():
    made = pt.GenerativeMLP(temperature=0.01)
    assert pt.problem(model=made, num_train=30) == pt.problem("2d/T30-rho0.01-s0")
    narrow = pt.GenerativeMLP(4, 3, (9,), temperature=0.5)
    problem = pt.problem(data="iris", num_train=10, model=narrow)
    assert problem.name == "iris+4d-K3-h9+rho0.5/T10-s0"
    assert problem.temperature == problem.task.model.temperature == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: pt.problem(hidden=()),
        lambda: pt.problem(model="regression", hidden=(), input_dim=3),
        lambda: pt.problem(data="iris", temperature=0.5, num_train=10),
        lambda: pt.problem(data="iris", model=pt.GenerativeMLP(4, 3, ()), split="validation"),
        lambda: pt.problem(data="diabetes", model=RegressionMLP(10, (7, 5), "tanh"), seed=2),
    ],
)
def test_a_name_makes_the_problem_again(make):
    problem = make()
    assert pt.problem(problem.name) == problem == pickle.loads(pickle.dumps(problem))
    assert pt.problem(problem.name).model == problem.model


def test_words_are_known_by_what_they_say_and_not_by_where_they_are():
    words = [("yes", "no")[label] for label in Y]
    names = {
        pt.problem(data=(X, given), num_train=50).name
        for given in (
            words,
            pd.Series(words),
            pd.Series(list(words), dtype=object),
            np.array(words, dtype=object),
        )
    }
    assert len(names) == 1
    other = pt.problem(data=(X, words[::-1]), num_train=50)
    assert other.name not in names


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "2d/T30-rho0.1-s0", "seed": 3, "num_train": 5}, "expected no num_train, seed besides"),
        ({"test": (X, Y)}, "there is no data; expected no test besides"),
        ({"split": "gal"}, "there is no data; expected no split besides"),
        ({"data": "iris", "test": (X, Y)}, "expected no test besides"),
        ({"data": (X, Y), "test": (X + 1.0, Y), "split": "gal"}, "has a test part already"),
        ({"data": (X, Y), "split": "gal", "seed": 20}, "20 splits of data@"),
        ({"model": pt.GenerativeMLP(), "hidden": (5,)}, "GenerativeMLP is made already"),
        ({"model": pt.GenerativeMLP(), "temperature": 0.5}, "GenerativeMLP is made already"),
        ({"data": "iris", "num_train": "all"}, "num_train is 'all'"),
    ],
)
def test_what_would_be_left_out_is_refused(given, words):
    with pytest.raises(pt.UsageError, match=words):
        pt.problem(**given)


def test_data_among_the_test_part_are_seen_also_where_some_are_there_twice():
    twice, labels = np.concatenate([X, X[:3]]), np.concatenate([Y, Y[:3]])
    with pytest.raises(pt.UsageError, match="103 rows of the test part are among the data"):
        pt.problem(data=(twice, labels), test=(twice, labels))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((np.repeat(X, 3, axis=0), np.repeat(Y, 3)), "most rows have an equal"),
        ((X, Y.astype(float)), "2 whole numbers of type float, taken as numbers"),
        ((np.repeat(X, 2, axis=0) + RNG.normal(size=(200, 1)), np.arange(200)), "taken as 200 classes"),
    ],
)
def test_what_data_are_taken_for_is_said(data, words):
    with pytest.warns(UserWarning, match=words):
        pt.problem(data=data)


def test_a_user_s_copy_of_a_set_makes_a_suite(monkeypatch, tmp_path):
    monkeypatch.setenv("PP_TESTBED_DATA", str(tmp_path))
    np.savez(tmp_path / "sonar.npz", x=RNG.normal(size=(200, 60)), y=RNG.integers(2, size=200))
    data_set.cache_clear()
    problems = _of_sets(["sonar"])
    data_set.cache_clear()
    assert len(problems) == 15
    assert problems[0].group.startswith("sonar@")


def line(x, y=None):
    weight = numpyro.sample("weight", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(weight * x[:, 0], 0.1), obs=y)


def test_a_method_sees_no_inputs_but_those_that_it_learns_from():
    problem = pt.problem(data=(X, X[:, 0] + 0.1 * RNG.normal(size=100)), model=line)
    drawn = np.asarray(problem.task.model.inputs(jax.random.key(0), 1000))
    learnt = {row.tobytes() for row in np.asarray(problem.task.x)}
    assert {row.tobytes() for row in drawn} <= learnt
    assert problem.task.model.family == problem.model.family
