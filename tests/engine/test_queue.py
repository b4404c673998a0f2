"""In which order a queue gives its jobs."""

from pp_testbed.engine.jobs import Queue
from pp_testbed.engine.study import Cell


def cells(program, number, effort=1.0):
    return [Cell({"problem": i}, i, program, effort=effort) for i in range(number)]


def test_what_takes_long_is_begun_first_then_what_there_is_most_of():
    queue = Queue([*cells("few", 2), *cells("many", 5), *cells("long", 1, effort=100.0)])
    known = set()
    assert [queue.take(set()).program for _ in range(3)] == ["long", "many", "few"]
    assert queue.take(known).program == "many"
    assert queue.take(known).program == "many"  # which is compiled already
