"""Data sets that can be downloaded: from more than one place, with pinned SHA-256, whole or not at all.

They become the files `NAME.npz` that `datasets` reads. pooch downloads (the extra `data`).
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pp_testbed.engine.store import create_directory, write_whole
from pp_testbed.errors import UsageError, unknown

TIMEOUT = 30.0  # seconds without a byte


class Source(NamedTuple):
    """Where the files of a set are, and the SHA-256 of their contents, decompressed."""

    mirrors: tuple[str, ...]
    files: dict[str, tuple[str, str]]  # of an array: the file's name, and its SHA-256


def _of_mnist(mirrors: tuple[str, ...], digests: tuple[str, str, str, str]) -> Source:
    """A set in the four files of MNIST."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    arrays = ("x_train", "y_train", "x_test", "y_test")
    pairs = zip((f"{name}-ubyte.gz" for name in names), digests, strict=True)
    return Source(mirrors, dict(zip(arrays, pairs, strict=True)))


SOURCES = {
    "mnist": _of_mnist(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion_mnist": _of_mnist(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
}


def fetch(name: str, folder: Path, progress: bool = True) -> Path:
    """Download a set into a folder, as `NAME.npz`, unless it is there.

    Raises:
        UsageError: with what each mirror said, and how to place the file by hand.
    """
    if name not in SOURCES:
        raise unknown("data set that can be downloaded", name, SOURCES)
    path = folder / f"{name}.npz"
    if path.is_file():
        return path
    if importlib.util.find_spec("pooch") is None:
        raise UsageError("downloads need pooch, which is not installed: pip install 'pp_testbed[data]'")
    create_directory(folder, "data")
    source = SOURCES[name]
    arrays: dict[str, np.ndarray] = {}
    for part, (file, digest) in source.files.items():
        content, said = None, []
        for mirror in source.mirrors:
            try:
                content = _content(mirror + file, digest, progress)
                break
            except Exception as error:  # of the network there are many kinds
                said.append(f"{mirror}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}")
        if content is None:
            raise UsageError(
                f"{name} cannot be downloaded ({'; '.join(said)}); place {name}.npz in {folder} by hand, "
                f"with arrays {', '.join(source.files)}"
            )
        arrays[part] = read_idx(content)
    write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    return path


def _content(url: str, digest: str, progress: bool) -> bytes:
    """What is behind an address, decompressed, if it is what it should be."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=progress, timeout=TIMEOUT)
    with tempfile.TemporaryDirectory() as folder:
        path = pooch.retrieve(url, known_hash=None, path=folder, fname="file", downloader=downloader)
        content = gzip.decompress(Path(path).read_bytes())
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise UsageError(f"SHA-256 is {found[:12]}, not {digest[:12]}")
    return content


def read_idx(content: bytes) -> np.ndarray:
    """The array of an IDX file of unsigned bytes; labels, of one dimension, as whole numbers.

    Examples:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
        [7, 9]
    """
    kind, dimensions = content[2], content[3]
    if kind != 8:
        raise UsageError("the file is not of unsigned bytes")
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    array = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    return array.astype(np.int64) if dimensions == 1 else array
