"""What the examples in docstrings may use, as `docs/api.md` says; made once, and only where it is used.

Also: compiled programs are let go of before there are too many for one process, and are compiled in less time
than users' are.
"""

import os
import re

import pytest

import pp_testbed as pt
from pp_testbed.engine.programs import Programs

LONG = ("test_revisions.py", "test_docs.py")
NAMES = ("problem", "posterior", "reference", "frame")


def pytest_configure(config):
    """Most of a run is compilation: machine code is not optimised, and in slow tests only a little."""
    level = 0 if config.option.markexpr == "not slow" else 1
    os.environ.setdefault("XLA_FLAGS", f"--xla_backend_optimization_level={level}")


def pytest_collection_modifyitems(items):
    """Notebooks are slow. What takes minutes begins first, so that no process is alone with it at the end."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("slow")
    items.sort(key=lambda item: item.path.name not in LONG and item.path.suffix != ".ipynb")


@pytest.fixture(scope="session")
def problem():
    return pt.problem("2d/T10-rho0.1-s0")


@pytest.fixture(scope="session")
def posterior(problem):
    return pt.method("mlp", num_steps=100).fit(problem.keys.fit, problem.task)


@pytest.fixture(scope="session")
def reference(problem):
    return pt.reference(problem)


@pytest.fixture(scope="session")
def frame(tmp_path_factory):
    out = tmp_path_factory.mktemp("examples")
    return pt.run(pt.suite("smoke"), ["uniform", "mlp"], out=out, progress=False)


@pytest.fixture(autouse=True)
def _few_programs():
    """XLA ends the process where it gets no more mappings."""
    yield
    Programs().let_go()


@pytest.fixture(autouse=True)
def _examples(request, doctest_namespace):
    """Give an example the names that it mentions, and a directory of its own."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    source = "".join(example.source for example in request.node.dtest.examples)
    made = {name: request.getfixturevalue(name) for name in NAMES if re.search(rf"\b{name}\b", source)}
    own = request.node.dtest.globs.keys() & made.keys()  # such as the function `problem` of its module
    doctest_namespace.clear()
    doctest_namespace.update({name: value for name, value in made.items() if name not in own})
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
