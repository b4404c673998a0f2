"""The one exception that means "the caller asked for something that is not there".

It says what was wrong, what was expected and the nearest right thing; the command line prints it
as one line and ends with 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class UsageError(ValueError):
    """A mistake of the caller's, in words for the caller."""


class CannotWriteError(UsageError):
    """A file cannot be written: nothing that is computed could be kept."""


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise a UsageError unless a value is a whole number, and large enough.

    Examples:
        >>> check_whole("num_train", 1.5, least=1)
        Traceback (most recent call last):
        pp_testbed.errors.UsageError: num_train is 1.5; expected a whole number, at least 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{name} is {value!r}; expected a whole number, at least {least}")


def unknown(kind: str, name: Any, options: Iterable[str]) -> UsageError:
    """The error for a misspelt name, with the nearest right ones.

    Examples:
        >>> print(unknown("method", "ensembel", ["mlp", "ensemble"]))
        unknown method 'ensembel'; did you mean 'ensemble'?
    """
    options = list(options)
    near = get_close_matches(str(name), options, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(option) for option in near) + "?"
    else:
        hint = "expected one of " + ", ".join(options)
    return UsageError(f"unknown {kind} {name!r}; {hint}")
