"""Worker processes: batches out, rows to the store, and a crash costs one batch.

`run` is the parent's side, `main` the worker's (`python -m pp_testbed.experiments.workers FD`).
Workers are plain subprocesses that talk over a pipe, so that no `if __name__ == "__main__"` is
needed where they are used. Each computes on one thread: for networks this small, one program per
core is two and a half times faster than one program on two.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import cloudpickle

from pp_testbed.errors import UsageError
from pp_testbed.experiments.store import Store


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, setup: bytes) -> None:
        self.programs: set[int] = set()
        self.connection, theirs = Pipe()
        self.batch: Any = None
        command = [sys.executable, "-P", "-m", "pp_testbed.experiments.workers", str(theirs.fileno())]
        environment = {
            **os.environ,
            "NPROC": "1",  # the size of XLA's thread pool
            # NumPyro's ELBO adds sites in the order of a set: without this, every process would make
            # another program, and none be found in the compilation cache.
            "PYTHONHASHSEED": "0",
        }
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a method prints is not part of a table
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
        )
        theirs.close()
        self.connection.send_bytes(setup)

    def start(self, batch: Any, message: Any) -> None:
        """Send a batch."""
        self.batch = batch
        self.connection.send_bytes(cloudpickle.dumps(message))

    def death(self) -> str:
        """Why the process ended, in words."""
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "the worker process was killed (signal 9), most likely for lack of memory"
        return f"the worker process died ({'signal' if code < 0 else 'exit code'} {abs(code)})"

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def run(
    batches: list[Any],
    items: list[Any],
    index: dict[int, int],
    store: Store,
    config: Any,
    jobs: int,
    done: Callable[[Any], None],
) -> None:
    """Run batches in `jobs` processes.

    Args:
        items: methods as the caller gave them; workers resolve names and files for themselves.
        index: from the `id` of a resolved method to its place in `items`.
        done: told of each batch that is in the store.
    """
    try:
        setup = cloudpickle.dumps((items, store.directory, config))
    except Exception as error:
        raise UsageError(f"a method cannot be sent to a worker: {error}; use jobs=0") from error
    queue = list(batches)
    jobs = min(jobs, len(queue))
    workers: list[Worker] = []
    try:
        while queue or any(worker.batch for worker in workers):
            while queue and len(workers) < jobs:
                workers.append(Worker(setup))
            for worker in workers:
                if worker.batch is None and queue:
                    _send(worker, _choose(queue, worker, workers), index)
            busy = [worker for worker in workers if worker.batch]
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                try:
                    complaint = worker.connection.recv()
                except (EOFError, OSError):
                    for cell in worker.batch.cells:
                        store.write(cell.row("error", worker.death()))
                    workers.remove(worker)
                else:
                    if complaint:
                        raise UsageError(complaint)
                done(worker.batch)
                worker.batch = None
    finally:
        for worker in workers:
            worker.stop()


def _choose(queue: list[Any], worker: Worker, workers: list[Worker]) -> Any:
    """Take the batch that spares most compilation: of a program that the worker has, or nobody has."""
    compiled = set().union(*(other.programs for other in workers))
    mine = [batch for batch in queue if batch.program in worker.programs]
    new = [batch for batch in queue if batch.program not in compiled]
    batch = (mine or new or queue)[0]
    queue.remove(batch)
    worker.programs.add(batch.program)
    return batch


def _send(worker: Worker, batch: Any, index: dict[int, int]) -> None:
    cells = [(index[id(cell.method)], cell.problem, cell.suite, cell.config) for cell in batch.cells]
    with suppress(OSError):  # if it has died, reading from it says so
        worker.start(batch, (cells, batch.size, batch.program, batch.is_first))


def main(descriptor: int) -> None:
    """The worker's loop, until the parent closes the pipe."""
    connection: Any = Connection(descriptor)
    use_compilation_cache()
    from pp_testbed.experiments.batch import Batch, Cell, Programs, run_batch
    from pp_testbed.experiments.specs import resolve

    items, directory, config = cloudpickle.loads(connection.recv_bytes())
    methods = [resolve(item) for item in items]
    store, programs = Store(directory), Programs()
    while True:
        try:
            cells, *rest_of_batch = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        batch = Batch(tuple(Cell(methods[i], *rest) for i, *rest in cells), *rest_of_batch)
        complaint = ""
        try:
            for row in run_batch(batch, config, programs):
                store.write(row)
        except OSError as problem:
            complaint = f"cannot write results to {directory}: {problem.strerror}"
        connection.send(complaint)


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user's JAX settings say where or that not."""
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "pp_testbed" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


if __name__ == "__main__":
    main(int(sys.argv[1]))
