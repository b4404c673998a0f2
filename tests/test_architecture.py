"""The house: imports point one way, functions fit a screen, files are short, names in the docs exist."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pp_testbed"
FILES = sorted(PACKAGE.rglob("*.py"))
# From the ground up; `engine` stands beside them, and knows nothing but `errors`.
FLOORS = ["models", "problems", "inference", "evaluation", "studies", "report", "cli"]


def module_of(path):
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported(path):
    """The modules of the package that a file imports, also inside functions; types alone do not count."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inside}
    return {name for name in found if name in MODULES and name != "pp_testbed"} - {module_of(path)}


GRAPH = {name: imported(path) for name, path in MODULES.items() if name != "pp_testbed"}


def floor_of(name):
    """The folder of a module."""
    return name.split(".")[1]


def test_there_is_no_cycle():
    done, path = set(), []

    def visit(name):
        assert name not in path, f"a cycle: {' <- '.join([*path[path.index(name) :], name])}"
        if name in done:
            return
        path.append(name)
        for other in sorted(GRAPH.get(name, ())):
            visit(other)
        done.add(path.pop())

    for name in GRAPH:
        visit(name)


@pytest.mark.parametrize("name", GRAPH)
def test_imports_point_down(name):
    own = floor_of(name)
    for other in GRAPH[name]:
        there = floor_of(other)
        if own == "errors":
            pytest.fail(f"{name} imports {other}")
        if own == "engine":
            assert there in ("engine", "errors"), f"{name} imports {other}"
        elif own in FLOORS and there in FLOORS:
            assert FLOORS.index(there) <= FLOORS.index(own), f"{name} imports {other}"


def test_no_floor_is_imported_both_ways():
    pairs = {(floor_of(name), floor_of(other)) for name, others in GRAPH.items() for other in others}
    assert not {pair for pair in pairs if pair[::-1] in pairs and pair[0] != pair[1]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} has more than 60 lines"
