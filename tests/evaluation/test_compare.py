"""Distances between posteriors, against brute force, closed forms and their own null distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.stats import kstest

import pp_testbed as pt
from pp_testbed.evaluation.compare import (
    _clouds,
    _paired,
    classifier_test,
    correlation_error,
    energy_distance,
    energy_p_value,
    num_independent,
)
from pp_testbed.evaluation.evaluator import terms_of
from pp_testbed.models.base import read_outputs, sample_latents

RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def fresh_generator():
    """Each test has its own numbers, whichever process it runs in."""
    global RNG
    RNG = np.random.default_rng(1)


def test_energy_distance_of_two_points_and_by_brute_force():
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    assert energy_distance(zero, one, np.ones(1)) == pytest.approx(2.0)
    x, y, weights = RNG.normal(size=(7, 3)), RNG.normal(size=(5, 3)), RNG.dirichlet(np.ones(7))

    def mean_distance(a, b, wa, wb):
        return sum(wa[i] * wb[j] * np.linalg.norm(a[i] - b[j]) for i in range(len(a)) for j in range(len(b)))

    equal = np.full(5, 0.2)
    brute = (
        2 * mean_distance(x, y, weights, equal)
        - mean_distance(x, x, weights, weights)
        - mean_distance(y, y, equal, equal)
    )
    assert energy_distance(x, y, weights) == pytest.approx(brute, rel=1e-6)


def test_energy_test_is_uniform_under_the_null_and_sees_a_wider_cloud():
    p_values = [
        energy_p_value(RNG.normal(size=(60, 4)), RNG.normal(size=(40, 4)), RNG, 199) for _ in range(300)
    ]
    jittered = np.array(p_values) - RNG.uniform(size=300) / 200
    assert kstest(jittered, "uniform").pvalue > 1e-3
    assert energy_p_value(2 * RNG.normal(size=(60, 4)), RNG.normal(size=(60, 4)), RNG) == 0.001


@pytest.mark.slow
def test_classifier_sees_a_wider_cloud_and_nothing_in_equal_ones():
    narrow = RNG.normal(size=(200, 8))
    accuracy, p_value = classifier_test(2 * RNG.normal(size=(200, 8)), narrow, RNG)
    assert accuracy > 0.75
    assert p_value < 1e-6
    same = [classifier_test(RNG.normal(size=(100, 8)), RNG.normal(size=(100, 8)), RNG) for _ in range(60)]
    accuracies, p_values = np.array(same).T
    assert abs(accuracies.mean() - 0.5) < 4 * np.sqrt(0.25 / 100 / 60)  # 100 predictions each
    assert accuracies.var() < 0.25 / 100 * (1 + 4 * np.sqrt(2 / 59))  # no more than binomial
    assert (p_values <= 0.05).mean() < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 60)


def test_correlation_error_by_brute_force():
    logits, exact = RNG.normal(size=(50, 6, 1)), RNG.normal(size=(80, 6, 1))
    logits[:, 1] = logits[:, 0]  # two inputs predicted together

    def correlations(values):
        return np.corrcoef(1 / (1 + np.exp(-values[..., 0])).T)

    pairs = np.triu_indices(6, 1)
    brute = np.sqrt(((correlations(logits) - correlations(exact))[pairs] ** 2).mean())
    assert correlation_error(logits, np.full(50, 0.02), exact) == pytest.approx(brute, rel=1e-4)
    constant = np.sqrt((correlations(exact)[pairs] ** 2).mean())
    assert correlation_error(logits[:1], np.ones(1), exact) == pytest.approx(constant, rel=1e-4)


@pytest.fixture(scope="module")
def reference():
    return pt.reference("2d/T10-rho0.1-s0")


def test_excess_is_the_paired_difference_of_scores(reference):
    problem = reference.problem
    posterior = pt.method("ensemble", size=30, num_steps=300).fit(jax.random.key(0), problem.task)
    found = pt.compare(posterior, reference)
    scores = pt.evaluate(posterior, problem, key=problem.keys.evaluate)
    assert found.excess_kl_joint == pytest.approx(scores.kl_joint - reference.scores.kl_joint, rel=1e-4)
    unpaired = np.hypot(scores.kl_joint_stderr, reference.scores.kl_joint_stderr)
    assert found.excess_kl_joint_stderr < unpaired
    assert found.energy_p == 0.001
    assert found.classifier_p < 1e-2  # of 30 predictions


@pytest.mark.slow
def test_the_exact_posterior_has_no_excess():
    """Independent draws by rejection from the prior: excesses of 0, to their errors.

    The blocks share the reference and its error, a part of the claim. (`benchmarks/rejection.py` has 100.)
    """
    exact = pt.reference("2d/T3-rho0.1-s0")
    task, size, distances = exact.problem.task, 400, []

    @jax.jit
    def propose(key):
        latents = sample_latents(task.model, task.x, task.y, key)
        log_probs = jax.nn.log_softmax(read_outputs(task.model, latents, task.x))
        likelihood = jnp.exp(jnp.take_along_axis(log_probs, task.y[:, None], axis=1).sum())
        return latents, jax.random.uniform(jax.random.fold_in(key, 1)) < likelihood

    for block in range(6):
        keys = jax.random.split(jax.random.key(block), 8000)
        latents, accepted = jax.lax.map(propose, keys, batch_size=500)
        chosen = np.flatnonzero(accepted)[:size]
        assert len(chosen) == size
        draws = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], latents)
        weights = jnp.full(size, -jnp.log(size))
        posterior = pt.Finite(Partial(read_outputs, task.model), draws, weights, None, 10)
        key, config = exact.problem.keys.evaluate, exact.evaluation
        found = _paired(terms_of(posterior, exact.problem.environment, key, config)[0], exact)
        distances.append(found["excess_kl_joint"] / found["excess_kl_joint_stderr"])
    assert np.abs(distances).max() < 2.5
    assert np.sqrt(np.mean(np.square(distances))) > 0.2  # and the claim is not too large either


@pytest.mark.slow
def test_sticky_chains_of_the_same_posterior_are_not_rejected():
    """Each draw is the one before with probability 0.4: both tests reject 5 % at 5 %."""
    rejected = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        fresh, exact = rng.normal(size=(250, 4, 1)), rng.normal(size=(250, 4, 1))
        stays = rng.uniform(size=250) < 0.4
        stays[0] = False
        values = fresh[np.maximum.accumulate(np.where(stays, 0, np.arange(250)))]
        found = _clouds(values, np.ones(250), (num_independent(values, 1), 250), exact, rng)
        rejected.append([found[name] <= 0.05 for name in ("energy_p", "classifier_p")])
    assert (np.mean(rejected, axis=0) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)).all()


def test_independent_halves_of_the_reference_are_the_same_posterior(reference):
    """Chains 0 and 1 against 2 and 3: no test may tell them apart."""
    halves = reference.values.reshape(2, -1, *reference.values.shape[2:]).astype(float)
    spread = halves[1].std(axis=0)
    x, y = ((half[::5] / spread).reshape(200, -1) for half in halves)
    assert energy_p_value(x, y, RNG) > 0.01
    assert classifier_test(x, y, RNG)[1] > 0.01


def test_what_cannot_be_compared_is_said(reference):
    with pytest.raises(pt.UsageError, match=r"takes a posterior and a reference .* not str and Reference"):
        pt.compare("mlp", reference)
    other = pt.problem(num_train=3)
    chains = pt.NUTS(num_chains=1, warmup=2, num_draws=2, max_depth=1).fit(jax.random.key(0), other.draw()[0])
    with pytest.raises(pt.UsageError, match="conditioned on other data"):
        pt.compare(chains, reference)
    with pytest.raises(pt.UsageError, match="not Finite"):
        pt.diagnose(pt.method("mlp", num_steps=1).fit(jax.random.key(0), reference.problem.task))
    broken = pt.finite(lambda x: np.tile([[[0.0, 0.0]], [[0.0, -np.inf]]], (1, len(x), 1)))
    with pytest.raises(pt.UsageError, match="draw 1 of the posterior has logits that are not finite"):
        pt.compare(broken, reference)
    with pytest.raises(pt.UsageError, match="key is 3; expected a key of JAX"):
        pt.compare(reference.posterior, reference, key=3)


def test_a_point_has_no_two_sample_tests(reference):
    posterior = pt.method("mlp", num_steps=300).fit(jax.random.key(0), reference.problem.task)
    found = pt.compare(posterior, reference)
    assert np.isnan(found.energy_p)
    assert np.isnan(found.classifier_accuracy)
    assert "total_variation" in str(found)


@pytest.mark.slow
def test_functions_of_unequal_weights_are_all_counted(reference):
    """Every function twice, of weights 2/3 and 1/3, is the same posterior as once."""
    flat = reference.values[..., 0].reshape(-1, 128)[:100]
    logits = np.stack([np.zeros_like(flat), flat], axis=-1)
    twice, weights = np.concatenate([logits, logits]), np.repeat([2.0, 1.0], 100)
    whole = pt.finite(lambda x: logits if len(x) == 128 else np.zeros((100, len(x), 2)))
    split = pt.finite(lambda x: twice if len(x) == 128 else np.zeros((200, len(x), 2)), weights)
    one, other = pt.compare(whole, reference), pt.compare(split, reference)
    assert other.energy_distance == pytest.approx(one.energy_distance, rel=1e-3)
    assert other.correlation_error == pytest.approx(one.correlation_error, rel=1e-3)
    assert np.isnan(other.energy_p)
    assert np.isnan(other.classifier_p)


def test_a_plain_function_is_compared_too(reference):
    found = pt.compare(lambda x, rng: np.zeros((len(x), 2)), reference)
    best = reference.terms["predicted"]
    assert found.excess_kl_joint > 4 * found.excess_kl_joint_stderr
    assert found.total_variation == pytest.approx(np.abs(best[..., 0] - 0.5).mean(), rel=1e-4)
