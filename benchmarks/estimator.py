"""The exact estimator against sampled labels: wall time, and variance with the inputs held fixed.

Sampled labels are written here as in the papers: Algorithm 2 of "The Neural Testbed" for d1 and d10, and
Algorithm 3, its dyadic sequel, for d10,2. For each of 1000 batches of inputs, one label sequence is drawn
from the truth, and its likelihood taken under the mixture of draws: of 1000, as there, and of the 100 members
of an ensemble, which the papers draw from too. Each KL has its own inputs there; the exact scores share
theirs, and come with accuracy, NLL, Brier score, ECE and the jackknife's bias.

    python benchmarks/estimator.py
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import pp_testbed as pt
from pp_testbed.evaluation.classes import score_chunk
from pp_testbed.evaluation.evaluator import score
from pp_testbed.evaluation.terms import PAPER
from pp_testbed.inference.registry import method

CASES = [("prior", {}), ("mean-field", {"num_steps": 1000}), ("ensemble", {"num_steps": 300})]


def log_likelihoods(logits, index, labels):
    """Sum over t of log softmax(logits)[index_t, label_t]: [..., inputs, K] -> [...]."""
    return jax.nn.log_softmax(logits)[..., index, labels].sum(axis=-1)


@jax.jit
def sampled_scores(posterior, environment, key):
    """d1, d10 and d10,2 by Algorithms 2 and 3, each with its own inputs and labels."""
    mixture = posterior.draw(key, PAPER.num_draws)
    num_draws = mixture.log_weights.shape[0]

    def kl(key, num_inputs, tau):
        def sequence(key):
            key_x, key_index, key_y = jax.random.split(key, 3)
            x = environment.model.inputs(key_x, num_inputs)
            index = jnp.arange(tau)
            if num_inputs < tau:
                index = jax.random.randint(key_index, (tau,), 0, num_inputs)
            truth = environment.logits(x)
            labels = jax.random.categorical(key_y, truth[index])
            each = log_likelihoods(mixture.values(x), index, labels)
            return log_likelihoods(truth, index, labels) - logsumexp(each + mixture.log_weights)

        chunk = max(1, min(100, 3000 // num_draws))
        return jax.lax.map(sequence, jax.random.split(key, PAPER.num_batches), batch_size=chunk).mean()

    keys = jax.random.split(key, 3)
    return kl(keys[0], 1, 1), kl(keys[1], 10, 10), kl(keys[2], 2, 10)


def seconds(run) -> float:
    """The shortest of five runs, after one that compiles."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times[1:])


def variance(posterior, problem, labels: str) -> float:
    """Variance of kl_joint over keys for the labels, with inputs and draws fixed: 100 batches."""
    config = pt.Evaluation(100, num_draws=200, labels=labels, num_label_samples=1)
    mixture = posterior.draw(jax.random.key(0), config.num_draws)
    x = problem.model.inputs(jax.random.key(1), config.num_batches * config.width)
    logits, truth = mixture.values(x), problem.environment.logits(x)
    run = jax.jit(score_chunk, static_argnums=(4, 5))
    means = [
        float(run(key, logits, truth, mixture.log_weights, 1, config).whole["kl_joint"].mean())
        for key in jax.random.split(jax.random.key(2), 50)
    ]
    return float(np.var(means, ddof=1))


def resampled(posterior, key):
    """As many random members as the papers draw, with replacement."""
    num = posterior.log_weights.shape[0]
    members = jax.random.randint(key, (PAPER.num_draws,), 0, num)
    draws = jax.tree.map(lambda leaf: leaf[members], posterior.draws)
    return pt.Finite.equal(posterior.function, draws)


def report(name, rho, problem, posterior, drawn) -> None:
    """Print one line: the exact scores of `posterior` against sampled labels with `drawn`."""
    inputs = problem.environment, problem.keys.evaluate
    exact = seconds(lambda: score(posterior, *inputs, config=PAPER))
    sampled = seconds(lambda: sampled_scores(drawn, *inputs))
    variances = [variance(posterior, problem, labels) for labels in ("auto", "sampled")]
    values = (
        float(score(posterior, *inputs, config=PAPER)["kl_joint"]),
        float(sampled_scores(drawn, *inputs)[1]),
    )
    print(
        f"{name:<21} {rho:>4}  {exact:9.3f}  {sampled:11.3f}  {exact / sampled:5.2f}"
        f"  {variances[0]:.2e}  {variances[1]:.2e}   {values[0]:6.3f}  {values[1]:7.3f}",
        flush=True,
    )


def main() -> None:
    """Print one line per posterior and temperature."""
    print("                            wall time, 1000 batches        variance, fixed inputs           d10")
    print("posterior              rho  exact [s]  sampled [s]  ratio  exact     sampled     exact  sampled")
    for name, options in CASES:
        for rho in (0.01, 0.1, 0.5):
            problem = pt.problem(num_train=30, temperature=rho, seed=0)
            posterior = jax.jit(method(name, **options).fit)(problem.keys.fit, problem.task)
            if name == "ensemble":
                drawn = resampled(posterior, jax.random.key(5))
                report("ensemble, 1000 drawn", rho, problem, posterior, drawn)
                report("ensemble, 100 in both", rho, problem, posterior, posterior)
            else:
                report(name, rho, problem, posterior, posterior)


if __name__ == "__main__":
    main()
