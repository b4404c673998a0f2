"""Diagnostics on chains whose convergence is known, and ArviZ objects of either version."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import pp_testbed as pt
from pp_testbed.evaluation.diagnostics import diagnose, diagnose_values, diagnostics_table, probe_values
from pp_testbed.inference.arviz import arviz, probe_inputs
from pp_testbed.inference.mcmc import NUTS

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def fresh_generator():
    """Each test has its own numbers, whichever process it runs in."""
    global RNG
    RNG = np.random.default_rng(0)


def autoregressive(phi, chains=4, draws=2000, probes=100):
    """Stationary AR(1) chains of variance 1, whose ESS is M (1 - phi) / (1 + phi): [4, draws, probes]."""
    noise = RNG.normal(size=(chains, draws, probes))
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0]
    for t in range(1, draws):
        values[:, t] = phi * values[:, t - 1] + np.sqrt(1 - phi**2) * noise[:, t]
    return values


def stats(values, **more):
    return {"lp": values[..., 0], **more}


def test_effective_sample_size_and_mcse_of_autoregressive_chains():
    phi = 0.6
    values = autoregressive(phi)
    exact = 4 * 2000 * (1 - phi) / (1 + phi)
    table = diagnostics_table(values, stats(values))
    ess = table.ess_bulk[:100]
    # ArviZ truncates the sum of autocorrelations; its relative error per probe is a few percent.
    assert abs(ess.mean() / exact - 1) < 0.05
    np.testing.assert_allclose(table.mcse[:100].mean(), exact**-0.5, rtol=0.05)
    assert list(table.quantity[-2:]) == ["probe 99", "lp"]


def test_the_gate_passes_good_chains_and_says_what_is_wrong_with_bad_ones():
    good = autoregressive(0.3)
    fine = diagnose_values(good, stats(good, diverging=np.zeros(good.shape[:2], bool)))
    assert fine.converged
    assert fine.failures == []
    shifted = good.copy()
    shifted[0, :, 7] += 1.0  # one chain, at one probe
    assert "R-hat is 1." in diagnose_values(shifted, stats(good)).failures[0]
    slow = autoregressive(0.99)
    assert any("bulk ESS" in line for line in diagnose_values(slow, stats(slow)).failures)
    diverging = np.zeros(good.shape[:2], bool)
    diverging[:, :3] = True
    assert diagnose_values(good, stats(good, diverging=diverging)).failures == [
        "0.15% of transitions diverge"
    ]
    few = diagnose_values(good[..., :50], stats(good))
    assert few.failures == ["there are only 50 probes"]


def test_nan_draws_never_pass():
    values = autoregressive(0.3)
    values[2, 5, 3] = np.nan
    found = diagnose_values(values, stats(autoregressive(0.3)))
    assert not found.converged


def test_energy_fraction_of_missing_information():
    values, energy = autoregressive(0.0), RNG.normal(size=(4, 2000))
    # For independent energies the mean squared difference is twice the variance.
    assert diagnose_values(values, stats(values, energy=energy)).bfmi == pytest.approx(2.0, abs=0.2)


@pytest.fixture(scope="module")
def chains():
    problem = pt.problem(num_train=3)
    sampler = NUTS(num_chains=2, warmup=20, num_draws=25, max_depth=3)
    return jax.jit(lambda key, task: sampler.fit(key, task))(jax.random.key(0), problem.draw()[0])


def test_probe_values_are_logit_differences(chains):
    x = probe_inputs(chains.task.model)
    logits = chains.logits(jax.random.key(0), x)
    np.testing.assert_allclose(probe_values(chains, x)[..., 0], logits[..., 1] - logits[..., 0], rtol=1e-4)


def test_short_chains_have_not_converged(chains):
    found = diagnose(chains)
    assert (found.num_chains, found.num_draws, found.num_probes) == (2, 25, 128)
    assert not found.converged
    assert 1.0 <= found.tree_depth <= 3.0


def test_arviz_object_has_all_groups_and_saves(chains, tmp_path):
    data = chains.to_arviz()
    names = {"posterior", "sample_stats", "log_likelihood", "posterior_predictive"}
    assert names | {"observed_data", "constant_data"} <= groups_of(data)
    assert data["posterior"]["w0_base"].shape == (2, 25, 2, 50)
    assert data["posterior"]["probe"].shape == (2, 25, 128, 1)
    assert data["observed_data"]["y"].shape == (3,)  # without the padding
    x, y = chains.task.x[:3], chains.task.y[:3]
    log_probs = jax.nn.log_softmax(chains.logits(jax.random.key(0), x))
    exact = np.asarray(log_probs)[:, np.arange(3), np.asarray(y)].reshape(2, 25, 3)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values, exact, rtol=1e-4, atol=1e-6)
    data.to_netcdf(tmp_path / "chains.nc")
    assert (tmp_path / "chains.nc").stat().st_size > 10_000


@pytest.mark.parametrize("plot", ["rank", "trace", "energy", "ecdf"])
def test_arviz_plots_work(chains, plot):
    import matplotlib

    matplotlib.use("agg")
    az, data = arviz(), chains.to_arviz(probes=jnp.zeros((2, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if plot == "energy":
            az.plot_energy(data)
        elif plot == "ecdf":
            values = data["posterior"]["probe"].values.ravel()
            if az.__version__.startswith("0."):
                az.plot_ecdf(np.sort(values), cdf=norm.cdf, difference=True, confidence_bands=True)
            else:
                az.plot_ecdf_pit(data, var_names=["probe"], group="posterior")
        else:
            getattr(az, f"plot_{plot}")(data, var_names=["probe"])


def test_an_ensemble_is_one_chain_and_needs_its_task():
    problem = pt.problem(num_train=3)
    posterior = pt.method("ensemble", size=3, num_steps=2).fit(jax.random.key(0), problem.task)
    with pytest.raises(pt.UsageError, match=r"say it, as in to_arviz\(problem.task\)"):
        posterior.to_arviz()
    assert posterior.to_arviz(problem.task)["posterior"]["w1"].shape == (1, 3, 50, 50)


@pytest.mark.slow
def test_draws_of_a_user_are_chains_too(chains):
    """The same functions, from Python: the same diagnostics, ranks and groups, and error bars by draws."""
    problem = pt.problem(num_train=3)
    plain = pt.finite(lambda x: np.asarray(chains.values(jnp.asarray(x))), chains=2)
    probes = probe_inputs(problem.model)
    one, other = diagnose(plain, probes), diagnose(chains, probes)
    assert (one.num_chains, one.num_draws) == (2, 25)
    assert one.rhat == pytest.approx(other.rhat, rel=1e-4)
    data = plain.to_arviz(problem.task)
    assert data["posterior"]["probe"].shape == (2, 25, 128, 1)
    assert {"log_likelihood", "posterior_predictive", "observed_data"} <= groups_of(data)
    scores = [pt.evaluate(p, problem, key=problem.keys.evaluate, num_batches=20) for p in (plain, chains)]
    assert scores[0].kl_joint_stderr == pytest.approx(scores[1].kl_joint_stderr, rel=1e-3)
    with pytest.raises(pt.UsageError, match="there are 5 draws; expected a multiple of 2 chains"):
        diagnose(pt.finite(lambda x: np.zeros((5, len(x), 2)), chains=2), probes)
    with pytest.raises(pt.UsageError, match="diagnose needs the chains"):
        diagnose(pt.finite(lambda x: np.zeros((5, len(x), 2))), probes)


def test_a_shipped_reference_is_of_four_chains_with_statistics():
    """Kept draws with parameters, and all of them at the probes: only of these are energies neighbours."""
    reference = pt.reference("2d/T10-rho0.1-s0")
    kept, whole = reference.posterior.to_arviz(), reference.to_arviz()
    assert kept["posterior"]["probe"].shape == (4, 25, 128, 1)
    assert kept["posterior_predictive"]["y"].shape == (4, 25, 10)
    assert "energy" not in kept["sample_stats"]
    assert whole["posterior"]["probe"].shape == (4, 500, 128, 1)
    energies = whole["sample_stats"]["energy"].values
    assert float(np.min(arviz().bfmi(energies))) == pytest.approx(reference.diagnostics.bfmi, rel=1e-6)


def groups_of(data):
    return {str(name).strip("/") for name in (data.children if hasattr(data, "children") else data.groups())}
