"""What a method is, in JSON: the part of a cell's identity that its hyperparameters and code make.

Two methods with equal descriptions give equal results. A user's function or class is therefore described by
its compiled code and by all that this code refers to, however far away: a constant, a helper, a base class,
what it uses of an imported file, as it is loaded in this process. What was edited is another method, and its
cells run again, but not for a comment, nor for being imported under another name. Code of installed packages
goes by its name, and by the values that it closes over, such as a learning rate. Classes of this package go
by their name alone, wherever they live, and by their `revision`, an integer that is raised when what they
compute changes: `tests/test_revisions.py` sees that it is.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cached_property, partial, partialmethod
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

SINCE = "since"  # of a field's metadata: the version that added it, before which all had its default
Refer = Callable[[Any], Any]  # how a description names a function, a class or a module
Inside = Callable[[Any], Any]  # describes what is in a container


def _in_order(values: Any, inside: Inside) -> list[Any]:
    return [inside(item) for item in values]


def _sorted(values: Any, inside: Inside) -> list[Any]:
    return sorted(json.dumps(inside(item), sort_keys=True) for item in values)


# How values of built-in types are described; of a type that derives from one, so is what it adds.
BUILT_IN: dict[type, Callable[[Any, Inside], Any]] = {
    dict: lambda value, inside: {str(key): inside(item) for key, item in value.items()},
    tuple: _in_order,
    list: _in_order,
    set: _sorted,
    frozenset: _sorted,
    str: lambda value, _inside: str.__str__(value),
    int: lambda value, _inside: int(value),
    float: lambda value, _inside: float(value),
}


def config_text(**parts: Any) -> str:
    """A configuration as JSON with sorted keys: the revision of its study, the method, what it is asked."""
    return json.dumps({name: describe(part) for name, part in parts.items()}, sort_keys=True)


def renewed(text: str, revision: int) -> str:
    """A configuration of 0.2.0 or earlier in today's words: without names of modules, with revisions."""
    return json.dumps(_renewed(json.loads(text), revision) | {"revision": revision}, sort_keys=True)


def _renewed(described: Any, revision: int) -> Any:
    if isinstance(described, list):
        return [_renewed(item, revision) for item in described]
    if isinstance(described, str) and described.startswith("pp_testbed."):
        return described.rpartition(".")[2]
    if not isinstance(described, dict):
        return described
    is_ours = str(described.get("class")).startswith("pp_testbed.")
    inside = {name: _renewed(item, revision) for name, item in described.items()}
    return inside | {"revision": revision} if is_ours else inside


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
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.float64):
        return float(value)
    if id(value) in seen:
        return "itself"
    if is_code(value) and not _closes_over(value):
        return refer(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _describe_array(value)
    if isinstance(value, pd.DataFrame | pd.Series | pd.Index):
        hashes = pd.util.hash_pandas_object(value).to_numpy()
        return [type(value).__name__, _digest(hashes.tobytes()), [*map(str, getattr(value, "columns", []))]]
    inside: Inside = partial(describe, refer=refer, seen=(*seen, id(value)))
    if isinstance(value, re.Pattern):
        return {"pattern": inside((value.pattern, value.flags))}
    for kind, contents in BUILT_IN.items():
        if isinstance(value, kind):
            plain = contents(value, inside)
            if type(value) is kind:
                return plain
            own = dict(getattr(value, "__dict__", {}))
            return {"class": refer(type(value)), "value": plain, "attributes": inside(own)}
    if isinstance(value, partial):
        return {"partial": inside((value.func, value.args, value.keywords))}
    if inspect.ismethod(value):
        return {"method": inside((value.__func__, value.__self__))}
    if is_code(value):
        return {"function": _name(value), "with": inside([cell.cell_contents for cell in value.__closure__])}
    return {"class": refer(type(value)), **revision_of(type(value)), **inside(_contents(value))}


def revision_of(kind: type) -> dict[str, int]:
    """The revision of what a class computes, if it says one; 1 of classes of this package that do not."""
    revision = getattr(kind, "revision", 1 if _is_ours(kind) else None)
    return {"revision": revision} if isinstance(revision, int) else {}


def _contents(value: Any) -> dict[str, Any]:
    """What an object is made of: its fields, what it says of itself to pickle, or its attributes."""
    if is_dataclass(value):
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        usual = {field.name: field.default for field in fields(value) if field.metadata.get(SINCE)}
        return {name: item for name, item in values.items() if name not in usual or item != usual[name]}
    kind: Any = type(value)
    if kind.__reduce__ is not object.__reduce__:
        try:
            return {"reduced": value.__reduce__()}
        except TypeError:  # an open file, say, of which nothing but its kind is known
            return {}
    slots = [name for one in kind.__mro__ for name in getattr(one, "__slots__", ())]
    contents = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    contents |= getattr(value, "__dict__", {})
    if not contents and kind.__repr__ is not object.__repr__:  # bytes, a path
        return {"repr": repr(value)}
    return contents


def is_code(value: Any) -> bool:
    """Whether a value is a function, a class or a module, or wraps one."""
    if inspect.ismethod(value):
        return False
    return inspect.isroutine(value) or isinstance(value, type | ModuleType) or hasattr(value, "__wrapped__")


def code_name(item: Any) -> str | dict[str, str]:
    """A function, class or module: its name and, unless it is a library's, a digest of all that it does.

    Everything that can be reached from it is visited once, in an order that its text decides.
    """
    if is_library(item):
        return _name(item)
    reached, places, parts = [item], {id(item): 0}, []

    def refer(other: Any) -> str:
        if is_library(other):
            return " ".join([_name(other), *map(str, revision_of(other).values())])
        if id(other) not in places:
            places[id(other)] = len(reached)
            reached.append(other)
        return f"{_name(other)}#{places[id(other)]}"

    for one in reached:  # which grows
        parts.append(describe(_parts(one), refer))
    return {"code": _name(item), "digest": _digest(json.dumps(parts, sort_keys=True))}


def without_digests(described: Any) -> Any:
    """A description of options alone: what a method that was mended shares with what it was."""
    if isinstance(described, list):
        return [without_digests(item) for item in described]
    if not isinstance(described, dict):
        return described
    return {name: without_digests(item) for name, item in described.items() if name != "digest"}


def is_library(item: Any) -> bool:
    """Whether code is of this package, of Python, or installed; also what is not written in Python."""
    name = item.__name__ if isinstance(item, ModuleType) else getattr(item, "__module__", None) or "builtins"
    if name == "__main__":  # a user's, also in a worker, whose own is a file of this package
        return False
    if name.partition(".")[0] in {"pp_testbed", "builtins", *sys.stdlib_module_names}:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _is_ours(item: Any) -> bool:
    """Whether code is of this package."""
    name = item.__name__ if isinstance(item, ModuleType) else getattr(item, "__module__", None) or ""
    return name.partition(".")[0] == "pp_testbed"


def _name(item: Any) -> str:
    """What code is called; without its module if that may change: of users as they import it, and of ours."""
    if isinstance(item, ModuleType):
        return "pp_testbed" if _is_ours(item) else item.__name__
    name = getattr(item, "__qualname__", type(item).__name__)
    return f"{item.__module__}.{name}" if is_library(item) and not _is_ours(item) else name


def _parts(item: Any) -> Any:
    """What a user's function, class or module does, and what it refers to."""
    if isinstance(item, type):
        own = [kind for kind in item.__mro__ if not is_library(kind)]
        return [item.__mro__, *({name: _member(v) for name, v in _members(kind)} for kind in own)]
    if hasattr(item, "__code__"):
        attributes = {name: value for name, value in vars(item).items() if name != "__wrapped__"}
        defaults = item.__defaults__, item.__kwdefaults__
        return [_instructions(item.__code__), *defaults, _outside(item), attributes]
    return [getattr(item, name, None) for name in ("__wrapped__", "jvp", "fwd", "bwd")]  # JAX's rules


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class defines, but for what Python adds."""
    for name, value in vars(kind).items():
        if not name.startswith("__") or is_code(value):
            yield name, value


def _member(value: Any) -> Any:
    """What is behind a property, or a method of the class."""
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, cached_property):
        return value.func
    if isinstance(value, partialmethod):
        return partial(value.func, *value.args, **value.keywords)
    return value


def _outside(function: Any) -> dict[str, Any]:
    """The variables outside that a function refers to, also from functions inside it.

    Of users' modules it is what may be looked up in them: the variables that have a name of the code.
    """
    names = _names(function.__code__)
    found: dict[str, Any] = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    found |= {name: _imported(name, function.__globals__) for name in _imports(function.__code__)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # which is not filled yet
            found[name] = None
    outside: dict[str, Any] = {}
    while found:
        name, value = found.popitem()
        outside[name] = value
        if isinstance(value, ModuleType) and not is_library(value):
            there = {f"{name}.{inner}": vars(value)[inner] for inner in names & vars(value).keys()}
            found |= {inner: one for inner, one in there.items() if inner not in outside}
    return dict(sorted(outside.items()))


def _imports(code: CodeType) -> set[str]:
    """The modules that code and the code inside it import."""
    here = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
    return here.union(*(_imports(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _imported(name: str, variables: dict[str, Any]) -> Any:
    """A module that a function imports when it is called, or None if it cannot be."""
    with suppress(Exception):  # as the call may, then: to say so is not for a description
        package = variables.get("__package__") or ""
        return sys.modules.get(name) or import_module(name, package)
    return None


def _closes_over(value: Any) -> bool:
    """Whether code is a library's function that holds values, such as an optimiser of optax."""
    return bool(getattr(value, "__closure__", None)) and not inspect.ismethod(value) and is_library(value)


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


def _describe_array(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype == object:  # whose bytes are addresses
        return describe(array.tolist())
    return f"{array.dtype}{list(array.shape)}:{_digest(array.tobytes())}"


def _digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()[:12]
