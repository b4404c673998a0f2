"""Problems whose truth is an environment, a draw of a generative model, and how each is named.

A problem's name says everything: the generative model, T, the temperature and the seed. Its random
keys are derived from the name alone, so that a problem is the same in every suite. Lists of problems
are in `suites`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError, check_whole, unknown
from pp_testbed.models.base import Array, Environment, Model, Task, no_labels, sample_latents
from pp_testbed.models.logistic import LogisticRegression
from pp_testbed.models.mlp import GenerativeMLP


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
class Problem(Named):
    """A task, and the environment that it came from.

    Examples:
        >>> Problem(GenerativeMLP(temperature=0.1), num_train=100, seed=3).name
        '2d/T100-rho0.1-s3'
    """

    model: Model
    num_train: int
    seed: int

    def __post_init__(self) -> None:
        check_whole("num_train", self.num_train, least=1)
        check_whole("seed", self.seed, least=0)

    @property
    def kind(self) -> str:
        """What it is but for its seed, in words: problems of one kind differ by chance alone."""
        return f"{family(self.model)}/T{self.num_train}-rho{float(self.model.temperature)!r}"

    @property
    def facts(self) -> dict[str, Any]:
        """What tables say of it."""
        names = ("input_dim", "num_train", "temperature", "num_classes")
        return {"model": family(self.model)} | {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        return problem, (self.name,)  # what has been drawn does not travel

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

    def draw(self, num_rows: int | None = None) -> tuple[Task, Environment]:
        """The task, padded to so many rows (`padded_size` if None), and the environment, drawn anew."""
        x, y, environment = _draw(self.model, self.keys, max(1000, self.padded_size))
        rows = np.arange(num_rows or self.padded_size) % self.num_train
        x, y = (jnp.asarray(np.asarray(values)[rows]) for values in (x, y))  # not a program for every T
        return Task(self.model, x, y, self.num_train), environment

    @cached_property
    def _drawn(self) -> tuple[Task, Environment]:
        return self.draw(self.num_train)

    @property
    def task(self) -> Task:
        """What a method may see."""
        return self._drawn[0]

    @property
    def environment(self) -> Environment:
        """The truth, for judges."""
        return self._drawn[1]


@partial(jax.jit, static_argnames="size")
def _draw(model: Model, keys: Keys, size: int) -> tuple[Array, Array, Environment]:
    x = model.inputs(keys.inputs, size)
    latents = sample_latents(model, x[:1], no_labels(x[:1]), keys.environment)
    environment = Environment(model, latents)
    return x, environment.labels(keys.labels, x), environment


MODELS: dict[str, Any] = {"mlp": GenerativeMLP, "logistic": LogisticRegression}
UNSAID = "mlp"  # the model that names do not say


def family(model: Any) -> str:
    """The model's part of a name: `2d`, `10d-K3-h20x20-tanh-normal`, `logistic-100d`."""
    kind = next((name for name, made in MODELS.items() if made is type(model)), None)
    if kind is None:
        raise UsageError(f"{type(model).__name__} has no name: a problem's model is one of pp_testbed's own")
    return "-".join([*[kind] * (kind != UNSAID), f"{model.input_dim}d", *model.words])


def make_model(kind: str = "mlp", temperature: float | None = None, **options: Any) -> Any:
    """A generative model: "mlp" or "logistic", rho (0.1, or 0.01 for logistic, if None) and its options."""
    if kind not in MODELS:
        raise unknown("model", kind, MODELS)
    known = [field for field in MODELS[kind].__dataclass_fields__ if field != "temperature"]
    for option in options:
        if option not in known:
            raise unknown(f"option of the {kind} model", option, ["num_train", "temperature", *known])
    if isinstance(options.get("hidden"), list):
        options["hidden"] = tuple(options["hidden"])
    if temperature is not None:
        if np.ndim(temperature) or isinstance(temperature, str | bool):
            raise UsageError(f"the temperature is {temperature!r}; expected a number")
        options["temperature"] = float(temperature)
    return MODELS[kind](**options)


def problem(
    name: str | None = None,
    *,
    num_train: int = 100,
    temperature: float | None = None,
    seed: int = 0,
    model: str = "mlp",
    **options: Any,
) -> Problem:
    """One problem, by its name or by what it is.

    Args:
        name: such as `2d/T100-rho0.1-s3`; the other arguments are then left out.
        num_train: T.
        temperature: rho, 0.1 (0.01 for logistic) if None.
        seed: of environment and data.
        model: "mlp" or "logistic".
        options: of the model, such as `input_dim=10, num_classes=3, hidden=(20, 20)`.

    Examples:
        >>> problem(num_train=100, temperature=0.1, seed=3) == problem("2d/T100-rho0.1-s3")
        True
    """
    if name is not None:
        return _parse(name)
    return Problem(make_model(model, temperature, **options), num_train, seed)


_NAME = re.compile(
    r"(?:(?P<model>[a-z]+)-)?(?P<input_dim>\d+)d(?P<words>(?:-[^/]+)?)"
    r"/T(?P<num_train>\d+)-rho(?P<temperature>\d[\d.]*(?:e-\d+)?)-s(?P<seed>\d+)"
)


def _parse(name: str) -> Problem:
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    kind = (match and match["model"]) or UNSAID
    if not match or kind not in MODELS:
        raise UsageError(f"{name!r} does not name a problem; a name is like '2d/T100-rho0.1-s3'")
    options = MODELS[kind].options_of(match["words"].split("-")[1:])
    made = problem(
        num_train=int(match["num_train"]),
        temperature=float(match["temperature"]),
        seed=int(match["seed"]),
        model=kind,
        input_dim=int(match["input_dim"]),
        **options,
    )
    if made.name != name:  # 2d/T30-rho01-s0 is no temperature of 0.1
        raise UsageError(f"{name!r} does not name a problem; did you mean {made.name!r}?")
    return made
