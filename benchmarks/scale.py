"""What Dask costs: rows per second against local workers, seconds per job, bytes, and growth with workers.

    python benchmarks/scale.py rows       # alternately, in one run: local and Dask, two workers each
    python benchmarks/scale.py jobs       # a scheduler's seconds per job, bytes per job and per row
    python benchmarks/scale.py workers    # 1 to 64 workers with jobs that only sleep

`docs/scale.md` says what follows for a thousand workers.
"""

import pickle
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import pp_testbed as pt
from pp_testbed.engine.dask import _client, _cluster, _pickled
from pp_testbed.engine.jobs import Done, Queue
from pp_testbed.engine.local import Local
from pp_testbed.engine.study import Cell, Rows, Study, Workspace, head_of
from pp_testbed.evaluation.scores import COLUMNS
from pp_testbed.evaluation.terms import Evaluation
from pp_testbed.studies.scoring import RESULTS, scoring

SLEEP = 2.0


def sleep(messages: list[float], _workspace: Workspace) -> Iterator[Rows]:
    """A batch that only sleeps."""
    for place, seconds in enumerate(messages):
        time.sleep(seconds)
        yield Rows(place, [{}])


def sleeping(number: int, seconds: float) -> Study:
    """So many cells that sleep."""
    problem = pt.problem()
    cells = [
        Cell(head_of(problem, "sleep", f'{{"method": {i}}}', suite="sleep"), seconds, i)
        for i in range(number)
    ]
    return Study(RESULTS, cells, sleep)


def wall(study: Study, executor: Any) -> float:
    """Seconds in which an executor has done all cells; what comes is not written."""
    start = time.perf_counter()
    for _ in executor.map(study.run, Queue(study.cells), tempfile.gettempdir()):
        pass
    return time.perf_counter() - start


def rows() -> None:
    """Rows per second, start of processes included; the compilation cache is the user's."""
    problems, found = list(pt.suite("2d-lite")), {"local": [], "dask": []}
    study = scoring(["ensemble"], problems, "2d-lite", Evaluation())
    wall(study, Local(2))  # so that all is compiled
    for _ in range(3):
        for name, executor in (("local", Local(2)), ("dask", pt.Dask(processes=2))):
            found[name].append(len(problems) / wall(study, executor))
            print(f"{name}: {found[name][-1]:.3f} rows/s", flush=True)
    ratio = median(found["dask"]) / median(found["local"])
    print(f"ratio of medians {ratio:.3f}")


def jobs() -> None:
    """Of jobs that do nothing: seconds of each; and bytes, of a job and of its rows."""
    number = 1000
    with _cluster(1) as address, _client(address) as client:
        wall(sleeping(10, 0.0), pt.Dask(client))
        seconds = wall(sleeping(number, 0.0), pt.Dask(client)) / number
    print(f"one worker: {1000 * seconds:.2f} ms per job, {1 / seconds:.0f} jobs per second")
    study = scoring(["mlp"], list(pt.suite("2d")), "2d", Evaluation())
    job = Queue(study.cells).take(set())
    payload = _pickled((study.run, job.messages, "/scratch"))
    print(f"a job of {len(job.batches[0])} cells: {len(payload)} bytes")
    columns = [*COLUMNS, "fit_seconds", "evaluate_seconds"]
    rows = [
        {name: random.random() for name in columns} | {"num_draws": i, "labels": "exact"} for i in range(10)
    ]
    events = [*((0, Rows(i, [row])) for i, row in enumerate(rows)), (0, Done(1.0, 1.0, True))]
    print(f"per row back: {len(pickle.dumps(events)) / 10:.0f} bytes")


def workers() -> None:
    """How far so many workers are from sleeping at the same time; the cluster is up before."""
    for number in (1, 2, 4, 8, 16, 32, 64):
        with _cluster(number) as address, _client(address) as client:
            client.wait_for_workers(number)
            wall(sleeping(2 * number, 0.0), pt.Dask(client))  # so that all have imported the package
            seconds = wall(sleeping(8 * number, SLEEP), pt.Dask(client))
        print(
            f"{number:3d} workers: {8 * number / seconds:6.2f} jobs/s, {8 * SLEEP / seconds:.3f} of ideal",
            flush=True,
        )


if __name__ == "__main__":
    {"rows": rows, "jobs": jobs, "workers": workers}[sys.argv[1]]()
