"""How a method is named on a command line: by its registered name or as `file.py:NAME`."""

from __future__ import annotations

import hashlib
import inspect
import sys
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pp_testbed.errors import UsageError, unknown
from pp_testbed.inference.options import method_name, with_options
from pp_testbed.inference.registry import METHODS, method
from pp_testbed.models.base import as_pytree


@dataclass(frozen=True)
class MethodSpec:
    """A method in words, which worker processes resolve for themselves.

    Attributes:
        text: a name, or `file.py:NAME`.
        options: what `--set` changes.
        preset: as for `inference.registry.method`.
        source: of the file, where that need not be there: a spec that travels.

    Examples:
        >>> MethodSpec("ensemble", (("size", "30"),)).resolve().size
        30
    """

    text: str
    options: tuple[tuple[str, str], ...] = ()
    preset: str = "tuned"
    source: str = ""

    def resolve(self) -> Any:
        options: dict[str, Any] = dict(self.options)
        if self.text in METHODS:
            return method(self.text, preset=self.preset, **options)
        path, colon, attribute = self.text.rpartition(":")
        if not colon:
            if self.text.endswith(".py"):
                raise UsageError(f"{self.text}: say which object, as in {self.text}:METHOD")
            raise unknown("method", self.text, METHODS)
        source = self.source or _source(path, attribute)
        return with_options(_named(_load(path, attribute, source), attribute), options)


def sent(item: Any, made: Any) -> Any:
    """What workers are sent of a method: of a user's file its source; else the method, which is small."""
    spec = MethodSpec(item) if isinstance(item, str) else item
    path, colon, attribute = spec.text.rpartition(":") if isinstance(spec, MethodSpec) else ("", "", "")
    return replace(spec, source=_source(path, attribute)) if colon else made


def resolve(item: Any) -> Any:
    """A method from its name, from its specification, or itself."""
    if isinstance(item, str):
        item = MethodSpec(item)
    made = item.resolve() if isinstance(item, MethodSpec) else as_pytree(item)
    if isinstance(made, type) and callable(getattr(made, "fit", None)):
        raise UsageError(f"{made.__name__} is a class: make an instance of it, METHOD = {made.__name__}()")
    if not callable(getattr(made, "fit", None)):
        hint = f"; a guide? pt.SVI({made.__name__}) is one" if inspect.isfunction(made) else ""
        raise UsageError(f"{made!r} is not a method: it has no fit(key, task){hint}")
    try:
        inspect.signature(made.fit).bind("key", "task")
    except TypeError:
        given = inspect.signature(made.fit)
        raise UsageError(f"{method_name(made)} has fit{given}; expected fit(self, key, task)") from None
    return made


def _source(path: str, attribute: str) -> str:
    """The text of a user's file."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {path} (for the method {path}:{attribute})")
    return file.read_text(encoding="utf-8")


def _load(path: str, attribute: str, source: str) -> Any:
    """An attribute of a Python file, from its source."""
    file = Path(path)
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    name = f"{file.stem}_from_file"  # not the bare stem, which could be another module's
    if getattr(sys.modules.get(name), "__digest__", None) != digest:
        sys.modules[name] = _import(file, name, digest, source)
    module = sys.modules[name]
    if not hasattr(module, attribute):
        raise unknown(f"name in {path}", attribute, _own_names(module))
    return getattr(module, attribute)


def _own_names(module: Any) -> list[str]:
    """What a module defines: neither imported nor private."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]


def _import(file: Path, name: str, digest: str, source: str) -> Any:
    module = ModuleType(name)
    module.__dict__.update(__file__=str(file), __digest__=digest)
    folder = file.resolve().parent
    if folder.is_dir() and str(folder) not in sys.path:  # as for a script, so that it finds its neighbours
        sys.path.append(str(folder))
    sys.modules[name] = module
    try:
        # Not by an import loader, whose bytecode cache misses a second edit within one second.
        exec(compile(source, str(file), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _named(made: Any, attribute: str) -> Any:
    """The method, called by the name it has in its file unless it has one of its own."""
    if is_dataclass(made) and not isinstance(made, type) and getattr(made, "name", None) == "":
        return replace(made, name=attribute)
    return made
