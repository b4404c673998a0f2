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
    command = shlex.join([name, *sys.argv[1:]]) if name == "pp-testbed" else "pt.run in Python"
    machine = f"{platform.system()} {platform.machine()}, {cores()} cores"
    return json.dumps({"command": command, "machine": machine, **versions()}, sort_keys=True)
