"""The exact posterior, drawn by rejection, held against a shipped reference: is its excess 0, to its error?

    python benchmarks/rejection.py [blocks]

At T = 3 a draw of the prior is accepted with the probability of the three labels, and is then an
independent draw of the posterior. Each block of 1000 of them is compared with the reference; of the excesses
and distances the spread over blocks, the mean claimed error, and how many are within 2.5 of it are printed,
and how often the two-sample tests reject at 5 %. All blocks share the reference and its error.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.tree_util import Partial

import pp_testbed as pt
from pp_testbed.models.base import Task, read_outputs, sample_latents

PROBLEM = "2d/T3-rho0.1-s0"
TRIES = 20_000  # draws of the prior at a time
SIZE = 1000


@partial(jax.jit, static_argnums=2)
def accepted(key: jax.Array, task: Task, tries: int) -> tuple[jax.Array, jax.Array]:
    """Keys of draws of the prior, and whether each is one of the posterior."""
    key_draws, key_accept = jax.random.split(key)
    keys = jax.random.split(key_draws, tries)

    def log_likelihood(key: jax.Array) -> jax.Array:
        latents = sample_latents(task.model, task.x, task.y, key)
        log_probs = jax.nn.log_softmax(read_outputs(task.model, latents, task.x))
        return jnp.take_along_axis(log_probs, task.y[:, None], axis=1).sum()

    log_probs = jax.lax.map(log_likelihood, keys, batch_size=500)
    return keys, jnp.log(jax.random.uniform(key_accept, (tries,))) < log_probs


@jax.jit
def latents_of(keys: jax.Array, task: Task) -> dict[str, jax.Array]:
    """The draws that keys give."""
    return jax.vmap(lambda key: sample_latents(task.model, task.x, task.y, key))(keys)


def blocks(key: jax.Array, task: Task, number: int) -> "list[pt.Finite]":
    """Posteriors of `SIZE` independent draws each, which stand for the exact one, in ten groups."""
    found = np.zeros((0, 2), dtype=np.uint32)
    while len(found) < number * SIZE:
        key, key_tries = jax.random.split(key)
        keys, is_accepted = accepted(key_tries, task, TRIES)
        found = np.concatenate([found, np.asarray(jax.random.key_data(keys))[np.asarray(is_accepted)]])
    made = []
    for part in found[: number * SIZE].reshape(number, SIZE, 2):
        draws = latents_of(jax.random.wrap_key_data(jnp.asarray(part)), task)
        weights = jnp.full(SIZE, -jnp.log(SIZE))
        made.append(pt.Finite(Partial(read_outputs, task.model), draws, weights, None, 10))
    return made


def main(number: int) -> None:
    """Compare so many blocks."""
    reference = pt.reference(PROBLEM)
    rows = []
    for start in range(0, number, 10):  # whose draws are in memory at once
        key = jax.random.key(start)
        for i, block in enumerate(blocks(key, reference.problem.task, min(10, number - start))):
            rows.append(pt.compare(block, reference, key=jax.random.key(1000 + start + i)).asdict())
        print(f"{len(rows)} of {number}", file=sys.stderr, flush=True)
    frame = pd.DataFrame(rows)
    print("figure                mean      sd over blocks   claimed   within 2.5")
    for name in [name.removesuffix("_stderr") for name in frame if name.endswith("_stderr")]:
        values, errors = frame[name], frame[name + "_stderr"]
        within = (values.abs() <= 2.5 * errors).sum() if name.startswith("excess") else "–"
        claimed = np.sqrt(np.mean(errors**2))
        print(f"{name:<20} {values.mean():8.4f} {values.std():14.4f} {claimed:11.4f} {within:>10}")
    for name in ("energy_p", "classifier_p"):
        print(f"{name} is below 0.05 in {(frame[name] < 0.05).mean():.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
