"""Simulation-based calibration on posteriors that are right or wrong by construction."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, kstest

import pp_testbed as pt
from pp_testbed.evaluation import ranks as module
from pp_testbed.evaluation.ranks import (
    Calibration,
    band,
    ecdf_gap,
    largest_gap,
    normalised_rank,
    uniformity_p_value,
)
from pp_testbed.studies.calibration import calibrations, sbc

RNG = np.random.default_rng(2)


@pytest.fixture(autouse=True)
def fresh_generator():
    """Each test has its own numbers, whichever process it runs in."""
    global RNG
    RNG = np.random.default_rng(2)


@pytest.mark.parametrize("is_complete", [True, False])
def test_ranks_of_an_exchangeable_truth_are_uniform(is_complete):
    keys = jax.random.split(jax.random.key(0), 4000)

    def one(key):
        key_values, key_truth, key_ties = jax.random.split(key, 3)
        values = jnp.round(jax.random.normal(key_values, (10, 1)), 1)  # with ties
        if is_complete:  # the posterior is these ten points, and the truth is one of them
            true = values[jax.random.randint(key_truth, (), 0, 10)]
        else:
            true = jnp.round(jax.random.normal(key_truth, (1,)), 1)
        return normalised_rank(values, true, jnp.full(10, -jnp.log(10.0)), key_ties, is_complete)

    assert kstest(np.asarray(jax.vmap(one)(keys))[:, 0], "uniform").pvalue > 1e-3


def test_a_complete_posterior_of_one_point_has_ranks_zero_and_one():
    true = jnp.array([1.0, -1.0, 0.0])
    ranks = normalised_rank(jnp.zeros((1, 3)), true, jnp.zeros(1), jax.random.key(0), True)
    assert ranks[0] == 1.0
    assert ranks[1] == 0.0
    assert 0.0 < ranks[2] < 1.0
    assert np.isnan(
        normalised_rank(jnp.full((1, 1), jnp.nan), true[:1], jnp.zeros(1), jax.random.key(0), True)
    )


def test_p_values_are_uniform_and_follow_from_binomial_tails():
    sets = RNG.uniform(size=(500, 50))
    p_values = np.array([uniformity_p_value(ranks) for ranks in sets])
    # Discrete, so conservative at no level by more than the simulation's error.
    for level in (0.01, 0.05, 0.2, 0.5):
        assert abs((p_values <= level).mean() - level) < 4 * np.sqrt(level / 500) + 1e-3
    ranks, grid = sets[0], np.arange(1, 50) / 50
    counts = (ranks[None] <= grid[:, None]).sum(axis=1)
    tails = 2 * np.minimum(binom.cdf(counts, 50, grid), binom.sf(counts - 1, 50, grid))
    assert module._smallest_tail(ranks[None])[0] == pytest.approx(tails.min())


def test_the_band_holds_all_of_a_uniform_curve_with_its_probability():
    _, lower, upper = band(50, 0.95)
    inside = []
    for ranks in RNG.uniform(size=(2000, 50)):
        _, gap = ecdf_gap(ranks)
        inside.append((gap >= lower - 1e-9).all() and (gap <= upper + 1e-9).all())
    assert abs(np.mean(inside) - 0.95) < 4 * np.sqrt(0.05 * 0.95 / 2000) + 0.005


def test_gap_is_the_kolmogorov_smirnov_distance():
    ranks = RNG.uniform(size=37) ** 2
    assert largest_gap(ranks) == pytest.approx(kstest(ranks, "uniform").statistic)
    assert uniformity_p_value(np.sqrt(RNG.uniform(size=200))) < 1e-3


GRID = np.linspace(-6.0, 6.0, 4001)


@dataclass(frozen=True)
class Quadrature:
    """The exact posterior of logistic regression with one weight, on a grid; or a tempered one."""

    power: float = 1.0
    name: str = "quadrature"

    def fit(self, key, task):
        x, sign = np.asarray(task.x, float)[:, 0], 2.0 * np.asarray(task.y) - 1.0
        margins = sign * np.outer(GRID, x) / float(task.temperature)
        log_density = -0.5 * GRID**2 - self.power * np.logaddexp(0.0, -margins).sum(axis=1)
        weights = np.exp(log_density - log_density.max())

        def function(inputs):
            logits = np.outer(GRID, inputs[:, 0]) / float(task.temperature)
            return np.stack([np.zeros_like(logits), logits], axis=-1)

        return pt.finite(function, weights)


LOGISTIC = {"model": "logistic", "input_dim": 1, "temperature": 0.5, "num_train": 20, "progress": False}


@pytest.mark.slow
def test_the_exact_posterior_is_calibrated_and_a_tempered_one_is_not(tmp_path):
    exact = sbc(Quadrature(), out=tmp_path, **LOGISTIC)
    assert exact.passed
    assert exact.ranks.shape == (200, 5)
    sharp = sbc(Quadrature(4.0, "sharp"), out=tmp_path, **LOGISTIC)
    assert not sharp.passed
    assert sharp.error > exact.error
    again = sbc(Quadrature(), out=tmp_path, **LOGISTIC)
    np.testing.assert_array_equal(again.ranks, exact.ranks)
    stored = {calibration.method: calibration for _, calibration in calibrations(tmp_path)}
    assert stored["sharp"].asdict()["calibration_error"] == pytest.approx(sharp.error)


def test_methods_in_jax_are_ranked_in_batches_and_interrupted_runs_go_on(tmp_path):
    options = {"num_problems": 25, "num_train": 5, "progress": False}
    mlp = pt.method("mlp", num_steps=200)
    whole = sbc(mlp, out=tmp_path / "a", **options)
    assert not whole.passed  # one function: the truth is above or below, never inside
    assert set(np.unique(whole.ranks)) <= {0.0, 1.0}
    for path in sorted((tmp_path / "a").glob("*.parquet"))[3:17]:
        path.unlink()
    sorted((tmp_path / "a").glob("*.parquet"))[0].write_text("{")
    np.testing.assert_array_equal(sbc(mlp, out=tmp_path / "a", **options).ranks, whole.ranks)


def test_mistakes_are_answered_in_words(tmp_path):
    with pytest.raises(pt.UsageError, match="expected at least 20"):
        sbc("mlp", num_problems=5, out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(pt.UsageError, match="cannot write ranks to"):
        sbc("mlp", out=tmp_path / "file")

    class Broken:
        name = "broken"

        def fit(self, key, task):
            return pt.finite(lambda x: np.full((3, len(x), 2), np.nan))

    with pytest.raises(pt.UsageError, match="broken gives NaN on 2d/T10"):
        sbc(Broken(), num_problems=20, out=tmp_path, progress=False)


def test_a_mistake_in_a_worker_is_one_line_and_ends_the_run(tmp_path):
    file = tmp_path / "mine.py"
    lines = [
        "class M:",
        "    name = 'a/b'",
        "    def fit(self, key, task):",
        "        raise ValueError('my bug')",
    ]
    file.write_text("\n".join([*lines, "M = M()"]))
    with pytest.raises(pt.UsageError, match=r"ValueError: my bug \(mine.py, line 4\)"):
        sbc(f"{file}:M", num_problems=20, out=tmp_path / "out", jobs=1, progress=False)


def test_few_problems_are_not_a_distribution(tmp_path, monkeypatch):
    monkeypatch.setattr("pp_testbed.studies.calibration.FEWEST", 10)
    sbc("uniform", num_problems=10, out=tmp_path, progress=False)
    monkeypatch.undo()
    assert calibrations(tmp_path) == []


def test_chains_in_a_wrapper_are_thinned_and_ranked_as_a_sample():
    draws = jnp.arange(1000.0)
    chain = pt.Finite(
        jax.tree_util.Partial(lambda d, x: d), draws, jnp.full(1000, -jnp.log(1000.0)), None, 10
    )
    assert not module.is_complete(chain)
    assert module.thinned(chain).log_weights.shape == (99,)
    ensemble = pt.Finite.equal(chain.function, draws)
    assert module.is_complete(ensemble)
    assert module.thinned(ensemble).log_weights.shape == (1000,)


def test_the_picture_of_ranks_shows_every_method(tmp_path):
    made = [
        Calibration(name, 10, 0.1, RNG.uniform(size=(50, 5)) ** power) for name, power in (("a", 1), ("b", 2))
    ]
    axes = pt.plots.calibration_ranks(made)
    assert [axis.get_title().split(",")[0] for axis in axes] == ["a", "b"]
    pt.plots.save(axes, tmp_path / "ranks.png")
