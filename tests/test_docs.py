"""Every code block of the README and of docs/, run as a reader would: block after block, page by page.

Commands of the shell are run with options added that make them small (a later option overrides an earlier
one). Those of `pip` are what `.ci/run` does.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pp_testbed
from pp_testbed.cli import app, options
from pp_testbed.engine.local import Local

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALLER = {
    "run": "--suite smoke --limit 1 --inputs 40 --draws 10",
    "bandit": "--dim 2 --steps 5 --seeds 1",
    "active": "--methods uniform --priorities uniform --budgets 2,4 --seeds 0",
    "tune": "--suite smoke --trials 1",
    "sbc": "--method prior --problems 20",
    "latency": "--methods mlp,distilled:mlp --calls 10",
}
MODEL = """
import numpyro
import numpyro.distributions as dist


def MODEL(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand((3,)).to_event(1))
    numpyro.sample("y", dist.StudentT(3.0, x @ slope, 0.5), obs=y)


MODEL.input_dim = 3
"""
OWN = "--methods prior,mlp --limit 1 --inputs 40 --draws 10"  # of models and data, which are no suite
IN_CI = (
    "pip install -c constraints.txt . && pp-testbed run --suite smoke --methods uniform,mlp,ensemble+",
    'pip install -c constraints.txt -e ".[test]" && pytest',
)


def blocks(page):
    """Languages and texts of a page's blocks."""
    return re.findall(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    (tmp_path / "kept").symlink_to(ROOT / "kept")
    (tmp_path / "my_model.py").write_text(MODEL)
    rows = [f"{i},{i % 2}" for i in range(100)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,outcome", *rows]))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    # In this process, which has compiled already much of what the next block needs.
    monkeypatch.setattr(options, "executor_of", lambda name, scheduler, jobs: Local(0))
    session = {"__name__": page.stem}
    for language, text in blocks(page):
        assert language in ("python", "bash", "text"), "a block of no language is not run"
        if language == "python":
            if "METHOD =" in text:
                (tmp_path / "my_method.py").write_text(text)
            if "def MODEL(" in text:
                (tmp_path / "my_model.py").write_text(text)
            exec(compile(text, str(page), "exec"), session)
        elif language == "bash":
            for line in text.strip().splitlines():
                run_command(line.partition("  #")[0].strip())


def run_command(line):
    """Run a line of the shell, smaller than it stands there."""
    if line in IN_CI:
        return
    program, command, *arguments = shlex.split(line)
    assert program == "pp-testbed", f"not run: {line}"
    is_own = command == "run" and {"--problem", "--data"} & set(arguments)
    smaller = OWN if is_own else SMALLER.get(command, "")
    done = CliRunner().invoke(app, [command, *arguments, *shlex.split(smaller)])
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception}"


def test_the_commands_of_installation_are_those_of_ci():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"{line}\n" in text for line in IN_CI)
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert 'pip install --quiet -c constraints.txt -e ".[test]"' in gate
    assert "install --quiet -c constraints.txt . #" in gate


def test_guides_are_short():
    """What the README promises: a guide in at most 15 lines."""
    for page in (ROOT / "README.md", ROOT / "docs" / "methods.md"):
        for body in re.findall(
            r"def (?:mean_field|low_rank)\(.*?(?=\n\n\n|```)", page.read_text("utf-8"), re.DOTALL
        ):
            assert len(body.splitlines()) <= 15


def test_the_page_of_the_api_names_all_that_is_public():
    """Also where nothing has built the pages."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in sorted(pp_testbed._HOME):
        assert f"`{name}" in text or f"`pt.{name}" in text, name


def test_the_readme_fits_on_a_screen_or_two():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            home = page.parent if not target.startswith("notebooks/") or page.parent == ROOT else ROOT
            assert (home / target).exists(), f"{page.name}: {target}"
