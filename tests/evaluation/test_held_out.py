"""Scores of labels that were held out, against brute force and closed forms."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm, t

import pp_testbed as pt
from pp_testbed.evaluation import held_out
from pp_testbed.evaluation.evaluator import score_inputs
from pp_testbed.evaluation.terms import stderr_of_batches, summarise
from pp_testbed.models.base import HeldOut
from pp_testbed.models.likelihoods import Categorical, Normal, StudentT

KEY = jax.random.key(0)
# A log likelihood of ten labels is a sum of a few nats, which float32 holds to 6e-8 relative.
FLOAT32 = {"rtol": 2e-5, "atol": 1e-5}


def table_of(values, x):
    """A function that is known by its outputs at rows, whose numbers are the inputs."""
    return values[x[:, 0].astype(int)]


def posterior_of(outputs, weights=None, num_groups=1):
    """Functions with outputs [M, N, D] at rows 0, ..., N - 1."""
    num = len(outputs)
    weights = np.full(num, 1.0 / num) if weights is None else np.asarray(weights)
    log_weights = jnp.log(jnp.asarray(weights, dtype=jnp.float32))
    return pt.Finite(
        Partial(table_of), jnp.asarray(outputs, dtype=jnp.float32), log_weights, None, num_groups
    )


def truth_of(y, likelihood, num_classes=0):
    rows = jnp.arange(len(y), dtype=jnp.float32)[:, None]
    return HeldOut(rows, jnp.asarray(y), likelihood, num_classes)


def classes(seed, num=30, num_classes=10, functions=7):
    """Outputs, labels and unequal weights."""
    rng = np.random.default_rng(seed)
    outputs = 2.0 * rng.normal(size=(functions, num, num_classes))
    return outputs, rng.integers(num_classes, size=num), rng.dirichlet(np.ones(functions))


def log_probs_of(outputs, y):
    """log p(y_i | f_m): [M, N], in double precision."""
    logs = outputs - logsumexp(outputs, axis=-1, keepdims=True)
    return np.take_along_axis(logs, np.asarray(y)[None, :, None], axis=-1)[..., 0]


@pytest.mark.parametrize("tau", [10, 3])
def test_joint_and_dyadic_scores_equal_brute_force(tau):
    outputs, y, weights = classes(1)
    config = pt.Evaluation(num_batches=4, tau=tau)
    terms = score_inputs(posterior_of(outputs, weights), truth_of(y, Categorical(), 10), KEY, config=config)
    each = log_probs_of(outputs, y)
    for batch, rows in enumerate(np.asarray(terms.rows)):
        joint = -logsumexp(np.log(weights) + each[:, rows[:tau]].sum(axis=1))
        np.testing.assert_allclose(terms.whole["nll_joint"][batch], joint, **FLOAT32)
        every = [
            -logsumexp(np.log(weights) + each[:, list(places)].sum(axis=1))
            for places in product(rows[:2], repeat=tau)
        ]
        np.testing.assert_allclose(terms.whole["nll_dyadic"][batch], np.mean(every), **FLOAT32)
    np.testing.assert_allclose(
        terms.whole["nll"][:, 0], -logsumexp(np.log(weights)[:, None] + each, axis=0), **FLOAT32
    )


def test_dyadic_scores_do_not_depend_on_how_many_batches_are_in_memory(monkeypatch):
    log_probs = jnp.log(jax.random.uniform(KEY, (30, 8)))
    rows = held_out.batches_of_rows(KEY, 30, pt.Evaluation(num_batches=7))[:, :5]
    weights = jnp.full(8, -jnp.log(8.0))
    whole = held_out.dyadic_log_prob(log_probs, rows, 10)(weights, 2)
    monkeypatch.setattr(held_out, "BLOCK", 3 * 8 * 5 * 1001)  # 1001 are the ways to take 10 of 5
    for expected, parts in zip(whole, held_out.dyadic_log_prob(log_probs, rows, 10)(weights, 2), strict=True):
        assert parts.shape == expected.shape
        np.testing.assert_allclose(parts, expected, rtol=1e-6)


def test_functions_of_other_classes_are_refused():
    outputs, y, _ = classes(3, num_classes=5)
    with pytest.raises(pt.UsageError, match="logits have 5 classes; the problem has 10"):
        pt.evaluate(posterior_of(outputs), truth_of(y, Categorical(), 10), key=KEY)
    with pytest.raises(pt.UsageError, match="logits have 5 classes; the problem has 2"):
        pt.evaluate(posterior_of(outputs), pt.problem("2d/T3-rho0.1-s0"), key=KEY)


def test_batches_have_no_row_twice_and_all_rows_alike():
    rows = np.asarray(held_out.batches_of_rows(KEY, 35, pt.Evaluation(num_batches=300)))
    assert rows.shape[0] >= 300
    assert all(len(set(batch)) == 10 for batch in rows)
    counts = np.bincount(rows.ravel(), minlength=35)
    # Each permutation leaves 5 of 35 out: a row is in a share of 6 / 7, with binomial deviations.
    assert abs(counts / 100 - 6 / 7).max() < 4.5 * np.sqrt(6 / 7 / 7 / 100)


def test_an_impossible_label_is_infinite_and_not_clipped():
    outputs, y, _ = classes(2, functions=2)
    outputs[:, 4] = -np.inf
    outputs[:, 4, (y[4] + 1) % 10] = 0.0
    scores = pt.evaluate(posterior_of(outputs), truth_of(y, Categorical(), 10), key=KEY)
    assert np.isposinf([scores.nll, scores.nll_joint, scores.nll_dyadic]).all()
    assert 0.0 <= scores.accuracy <= 1.0
    one = outputs.copy()
    one[1] = 0.0  # a function that allows it makes the mixture finite
    scores = pt.evaluate(posterior_of(one), truth_of(y, Categorical(), 10), key=KEY)
    assert np.isfinite([scores.nll, scores.nll_joint, scores.nll_dyadic]).all()


def test_terms_without_groups_are_those_of_fewer_functions():
    outputs, y, _ = classes(3, functions=6)
    truth, config = truth_of(y, Categorical(), 10), pt.Evaluation(num_batches=3, num_draws=20)
    terms = score_inputs(posterior_of(outputs, num_groups=3), truth, KEY, config=config)
    for group in range(3):
        rest = np.delete(outputs, [2 * group, 2 * group + 1], axis=0)
        fewer = score_inputs(posterior_of(rest), truth, KEY, config=config)
        for name in ("nll", "nll_joint", "nll_dyadic", "accuracy"):
            np.testing.assert_allclose(terms.without[name][:, group], fewer.whole[name], **FLOAT32)


def test_numbers_without_groups_are_those_of_fewer_functions():
    rng = np.random.default_rng(4)
    outputs, y = rng.normal(size=(6, 20, 2)), rng.normal(size=20).astype(np.float32)
    truth, config = truth_of(y, Normal()), pt.Evaluation(num_batches=3, num_draws=20)
    terms = score_inputs(posterior_of(outputs, num_groups=3), truth, KEY, config=config)
    rest = score_inputs(posterior_of(outputs[2:]), truth, KEY, config=config)
    for name in rest.whole:
        np.testing.assert_allclose(terms.without[name][:, 0], rest.whole[name], rtol=1e-3, atol=1e-4)


def test_divergences_of_numbers_without_groups_are_those_of_fewer_functions():
    truth = pt.problem(model="regression", num_train=10).environment
    config, slopes = pt.Evaluation(num_batches=4, num_draws=20), np.linspace(-1, 1, 6).astype(np.float32)
    function = Partial(lambda k, x: jnp.stack([k * x[:, 0], 0.0 * x[:, 0]], -1))

    def terms_of(some, num_groups):
        log_weights = jnp.full(len(some), -np.log(len(some)))
        posterior = pt.Finite(function, jnp.asarray(some), log_weights, None, num_groups)
        return score_inputs(posterior, truth, KEY, config=config)

    whole, fewer = terms_of(slopes, 3), terms_of(slopes[2:], 1)
    for name in ("kl_marginal", "kl_joint", "kl_dyadic", "nll"):
        np.testing.assert_allclose(whole.without[name][:, 0], fewer.whole[name], rtol=1e-4, atol=1e-4)


def crps_of_normals(y, means, scales, weights):
    """Grimit et al., 2006: the CRPS of a mixture of normals."""

    def expected(m, s):
        return m * (2.0 * norm.cdf(m / s) - 1.0) + 2.0 * s * norm.pdf(m / s)

    pairs = expected(means[:, None] - means, np.sqrt(scales[:, None] ** 2 + scales**2))
    return weights @ expected(y - means, scales) - 0.5 * weights @ pairs @ weights


def test_scores_of_numbers_equal_closed_forms():
    rng = np.random.default_rng(5)
    outputs, y = rng.normal(size=(4, 25, 2)) * [1.0, 0.5], rng.normal(size=25).astype(np.float32)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    config = pt.Evaluation(num_batches=4)
    truth = truth_of(y, Normal())
    terms = score_inputs(posterior_of(outputs, weights), truth, KEY, config=config)
    means, scales = outputs[..., 0], np.exp(outputs[..., 1])
    densities = norm.logpdf(y, means, scales)
    np.testing.assert_allclose(
        terms.whole["nll"][:, 0], -logsumexp(np.log(weights)[:, None] + densities, axis=0), **FLOAT32
    )
    np.testing.assert_allclose(terms.whole["pit"][:, 0], weights @ norm.cdf(y, means, scales), atol=1e-6)
    exact = [crps_of_normals(y[i], means[:, i], scales[:, i], weights) for i in range(25)]
    # Two hundred nodes of a smooth integrand; the rest is float32.
    np.testing.assert_allclose(terms.whole["crps"][:, 0], exact, rtol=1e-4, atol=1e-5)
    scores = summarise(terms, config, truth.offers, truth.num_rows)
    rmse = np.sqrt(np.mean((y - weights @ means) ** 2))
    np.testing.assert_allclose(scores["rmse"], rmse, rtol=1e-5)
    for batch, rows in enumerate(np.asarray(terms.rows)):
        joint = -logsumexp(np.log(weights) + densities[:, rows].sum(axis=1))
        np.testing.assert_allclose(terms.whole["nll_joint"][batch], joint, **FLOAT32)


def test_crps_of_students_t_equals_quadrature():
    outputs = np.array([[[0.3, -0.5, np.log(3.0)]] * 12, [[-1.0, 0.2, np.log(5.0)]] * 12])
    y = np.linspace(-3, 3, 12).astype(np.float32)
    terms = score_inputs(
        posterior_of(outputs), truth_of(y, StudentT()), KEY, config=pt.Evaluation(num_batches=2)
    )

    def below(z):
        return np.mean([t.cdf(z, np.exp(v), m, np.exp(s)) for m, s, v in outputs[:, 0]])

    for i in (0, 6, 11):
        left = quad(lambda z: below(z) ** 2, -np.inf, y[i])[0]
        right = quad(lambda z: (1.0 - below(z)) ** 2, y[i], np.inf)[0]
        np.testing.assert_allclose(terms.whole["crps"][i, 0], left + right, rtol=1e-3)


def test_joint_densities_of_bayesian_linear_regression():
    """The mixture of 20,000 exact draws has the joint density of the posterior predictive."""
    rng = np.random.default_rng(6)
    x, noise = rng.normal(size=(40, 2)), 0.5
    y = x @ [1.0, -1.0] + noise * rng.normal(size=40)
    precision = np.eye(2) + x[:20].T @ x[:20] / noise**2
    mean = np.linalg.solve(precision, x[:20].T @ y[:20]) / noise**2
    draws = rng.multivariate_normal(mean, np.linalg.inv(precision), size=20_000)
    outputs = np.stack([draws @ x[20:].T, np.full((20_000, 20), np.log(noise))], axis=-1)
    config = pt.Evaluation(num_batches=6, tau=5)
    truth = truth_of(y[20:].astype(np.float32), Normal())
    terms = score_inputs(posterior_of(outputs, num_groups=10), truth, KEY, config=config)
    summary = summarise(terms, config, truth.offers, truth.num_rows)
    for batch, rows in enumerate(np.asarray(terms.rows)):
        at = x[20:][rows[:5]]
        covariance = at @ np.linalg.inv(precision) @ at.T + noise**2 * np.eye(5)
        exact = -multivariate_normal.logpdf(y[20:][rows[:5]], at @ mean, covariance)
        by_draws = np.asarray(terms.without["nll_joint"][batch] - terms.whole["nll_joint"][batch])
        error = np.sqrt(9 * by_draws.var())  # of a jackknife over ten groups
        assert abs(terms.whole["nll_joint"][batch] - exact) < 5.0 * error + 1e-4
    assert summary["nll_joint_stderr"] > 0


@pytest.mark.parametrize("num_rows", [30, 2000])
def test_the_error_over_batches_is_their_spread_over_test_sets(num_rows):
    """Rows are the sample: 300 test sets, drawn anew, of a score that is a nonlinear function of ten rows."""
    config = pt.Evaluation(num_batches=100)

    def of_set(key):
        key_rows, key_values = jax.random.split(key)
        values = jax.random.normal(key_values, (num_rows, 3))
        rows = held_out.batches_of_rows(key_rows, num_rows, config)
        scores = -jax.nn.logsumexp(values[rows].sum(axis=1), axis=-1)
        return scores.mean(), stderr_of_batches(scores, rows, num_rows)

    means, errors = jax.jit(jax.vmap(of_set))(jax.random.split(KEY, 300))
    # The spread of 300 is known to 4 %, and an estimate from 30 rows is itself uncertain.
    np.testing.assert_allclose(np.sqrt((errors**2).mean()), means.std(ddof=1), rtol=0.15)


def test_an_error_that_nobody_can_know_is_not_a_number():
    outputs, y, _ = classes(7, num=10)
    scores = pt.evaluate(posterior_of(outputs), truth_of(y, Categorical(), 10), key=KEY)
    assert np.isfinite(scores.nll_joint)
    assert np.isnan(scores.nll_joint_stderr)
    with pytest.raises(pt.UsageError, match="9 rows are held out; expected at least 10, a batch"):
        pt.evaluate(posterior_of(outputs), truth_of(y[:9], Categorical(), 10), key=KEY)


@pytest.mark.parametrize("kind", ["classes", "numbers", "truth of numbers"])
def test_plain_posteriors_are_scored_alike(kind):
    if kind == "truth of numbers":
        truth = pt.problem(model="regression", num_train=10).environment
        slopes = np.linspace(-1, 1, 5)
        plain = pt.finite(lambda x: np.stack([np.stack([k * x[:, 0], 0.0 * x[:, 0]], -1) for k in slopes]))
        function = Partial(lambda k, x: jnp.stack([k * x[:, 0], 0.0 * x[:, 0]], -1))
        posterior = pt.Finite.equal(function, jnp.asarray(slopes, dtype=jnp.float32))
    else:
        outputs, y, _ = classes(8, num_classes=2)
        likelihood = Categorical() if kind == "classes" else Normal()
        truth = truth_of(
            y if kind == "classes" else y.astype(np.float32), likelihood, 2 * (kind == "classes")
        )
        posterior = posterior_of(outputs)
        plain = pt.finite(lambda x: outputs[:, x[:, 0].astype(int)])
    both = [pt.evaluate(one, truth, key=KEY, num_batches=20).values for one in (posterior, plain)]
    assert both[0] == pytest.approx(both[1], rel=1e-4, abs=1e-5)
