"""What a method is, in JSON: the part of a cell's identity that its hyperparameters and code make.

Two methods with equal descriptions give equal results, so a function is described by its source: a
guide that was edited is another guide, and its cells run again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np

from pp_testbed.experiments.specs import SOURCE_DIGEST


def config_text(method: Any, evaluation: Any) -> str:
    """The configuration of a cell, as JSON with sorted keys."""
    return json.dumps({"method": describe(method), "evaluation": describe(evaluation)}, sort_keys=True)


def config_hash(text: str) -> str:
    """A short name of a configuration."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def describe(value: Any) -> Any:
    """A value as JSON that is equal for equal values, in this process and any other."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, partial):
        return {"partial": [describe(value.func), describe(value.args), describe(value.keywords)]}
    if is_dataclass(value) and not isinstance(value, type):
        described = {field.name: describe(getattr(value, field.name)) for field in fields(value)}
        return {"class": _code(type(value)), **described}
    if inspect.isroutine(value) or isinstance(value, type):
        return _code(value)
    if isinstance(value, tuple | list | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [describe(item) for item in items]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:12]
        return f"{array.dtype}{list(array.shape)}:{digest}"
    return {"class": _code(type(value)), **describe(getattr(value, "__dict__", {}))}


def _code(item: Any) -> Any:
    """A function or class: where it is from and, unless it is a library's, a digest of its source."""
    where = f"{item.__module__}.{item.__qualname__}"
    module = inspect.getmodule(item)
    in_library = "site-packages" in (getattr(module, "__file__", None) or "")
    closure = [describe(cell.cell_contents) for cell in getattr(item, "__closure__", None) or ()]
    closure += [describe(value) for value in getattr(item, "__defaults__", None) or ()]
    if in_library or item.__module__.partition(".")[0] in ("pp_testbed", "builtins"):
        return {where: closure} if closure else where
    source = getattr(module, SOURCE_DIGEST, None) or _source_digest(item)
    return {f"{where}@{source}": closure} if closure else f"{where}@{source}"


def _source_digest(item: Any) -> str:
    try:
        text = inspect.getsource(item)
    except (OSError, TypeError):
        code = getattr(item, "__code__", None)
        text = repr((code.co_code, code.co_consts, code.co_names)) if code else repr(item)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
