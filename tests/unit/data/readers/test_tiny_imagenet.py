"""Tiny-ImageNet in its original layout: order of labels, grey images, damage, download."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim import data
from fedsim.core.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def save(path: Path, grey: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (grey,) * 3).convert(mode).save(path, quality=95)


def make(parent: Path) -> Path:
    """Three classes, whose ids wnids.txt gives in another order than the sorted one."""
    root = parent / "tiny-imagenet-200"
    for k, wnid in enumerate(("n03", "n01", "n02")):
        for i in range(2):
            save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 80 * k, "L" if i else "RGB")
        save(root / "val" / "images" / f"val_{k}.JPEG", 80 * k)
    (root / "wnids.txt").write_text("n03\nn01\nn02\n")
    (root / "words.txt").write_text("n00\tother\nn01\tgoldfish, Carassius auratus\nn02\tdog\n")
    rows = (f"val_{k}.JPEG\t{wnid}\t0\t0\t9\t9\n" for k, wnid in enumerate(("n03", "n01", "n02")))
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    return root


def test_labels_follow_the_sorted_ids(tmp_path: Path):
    make(tmp_path)
    for place in (tmp_path, tmp_path / "tiny-imagenet-200"):
        loaded = data.load("tiny_imagenet", place)
        assert loaded.x.shape == (9, 3, 16, 16)  # as stored
        assert loaded.class_names == ("goldfish, Carassius auratus", "dog", "n03")
        assert loaded.y[loaded.train].tolist() == [0, 0, 1, 1, 2, 2]
        assert loaded.y[loaded.test].tolist() == [2, 0, 1]
        # n01 was drawn in grey 80, n02 in 160, n03 in 0; the second image of each is a grey one
        shown = loaded.x.mean(axis=(1, 2, 3))
        assert np.abs(shown - [80, 80, 160, 160, 0, 0, 0, 80, 160]).max() < 2
    assert data.load("tiny_imagenet", tmp_path, image_size=8).x.shape == (9, 3, 8, 8)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("val_0.JPEG\tn03\nval_1.JPEG\tn01\n", r"val_annotations\.txt: no row for 'val_2\.JPEG'"),
        ("val_0.JPEG\tn09\n", r"val_annotations\.txt, row 1: 'n09' is no id of .*wnids\.txt"),
        ("val_0.JPEG\tn03\nval_1.JPEG\n", r"val_annotations\.txt, row 2: '' is no id of"),
        ("val_9.JPEG\tn03\n", r"row 1: there is no file .*val_9\.JPEG"),
        ("../x.JPEG\tn03\n", r"row 1: '\.\./x\.JPEG' leaves the data folder"),
        ("val_0.JPEG\tn03\nval_0.JPEG\tn03\n", r"row 2: 'val_0\.JPEG' was there before"),
        ("", r"val_annotations\.txt: the file is empty"),
    ],
)
def test_annotations_that_do_not_fit_are_refused(tmp_path: Path, rows: str, message: str):
    root = make(tmp_path)
    (root / "val" / "val_annotations.txt").write_text(rows)
    with pytest.raises(DataError, match=message):
        data.load("tiny_imagenet", tmp_path)


def test_missing_images_and_damaged_ones_are_refused(tmp_path: Path):
    root = make(tmp_path)
    (root / "train" / "n02" / "images" / "n02_0.JPEG").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=r"n02_0\.JPEG: truncated or not an image"):
        data.load("tiny_imagenet", tmp_path)
    shutil.rmtree(root / "train" / "n02")
    with pytest.raises(DataError, match=r"train/n02: there are no files \*\.JPEG"):
        data.load("tiny_imagenet", tmp_path)
    with pytest.raises(DataError, match=r"no wnids\.txt in .*; wanted is tiny-imagenet-200/"):
        data.load("tiny_imagenet", root / "train")


def archive_of(folder: Path, archive: Path) -> str:
    """Packs ``folder``; the md5 of the archive."""
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(folder.rglob("*")):
            packed.write(file, file.relative_to(folder.parent))
    return hashlib.md5(archive.read_bytes()).hexdigest()


def test_the_archive_is_downloaded_and_unpacked_once(tmp_path: Path, monkeypatch, web):
    archive = tmp_path / "t.zip"
    reader = import_module(
        "fedsim.data.readers.tiny_imagenet"
    )  # the package has a function of that name
    monkeypatch.setattr(reader, "MD5", archive_of(make(tmp_path / "in"), archive))
    monkeypatch.setattr(reader, "URL", f"{web}/t.zip")
    first = data.load("tiny_imagenet")
    archive.unlink()
    assert first.x.shape == (9, 3, 16, 16)
    assert np.array_equal(data.load("tiny_imagenet").x, first.x)


def test_the_samples(shared_data: Path):
    folder = shared_data / "tiny-imagenet-small"
    loaded = data.load("tiny_imagenet", folder)
    assert (loaded.x.shape, loaded.num_classes) == ((600, 3, 32, 32), 10)
    assert (len(loaded.train), len(loaded.test)) == (400, 200)
    assert np.bincount(loaded.y[loaded.test]).tolist() == [20] * 10
    assert loaded.class_names[:2] == ("goldfish, Carassius auratus", "Persian cat")
    root = folder / "tiny-imagenet-200"
    name, wnid = (root / "val" / "val_annotations.txt").read_text().splitlines()[0].split("\t")[:2]
    row = sorted(p.name for p in (root / "val" / "images").iterdir()).index(name)
    original = np.asarray(Image.open(root / "val" / "images" / name).convert("RGB"))
    assert np.array_equal(loaded.x[loaded.test[row]], original.transpose(2, 0, 1))
    ids = sorted((root / "wnids.txt").read_text().split())
    assert loaded.y[loaded.test[row]] == ids.index(wnid)
