"""What made a result: the command, the versions of packages, and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import pp_testbed

PACKAGES = ("numpyro", "blackjax", "jax", "numpy")


def versions() -> dict[str, str]:
    """The versions of this package, of those that it computes with, and of Python."""
    packages = {name: version(name) for name in PACKAGES}
    return {"pp_testbed": pp_testbed.__version__, **packages, "python": platform.python_version()}


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def provenance() -> str:
    """What makes results in this process, as JSON with sorted keys."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    is_ours = name in ("pp-testbed", "pp-testbed.exe", "__main__.py")
    command = shlex.join(["pp-testbed", *sys.argv[1:]]) if is_ours else f"pt.run in {name or 'Python'}"
    machine = f"{platform.system()} {platform.machine()}, {cores()} cores"
    others = {package: version(package) for package in ("optax", "scikit-learn")}
    return json.dumps({"command": command, "machine": machine, **versions(), **others}, sort_keys=True)
