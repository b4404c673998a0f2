"""What a method is, in JSON: the part of a cell's identity that its hyperparameters and code make.

Two methods with equal descriptions give equal results. A user's function is therefore described by
its compiled code and everything that it refers to: a guide that was edited is another guide, and its
cells run again, but not for a comment. Code of installed packages goes by its name.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def config_text(method: Any, evaluation: Any) -> str:
    """The configuration of a cell, as JSON with sorted keys."""
    return json.dumps({"method": describe(method), "evaluation": describe(evaluation)}, sort_keys=True)


def config_hash(text: str) -> str:
    """A short name of a configuration."""
    return _digest(text)


def describe(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A value as JSON that is equal for equal values, in this process and any other.

    `seen` are the objects that are being described: what refers to itself is described once.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in seen:
        return "itself"
    seen = (*seen, id(value))
    if isinstance(value, dict):
        return {str(key): describe(item, seen) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [describe(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(describe(item, seen), sort_keys=True) for item in value)
    if isinstance(value, ModuleType):
        return _describe_module(value)
    if isinstance(value, partial):
        return {"partial": describe((value.func, value.args, value.keywords), seen)}
    if inspect.isroutine(value) or isinstance(value, type):
        return _describe_code(value, seen)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _describe_array(value)
    if is_dataclass(value):
        contents = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        contents = getattr(value, "__dict__", {})
    return {"class": _describe_code(type(value), seen), **describe(contents, seen)}


def _is_library(name: str, file: str) -> bool:
    return name.partition(".")[0] in ("pp_testbed", "builtins") or "site-packages" in file


def _describe_module(module: ModuleType) -> str:
    """A module's name and, if it is the user's own, a digest of its file."""
    file = getattr(module, "__file__", None) or ""
    if not file or _is_library(module.__name__, file):
        return module.__name__
    return f"{module.__name__}@{_digest(Path(file).read_bytes())}"


def _describe_array(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}:{_digest(array.tobytes())}"


def _describe_code(item: Any, seen: tuple[int, ...]) -> str:
    """A function or class: its name and, unless it is a library's, a digest of all that it does."""
    where = f"{item.__module__}.{item.__qualname__}"
    file = getattr(inspect.getmodule(item), "__file__", None) or ""
    bound = getattr(item, "__self__", None)
    owner = None if bound is None or isinstance(bound, ModuleType) else bound
    if _is_library(item.__module__ or "builtins", file):
        return where if owner is None else f"{where}@{_digest(json.dumps(describe(owner, seen)))}"
    if isinstance(item, type):
        parts: Any = {name: v for name, v in vars(item).items() if not name.startswith("__") or callable(v)}
        parts = {name: getattr(v, "fget", getattr(v, "__func__", v)) for name, v in parts.items()}
    elif hasattr(item, "__code__"):
        outside = inspect.getclosurevars(item)
        refers = {**outside.globals, **outside.nonlocals}
        parts = [_instructions(item.__code__), item.__defaults__, item.__kwdefaults__, owner, refers]
    else:
        parts = repr(item)
    return f"{where}@{_digest(json.dumps(describe(parts, seen), sort_keys=True))}"


def _instructions(code: CodeType) -> list[Any]:
    """What a code object does, without where it stands."""
    constants = [_instructions(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()[:12]
