"""How a method is named on a command line: by its registered name or as `file.py:NAME`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from pp_testbed.errors import UsageError, unknown
from pp_testbed.inference.distilled import Distilled
from pp_testbed.inference.options import method_name, with_options
from pp_testbed.inference.registry import METHODS, PRESETS, method, options_for, read_presets
from pp_testbed.models.base import as_pytree
from pp_testbed.models.user_files import FileObject

DISTILLED = "distilled:"


@dataclass(frozen=True)
class MethodSpec:
    """A method in words, which worker processes resolve for themselves.

    Attributes:
        text: a name, or `file.py:NAME`; after `distilled:`, what that method's posterior is in one network.
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

    @property
    def inner(self) -> str:
        """The method itself, or, of one that is distilled, its teacher."""
        return self.text.removeprefix(DISTILLED)

    @property
    def preset_by_facts(self) -> str:
        """The name of the preset, if its options depend on the problem; else nothing."""
        is_registered = self.inner in METHODS
        if not is_registered and self.preset in PRESETS:  # which know nothing of those of files
            return ""
        name = self.inner if is_registered else method_name(self._load())
        return Path(self.preset).stem if "where" in read_presets(self.preset).get(name, {}) else ""

    def _load(self) -> Any:
        """The method of a file, as it is there."""
        item = FileObject.parse(self.inner)
        if item is None:
            raise unknown("method", self.inner, METHODS)
        return _named(replace(item, source=self.source).load(), item.name)

    def _distilled(self, facts: dict[str, Any] | None) -> Any:
        """A student, with the options of its own in a user's preset, and a teacher with its own."""
        if self.inner.startswith(DISTILLED):
            raise UsageError(f"{self.text}: what is distilled is one network already")
        teacher = as_pytree(replace(self, text=self.inner, options=()).resolve(facts))
        made = Distilled(teacher=teacher, name=DISTILLED + method_name(teacher))
        return with_options(made, options_for([read_presets(self.preset).get(made.name)], facts or {}))

    def resolve(self, facts: dict[str, Any] | None = None) -> Any:
        """The method, as it is for a problem of such facts."""
        options: dict[str, Any] = dict(self.options)
        if self.inner != self.text:
            return with_options(self._distilled(facts), options)
        if self.text in METHODS:
            return method(self.text, preset=self.preset, facts=facts, **options)
        made = self._load()
        if self.preset not in PRESETS:
            entry = read_presets(self.preset).get(method_name(made))
            made = with_options(made, options_for([entry], facts or {}))
        return with_options(made, options)


def sent(item: Any, made: Any) -> Any:
    """What workers are sent of a method: of a user's file its source; else the method, which is small."""
    spec = MethodSpec(item) if isinstance(item, str) else item
    file = FileObject.parse(spec.inner) if isinstance(spec, MethodSpec) else None
    return replace(spec, source=file.with_source().source) if file else made


def resolve(item: Any, facts: dict[str, Any] | None = None) -> Any:
    """A method from its name, from its specification (for a problem of such facts), or itself."""
    if isinstance(item, str):
        item = MethodSpec(item)
    made = as_pytree(item.resolve(facts) if isinstance(item, MethodSpec) else item)
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


def resolve_for_all(item: Any) -> Any:
    """As `resolve`, where no one problem is meant: a preset must not have options for each kind of them."""
    if isinstance(item, MethodSpec) and item.preset_by_facts:
        raise UsageError(
            f"preset {item.preset} has options of {item.text} for each kind of problem; expected one "
            "that has the same for all, such as tuned"
        )
    return resolve(item)


def _named(made: Any, attribute: str) -> Any:
    """The method, called by the name it has in its file unless it has one of its own."""
    if is_dataclass(made) and not isinstance(made, type) and getattr(made, "name", None) == "":
        return replace(made, name=attribute)
    return made
