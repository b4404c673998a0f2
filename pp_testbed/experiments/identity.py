"""What a method is, in JSON: the part of a cell's identity that its hyperparameters and code make.

Two methods with equal descriptions give equal results. A user's function or class is therefore described by
its compiled code and by all that this code refers to, however far away: a constant, a helper, a base class,
an imported file. What was edited is another method, and its cells run again, but not for a comment, nor for
being imported under another name. Code of installed packages goes by its name.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Refer = Callable[[Any], str]  # how a description names a function, a class or a module


def config_text(method: Any, evaluation: Any) -> str:
    """The configuration of a cell, as JSON with sorted keys."""
    return json.dumps({"method": describe(method), "evaluation": describe(evaluation)}, sort_keys=True)


def config_hash(text: str) -> str:
    """A short name of a configuration."""
    return _digest(text)


def describe(value: Any, refer: Refer | None = None, seen: tuple[int, ...] = ()) -> Any:
    """A value as JSON that is equal for equal values, in this process and any other.

    Args:
        refer: how code is named; by default, by its name and a digest of all that it does.
        seen: the objects that are being described: what refers to itself is described once.
    """
    refer = refer or code_name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_code(value):
        return refer(value)
    if id(value) in seen:
        return "itself"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _describe_array(value)
    inside: Callable[[Any], Any] = partial(describe, refer=refer, seen=(*seen, id(value)))
    if isinstance(value, dict):
        return {str(key): inside(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [inside(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(inside(item), sort_keys=True) for item in value)
    if isinstance(value, partial):
        return {"partial": inside((value.func, value.args, value.keywords))}
    if inspect.ismethod(value):
        return {"method": inside((value.__func__, value.__self__))}
    return {"class": refer(type(value)), **inside(_contents(value))}


def _contents(value: Any) -> dict[str, Any]:
    """What an object is made of: its fields, what it says of itself to pickle, or its attributes."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    kind: Any = type(value)
    if kind.__reduce__ is not object.__reduce__:
        try:
            return {"reduced": value.__reduce__()}
        except TypeError:  # an open file, say, of which nothing but its kind is known
            return {}
    slots = [name for one in kind.__mro__ for name in getattr(one, "__slots__", ())]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )


def is_code(value: Any) -> bool:
    """Whether a value is a function, a class or a module, or wraps one."""
    if inspect.ismethod(value):
        return False
    return inspect.isroutine(value) or isinstance(value, type | ModuleType) or hasattr(value, "__wrapped__")


def code_name(item: Any) -> str:
    """A function, class or module: its name and, unless it is a library's, a digest of all that it does.

    Everything that can be reached from it is visited once, in an order that its text decides.
    """
    if _is_library(item):
        return _name(item)
    reached, places, parts = [item], {id(item): 0}, []

    def refer(other: Any) -> str:
        if _is_library(other):
            return _name(other)
        if id(other) not in places:
            places[id(other)] = len(reached)
            reached.append(other)
        return f"{_name(other)}#{places[id(other)]}"

    for one in reached:  # which grows
        parts.append(describe(_parts(one), refer))
    return f"{_name(item)}@{_digest(json.dumps(parts, sort_keys=True))}"


def _is_library(item: Any) -> bool:
    """Whether code is of this package, of Python, or installed; also what is not written in Python."""
    name = item.__name__ if isinstance(item, ModuleType) else getattr(item, "__module__", None) or "builtins"
    if name.partition(".")[0] in {"pp_testbed", "builtins", *sys.stdlib_module_names} - {"__main__"}:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _name(item: Any) -> str:
    """What code is called; that of users without its module, which depends on how it was imported."""
    if isinstance(item, ModuleType):
        return item.__name__
    name = getattr(item, "__qualname__", type(item).__name__)
    return f"{item.__module__}.{name}" if _is_library(item) else name


def _parts(item: Any) -> Any:
    """What a user's function, class or module does, and what it refers to."""
    if isinstance(item, type):
        own = [kind for kind in item.__mro__ if not _is_library(kind)]
        return [item.__mro__, *({name: _member(v) for name, v in _members(kind)} for kind in own)]
    if isinstance(item, ModuleType):
        return _parts_of_module(item)
    if hasattr(item, "__code__"):
        return [_instructions(item.__code__), item.__defaults__, item.__kwdefaults__, _outside(item)]
    return getattr(item, "__wrapped__", None)


def _parts_of_module(module: ModuleType) -> Any:
    """The code of a user's module, and other modules that it has, or has something of."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or not Path(file).is_file():
        return None
    code = compile(Path(file).read_bytes(), "module", "exec")
    homes = {
        name: value if isinstance(value, ModuleType) else _home(value) for name, value in vars(module).items()
    }
    return [_instructions(code), {name: home for name, home in homes.items() if home not in (None, module)}]


def _home(value: Any) -> ModuleType | None:
    return sys.modules.get(getattr(value, "__module__", None) or "")


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class defines, but for what Python adds."""
    for name, value in vars(kind).items():
        if not name.startswith("__") or is_code(value):
            yield name, value


def _member(value: Any) -> Any:
    """What is behind a property, or a method of the class."""
    if isinstance(value, property):
        return [value.fget, value.fset]
    return getattr(value, "__func__", getattr(value, "func", value))


def _outside(function: Any) -> dict[str, Any]:
    """The variables outside that a function refers to, also from functions inside it."""
    outside = {
        name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            outside[name] = cell.cell_contents
        except ValueError:  # which is not filled yet
            outside[name] = None
    return dict(sorted(outside.items()))


def _names(code: CodeType) -> set[str]:
    """The names that code and the code inside it look up."""
    inside = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inside)


def _instructions(code: CodeType) -> list[Any]:
    """What a code object does, without where it stands."""
    constants = [_instructions(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _constant(value: Any) -> str:
    """A constant of code in one form: that of a set has no order."""
    return repr(sorted(value, key=repr)) if isinstance(value, frozenset) else repr(value)


def _describe_array(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}:{_digest(array.tobytes())}"


def _digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()[:12]
