"""The far side of `dask`: what a worker does with a job.

JAX reads its environment when it starts. Nothing here imports it, or what does, before that is set.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any, NamedTuple

# Of a worker: the size of XLA's thread pool; and NumPyro's ELBO adds sites in the order of a set: without the
# second, every process would make another program, and none be found in the compilation cache.
ENVIRONMENT = {"NPROC": "1", "PYTHONHASHSEED": "0"}


class Outcome(NamedTuple):
    """What has become of a job: what happened to its batches, and what is wrong with the worker."""

    events: list[tuple[int, Any]]
    version: str
    note: str


def do(payload: bytes, topic: str) -> Outcome:
    """Do a job; how far it is, the scheduler is told under a topic."""
    note = prepare()
    import cloudpickle
    from distributed import get_worker

    import pp_testbed
    from pp_testbed.engine.jobs import Done, perform

    version, run, messages, scratch = cloudpickle.loads(payload)
    if version != pp_testbed.__version__:
        return Outcome([], pp_testbed.__version__, note)
    events: list[tuple[int, Any]] = []
    for place, event in perform(run, messages, scratch, _programs()):
        events.append((place, event))
        if isinstance(event, Done) and not event.is_end:
            get_worker().log_event(topic, (place, *events.pop()[1]))
    return Outcome(events, version, note)


@cache
def prepare() -> str:
    """Set what JAX reads when it starts, once; what it is too late for, in a line."""
    late = ["PYTHONHASHSEED"] if sys.flags.hash_randomization else []
    if "jax" in sys.modules and os.environ.get("NPROC") != ENVIRONMENT["NPROC"]:
        late.append("NPROC")
    os.environ["NPROC"] = ENVIRONMENT["NPROC"]
    from pp_testbed.engine.local import use_compilation_cache

    use_compilation_cache()
    if not late:
        return ""
    wanted = " ".join(f"{name}={ENVIRONMENT[name]}" for name in late)
    return f"a worker was started without {wanted}: last digits may differ, and programs are compiled anew"


@cache
def _programs() -> Any:
    from pp_testbed.engine.programs import Programs

    return Programs()
