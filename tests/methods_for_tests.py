"""Methods that a user might write, good and bad, for the runner's tests."""

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from numpyro.infer.util import log_density

import pp_testbed as pt
from pp_testbed.models.base import sample_latents


class Knn:
    """A plain Python method: class frequencies among the five nearest data."""

    def fit(self, key, task):
        x, y = np.asarray(task.x), np.asarray(task.y)

        def logits(at):
            nearest = np.argsort(((at[:, None] - x) ** 2).sum(-1), axis=1)[:, :5]
            p = np.clip(y[nearest].mean(axis=1), 0.01, 0.99)
            return np.log(np.stack([1 - p, p], axis=1))[None]

        return pt.finite(logits)


class Raises:
    def fit(self, key, task):
        if task.num_train == 3:
            raise RuntimeError("no luck with three\nand a second line")
        return pt.finite(lambda x: np.zeros((1, len(x), 2)))


class Nan:
    def fit(self, key, task):
        return pt.finite(lambda x: np.full((1, len(x), 2), np.nan))


class Killed:
    def fit(self, key, task):
        if task.num_train == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return pt.finite(lambda x: np.zeros((1, len(x), 2)))


@dataclass(frozen=True)
class KilledOnce:
    """Its first process is killed, as by somebody else; `path` remembers that."""

    path: str = ""

    def fit(self, key, task):
        if not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return pt.finite(lambda x: np.zeros((1, len(x), 2)))


@dataclass(frozen=True)
class Busy:
    """Says in a file which process it is in, and computes for a minute."""

    path: str = ""

    def fit(self, key, task):
        with open(self.path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(self.path + ".new", self.path)
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            pass
        return pt.finite(lambda x: np.zeros((1, len(x), 2)))


@pt.pytree_dataclass
class Unweighted:
    """A sampler that counts every row that it is given, as it has promised nothing else."""

    name: str = "unweighted"
    problems_at_once: ClassVar[int] = 10

    def fit(self, key, task):
        latents = sample_latents(task.model, task.x, task.y, jax.random.key(0))
        log_joint = log_density(task.model, (task.x, task.y), {}, latents)[0]
        squares = sum((value**2).sum() + value.size * jnp.log(2.0 * jnp.pi) for value in latents.values())
        log_likelihood = log_joint + 0.5 * squares  # as the prior is N(0, I)
        return pt.Finite.equal(Partial(same_everywhere), log_likelihood[None] / 10.0)


def same_everywhere(level, x):
    return jnp.tile(jnp.stack([level, 0.0 * level]), (len(x), 1))


class OutOfMemory:
    def fit(self, key, task):
        return pt.finite(lambda x: jnp.ones((10**13,)))


class NotAPosterior:
    def fit(self, key, task):
        return 3


def wrong_guide(x, y=None):
    numpyro.sample("weights", dist.Normal(0, 1))


@dataclass(frozen=True)
class Configured:
    """A user's dataclass, with an option and a name of its own."""

    level: float = 0.0
    name: str = ""

    def fit(self, key, task):
        return pt.finite(lambda x: np.full((1, len(x), 2), [self.level, 0.0]))


KNN, RAISES, NAN, KILLED, HUNGRY = Knn(), Raises(), Nan(), Killed(), OutOfMemory()
WRONG, GUIDE, LEVEL, ONCE, BUSY = NotAPosterior(), pt.SVI(wrong_guide), Configured(), KilledOnce(), Busy()
