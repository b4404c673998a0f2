"""The README's Python, run as a reader would: block after block in one session."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    session: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)
    frame = session["frame"]
    assert set(frame.method) == {"mlp", "my mean field"}
    assert (frame.status == "ok").all()


def test_guides_are_short():
    """The issue's promise: a mean-field and a low-rank guide in at most 15 lines each."""
    text = README.read_text(encoding="utf-8")
    for name in ("mean_field", "low_rank"):
        body = re.search(rf"def {name}\(.*?(?=\n\n\n|```)", text, re.DOTALL)
        assert body
        assert len(body.group().splitlines()) <= 15


def test_commands_are_the_documented_ones():
    text = README.read_text(encoding="utf-8")
    assert "pip install -c constraints.txt . && pp-testbed run\n" in text
    assert 'pip install -c constraints.txt -e ".[test]" && pytest\n' in text
