"""Objects of users' Python files, named `file.py:NAME`: read, and loaded from their source.

A file travels to other processes as its source. What the object is, a method or a model, is for others.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pp_testbed.errors import UsageError, unknown


@dataclass(frozen=True)
class FileObject:
    """An object of a file, in words.

    Attributes:
        path: of the file.
        name: of the object.
        source: of the file, where that need not be there: an object that travels.
    """

    path: str
    name: str
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> FileObject | None:
        """That of `file.py:NAME`; None of other text."""
        path, colon, name = text.rpartition(":")
        if not colon and text.endswith(".py"):
            raise UsageError(f"{text}: say which object, as in {text}:METHOD")
        return cls(path, name) if colon and path.endswith(".py") else None

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{self.path}:{self.name}"

    def with_source(self) -> FileObject:
        """With the text of its file."""
        return self if self.source else replace(self, source=_source(self))

    def load(self) -> Any:
        """The object, from the source of its file."""
        file, source = Path(self.path), self.with_source().source
        digest = hashlib.sha256(source.encode()).hexdigest()[:12]
        module = f"{file.stem}_from_file"  # not the bare stem, which could be another module's
        if getattr(sys.modules.get(module), "__digest__", None) != digest:
            sys.modules[module] = _import(file, module, digest, source)
        found = sys.modules[module]
        if not hasattr(found, self.name):
            raise unknown(f"name in {self.path}", self.name, _own_names(found))
        return getattr(found, self.name)


def _source(item: FileObject) -> str:
    """The text of a user's file."""
    file = Path(item.path)
    if not file.is_file():
        raise UsageError(f"there is no file {item.path} (for {item.text})")
    return file.read_text(encoding="utf-8")


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
