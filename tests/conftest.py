"""Test processes run side by side, one per core: each computes on one thread."""

import os

os.environ.setdefault("NPROC", "1")  # read by XLA when JAX starts
os.environ["XDG_DATA_HOME"] = "/nonexistent"  # the references of whoever runs the tests are not theirs
