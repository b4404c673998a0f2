"""Worker processes of this machine: jobs out, events back, and a crash costs one job.

`Local` is the parent's side, `main` the worker's (`python -m pp_testbed.engine.local FD FD`). Workers are
plain subprocesses that talk over a pipe, so that no `if __name__ == "__main__"` is needed where they are
used. Each computes on one thread: for networks this small, one program per core is two and a half times
faster than one program on two.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import cloudpickle

from pp_testbed.engine.jobs import Done, Event, Failed, Job, Queue, one_line, perform
from pp_testbed.engine.programs import Programs
from pp_testbed.engine.remote import ENVIRONMENT, use_compilation_cache
from pp_testbed.engine.study import Cell
from pp_testbed.errors import UsageError


@dataclass(frozen=True)
class Local:
    """So many processes of this machine; with none, everything runs in this one, where a debugger sees it.

    A job whose process dies is tried once more in a fresh one, as somebody else may have killed it.
    """

    processes: int = 0

    def map(self, run: Callable[..., Any], queue: Queue, scratch: str) -> Iterator[tuple[list[Cell], Event]]:
        """Do the jobs of a queue: what happens to their batches."""
        if self.processes:
            yield from _in_workers(run, queue, scratch, min(self.processes, len(queue)))
            return
        programs, known = Programs(), set[Any]()
        while job := queue.take(known):
            for place, event in perform(run, job.messages, scratch, programs):
                yield job.batches[place], event


def _in_workers(
    run: Callable[..., Any], queue: Queue, scratch: str, number: int
) -> Iterator[tuple[list[Cell], Event]]:
    setup = pickled((run, scratch))
    workers: list[Worker] = []
    again: list[Job] = []  # those whose process died
    try:
        while len(queue) or again or any(worker.job for worker in workers):
            while (len(queue) or again) and len(workers) < number:
                workers.append(Worker(setup))
                if again:
                    workers[-1].start(again.pop())
            for worker in workers:
                if worker.job is None and (job := queue.take(worker.programs)):
                    worker.start(job)
            busy = {worker.connection: worker for worker in workers if worker.job}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    yield from worker.hear()
                except (EOFError, OSError):
                    workers.remove(worker)
                    if worker.job.is_new:
                        again.append(worker.job._replace(is_new=False))
                        continue
                    why = worker.death()
                    for batch in worker.job.batches:
                        yield batch, Failed(why)
                        yield batch, Done(1.0, 0.0, is_end=True)
    finally:
        for worker in workers:
            worker.stop()


def pickled(value: Any) -> bytes:
    """What is sent to a worker."""
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise UsageError(f"a method cannot be sent to a worker: {error}; use jobs=0") from error


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, setup: bytes) -> None:
        self.programs: set[Any] = set()
        self.connection, theirs = Pipe()
        lifeline, self.lifeline = Pipe(duplex=False)  # closed by nothing but the end of this process
        self.job: Any = None
        descriptors = [theirs.fileno(), lifeline.fileno()]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pp_testbed.engine.local", *map(str, descriptors)],
            pass_fds=descriptors,
            env={
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            },
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
        message = pickled(job.messages)
        with suppress(OSError):  # if it has died, reading from it says so
            self.connection.send((len(job.batches), message))

    def hear(self) -> Iterator[tuple[list[Cell], Event]]:
        """What the worker says: something of a batch, or that the job is done."""
        said = self.connection.recv()
        if said is None:
            self.job = None
        else:
            place, event = said
            yield self.job.batches[place], event

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


def main(descriptor: int, lifeline: int) -> None:
    """The worker's loop, until the parent ends, or closes the pipe."""
    threading.Thread(target=_end_with_parent, args=[lifeline], daemon=True).start()
    connection: Any = Connection(descriptor)
    use_compilation_cache()
    with suppress(EOFError, ConnectionError):  # there is nobody to talk to any more
        run, scratch = cloudpickle.loads(connection.recv_bytes())
        programs = Programs()
        while True:
            number, payload = connection.recv()
            for said in _done(run, number, payload, scratch, programs):
                connection.send(said)
            connection.send(None)


def _done(
    run: Callable[..., Any], number: int, payload: bytes, scratch: str, programs: Programs
) -> Iterator[tuple[int, Event]]:
    """What happens to a job's batches, of which there are so many; also where they cannot be read."""
    try:
        batches = cloudpickle.loads(payload)
    except Exception as error:
        for place in range(number):
            yield place, Failed(one_line(error))
            yield place, Done(1.0, 0.0, is_end=True)
        return
    yield from perform(run, batches, scratch, programs)


def _end_with_parent(lifeline: int) -> None:
    """End this process, whatever it computes, as soon as the parent has ended: its end of the pipe closes."""
    os.read(lifeline, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
