"""What a worker is set to before it starts, and what one of Dask's does with a job.

JAX reads its environment when it starts. Nothing here imports it, or what does, before that is set.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Of a worker: the size of XLA's thread pool; and NumPyro's ELBO adds sites in the order of a set: without the
# second, every process would make another program, and none be found in the compilation cache.
ENVIRONMENT = {"NPROC": "1", "PYTHONHASHSEED": "0"}


class Outcome(NamedTuple):
    """What has become of a job: what happened to its batches, and what is wrong with the worker."""

    events: list[tuple[int, Any]]
    version: str
    note: str


def do(payload: bytes, version: str, topic: str, key: str) -> Outcome:
    """Do a job; how far the one with this key is, the scheduler is told under a topic."""
    note = prepare()
    import cloudpickle
    from distributed import get_worker

    import pp_testbed

    if version != pp_testbed.__version__:
        return Outcome([], pp_testbed.__version__, note)
    from pp_testbed.engine.jobs import Done, perform

    run, messages, scratch = cloudpickle.loads(payload)
    events: list[tuple[int, Any]] = []
    for place, event in perform(run, messages, scratch, _programs()):
        events.append((place, event))
        if isinstance(event, Done) and not event.is_end:
            get_worker().log_event(topic, (key, place, *events.pop()[1]))
    return Outcome(events, version, note)


@cache
def prepare() -> str:
    """Set what JAX reads when it starts, once; what it is too late for, in a line."""
    late = ["PYTHONHASHSEED"] if sys.flags.hash_randomization else []
    if "jax" in sys.modules and os.environ.get("NPROC") != ENVIRONMENT["NPROC"]:
        late.append("NPROC")
    os.environ["NPROC"] = ENVIRONMENT["NPROC"]
    use_compilation_cache()
    if not late:
        return ""
    wanted = " ".join(f"{name}={ENVIRONMENT[name]}" for name in late)
    return f"a worker was started without {wanted}: last digits may differ, and programs are compiled anew"


@cache
def _programs() -> Any:
    from pp_testbed.engine.programs import Programs

    return Programs()


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user's JAX settings say where or that not."""
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "pp_testbed" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
