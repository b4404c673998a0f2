"""What a method promises, and its options: changed by name, parsed from text, checked against ranges."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import jax
import numpy as np

from pp_testbed.errors import UsageError, unknown
from pp_testbed.inference.posterior import Posterior
from pp_testbed.models.base import Array, Task

# Sweeps are written as scikit-learn writes grids of parameters: products of values, side by side.
Sweep = tuple[dict[str, tuple[Any, ...]], ...]


class Method(Protocol):
    """A way of approximating posteriors: hyperparameters, and `fit`.

    A method, a dataclass, with an attribute `problems_at_once` that is not 0 promises more: `fit` is a pure
    JAX function of `(self, key, task)`, all of them pytrees, which is mapped over so many problems, and over
    hyperparameters. Any other object with `fit(key, task)` is called with one problem after another.

    One whose attribute `weighs_rows` is true promises that no row counts more than `task.data_weights` says.
    Problems of different T, filled up to one shape, then share a program; other methods never see a row that
    is not data.

    One that takes much longer than a training says `effort`, about how many times, so that it is begun first.

    A method that acts in bandits in another way than it is fitted says how: `acting()` is what it is there,
    where options that were given win, and `in_dimensions(d)` in a bandit of d dimensions.
    """

    def fit(self, key: Array, task: Task) -> Posterior: ...


F = TypeVar("F", bound=Callable[..., Any])


def compiled(fit: F) -> F:
    """A `fit` that is compiled once for problems of one shape, where a user calls it on one after another.

    In a larger program it is as if it were not there.
    """
    return cast(F, jax.jit(fit, inline=True))


NETWORKS_AT_ONCE = 10  # trained together by one program: what stays in a core's cache


def at_once(networks: int) -> int:
    """How many problems a program should hold where each fit trains so many networks together."""
    return max(1, NETWORKS_AT_ONCE // networks)


def problems_at_once(method: Any) -> int:
    """How many problems a method can be mapped over: see `Method`; 0 where it is any Python."""
    number = getattr(method, "problems_at_once", 0)
    return number if isinstance(number, int) and is_dataclass(method) else 0


def effort(method: Any) -> float:
    """About how much longer a fit takes than one training of a network, if a method says it."""
    return float(getattr(method, "effort", 1.0))


def num_rows(method: Any, task: Any) -> int:
    """Rows of a task that a program of a method sees: more than the data only if it weighs them."""
    return task.padded_size if getattr(method, "weighs_rows", False) else task.num_train


def method_name(made: Any) -> str:
    """What a table calls a method."""
    return cast(str, getattr(made, "name", "")) or type(made).__name__


def with_options(made: Any, options: dict[str, Any]) -> Any:
    """Change hyperparameters of a method; values may be text, as from a command line."""
    if not is_dataclass(made) or isinstance(made, type):
        if options:
            raise UsageError(f"{method_name(made)} is not a dataclass: it has no options to set")
        return made
    converted = {option: option_value(made, option, value) for option, value in options.items()}
    of_guide = {option: value for option, value in converted.items() if option in _guide_options(made)}
    if of_guide:
        guide = vars(made)["guide"]
        converted["guide"] = partial(guide.func, *guide.args, **(guide.keywords | of_guide))
    return replace(made, **{option: value for option, value in converted.items() if option not in of_guide})


def options_of(made: Any) -> dict[str, Any]:
    """The options of a method with their values: its fields, and what its guide, a `partial`, was given."""
    return {f.name: getattr(made, f.name) for f in fields(made) if f.name != "name"} | _guide_options(made)


def _guide_options(made: Any) -> dict[str, Any]:
    guide = next((getattr(made, f.name) for f in fields(made) if f.name == "guide"), None)
    return dict(guide.keywords) if isinstance(guide, partial) else {}


def option_value(made: Any, option: str, value: Any) -> Any:
    """A value of an option, of the type that it has; it may be text."""
    known = options_of(made)
    if option not in known:
        raise unknown(f"option of {method_name(made)}", option, known)
    return _converted(method_name(made), option, value, known[option])


def _converted(owner: str, option: str, value: Any, current: Any) -> Any:
    """Give `value` the type of the option's current value, or say why it cannot have it."""
    try:
        converted = _parse(value, current) if isinstance(value, str) else _as_type(value, current)
    except (ValueError, TypeError):
        kind = "numbers like 50,50" if isinstance(current, tuple) else type(current).__name__
        raise UsageError(f"{owner}.{option}={value}: expected {kind}, as in {current!r}") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise UsageError(f"{owner}.{option}={value}: expected a finite number, as in {current!r}")
    return converted


def _parse(text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(like, tuple):
        return tuple(int(part) for part in text.strip("()").split(",") if part)
    if isinstance(like, int | float):
        return type(like)(text)
    raise ValueError(text)


PLAIN = (bool, int, float, str, tuple, list, type(None), np.generic, np.ndarray, jax.Array)


def _as_type(value: Any, like: Any) -> Any:
    """A value that is no text as of the type of another; a TypeError where that would change it."""
    is_plain: bool = isinstance(value, PLAIN)
    if not is_plain and not isinstance(
        like, int | float | tuple
    ):  # a network, a guide: the method's check knows
        return value
    if isinstance(like, bool | str):
        if not isinstance(value, type(like)):
            raise TypeError(value)
        return value
    if isinstance(like, tuple):
        return tuple(operator.index(part) for part in value)
    if isinstance(like, int):
        return operator.index(value)
    if isinstance(like, float) and not isinstance(value, jax.Array):  # which may be one of many, mapped over
        return float(value)
    return value


def check_positive(made: Any, *options: str) -> None:
    """Raise a UsageError unless these options of a method are whole numbers, at least 1."""
    for option in options:
        value = getattr(made, option)
        if not isinstance(value, Integral) or value < 1:
            raise UsageError(f"{method_name(made)}.{option}={value}: expected a whole number, at least 1")


class Range(NamedTuple):
    """Numbers between two, with or without these two themselves, and how people say that."""

    low: float
    high: float
    has_low: bool
    has_high: bool
    words: str

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        above = value >= self.low if self.has_low else value > self.low
        return above and (value <= self.high if self.has_high else value < self.high)


POSITIVE = Range(0.0, math.inf, False, False, "above 0")
NOT_NEGATIVE = Range(0.0, math.inf, True, False, "of at least 0")
BELOW_ONE = Range(0.0, 1.0, True, False, "between 0 and 1, and not 1")
SHARE = Range(0.0, 1.0, True, True, "between 0 and 1")


def check_within(made: Any, option: str, wanted: Range) -> None:
    """Raise a UsageError unless an option is in a range. Numbers that JAX traces were checked before."""
    value = getattr(made, option)
    if isinstance(value, int | float) and value not in wanted:
        raise UsageError(f"{method_name(made)}.{option}={value}: expected a number {wanted.words}")


def check_choice(made: Any, option: str, known: Any) -> None:
    """Raise a UsageError unless an option of a method is one of those known."""
    if getattr(made, option) not in known:
        raise unknown(option, getattr(made, option), known)
