"""URSABench in this package's words: its schedules, in epochs, against a table written by hand."""

import importlib.util
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import pp_testbed as pt

ROOT = Path(__file__).parent.parent
EPOCH = 469  # batches of 128 of 60,000 rows
FACTS = {"model": "ursa_mnist", "num_train": 60_000}


def published(name):
    return pt.method(name, preset="ursabench", facts=FACTS)


def test_the_preset_is_what_the_table_says():
    path = ROOT / "benchmarks" / "ursabench_preset.py"
    spec = importlib.util.spec_from_file_location("ursabench_preset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert json.loads(module.FILE.read_text()) == module.preset()


@pytest.mark.parametrize(
    ("name", "epochs", "samples_after"),
    [
        ("sgld", 150, range(51, 151)),
        ("sgmcmc", 150, range(51, 151)),
        ("csgld", 210, [21 * cycle + end for cycle in range(10) for end in (19, 20, 21)]),
        ("csghmc", 220, [22 * cycle + end for cycle in range(10) for end in (19, 20, 21, 22)]),
    ],
)
def test_samples_are_taken_after_the_published_epochs(name, epochs, samples_after):
    made = published(name)
    assert made.num_steps == epochs * EPOCH
    assert made.thinning == EPOCH
    assert [index + 1 for index in made.kept()] == list(samples_after)


@pytest.mark.parametrize(("name", "cycle", "samples"), [("csgld", 21, 3), ("csghmc", 22, 4)])
def test_cycles_have_noise_in_the_published_epochs(name, cycle, samples):
    """lr = lr0 (cos(π r / C) + 1) / 2 with r the batch of the cycle, and noise in its last S + 1 epochs."""
    made = published(name)
    steps = np.arange(cycle * EPOCH)
    rates, noise = (np.asarray(part) for part in made.step_size(jnp.asarray(steps), jnp.asarray(1.0)))
    expected = 0.5 * (np.cos(np.pi * steps / len(steps)) + 1.0)
    np.testing.assert_allclose(rates, expected, atol=1e-5)
    first = (cycle - samples - 1) * EPOCH
    # In single precision the place in a cycle is known to a batch.
    assert not noise[: first - 1].any()
    assert noise[first + 1 :].all()


def test_chains_have_the_published_prior_step_and_temperature():
    made = published("sgmcmc")
    assert np.sqrt(made.prior_variance / 2) == pytest.approx(0.14047)
    assert float(made.rate(60_000)) * 60_000 == pytest.approx(0.03135)
    assert made.cold
    assert 1.0 - made.momentum == pytest.approx(0.102)
    assert published("mlp").l2 * 2 / 60_000 == pytest.approx(3.0406e-4)


def test_descent_has_the_published_rates_and_decay():
    rates = {"mlp": (0.1, 0.9, "cosine"), "dropout": (0.08323, 0.90408, "one-cycle")}
    for name, (rate, momentum, schedule) in rates.items():
        made = published(name)
        assert (made.optimizer, made.schedule, made.num_steps) == ("sgd", schedule, 50 * EPOCH)
        assert (made.learning_rate, made.momentum) == pytest.approx((rate, momentum))
    assert published("subspace-ess").likelihood_power == pytest.approx(1 / 5000)
    assert published("subspace-ess").sgd_rate == pytest.approx(0.0017)


def test_hmc_has_the_published_trajectories():
    """A mass m and steps of ε are a mass of 1 and steps of ε / √m."""
    made = published("hmc")
    assert (made.num_leapfrog, made.warmup, made.num_draws, made.adapts) == (40, 200, 100, False)
    assert made.step_size * np.sqrt(0.19192) == pytest.approx(2.0897e-4)
