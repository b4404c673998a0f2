"""Downloads from a server of this machine: mirrors that fail, files that are not what they should be."""

import gzip
import hashlib
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import pp_testbed as pt
from pp_testbed.problems import downloads
from pp_testbed.problems.downloads import Source, fetch

IMAGES = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)
LABELS = np.array([1, 0, 1], dtype=np.uint8)


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


FILES = {"images": idx(IMAGES), "labels": idx(LABELS)}


class Handler(BaseHTTPRequestHandler):
    """`/good/` has the files; `/bad/` others; `/half/` ends in the middle; `/none/` nothing."""

    def do_GET(self):
        _, place, name = self.path.split("/")
        content = gzip.compress(FILES.get(name.removesuffix(".gz"), b""))
        if place == "none":
            self.send_error(404)
            return
        if place == "bad":
            content = gzip.compress(b"something else")
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if place == "half" else content)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def use(monkeypatch, address, *places):
    files = {
        array: (f"{name}.gz", hashlib.sha256(FILES[name]).hexdigest())
        for array, name in (("x", "images"), ("y", "labels"))
    }
    source = Source(tuple(f"{address}/{place}/" for place in places), files)
    monkeypatch.setitem(downloads.SOURCES, "little", source)


@pytest.mark.parametrize("first", ["none", "bad", "half"])
def test_the_next_mirror_serves_where_one_fails(monkeypatch, address, tmp_path, first):
    use(monkeypatch, address, first, "good")
    path = fetch("little", tmp_path, progress=False)
    with np.load(path) as found:
        np.testing.assert_array_equal(found["x"], IMAGES)
        assert found["y"].tolist() == LABELS.tolist()
    before = path.stat().st_mtime_ns
    assert fetch("little", tmp_path, progress=False).stat().st_mtime_ns == before  # it is there


@pytest.mark.parametrize(("place", "words"), [("none", "404"), ("bad", "SHA-256 is "), ("half", "")])
def test_nothing_is_written_where_all_fail(monkeypatch, address, tmp_path, place, words):
    use(monkeypatch, address, place, place)
    with pytest.raises(pt.UsageError, match=r"little cannot be downloaded .* place little\.npz in") as error:
        fetch("little", tmp_path, progress=False)
    assert words in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_unknown_set_is_said(tmp_path):
    with pytest.raises(pt.UsageError, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)
