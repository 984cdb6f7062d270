"""idx files and CIFAR batches, as written by hand; damage; downloads."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import utils as torchvision_utils

from fedsim import data
from fedsim.core.errors import DataError
from fedsim.data.download import fetch, unpacked


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


IMAGES = np.arange(12 * 25, dtype=np.uint8).reshape(12, 5, 5)
LABELS = np.arange(12) % 10


def write_idx(folder: Path, *, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", slice(0, 8)), ("t10k", slice(8, 12))):
        for name, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            content = idx(array[rows])
            path = folder / f"{part}-{name}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("mnist", ""),
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion_mnist", "FashionMNIST/raw"),
        ("fashion_mnist", "fashion-mnist"),
    ],
)
def test_idx_files_are_found_and_read(tmp_path: Path, packed, name, below):
    write_idx(tmp_path / below, packed=packed)
    loaded = data.load(name, tmp_path)
    assert np.array_equal(loaded.x[:, 0], IMAGES)
    assert np.array_equal(loaded.y, LABELS)
    assert loaded.train.tolist() == list(range(8))
    assert loaded.test.tolist() == list(range(8, 12))
    assert loaded.pipeline.mean == ((0.1307,) if name == "mnist" else (0.2860,))
    assert len(loaded.class_names) == 10


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-images-idx3-ubyte", idx(IMAGES[:8])[:-1], "truncated .*8 x 5 x 5"),
        ("train-images-idx3-ubyte", idx(IMAGES[:8]) + b"x", "truncated or damaged"),
        ("train-images-idx3-ubyte", idx(LABELS[:8]), "not an idx file with magic 0x00000803"),
        ("train-images-idx3-ubyte", b"", "not an idx file"),
        ("train-images-idx3-ubyte", idx(IMAGES[:7]), "7 images, but 8 labels"),
        ("t10k-labels-idx1-ubyte", idx(np.array([0, 1, 10, 2])), "label 10 in row 2"),
    ],
)
def test_damaged_idx_is_refused_with_the_file(tmp_path: Path, file, content, message):
    write_idx(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=f"{file}: {message}"):
        data.load("mnist", tmp_path)


def test_mnist_downloads_through_torchvisions_table(tmp_path: Path, monkeypatch, web):
    from torchvision import datasets

    write_idx(tmp_path / "web", packed=True)
    sums = [
        (path.name, hashlib.md5(path.read_bytes()).hexdigest())
        for path in sorted((tmp_path / "web").iterdir())
    ]
    monkeypatch.setattr(datasets.MNIST, "resources", sums)
    gone, there = f"{web}/gone/", f"{web}/web/"
    monkeypatch.setattr(datasets.MNIST, "mirrors", [gone, there])
    assert np.array_equal(data.load("mnist").x[:, 0], IMAGES)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [gone])
    assert np.array_equal(data.load("mnist").x[:, 0], IMAGES)  # from the cache
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "other"))
    with pytest.raises(DataError, match="cannot download t10k-images"):
        data.load("mnist")


PIXELS = np.random.default_rng(0).integers(0, 256, (18, 3072)).astype(np.uint8)


def write_cifar10(folder: Path) -> None:
    """Five batches of three images and a test batch of three, in python-3 protocol 2."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]):
        rows = slice(3 * i, 3 * i + 3)
        save(folder / name, {b"labels": [i, i + 1, i + 2], b"data": PIXELS[rows]})
    save(folder / "batches.meta", {b"label_names": [f"class {c}".encode() for c in range(10)]})


def save(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_cifar10_is_read(tmp_path: Path, below):
    write_cifar10(tmp_path / below)
    loaded = data.load("cifar10", tmp_path)
    assert loaded.x.shape == (18, 3, 32, 32)
    # planes R, G, B row by row: green of row 2, column 5 is 1024 + 2 * 32 + 5
    assert loaded.x[4, 1, 2, 5] == PIXELS[4, 1024 + 64 + 5]
    assert loaded.y.tolist() == [i + j for i in range(6) for j in range(3)]
    assert loaded.test.tolist() == [15, 16, 17]
    assert loaded.class_names[3] == "class 3"


def test_cifar100_takes_the_fine_labels(tmp_path: Path):
    for name, rows in (("train", slice(0, 4)), ("test", slice(4, 6))):
        n = rows.stop - rows.start
        content = {b"fine_labels": [99] * n, b"coarse_labels": [1] * n, b"data": PIXELS[rows]}
        save(tmp_path / name, content)
    save(tmp_path / "meta", {"fine_label_names": [f"c{c}" for c in range(100)]})
    loaded = data.load("cifar100", tmp_path)
    assert loaded.y.tolist() == [99] * 6
    assert loaded.num_classes == 100
    assert len(loaded.test) == 2


class Evil:
    def __reduce__(self):
        return (os.system, ("touch never-made",))


class EvilEncoding:
    def __reduce__(self):
        return (codecs.encode, ("text", "rot13"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": [0, 1, 2], b"data": Evil()}, r"truncated .*system is not allowed"),
        ({b"labels": [0, 1, 2], b"data": EvilEncoding()}, "encoding 'rot13' is not allowed"),
        ({b"labels": [0, 1], b"data": PIXELS[:3]}, "3 images, but 2 labels"),
        ({b"labels": [0, 1, 10], b"data": PIXELS[:3]}, "label 10 in row 2"),
        ({b"labels": [0, 1, 2.5], b"data": PIXELS[:3]}, "no list of integers"),
        ({b"labels": [0, 1, 2], b"data": PIXELS[:3].astype(np.int32)}, "no uint8 array"),
        ({b"labels": [0, 1, 2], b"data": PIXELS[:3, :5]}, r"no uint8 array \(n, 3072\)"),
        ({b"data": PIXELS[:3]}, "no entry labels; there are data"),
        ([1, 2], "holds list"),
    ],
)
def test_damaged_cifar_is_refused_with_the_file(tmp_path: Path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    save(tmp_path / "data_batch_3", content)
    with pytest.raises(DataError, match=f"data_batch_3: .*{message}"):
        data.load("cifar10", tmp_path)
    assert not (tmp_path / "never-made").exists()


def test_cifar_archive_is_downloaded_and_unpacked(tmp_path: Path, monkeypatch, web):
    from torchvision import datasets

    write_cifar10(tmp_path / "cifar-10-batches-py")
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{web}/{archive.name}")
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    first = data.load("cifar10")
    assert np.array_equal(first.x.reshape(18, -1), PIXELS)
    archive.unlink()
    assert np.array_equal(data.load("cifar10").x, first.x)


def test_truncated_archive_is_refused(tmp_path: Path, cache: Path):
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        write_cifar10(tmp_path / "in")
        tar.add(tmp_path / "in", "in")
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"a\.tar\.gz: cannot be unpacked"):
        unpacked(archive, "cifar/in")
    assert list((cache / "cifar").iterdir()) == []


def test_two_processes_may_download_at_once(tmp_path: Path, cache: Path, monkeypatch, web):
    (tmp_path / "file").write_bytes(b"content")
    md5, download, calls = hashlib.md5(b"content").hexdigest(), torchvision_utils.download_url, []

    def meanwhile(*args: object) -> None:
        download(*args)
        calls.append(args)
        if len(calls) == 1:  # the other process begins and ends before this one's file is in place
            fetch((f"{web}/file",), md5, "here", "file")

    monkeypatch.setattr(torchvision_utils, "download_url", meanwhile)
    path = fetch((f"{web}/file",), md5, "here", "file")
    assert len(calls) == 2
    assert path.read_bytes() == b"content"
    assert list((cache / "here").iterdir()) == [path]


def archive_of_two_files(folder: Path) -> Path:
    for name in ("a", "b"):
        (folder / name).write_text(name)
    with tarfile.open(folder / "two.tar.gz", "w:gz") as tar:
        for name in ("a", "b"):
            tar.add(folder / name, f"in/{name}")
    return folder / "two.tar.gz"


def test_an_unwritable_cache_is_refused(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written .*FEDSIM_CACHE"):
        fetch(("gone",), "0", "here", "file")
    with pytest.raises(DataError, match=r"cannot be written .*FEDSIM_CACHE"):
        unpacked(archive_of_two_files(tmp_path), "cifar/two")
