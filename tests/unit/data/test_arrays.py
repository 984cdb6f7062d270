"""Arrays in files: npz, idx, CIFAR batches; their downloads, and damage."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedsim import data
from fedsim.core.errors import DataError
from fedsim.data.readers import medmnist as reader
from fedsim.data.readers.medmnist import MEDMNIST
from fedsim.testing import check_reader

COUNTS = {"train": 10, "val": 4, "test": 5}


def med_arrays(size: int = 28, channels: int = 3, classes: int = 5) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(size)
    shape = (size, size, 3) if channels == 3 else (size, size)
    arrays = {}
    for part, n in COUNTS.items():
        arrays[f"{part}_images"] = generator.integers(0, 256, (n, *shape)).astype(np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % classes).astype(np.uint8)[:, None]
    return arrays


def test_medmnist_keeps_its_parts_pixels_and_classes(tmp_path: Path):
    arrays = med_arrays()
    np.savez_compressed(tmp_path / "retinamnist.npz", **arrays)
    loaded = data.load("retinamnist", tmp_path, val_fraction=0.5)
    assert loaded.x.shape == (19, 3, 28, 28)
    assert loaded.train.tolist() == list(range(10))
    assert loaded.val.tolist() == list(range(10, 14))  # its own, whatever val_fraction says
    assert loaded.test.tolist() == list(range(14, 19))
    assert np.array_equal(loaded.x[12], arrays["val_images"][2].transpose(2, 0, 1))
    assert loaded.y.tolist() == [i % 5 for n in COUNTS.values() for i in range(n)]
    assert loaded.class_names == ("0", "1", "2", "3", "4")
    assert loaded.pipeline.mean == (0.5, 0.5, 0.5)
    check_reader("retinamnist", tmp_path, cases=["options", "arrays and labels", "read again"])


@pytest.mark.parametrize(
    ("files", "asked", "stored", "shape"),
    [
        ((28, 64), None, 28, 28),
        ((28, 64), 64, 64, 64),
        ((28, 64), 32, 64, 32),
        ((28, 64), 20, 28, 20),
        ((28,), 32, 28, 32),
    ],
)
def test_medmnist_takes_the_file_of_the_size(tmp_path: Path, files, asked, stored, shape):
    for size in files:
        name = "bloodmnist.npz" if size == 28 else f"bloodmnist_{size}.npz"
        np.savez(tmp_path / name, **med_arrays(size))
    loaded = data.load("bloodmnist", tmp_path, image_size=asked)
    assert loaded.x.shape[2:] == (shape, shape)
    assert loaded.pipeline.size == shape
    if stored == shape:
        expected = med_arrays(stored)["train_images"][0].transpose(2, 0, 1)
        assert np.array_equal(loaded.x[0], expected)


def test_an_official_size_needs_its_file(tmp_path: Path):
    np.savez(tmp_path / "bloodmnist.npz", **med_arrays())
    with pytest.raises(DataError, match=r"no bloodmnist_64\.npz .*zenodo.*bloodmnist_64\.npz"):
        data.load("bloodmnist", tmp_path, image_size=64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_labels": np.array([[0], [1], [5], [1]])}, "val_labels: label 5 in row 2"),
        ({"train_images": np.zeros((9, 28, 28, 3), np.uint8)}, "9 images, but 10 labels"),
        ({"train_images": np.zeros((10, 28, 28, 3), np.float32)}, "images are float32"),
        ({"train_images": np.zeros((10, 28, 28), np.uint8)}, r"\(1, 28, 28\)"),
        ({"test_images": np.zeros((5, 28, 27, 3), np.uint8)}, "square"),
        ({"test_labels": np.zeros((5, 2), np.uint8)}, r"labels are uint8 \(5, 2\)"),
        ({"test_labels": np.array([[object()]] * 5)}, "not an npz of plain arrays"),
        ({"test_labels": None}, "no array test_labels"),
    ],
)
def test_damaged_medmnist_is_refused(tmp_path: Path, change, message):
    arrays = {k: v for k, v in {**med_arrays(), **change}.items() if v is not None}
    np.savez(tmp_path / "retinamnist.npz", **arrays)
    with pytest.raises(DataError, match=rf"retinamnist\.npz.*{message}"):
        data.load("retinamnist", tmp_path)


@pytest.mark.parametrize("damage", [b"", slice(0, 900), slice(0, -200)], ids=str)
def test_truncated_npz_is_refused(tmp_path: Path, damage):
    path = tmp_path / "retinamnist.npz"
    np.savez_compressed(path, **med_arrays())
    path.write_bytes(damage if damage == b"" else path.read_bytes()[damage])
    with pytest.raises(DataError, match=r"retinamnist\.npz: missing, truncated"):
        data.load("retinamnist", tmp_path)


def served(web: str, name: str, md5: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``web`` the place that MedMNIST is downloaded from."""
    entry = MEDMNIST[name]._replace(md5=(md5, *MEDMNIST[name].md5[1:]))
    monkeypatch.setitem(reader.MEDMNIST, name, entry)
    monkeypatch.setattr(reader, "URL", web + "/{file}")


def test_download_lands_in_the_cache_and_is_used_again(tmp_path, cache, monkeypatch, web):
    np.savez(tmp_path / "retinamnist.npz", **med_arrays())
    md5 = hashlib.md5((tmp_path / "retinamnist.npz").read_bytes()).hexdigest()
    served(web, "retinamnist", md5, monkeypatch)
    first = data.load("retinamnist")
    (tmp_path / "retinamnist.npz").unlink()
    assert np.array_equal(first.x, data.load("retinamnist").x)
    assert [p.name for p in (cache / "medmnist").iterdir()] == ["retinamnist.npz"]


def test_download_with_another_md5_is_refused(tmp_path, cache, monkeypatch, web):
    np.savez(tmp_path / "retinamnist.npz", **med_arrays())
    served(web, "retinamnist", "0" * 32, monkeypatch)
    with pytest.raises(DataError, match=r"cannot download retinamnist\.npz"):
        data.load("retinamnist")
    assert not (cache / "medmnist" / "retinamnist.npz").exists()


def site_arrays(**changes: object) -> dict[str, np.ndarray]:
    n = 90
    arrays = {
        "images": np.arange(n * 36, dtype=np.uint8).reshape(n, 6, 6),
        "labels": (np.arange(n) % 3).astype(np.uint8),
        "sites": (np.arange(n) // 45).astype(np.uint8),
        "patients": np.arange(n) // 2 + 1000,
        "site_names": np.array(["here", "there"]),
        "class_names": np.array(["a", "b", "c"]),
    }
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


def test_sites_and_patients(tmp_path: Path):
    np.savez(tmp_path / "mine.npz", **site_arrays())
    for place in (tmp_path, tmp_path / "mine.npz"):
        loaded = data.load("npz", place, val_fraction=0.2)
        assert loaded.x.shape == (90, 1, 6, 6)
        assert loaded.site_names == ("here", "there")
        assert loaded.class_names == ("a", "b", "c")
        assert loaded.site is not None
        assert loaded.site.tolist() == [0] * 45 + [1] * 45
        patient = np.arange(90) // 2
        owners = [set(patient[i].tolist()) for i in (loaded.train, loaded.val, loaded.test)]
        assert not owners[0] & owners[1]
        assert not owners[0] & owners[2]
        assert not owners[1] & owners[2]
        assert 14 <= len(loaded.test) <= 22
        assert 11 <= len(loaded.val) <= 18


@pytest.mark.parametrize("number", [3_000_000, 2**40, 4, -1])
@pytest.mark.parametrize(("key", "names"), [("labels", "class_names"), ("sites", "site_names")])
def test_numbers_without_names_have_no_gap(tmp_path: Path, key, names, number):
    values = np.arange(90) % 3
    values[7] = number
    np.savez(tmp_path / "mine.npz", **site_arrays(**{key: values, names: None}))
    gap = "" if number < 0 else r" \(there is no 3\)"
    with pytest.raises(
        DataError, match=rf"{key}, row 7: {key[:-1]} {number}: .* without a gap{gap}, .*{names}$"
    ):
        data.load("npz", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([0, 3] * 45)}, "labels: label 3 in row 1"),
        ({"sites": np.array([0, 2] * 45)}, "sites: label 2 in row 1"),
        ({"sites": np.zeros(7, np.int64)}, r"sites: \(7,\)"),
        ({"patients": np.zeros(7, np.int64)}, r"patients: \(7,\)"),
        ({"labels": np.array(["a"] * 90), "class_names": None}, "need the names array"),
        ({"images": None}, "no array images"),
    ],
)
def test_damaged_arrays_with_sites_are_refused(tmp_path: Path, changes, message):
    np.savez(tmp_path / "mine.npz", **site_arrays(**changes))
    with pytest.raises(DataError, match=rf"mine\.npz.*{message}"):
        data.load("npz", tmp_path)


def test_several_or_no_npz_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no npz file"):
        data.load("npz", tmp_path)
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, **site_arrays())
    with pytest.raises(DataError, match=r"several npz files \(a\.npz, b\.npz\)"):
        data.load("npz", tmp_path)
    assert data.load("npz", tmp_path / "b.npz").num_classes == 3


SIZES = {"0": (6, 3), "1": (4, 2), "2": (8, 4), "10": (5, 2)}
"""Training and test samples by client."""


def pixels(count: int, seed: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, channels, 8, 8)).astype(np.uint8)


def normalised(x: np.ndarray) -> np.ndarray:
    """As ToTensor and Normalize(0.5, 0.5)."""
    return ((x.astype(np.float32) / 255 - 0.5) / 0.5).astype(np.float32)


def write(folder: Path, *, pfllib: bool, convert=normalised) -> Path:
    for number, (name, sizes) in enumerate(SIZES.items()):
        for part, count in zip(("train", "test"), sizes, strict=True):
            (folder / part).mkdir(parents=True, exist_ok=True)
            x = convert(pixels(count, 10 * number + (part == "test")))
            y = (np.arange(count) + number) % 3
            arrays = {"data": {"x": x, "y": y}} if pfllib else {"x": x, "y": y}
            np.savez_compressed(folder / part / f"{name}.npz", **arrays)
    return folder


@pytest.mark.parametrize("pfllib", [True, False])
@pytest.mark.parametrize("convert", [normalised, lambda x: x], ids=["float", "uint8"])
def test_each_file_is_a_client_with_its_own_test_part(tmp_path: Path, pfllib: bool, convert):
    loaded = data.load("npz", write(tmp_path / "MNIST", pfllib=pfllib, convert=convert))
    assert loaded.site_names == ("0", "1", "2", "10")
    assert loaded.sites_are_users
    assert np.bincount(loaded.site[loaded.train]).tolist() == [6, 4, 8, 5]
    assert np.bincount(loaded.site[loaded.test]).tolist() == [3, 2, 4, 2]
    assert loaded.class_names == ("0", "1", "2")
    first = loaded.train[loaded.site[loaded.train] == 2]
    np.testing.assert_array_equal(loaded.x[first], pixels(8, 20))
    assert loaded.y[first].tolist() == [2, 0, 1, 2, 0, 1, 2, 0]
    assert (loaded.pipeline.mean, loaded.pipeline.std) == ((0.5,) * 3, (0.5,) * 3)


class Harmful:
    """An object whose pickle runs code where it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_a_pickle_of_anything_else_is_refused_and_runs_nothing(tmp_path: Path):
    folder = write(tmp_path / "d", pfllib=True)
    harm = np.array(Harmful(tmp_path / "harm"), dtype=object)
    np.savez(folder / "train" / "1.npz", data=harm)
    with pytest.raises(DataError, match=r"1\.npz: truncated, or .* pickled objects are never load"):
        data.load("npz", folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": pixels(3, 0), "z": np.arange(3)}, "truncated, or not an npz of x and y"),
        ({"x": pixels(3, 0), "y": np.arange(2)}, "3 samples in x, but 2 labels in y"),
        ({"x": pixels(3, 0)[:, :2], "y": np.arange(3)}, "square images of 1 or 3 channels"),
        ({"x": pixels(3, 0)[:, 0], "y": np.arange(3)}, r"x is uint8 \(3, 8, 8\), needed are"),
        ({"x": pixels(3, 0)[..., :4, :4], "y": np.arange(3)}, r"x of shape \(3, 4, 4\), before"),
        ({"x": pixels(3, 0), "y": -np.arange(3)}, "y: label -1 in row 1 is outside"),
        ({"x": pixels(3, 0), "y": np.full(3, 0.5)}, "y: labels are float64"),
        ({"data": np.arange(3)}, "or of a dictionary of these arrays as PFLlib's"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, arrays, message):
    folder = write(tmp_path, pfllib=False, convert=lambda x: x)
    np.savez(folder / "train" / "10.npz", **arrays)
    with pytest.raises(DataError, match=rf"train/10\.npz.*{message}"):
        data.load("npz", folder)


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
        ("train-images-idx3-ubyte", b"", "missing, truncated or not an idx file"),
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": [0, 1, 2], b"data": Evil()}, r"truncated .*system is not allowed"),
        ({b"labels": [0, 1], b"data": PIXELS[:3]}, "3 images, but 2 labels"),
        ({b"labels": [0, 1, 10], b"data": PIXELS[:3]}, "label 10 in row 2"),
        ({b"labels": [0, 1, 2.5], b"data": PIXELS[:3]}, "labels are float64"),
        ({b"labels": [0, 1, 2], b"data": PIXELS[:3, :5]}, r"no uint8 array \(n, 3072\)"),
        ({b"data": PIXELS[:3]}, "no CIFAR batch with data and labels"),
        ([1, 2], "missing, truncated or no CIFAR batch"),
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
