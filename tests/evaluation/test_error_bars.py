"""Every number that is printed with a ±: its spread over repetitions is what it claims, and intervals cover.

Over R repetitions the relative error of a standard deviation is 1 / √(2 R), and the error of a coverage of
95 % is 0.22 / √R: tolerances are 15 %, and 93 to 97 %, or three of these errors where that is more.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.tree_util import Partial
from scipy.stats import t as student

import pp_testbed as pt
from pp_testbed.evaluation.aggregate import mean_over, paired_difference, paired_ratio
from pp_testbed.evaluation.compare import EXCESS, MEASURES, _paired
from pp_testbed.evaluation.evaluator import score, score_inputs
from pp_testbed.inference.posterior import Plain
from pp_testbed.report.decisions import log_correlation

pytestmark = pytest.mark.slow
KEY = jax.random.key(5)
PROBLEM = pt.problem(model="logistic", input_dim=2, num_train=10, temperature=1.0)
ENVIRONMENT = PROBLEM.environment
TRUTH = ENVIRONMENT.latents["theta"]
CONFIG = pt.Evaluation(num_batches=30, num_draws=500, tau=5)
SCORES = ("kl_marginal", "kl_joint", "kl_dyadic", "kl_aggregate", "nll", "brier", "accuracy", "ece")
FREEDOM = 18  # of an error of which more than a half is by draws, from ten groups


def check(values, errors, truth, freedom, covers=True):
    """The spread of values [R] is the error that they claim, and their 95 % intervals cover the truth."""
    values, errors = np.asarray(values), np.asarray(errors)
    number = len(values)
    claimed = np.sqrt(np.mean(errors**2))
    assert claimed == pytest.approx(values.std(ddof=1), rel=max(0.15, 3 / np.sqrt(2 * number)))
    covered = (np.abs(values - truth) <= student.ppf(0.975, freedom) * errors).mean()
    assert not covers or covered == pytest.approx(0.95, abs=max(0.02, 3 * np.sqrt(0.95 * 0.05 / number)))


def logits(theta, x):
    logit = x @ theta
    return jnp.stack([jnp.zeros_like(logit), logit], axis=-1)


def drawn(key, shift=0.2):
    """One function, around the truth."""
    return TRUTH + shift + 0.7 * jax.random.normal(key, (2,))


FIVE = jax.vmap(drawn)(jax.random.split(jax.random.key(0), 5))


def five_functions(_key):
    return pt.Finite.equal(Partial(logits), FIVE)


def sampler(_key):
    return pt.Sampled(Partial(logits), Partial(drawn))


def chain(key, num=500, stickiness=0.4, shift=0.2):
    """Draws of the same distribution, of which neighbours are alike."""
    noise = jax.random.normal(key, (num, 2))

    def step(state, push):
        state = stickiness * state + np.sqrt(1.0 - stickiness**2) * push
        return state, state

    draws = TRUTH + shift + 0.7 * jax.lax.scan(step, noise[0], noise)[1]
    return pt.Finite(Partial(logits), draws, jnp.full(num, -jnp.log(num)), None, 10)


@partial(jax.jit, static_argnums=0)
def repeated(posterior, keys):
    """Scores for other inputs, draws and chains each time: a dictionary of [R]."""

    def once(key):
        key_posterior, key_score = jax.random.split(key)
        return score(posterior(key_posterior), ENVIRONMENT, key_score, CONFIG)

    return jax.lax.map(once, keys)


def plain(keys):
    """As `repeated`, of a posterior written in Python."""
    theta, config = np.asarray(TRUTH), pt.Evaluation(num_batches=30, num_draws=500, tau=5)

    def draw(x, rng):
        logit = x @ (theta + 0.2 + 0.7 * rng.normal(size=2))
        return np.stack([np.zeros_like(logit), logit], axis=-1)

    rows = [pt.evaluate(Plain(draw), PROBLEM, key=key, config=config).asdict() for key in keys]
    return {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "labels"}


@pytest.mark.parametrize(
    ("repeat", "number", "freedom"),
    [
        (partial(repeated, five_functions), 1500, CONFIG.num_batches - 1),
        (partial(repeated, sampler), 500, FREEDOM),
        (partial(repeated, chain), 1000, FREEDOM),
        (plain, 200, FREEDOM),
    ],
    ids=["finite", "sampled", "chain", "plain"],
)
def test_scores(repeat, number, freedom):
    found = repeat(jax.random.split(KEY, number))
    for name in SCORES:
        values = np.asarray(found[name])
        check(values, found[name + "_stderr"], values.mean(), freedom)


@partial(jax.jit, static_argnums=0)
def terms_of_both(posterior, keys):
    """Terms of a posterior and of a reference, two chains of other means, at the same inputs: [R, ...]."""

    def once(key):
        key_one, key_other, key_scores = jax.random.split(key, 3)
        both = posterior(key_one), chain(key_other, shift=0.0)
        return [score_inputs(one, ENVIRONMENT, key_scores, CONFIG) for one in both]

    return jax.lax.map(once, keys)


@pytest.mark.parametrize("posterior", [five_functions, sampler, partial(chain, shift=0.4)])
def test_comparisons(posterior):
    number, found = 200, []
    own, others = terms_of_both(posterior, jax.random.split(KEY, number))
    for i in range(number):
        terms, exact = jax.tree.map(lambda leaf, i=i: leaf[i], (own, others))
        deviations = {
            name: jnp.moveaxis(exact.without[name], 1, 0) - exact.whole[name] for name in exact.whole
        }
        scores = SimpleNamespace(**{f"{name}_bias": 0.0 for name in EXCESS})
        reference = SimpleNamespace(terms=exact.whole, deviations=deviations, scores=scores)
        found.append(_paired(terms, reference))
    frame = pd.DataFrame(found)
    for name in [*(f"excess_{name}" for name in EXCESS), *MEASURES]:
        # Agreement counts inputs: the error of a count by ten groups is right on average, but rough.
        covers = name != "agreement"
        check(frame[name], frame[name + "_stderr"], frame[name].mean(), FREEDOM, covers)


def suites(seeds, number, methods=2):
    """Scores of equal methods on 21 kinds of problems whose variances differ by a factor of a million."""
    rng = np.random.default_rng(seeds)
    spread = np.repeat(np.geomspace(1e-3, 1.0, 21), seeds)
    names = [f"2d/T{kind}-rho0.1-s{seed}" for kind in range(21) for seed in range(seeds)]
    for _ in range(number):
        level = spread * rng.normal(size=len(names))  # which methods share
        yield [
            pd.DataFrame(
                {"problem": names, "kind": kinds_of(names)}
                | {"kl_joint": 1.0 + level + 0.5 * spread * rng.normal(size=len(names))}
            )
            for _ in range(methods)
        ]


def kinds_of(names):
    """Problems without their seeds."""
    return [name.rpartition("-s")[0] for name in names]


@pytest.mark.parametrize("seeds", [2, 10])
def test_means_differences_and_ratios(seeds):
    """With two seeds 21 kinds are worth few degrees of freedom, and 5 % of equal methods are told apart."""
    found = {"mean": [], "difference": [], "ratio": []}
    for one, other in suites(seeds, 800):
        stratum = one.problem.str.rsplit("-s", n=1).str[0]
        found["mean"].append(mean_over(one.kl_joint, stratum))
        found["difference"].append(paired_difference(one, other))
        found["ratio"].append(paired_ratio(one, other))
    for (_, estimates), truth in zip(found.items(), (1.0, 0.0, 1.0), strict=True):
        values, errors, _ = np.array(estimates).T
        assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(ddof=1), rel=0.15)
        bounds = np.array([estimate.interval() for estimate in estimates])
        covered = ((bounds[:, 0] <= truth) & (truth <= bounds[:, 1])).mean()
        assert covered == pytest.approx(0.95, abs=0.024)


def test_regrets():
    """Twenty seeds, not too heavy-tailed: the mean's error; and the median's interval whatever the tails."""
    rng = np.random.default_rng(0)
    row = {"model": "2d", "temperature": 0.1, "num_actions": 40, "step": 10, "seconds": 1.0, "status": "ok"}
    row |= {"config": "{}", "version": "1"}
    names = [f"bandit-2d/A40-rho0.1-s{seed}" for seed in range(20)]
    found = []
    for _ in range(200):
        common, own = rng.normal(size=(2, 20))
        values = {"mlp": np.exp(0.5 * common), "other": np.exp(0.5 * common + 0.5 * own)}
        frames = [
            pd.DataFrame(
                row
                | {"problem": names, "kind": kinds_of(names), "revision": 1, "method": method}
                | {"config_hash": method, "regret": regret}
            )
            for method, regret in values.items()
        ]
        found.append(pt.regrets(pd.concat(frames)).set_index("method").loc["other"])
    table = pd.DataFrame(found).astype({"median": float, "median_low": float, "median_high": float})
    check(table.regret, table.regret_stderr, np.exp(0.25), 19)
    check(table.ratio, table.ratio_stderr, np.exp(0.125), 19)
    covered = ((table.median_low <= 1.0) & (table.median_high >= 1.0)).mean()
    assert covered == pytest.approx(
        0.9586, abs=3 * np.sqrt(0.95 * 0.05 / len(table))
    )  # of the 6th and the 15th


@pytest.mark.parametrize("noise", [0.01, 0.5])
def test_correlations(noise):
    """Eight agents from a bivariate normal of correlation 0.8, whose means over 20 seeds have noise.

    The correlation that is estimated is that of the noisy means: 0.8 (1 + noise² / 20)^-1.
    """
    rng, covered, number = np.random.default_rng(1), 0, 600
    truth = 0.8 / (1.0 + noise**2 / 20)
    for _ in range(number):
        agents = rng.multivariate_normal(np.zeros(2), [[1.0, 0.8], [0.8, 1.0]], size=8).T
        tables = [pd.DataFrame(np.exp(x[:, None] + noise * rng.normal(size=(8, 20)))) for x in agents]
        _, low, high = log_correlation(tables)
        covered += low <= truth <= high
    assert covered / number == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / number))
