"""What made a result: the command, the versions of packages, and the machine."""

from __future__ import annotations

import json
import math
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
    """The cores that this process may use: those that it sees, or fewer where a container limits its time."""
    affinity = getattr(os, "sched_getaffinity", None)
    seen = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(seen, math.ceil(min(_quotas(), default=seen))))


def _quotas(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> list[float]:
    """The cores that Linux's control groups allow this process, if they limit it: both versions of them."""
    try:
        groups = [line.split(":", 2)[2].lstrip("/") for line in membership.read_text().splitlines()]
    except (OSError, IndexError):
        return []
    places = {root, root / "cpu"}
    for group in groups:
        for top in (root, root / "cpu"):
            places |= {top / part for part in (Path(group), *Path(group).parents)}
    found = []
    for place in places:
        for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            try:
                quota, period = " ".join((place / name).read_text() for name in names).split()
                if quota not in ("max", "-1"):
                    found.append(int(quota) / int(period))
            except (OSError, ValueError):
                continue
    return found


def provenance() -> str:
    """What makes results in this process, as JSON with sorted keys."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    is_ours = name in ("pp-testbed", "pp-testbed.exe", "__main__.py")
    command = shlex.join(["pp-testbed", *sys.argv[1:]]) if is_ours else f"pt.run in {name or 'Python'}"
    machine = f"{platform.system()} {platform.machine()}, {cores()} cores"
    others = {package: version(package) for package in ("optax", "scikit-learn")}
    return json.dumps({"command": command, "machine": machine, **versions(), **others}, sort_keys=True)
