"""What all problems are: a task, a truth, a name that says all of it, and randomness that derives from the
name.

What the truth is, an environment or labels that were held out, is for `synthetic` and `data`; lists of
problems are in `suites`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import check_whole
from pp_testbed.models.base import Array, Model, Task


class Keys(NamedTuple):
    """What the randomness of a problem is used for. Methods share `fit` and `evaluate`: paired."""

    environment: Array
    inputs: Array
    labels: Array
    fit: Array
    evaluate: Array


def key_of(name: str) -> Array:
    """A key derived from a name: the first 64 bits of its SHA-256."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], dtype="<u4")
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


class Named:
    """What is of a kind and has a seed: its name is both, and its randomness derives from the name alone."""

    model: Model
    seed: int

    @property
    def kind(self) -> str:
        """What it is but for its seed."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """It in words; of a problem `problem(name)` makes it again."""
        return f"{self.kind}-s{self.seed}"

    @property
    def revision(self) -> int:
        """Of the family of its model: what it draws changes with this number."""
        return self.model.revision

    def keys_for(self, purposes: Any) -> Any:
        """A key for each field of a named tuple."""
        return purposes(*jax.random.split(key_of(self.name), len(purposes._fields)))


@dataclass(frozen=True)
class BaseProblem(Named):
    """A task and its truth: `draw` makes both.

    Attributes:
        is_of_data: whether it is real, and the model is a guess.
        model: what a method is told of how labels come about.
        num_train: T.
        seed: of all that is random in it.
    """

    is_of_data: ClassVar[bool] = False
    model: Model
    num_train: int
    seed: int

    def __post_init__(self) -> None:
        check_whole("num_train", self.num_train, least=1)
        check_whole("seed", self.seed, least=0)

    @property
    def group(self) -> str:
        """What tables call the world that it is of: the family of its model, or the data set."""
        raise NotImplementedError

    def draw(self, num_rows: int | None = None) -> tuple[Task, Any]:
        """The task, padded to so many rows (`padded_size` if None), and the truth."""
        raise NotImplementedError

    @property
    def facts(self) -> dict[str, Any]:
        """What tables say of it."""
        names = ("input_dim", "num_train", "temperature", "num_classes")
        return {"model": self.group} | {name: getattr(self, name) for name in names}

    @property
    def input_dim(self) -> int:
        return self.model.input_dim

    @property
    def num_classes(self) -> int:
        return self.model.num_classes

    @property
    def temperature(self) -> float:
        return float(self.model.temperature)

    @property
    def keys(self) -> Keys:
        """Keys derived from the name."""
        return self.keys_for(Keys)

    @property
    def padded_size(self) -> int:
        """Rows of the padded task: 10, 30 or a power of ten, so that problems share programs."""
        if 10 < self.num_train <= 30:
            return 30
        size = 10
        while size < self.num_train:
            size *= 10
        return size

    @property
    def num_test(self) -> int:
        """Rows that are held out; none where the truth is an environment."""
        return 0

    @property
    def judged_by(self) -> tuple[Any, ...]:
        """What else there is in its truth: inputs from elsewhere, by set, and whether errors cost."""
        return ()

    @property
    def tuned_on(self) -> tuple[BaseProblem, ...]:
        """The problems that methods are tuned on for it, which are never reported."""
        raise NotImplementedError

    @cached_property
    def _drawn(self) -> tuple[Task, Any]:
        return self.draw(self.num_train)

    @property
    def task(self) -> Task:
        """What a method may see."""
        return self._drawn[0]

    @property
    def truth(self) -> Any:
        """What judges may see: an environment, or labels that were held out."""
        return self._drawn[1]
