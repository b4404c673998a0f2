"""The examples of the dyadic paper: closed forms against the evaluator, what is kept against its claims."""

import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad

from benchmarks import dyadic
from pp_testbed.evaluation import joint
from pp_testbed.models.base import read_outputs
from pp_testbed.models.coins import Coins


@pytest.mark.parametrize("tau", [1, 2, 5, 10])
def test_information_of_a_coin_is_an_integral(tau):
    """E over p of Σ_h P(h | p) [log P(sequence | p) - log B(h + 1, τ - h + 1)]."""

    def integrand(p):
        total = 0.0
        for h in range(tau + 1):
            prob = math.comb(tau, h) * p**h * (1 - p) ** (tau - h)
            log_beta = math.lgamma(h + 1) + math.lgamma(tau - h + 1) - math.lgamma(tau + 2)
            total += prob * (h * math.log(p) + (tau - h) * math.log1p(-p) - log_beta)
        return total

    assert dyadic.information_of_coin(tau) == pytest.approx(quad(integrand, 0, 1)[0], abs=1e-8)


@pytest.mark.parametrize("kappa", [0, 1, 2])
def test_coins_of_the_evaluator_equal_the_closed_forms(kappa):
    """Two coins, τ = 4: quadrature over both, as environments and as functions with weights, is exact."""
    tau, nodes = 4, 100
    p, weights = legendre(nodes)
    truths, truth_weights = np.array(list(product(p, repeat=2))), np.outer(weights, weights).ravel()
    few, few_weights = legendre(8)  # exact for polynomials of degree 15
    functions = np.array(list(product(few, repeat=2)))
    log_weights = jnp.asarray(np.log(np.outer(few_weights, few_weights).ravel()))

    def d(inputs, outcomes):
        """Averaged over environments; `inputs` says which coin each is of."""
        log_truth = jnp.moveaxis(log_probs_of(truths[:, inputs]), -1, 0)  # [environments, inputs, 2]
        shape = (len(truths), len(inputs), 2, len(functions))
        log_probs = jnp.broadcast_to(log_probs_of(functions[:, inputs]), shape)
        kl = joint.kl_of_outcomes(outcomes, log_truth, log_probs, log_weights, 1)[0]
        return float(truth_weights @ np.asarray(kl, dtype=np.float64))

    if kappa == 0:
        sequences, every = joint.label_sequences(tau, 2), product((0, 1), repeat=tau - 1)
        found = np.mean(
            [d([0, *rest], sequences) for rest in every]
        )  # the first coin is as good as the other
    else:
        counts = joint.label_counts(tau, kappa, 2)
        found = np.mean([d(one, counts) for one in ([[0]] if kappa == 1 else [[0, 0], [0, 1]])])
    # A hundred nodes leave 3e-6 of p log p, and float32 does as much.
    assert found == pytest.approx(dyadic.coins(tau, 2, kappa)["posterior"], abs=1e-5)


def legendre(number):
    """Nodes and weights of quadrature on [0, 1]."""
    u, weights = np.polynomial.legendre.leggauss(number)
    return (u + 1) / 2, weights / 2


def log_probs_of(values):
    """Probabilities of heads [..., inputs] as log probabilities [inputs, 2, ...] of both labels."""
    both = jnp.stack([jnp.log1p(-values), jnp.log(jnp.asarray(values))])
    return jnp.moveaxis(both, -1, 0)


def test_dichotomies_are_cover_s():
    """In two dimensions τ points on a circle are divided in 2 τ ways; fewer points than dimensions in all."""
    assert math.exp(dyadic.log_dichotomies(7, 2)) == pytest.approx(14)
    assert math.exp(dyadic.log_dichotomies(4, 9)) == pytest.approx(16)


def test_a_gram_matrix_is_all_of_the_inputs():
    lengths, root = dyadic.inputs_of(jax.random.key(0), 3, 5)
    np.testing.assert_allclose(np.sqrt((root**2).sum(axis=1)), lengths, rtol=1e-3)


def test_what_is_kept_is_what_the_page_says():
    frame = pd.read_parquet(dyadic.KEPT).set_index(["scale", "D", "inputs"])
    iid, one, two = (frame.loc[100.0, 1000, inputs] for inputs in ("i.i.d.", "kappa = 1", "kappa = 2"))
    assert abs(iid.prior / iid.uniform - 1) < 0.02
    assert abs(one.prior / one.marginal - 1) < 0.02
    assert two.prior < 0.9 * min(two.uniform, two.marginal)
    other = frame.loc[0.01, 1000, "kappa = 2"]  # with a product, nothing is told apart
    assert other.prior > 0.9 * min(other.uniform, other.marginal)
    page = (dyadic.KEPT.parent.parent / "docs" / "dyadic.md").read_text(encoding="utf-8")
    for (scale, dim, inputs), row in frame.iterrows():
        line = f"| {scale:g} | {dim} | {inputs} | {row.uniform:.3f} | {row.marginal:.3f} | {row.prior:.3f} |"
        assert line in page, line


@pytest.mark.parametrize("tau", [2, 10, 50])
@pytest.mark.parametrize("number", [2, 10, 1000, 10**6])
def test_few_labels_at_random_inputs_do_not_tell_what_is_known_of_many_coins(tau, number):
    """Proposition 1: the agents differ by what flips of a coin seen before tell, of which there are at most
    τ (τ - 1) / 2 M; so that of many coins τ must be of the order of √M."""
    found = dyadic.coins(tau, number)
    gap = found["independent"] - found["posterior"]
    once = math.log(2) - 0.5
    assert -1e-12 * tau < gap <= once * tau * (tau - 1) / (2 * number) + 1e-9


@pytest.mark.parametrize("tau", [2, 3, 10, 50])
def test_two_anchors_tell_however_many_coins_there_are(tau):
    """Proposition 2: with two anchors the difference does not vanish: it falls with M to a limit above 0."""
    gaps = [dyadic.coins(tau, number, 2) for number in (2, 10, 1000, 10**6)]
    differences = [one["independent"] - one["posterior"] for one in gaps]
    assert differences == sorted(differences, reverse=True)
    weights = [math.comb(tau, n) / 2**tau for n in range(tau + 1)]
    known = sum(weight * dyadic.information_of_coin(n) for n, weight in enumerate(weights))
    limit = tau * (math.log(2) - 0.5) - 2 * known
    assert limit > 0.01
    assert differences[-1] == pytest.approx(limit, rel=1e-4)


def test_a_coin_that_never_shows_heads_says_nothing_of_others():
    """A uniform number is 0 once in eight million draws."""
    model = Coins(3)
    outputs = read_outputs(model, {"heads": jnp.array([0.0, 0.25, 1.0])}, jnp.eye(3))
    np.testing.assert_allclose(jnp.exp(outputs[:, 1]), [0.0, 0.25, 1.0], rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(outputs[:, 0]), [1.0, 0.75, 0.0], rtol=1e-6)
