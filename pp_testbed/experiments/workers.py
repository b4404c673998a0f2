"""Worker processes: jobs out, and a crash costs one job.

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
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from pp_testbed.errors import UsageError


class Stopwatch:
    """How long something took since the last time one looked."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self.last = self.last, time.monotonic()
        return self.last - before


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, setup: bytes) -> None:
        self.programs: set[Any] = set()
        self.connection, theirs = Pipe()
        lifeline, self.lifeline = Pipe(duplex=False)  # closed by nothing but the end of this process
        self.job: Any = None
        self.watch = Stopwatch()  # of when it was last heard of
        descriptors = [theirs.fileno(), lifeline.fileno()]
        command = [sys.executable, "-P", "-m", "pp_testbed.experiments.workers", *map(str, descriptors)]
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
            pass_fds=descriptors,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a method prints is not part of a table
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
        )
        theirs.close()
        lifeline.close()
        with suppress(OSError):  # as in `start`
            self.connection.send_bytes(setup)

    def start(self, job: Job) -> None:
        """Send a job."""
        self.job = job
        self.watch.lap()
        with suppress(OSError):  # if it has died, reading from it says so
            self.connection.send_bytes(cloudpickle.dumps(job.message))

    def death(self) -> str:
        """Why the process ended, in words."""
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "the worker process was killed (signal 9), most likely for lack of memory"
        return f"the worker process died ({'signal' if code < 0 else 'exit code'} {abs(code)})"

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self.lifeline.close()
        self.process.kill()
        self.process.wait()


class Job(NamedTuple):
    """What a worker is asked to do.

    Attributes:
        program: which compiled program it needs; workers are spared compiling one twice.
        message: what the handler is called with; it must pickle.
        subject: what `done` and `died` are told it was about.
    """

    program: Any
    message: Any
    subject: Any


def run(
    queue: Iterable[Job],
    setup: Callable[[], Callable[[Any], Iterable[float] | None]],
    jobs: int,
    done: Callable[[Any, float], None],
    died: Callable[[Any, str], None],
    advanced: Callable[[Any, float, float], None] = lambda subject, progress, seconds: None,
) -> None:
    """Run jobs in `jobs` processes; with 0 in this one, where a debugger sees them.

    A job whose process dies is tried once more in a fresh one, as somebody else may have killed it.

    Args:
        setup: called in each worker; what it returns is called with each message. It may be a generator of
            numbers, its progress.
        done: told of the subject of each job that has ended, well or not, and of its seconds.
        died: told of the subject of a job whose process died twice, and why, before `done` is.
        advanced: told of the subject of a job that has made progress, how much, and in how many seconds.
    """
    if jobs == 0:
        handle, watch = setup(), Stopwatch()
        for job in queue:
            for progress in handle(job.message) or ():
                advanced(job.subject, progress, watch.lap())
            done(job.subject, watch.lap())
        return
    try:
        message = cloudpickle.dumps(setup)
    except Exception as error:
        raise UsageError(f"a method cannot be sent to a worker: {error}; use jobs=0") from error
    queue = list(queue)
    jobs = min(jobs, len(queue))
    workers: list[Worker] = []
    again: list[Job] = []  # those whose process died
    tried: set[int] = set()
    try:
        while queue or again or any(worker.job for worker in workers):
            while (queue or again) and len(workers) < jobs:
                workers.append(Worker(message))
                if again:
                    workers[-1].start(again.pop())
            for worker in workers:
                if worker.job is None and queue:
                    worker.start(_choose(queue, worker, workers))
            busy = [worker for worker in workers if worker.job]
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                try:
                    complaint = worker.connection.recv()
                    if isinstance(complaint, float):
                        advanced(worker.job.subject, complaint, worker.watch.lap())
                        continue
                except (EOFError, OSError):
                    why = worker.death()
                    workers.remove(worker)
                    if id(worker.job) not in tried:
                        tried.add(id(worker.job))
                        again.append(worker.job)
                        continue
                    died(worker.job.subject, why)
                else:
                    if complaint:
                        raise UsageError(complaint)
                done(worker.job.subject, worker.watch.lap())
                worker.job = None
    finally:
        for worker in workers:
            worker.stop()


def _choose(queue: list[Job], worker: Worker, workers: list[Worker]) -> Job:
    """Take the job that spares most compilation: of a program that the worker has, or nobody has."""
    compiled = set().union(*(other.programs for other in workers))
    mine = [job for job in queue if job.program in worker.programs]
    new = [job for job in queue if job.program not in compiled]
    job = (mine or new or queue)[0]
    queue.remove(job)
    worker.programs.add(job.program)
    return job


def main(descriptor: int, lifeline: int) -> None:
    """The worker's loop, until the parent ends, or closes the pipe."""
    threading.Thread(target=_end_with_parent, args=[lifeline], daemon=True).start()
    connection: Any = Connection(descriptor)
    use_compilation_cache()
    with suppress(EOFError, ConnectionError):  # there is nobody to talk to any more
        handle = cloudpickle.loads(connection.recv_bytes())()
        while True:
            connection.send(_answer(handle, connection))


def _answer(handle: Callable[[Any], Iterable[float] | None], connection: Any) -> str:
    """Do one job, tell of its progress, and return what is wrong with all that follow, if anything is."""
    message = cloudpickle.loads(connection.recv_bytes())
    try:
        for progress in handle(message) or ():
            connection.send(progress)
    except ConnectionError:
        raise
    except Exception as problem:
        from pp_testbed.experiments.batch import one_line

        return one_line(problem)
    return ""


def _end_with_parent(lifeline: int) -> None:
    """End this process, whatever it computes, as soon as the parent has ended: its end of the pipe closes."""
    os.read(lifeline, 1)
    os._exit(1)


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user's JAX settings say where or that not."""
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "pp_testbed" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
