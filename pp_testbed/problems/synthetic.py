"""Problems whose truth is an environment, a draw of a generative model, and how each is named.

A problem's name says everything: the generative model, T, the temperature and the seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError, unknown
from pp_testbed.models.base import Array, Environment, Model, Task, no_labels, sample_latents
from pp_testbed.models.coins import Coins
from pp_testbed.models.logistic import LogisticRegression
from pp_testbed.models.mlp import GenerativeMLP
from pp_testbed.models.own import OwnModel, own_model
from pp_testbed.models.regression import RegressionMLP
from pp_testbed.models.user_files import FileObject
from pp_testbed.problems.base import BaseProblem, Keys

TUNING_SEEDS = (1000, 1001)  # never reported


@dataclass(frozen=True)
class Problem(BaseProblem):
    """A task, and the environment that it came from.

    Examples:
        >>> Problem(GenerativeMLP(temperature=0.1), num_train=100, seed=3).name
        '2d/T100-rho0.1-s3'
    """

    @property
    def group(self) -> str:
        """The family of its model."""
        return family(self.model)

    @property
    def kind(self) -> str:
        """What it is but for its seed, in words: problems of one kind differ by chance alone."""
        return f"{self.group}/{'-'.join([f'T{self.num_train}', *self.model.settings])}"

    def __reduce__(self) -> tuple[Any, ...]:  # what has been drawn does not travel
        if kind_of(self.model):
            return of_name, (self.name,)
        return Problem, (self.model, self.num_train, self.seed)

    @property
    def tuned_on(self) -> tuple[Problem, ...]:
        """Problems of its kind, with other seeds."""
        return tuple(Problem(self.model, self.num_train, seed) for seed in TUNING_SEEDS)

    def draw(self, num_rows: int | None = None) -> tuple[Task, Environment]:
        """The task, padded to so many rows (`padded_size` if None), and the environment, drawn anew."""
        x, y, environment = _draw(self.model, self.keys, max(1000, self.padded_size))
        rows = np.arange(num_rows or self.padded_size) % self.num_train
        x, y = (jnp.asarray(np.asarray(values)[rows]) for values in (x, y))  # not a program for every T
        return Task(self.model, x, y, self.num_train), environment

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


MODELS: dict[str, Any] = {
    "mlp": GenerativeMLP,
    "logistic": LogisticRegression,
    "coins": Coins,
    "regression": RegressionMLP,
}
UNSAID = "mlp"  # the model that names do not say


def kind_of(model: Any) -> str | None:
    """What a name calls the class of a model, if it is one of the package's."""
    return next((name for name, made in MODELS.items() if made is type(model)), None)


def family(model: Any) -> str:
    """The model's part of a name: `2d`, `10d-K3-h20x20-tanh-normal`, `mine.py:MODEL@3f2a4b5c`."""
    kind = kind_of(model)
    if kind is None:
        if not hasattr(model, "family"):
            raise UsageError(f"{type(model).__name__} has no name; expected a model of pt.problem(model=...)")
        return model.family
    return "-".join([*[kind] * (kind != UNSAID), f"{model.input_dim}d", *model.words])


def _own(made_of: Any, temperature: float | None, options: dict[str, Any]) -> Any:
    """A user's program as a model."""
    if temperature is not None:
        raise UsageError("a model of one's own has no temperature; expected none")
    for option in options:
        if option not in ("input_dim", "x"):
            raise unknown("option of a model of one's own", option, ("num_train", "input_dim", "x"))
    return made_of if isinstance(made_of, OwnModel) else own_model(made_of, **options)


def make_model(kind: Any = "mlp", temperature: float | None = None, **options: Any) -> Any:
    """A generative model: one that is made, a program, or the name of a class and its options."""
    if kind_of(kind):
        if options or temperature is not None:
            raise UsageError(f"{type(kind).__name__} is made already; expected its options where it is made")
        return kind
    if not isinstance(kind, str) or FileObject.parse(kind):
        return _own(kind, temperature, options)
    if kind not in MODELS:
        raise unknown("model", kind, MODELS)
    known = [field for field in MODELS[kind].__dataclass_fields__ if field != "temperature"]
    for option in options:
        if option not in known:
            raise unknown(f"option of the {kind} model", option, ["num_train", "temperature", *known])
    if isinstance(options.get("hidden"), list):
        options["hidden"] = tuple(options["hidden"])
    if temperature is not None:
        if "temperature" not in MODELS[kind].__dataclass_fields__:
            raise UsageError(f"the {kind} model has no temperature; expected none")
        if np.ndim(temperature) or isinstance(temperature, str | bool):
            raise UsageError(f"the temperature is {temperature!r}; expected a number")
        options["temperature"] = float(temperature)
    return MODELS[kind](**options)


def of_model(
    model: Any,
    *,
    num_train: int,
    temperature: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A problem of a generative model: see `named.problem`."""
    return Problem(make_model(model, temperature, **options), num_train, seed)


_NAME = re.compile(
    r"(?:(?P<model>[a-z]+)-)?(?P<input_dim>\d+)d(?P<words>(?:-[^/]+)?)"
    r"/T(?P<num_train>\d+)(?:-rho(?P<temperature>\d[\d.]*(?:e-\d+)?))?-s(?P<seed>\d+)"
)
_OWN_NAME = re.compile(
    r"(?P<file>.+\.py:\w+)@[0-9a-f]{8}(?:-(?P<input_dim>\d+)d)?/T(?P<num_train>\d+)-s(?P<seed>\d+)"
)


def _parse_own(name: str, match: re.Match[str]) -> Problem:
    """The problem of a user's file, unless that has changed."""
    input_dim = int(match["input_dim"]) if match["input_dim"] else None
    made = Problem(own_model(match["file"], input_dim=input_dim), int(match["num_train"]), int(match["seed"]))
    if made.name != name:
        raise UsageError(f"{match['file']} has changed: {name!r} is now {made.name!r}")
    return made


def of_name(name: str) -> Problem:
    """The problem of a name."""
    if isinstance(name, str) and (own := _OWN_NAME.fullmatch(name)):
        return _parse_own(name, own)
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    kind = (match and match["model"]) or UNSAID
    if not match or kind not in MODELS:
        raise UsageError(f"{name!r} does not name a problem; a name is like '2d/T100-rho0.1-s3'")
    options = MODELS[kind].options_of(match["words"].split("-")[1:])
    made = of_model(
        kind,
        num_train=int(match["num_train"]),
        temperature=float(match["temperature"]) if match["temperature"] else None,
        seed=int(match["seed"]),
        input_dim=int(match["input_dim"]),
        **options,
    )
    if made.name != name:  # 2d/T30-rho01-s0 is no temperature of 0.1
        raise UsageError(f"{name!r} does not name a problem; did you mean {made.name!r}?")
    return made
