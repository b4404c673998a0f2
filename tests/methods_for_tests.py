"""Methods that a user might write, good and bad, for the runner's tests."""

import os
import signal
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import pp_testbed as pt


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
WRONG, GUIDE, LEVEL = NotAPosterior(), pt.SVI(wrong_guide), Configured()
