"""The evaluator against closed forms, against itself in another form, and its error bars."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import pp_testbed as pt
from pp_testbed.evaluation.classes import score_chunk
from pp_testbed.evaluation.scores import ece_terms, mce_terms
from pp_testbed.evaluation.terms import Terms, marginal_terms, summarise
from pp_testbed.inference.posterior import Plain
from pp_testbed.models.base import read_outputs, sample_latents

KEY = jax.random.key(7)
PROBLEM = pt.problem("2d/T10-rho0.5-s1")


def the_truth(environment, x):
    return environment.logits(x)


def truth_as_posterior(problem):
    environment = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], problem.environment)
    return pt.Finite.equal(Partial(the_truth), environment)


def prior_draws(num, seed=0, problem=PROBLEM):
    """A finite posterior of `num` functions, draws of the prior."""
    model, task = problem.model, problem.task
    keys = jax.random.split(jax.random.key(seed), num)
    latents = jax.vmap(lambda key: sample_latents(model, task.x, task.y, key))(keys)
    return pt.Finite.equal(Partial(read_outputs, model), latents)


def test_the_truth_scores_zero():
    scores = pt.evaluate(truth_as_posterior(PROBLEM), PROBLEM, key=KEY)
    for name in ("kl_marginal", "kl_joint", "kl_dyadic", "kl_aggregate"):
        assert abs(getattr(scores, name)) < 2e-6
    assert scores.labels == "exact"


def test_uniform_has_closed_forms():
    """KL of uniform predictions is tau log K minus the truth's entropy, and so on."""
    uniform = pt.finite(lambda x: np.zeros((1, len(x), 2)))
    scores = pt.evaluate(uniform, PROBLEM, key=KEY)
    x = PROBLEM.model.inputs(jax.random.split(KEY, 3)[0], 3000)
    p = np.asarray(jax.nn.softmax(PROBLEM.environment.logits(x)), dtype=np.float64)
    entropy = -(p * np.log(p)).sum(axis=1)
    assert scores.kl_marginal == pytest.approx(np.mean(np.log(2) - entropy), rel=1e-5)
    assert scores.kl_joint == pytest.approx(10 * np.mean(np.log(2) - entropy), rel=1e-5)
    assert scores.nll == pytest.approx(np.log(2), rel=1e-5)
    assert scores.brier == pytest.approx(0.5, rel=1e-5)
    assert scores.accuracy == pytest.approx(p[:, 0].mean(), rel=1e-5)
    assert scores.ece == pytest.approx(abs(p[:, 0].mean() - 0.5), rel=1e-4)
    anchors = entropy.reshape(300, 10)[:, :2].mean(axis=1)
    assert scores.kl_dyadic == pytest.approx(np.mean(10 * (np.log(2) - anchors)), rel=1e-5)


def test_one_function_has_additive_kl():
    """For one function labels are independent: d^tau is tau times the mean of d¹ over its inputs."""
    scores = pt.evaluate(prior_draws(1), PROBLEM, key=KEY)
    assert scores.kl_joint == pytest.approx(10 * scores.kl_marginal, rel=1e-5)
    assert scores.kl_aggregate == pytest.approx(2 * scores.kl_marginal, rel=1e-5)


def test_marginal_terms_by_hand():
    truth, predicted = np.array([[[0.2, 0.8], [0.9, 0.1]]]), np.array([[[0.3, 0.7], [0.4, 0.6]]])
    # The predictive mean of two equally likely functions.
    functions = np.stack([predicted * 1.1, predicted * 0.9], axis=-1)
    terms = marginal_terms(np.log(truth), np.log(functions), np.log([0.5, 0.5]), 1)
    terms = {name: np.asarray(values)[0] for name, values in terms.whole.items()}
    np.testing.assert_allclose(terms["accuracy"], [0.8, 0.1], rtol=1e-5)
    np.testing.assert_allclose(terms["predicted"].max(axis=-1), [0.7, 0.6], rtol=1e-5)
    nll = -(truth * np.log(predicted)).sum(axis=-1)[0]
    np.testing.assert_allclose(terms["nll"], nll, rtol=1e-5)
    kl = (truth * np.log(truth / predicted)).sum(axis=-1)[0]
    np.testing.assert_allclose(terms["kl_marginal"], kl, rtol=1e-4)
    # E_y |p - e_y|² = sum_y P*(y) ((1 - p_y)² + sum of the other p²)
    brier = [0.2 * (0.49 + 0.49) + 0.8 * (0.09 + 0.09), 0.9 * (0.36 + 0.36) + 0.1 * (0.16 + 0.16)]
    np.testing.assert_allclose(terms["brier"], brier, rtol=1e-5)


def parts_of(confidence, accuracy):
    """What calibration errors are made of, of two classes."""
    predicted = jnp.stack([confidence, 1.0 - confidence], axis=-1)
    return {"predicted": predicted, "accuracy": accuracy}


def test_calibration_errors_by_hand():
    parts = parts_of(jnp.array([0.95, 0.95, 0.55, 0.55, 0.99]), jnp.array([1.0, 0.8, 0.7, 0.6, 0.9]))
    by_hand = (abs(2.89 - 2.7) + abs(1.1 - 1.3)) / 5
    assert float(ece_terms(parts).mean()) == pytest.approx(by_hand, rel=1e-5)
    assert float(mce_terms(parts).mean()) == pytest.approx(0.2 / 2, rel=1e-5)


def test_the_error_of_the_worst_bin_is_its_spread():
    """Of samples of inputs, whose confidences are of two bins; the worse one is known."""

    def one(key):
        key_bin, key_label = jax.random.split(key)
        is_worse = jax.random.bernoulli(key_bin, 0.3, (500,))
        confidence = jnp.where(is_worse, 0.85, 0.65)
        accuracy = jax.random.bernoulli(key_label, jnp.where(is_worse, 0.55, 0.6), (500,)) * 1.0
        terms = mce_terms(parts_of(confidence, accuracy))
        return terms.mean(), terms.std(ddof=1) / jnp.sqrt(500.0)

    values, errors = jax.vmap(one)(jax.random.split(KEY, 2000))
    assert float(values.mean()) == pytest.approx(0.3, abs=4 * float(values.std()) / 2000**0.5 + 0.002)
    # The sd of 2000 values is known to 1.6 %; the mean of errors better.
    assert float(errors.mean()) == pytest.approx(float(values.std()), rel=0.06)


def test_plain_and_jax_posteriors_score_the_same():
    posterior = prior_draws(20)
    plain = pt.finite(lambda x: np.asarray(posterior.values(jnp.asarray(x))))
    one, other = pt.evaluate(posterior, PROBLEM, key=KEY), pt.evaluate(plain, PROBLEM, key=KEY)
    for name, value in one.asdict().items():
        if isinstance(value, float):
            assert getattr(other, name) == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_chunks_do_not_matter(monkeypatch):
    from pp_testbed.evaluation import terms

    posterior, config = prior_draws(20), pt.Evaluation(num_batches=37)
    one = pt.evaluate(posterior, PROBLEM, key=KEY, config=config)
    monkeypatch.setattr(terms, "CHUNK", 2**15)
    other = pt.evaluate(posterior, PROBLEM, key=KEY, config=replace(config, num_label_samples=7))
    assert terms.Evaluation.batches_per_chunk(config, 20, 2) < 4
    assert one.kl_joint == pytest.approx(other.kl_joint, rel=1e-5)
    assert one.ece == pytest.approx(other.ece, rel=1e-4)


def test_weights_of_a_finite_posterior():
    posterior = prior_draws(2)
    doubled = pt.Finite(
        posterior.function,
        jax.tree.map(lambda leaf: leaf[jnp.array([0, 1, 0])], posterior.draws),
        jnp.log(jnp.array([0.25, 0.5, 0.25])),
    )
    one, other = pt.evaluate(posterior, PROBLEM, key=KEY), pt.evaluate(doubled, PROBLEM, key=KEY)
    assert one.kl_joint == pytest.approx(other.kl_joint, rel=1e-5)
    plain = pt.finite(lambda x: np.asarray(doubled.values(jnp.asarray(x))), weights=[1, 2, 1])
    assert pt.evaluate(plain, PROBLEM, key=KEY).kl_joint == pytest.approx(one.kl_joint, rel=1e-5)


def test_a_finite_posterior_has_no_label_noise_and_no_bias():
    """Keys for labels and draws change nothing: only the inputs are random."""
    config = pt.Evaluation(num_batches=20)
    x = PROBLEM.model.inputs(KEY, 200)
    posterior = prior_draws(10)
    logits, truth = posterior.values(x), PROBLEM.environment.logits(x)
    terms = [
        jax.jit(score_chunk, static_argnums=(4, 5))(key, logits, truth, posterior.log_weights, 1, config)
        for key in jax.random.split(KEY, 2)
    ]
    np.testing.assert_array_equal(*(one.whole["kl_joint"] for one in terms))
    assert pt.evaluate(posterior, PROBLEM, key=KEY).kl_joint_bias == 0.0


@pytest.mark.slow
def test_sampled_labels_where_enumeration_is_too_large():
    problem = pt.problem(num_train=10, num_classes=6, temperature=0.5)
    scores = pt.evaluate(prior_draws(5, problem=problem), problem, key=KEY, num_batches=50)
    assert scores.labels == "sampled for joint and dyadic"
    # A single function's joint KL is additive, so that the exact value is known.
    one = pt.evaluate(prior_draws(1, problem=problem), problem, key=KEY, num_batches=400)
    assert abs(one.kl_joint - 10 * one.kl_marginal) < 4 * one.kl_joint_stderr


def test_sampled_and_exact_labels_agree():
    posterior = prior_draws(10)
    exact = pt.evaluate(posterior, PROBLEM, key=KEY)
    sampled = pt.evaluate(posterior, PROBLEM, key=KEY, labels="sampled")
    assert sampled.labels == "sampled for joint and dyadic"
    for name in ("kl_joint", "kl_dyadic"):
        error = getattr(sampled, name + "_stderr")
        assert abs(getattr(sampled, name) - getattr(exact, name)) < 4 * error


@pytest.mark.slow
def test_standard_errors_are_those_of_repetition():
    """Over 200 sets of test inputs: the spread of each score is its mean standard error within 25 %.

    The relative standard error of a standard deviation from 200 values is 5 %.
    """
    posterior, config = prior_draws(5), pt.Evaluation(num_batches=50)
    scores = [pt.evaluate(posterior, PROBLEM, key=key, config=config) for key in jax.random.split(KEY, 200)]
    for name in ("kl_marginal", "kl_joint", "kl_dyadic", "kl_aggregate", "accuracy", "nll", "brier"):
        spread = np.std([getattr(score, name) for score in scores], ddof=1)
        claimed = np.sqrt(np.mean([getattr(score, name + "_stderr") ** 2 for score in scores]))
        assert claimed == pytest.approx(spread, rel=0.25), name


@pytest.mark.slow
def test_bias_of_finitely_many_draws_is_measured():
    """Ten draws of the prior, 400 times, against four thousand: the difference is the bias reported."""
    posterior = pt.method("prior").fit(KEY, PROBLEM.task)
    best = pt.evaluate(posterior, PROBLEM, key=KEY, num_batches=30, num_draws=4000).kl_joint
    few = [
        pt.evaluate(prior_as_sampled(posterior, i), PROBLEM, key=KEY, num_batches=30, num_draws=10)
        for i in range(400)
    ]
    true_bias = np.array([score.kl_joint - best for score in few])
    bias = np.array([score.kl_joint_bias for score in few])
    assert true_bias.mean() > 4 * true_bias.std(ddof=1) / np.sqrt(400)
    error = (true_bias - bias).std(ddof=1) / np.sqrt(400)
    # The jackknife removes the first order of 1/10; the second is allowed to remain.
    assert abs((true_bias - bias).mean()) < 3 * error + true_bias.mean() / 5


def prior_as_sampled(posterior, i):
    """The same posterior with other draws for the same key."""
    return pt.Sampled(posterior.function, Partial(_with_other_key, posterior.sampler, i))


def _with_other_key(sampler, i, key):
    return sampler(jax.random.fold_in(key, i))


def test_summary_of_terms():
    whole = {
        "kl_marginal": jnp.array([[1.0, 3.0], [2.0, 6.0]]),
        **dict.fromkeys(["kl_joint", "kl_dyadic"], jnp.array([10.0, 20.0])),
        **dict.fromkeys(["nll", "brier"], jnp.ones((2, 2))),
        "accuracy": jnp.ones((2, 2)),
        "predicted": jnp.ones((2, 2, 1)),
    }
    all_there_is = {name: values[:, None] for name, values in whole.items()}
    summary = summarise(Terms(whole, all_there_is), pt.Evaluation(tau=10))
    assert float(summary["kl_aggregate"]) == pytest.approx(3.0 + 1.5)
    assert float(summary["kl_joint_stderr"]) == pytest.approx(5.0)
    assert float(summary["kl_aggregate_stderr"]) == pytest.approx(np.std([3.0, 6.0], ddof=1) / np.sqrt(2))
    # Two halves that say 1 more and 3 more, everywhere: bias (G - 1) mean, variance (G - 1)/G sum of squares.
    halves = {name: jnp.stack([values + 1.0, values + 3.0], axis=1) for name, values in whole.items()}
    drawn = summarise(Terms(whole, halves), pt.Evaluation(tau=10))
    assert float(drawn["kl_joint_bias"]) == pytest.approx(2.0)
    assert float(drawn["kl_joint_stderr"]) == pytest.approx(np.sqrt(5.0**2 + 0.5 * 2.0))
    assert float(drawn["kl_aggregate_bias"]) == pytest.approx(2.0 + 0.2)


@pytest.mark.parametrize(("tau", "kappa"), [(1, 1), (5, 3), (3, 5), (20, 2)])
def test_any_tau_and_kappa(tau, kappa):
    scores = pt.evaluate(prior_draws(3), PROBLEM, key=KEY, tau=tau, kappa=kappa, num_batches=40)
    assert 0 < scores.kl_joint < tau * 30
    if tau == 1:
        assert scores.kl_joint == pytest.approx(scores.kl_marginal, rel=1e-4)
        assert scores.kl_dyadic == pytest.approx(scores.kl_marginal, rel=1e-4)


def test_a_plain_sampler_draws_the_same_functions_at_all_inputs():
    def step(x, rng):
        return np.where(x[:, :1] > rng.normal(), [[4.0, 0.0]], [[0.0, 4.0]])

    posterior = pt.sampled(step)
    x = np.random.default_rng(0).normal(size=(50, 2))
    whole = posterior.logits(KEY, x, num_draws=30)
    part = posterior.logits(KEY, x[20:], num_draws=30)
    assert whole.shape == (30, 50, 2)
    np.testing.assert_array_equal(whole[:, 20:], part)
    scores = pt.evaluate(posterior, PROBLEM, key=KEY, num_draws=30, num_batches=20)
    assert scores.kl_joint_bias > 0
    assert pt.evaluate(step, PROBLEM, key=KEY, num_draws=30, num_batches=20) == scores


def test_mistakes_are_answered_in_one_line():
    for posterior, words in [
        (pt.finite(lambda x: np.zeros((len(x), 2))), r"expected \[draws, N, K\]"),
        (pt.finite(lambda x: np.zeros((1, len(x), 3))), "logits have 3 classes; the problem has 2"),
        (pt.sampled(lambda x, rng: np.zeros((1, len(x), 2))), r"expected \[N, K\]"),
        (Plain(lambda x: np.zeros((2, len(x), 2)), True, np.log([1.0])), "1 weights for 2 draws"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            pt.evaluate(posterior, PROBLEM, key=KEY)
    for problem in (None, "2d/T10-rho0.1-s0"):
        with pytest.raises(pt.UsageError, match=r"the problem is .*; expected one, as in pt\.problem"):
            pt.evaluate(prior_draws(1), problem, key=KEY)
    with pytest.raises(pt.UsageError, match="key is 3; expected a key of JAX"):
        pt.evaluate(prior_draws(1), PROBLEM, key=3)
    with pytest.raises(pt.UsageError, match="Ensemble is no posterior: fit it first"):
        pt.evaluate(pt.method("mlp"), PROBLEM, key=KEY)
    with pytest.raises(pt.UsageError, match="expected a function of inputs, not ndarray"):
        pt.finite(np.zeros(3))
    with pytest.warns(UserWarning, match="scores are NaN: the posterior's logits contain NaN"):
        pt.evaluate(pt.finite(lambda x: np.full((1, len(x), 2), np.nan)), PROBLEM, key=KEY, num_batches=2)
    with pytest.raises(pt.UsageError, match="num_draws is 1; expected a whole number, at least 2"):
        pt.Evaluation(num_draws=1)
    with pytest.raises(pt.UsageError, match="tau is 0; expected a whole number, at least 1"):
        pt.Evaluation(tau=0)
    with pytest.raises(pt.UsageError, match="NaN"):
        prior_draws(1).logits(KEY, np.full((1, 2), np.nan))
    with pytest.raises(pt.UsageError, match="non-negative"):
        pt.finite(lambda x: x, weights=[-1.0, 2.0])
