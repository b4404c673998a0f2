"""The one exception that means "the caller asked for something that is not there".

It says what was wrong, what was expected and the nearest right thing; the command line prints it
as one line and ends with 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """A mistake of the caller's, in words for the caller."""


class CannotWriteError(UsageError):
    """A file cannot be written: nothing that is computed could be kept."""


def unknown(kind: str, name: str, options: Iterable[str]) -> UsageError:
    """The error for a misspelt name, with the nearest right ones.

    Examples:
        >>> print(unknown("method", "ensembel", ["mlp", "ensemble"]))
        unknown method 'ensembel'; did you mean 'ensemble'?
    """
    options = list(options)
    near = get_close_matches(name, options, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(option) for option in near) + "?"
    else:
        hint = "expected one of " + ", ".join(options)
    return UsageError(f"unknown {kind} {name!r}; {hint}")
