"""Test processes run side by side, one thread on each core, and find what others have compiled."""

import os
from pathlib import Path

os.environ.setdefault("NPROC", "1")  # read by XLA when JAX starts
os.environ["XDG_DATA_HOME"] = "/nonexistent"  # the references of whoever runs the tests are not theirs

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")  # where workers keep programs too
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "pp_testbed" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
