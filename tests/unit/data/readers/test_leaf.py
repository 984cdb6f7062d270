"""LEAF json: places, merging, users, damage; femnist, celeba, synthetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsim import data
from fedsim.core.errors import DataError
from fedsim.core.types import Dataset
from fedsim.data import partitions
from fedsim.data.transforms import Transforms
from fedsim.testing import check_reader
from tests.unit.data.leaf_files import write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


def points(user: int, n: int, start: int = 0) -> tuple[list[list[float]], list[float]]:
    """Samples (100 user + i, -i) with the labels 0.0, 1.0, 0.0, ..., as FedProx writes them."""
    rows = range(start, start + n)
    return [[100.0 * user + i, -float(i)] for i in rows], [float(i % 2) for i in rows]


def natural(loaded: Dataset) -> list[tuple[str, list[float], list[float]]]:
    """By client the name and the first number of its training and test samples."""
    made = partitions.make(loaded, "natural", min_samples=1)
    rows = zip(made.names, made.train, made.test, strict=True)
    return [(name, *(loaded.x[own, 0].tolist() for own in parts)) for name, *parts in rows]


def test_files_are_merged_and_users_sorted_by_name(tmp_path: Path):
    write(tmp_path / "train", "a.json", {"u10": points(10, 3), "u2": points(2, 2)})
    write(tmp_path / "train", "b.json", {"u1": points(1, 2)})
    write(tmp_path / "test", "any.json", {"u2": points(2, 1, 5), "u10": points(10, 2, 5)})
    loaded = data.load("synthetic", tmp_path)
    assert (loaded.x.dtype, loaded.x.shape, loaded.y.dtype) == (np.float32, (10, 2), np.int64)
    assert (loaded.inputs, loaded.pipeline, loaded.class_names) == ("features", None, ("0", "1"))
    assert loaded.sites_are_users
    assert partitions.default_kind(loaded) == "natural"
    # text order: u1 < u10 < u2; u1 has no test samples and stays
    assert natural(loaded) == [
        ("u1", [100.0, 101.0], []),
        ("u10", [1000.0, 1001.0, 1002.0], [1005.0, 1006.0]),
        ("u2", [200.0, 201.0], [205.0]),
    ]
    assert loaded.y[loaded.train].tolist() == [0, 1, 0, 1, 0, 0, 1]
    check_reader("synthetic", tmp_path, cases=["options", "arrays and labels", "read again"])


@pytest.mark.parametrize("below", ["", "data", "synthetic", "synthetic/data", "data/synthetic"])
def test_the_folder_may_be_given_at_any_height(tmp_path: Path, below: str):
    write(tmp_path / below / "train", "a.json", {"u": points(0, 4)})
    write(tmp_path / below / "test", "a.json", {"u": points(0, 2, 4)})
    assert len(data.load("synthetic", tmp_path).y) == 6


def test_one_folder_alone_is_split_within_the_users(tmp_path: Path):
    write(tmp_path / "test", "a.json", {"a": points(0, 10), "b": points(1, 25), "c": points(2, 2)})
    loaded = data.load("synthetic", tmp_path, val_fraction=0.25, test_fraction=0.2, seed=3)
    made = partitions.make(loaded, "natural")
    # 0.2 of 10, 25, 2 is 2, 5, 0; 0.25 of the rest 8, 20, 2 is 2, 5, 0 (0.5 to even)
    assert [len(own) for own in made.test] == [2, 5, 0]
    assert [len(own) for own in made.val] == [2, 5, 0]
    assert [len(own) for own in made.train] == [6, 15, 2]
    # each label gives its share: 5 and 5 of a
    assert loaded.y[made.test[0]].tolist() == [0, 1]
    again = data.load("synthetic", tmp_path, val_fraction=0.25, test_fraction=0.2, seed=3)
    other = data.load("synthetic", tmp_path, val_fraction=0.25, test_fraction=0.2, seed=4)
    assert np.array_equal(loaded.test, again.test)
    assert not np.array_equal(loaded.test, other.test)


def test_a_test_part_of_other_users_is_common(tmp_path: Path):
    write(tmp_path / "train", "a.json", {"a": points(0, 4), "b": points(1, 3)})
    write(tmp_path / "test", "a.json", {"c": points(2, 5)})
    loaded = data.load("synthetic", tmp_path)
    made = partitions.make(loaded, "natural")
    assert (made.names, made.test, len(loaded.test)) == (("a", "b"), (), 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"a\.json: truncated or no json file"),
        ("[1]", r"a\.json: holds a list, needed is an object"),
        ('{"users": ["u"]}', r"a\.json: needed are the keys users \(a list\) and user_data"),
        ('{"user_data": {}}', r"a\.json: needed are the keys users"),
        (
            '{"users": ["u", "v"], "user_data": {"u": {"x": [], "y": []}}}',
            r"a\.json, user 'v': in ",
        ),
        (
            '{"users": ["u", "v", "u"], "user_data": {"u": {"x": [], "y": []}}}',
            r"a\.json, user 'u': 2 times in users",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[], []], "y": [0, 1]}}}',
            r"user 'u': x has to be lists of finite numbers",
        ),
        (
            '{"users": [], "user_data": {"u": {"x": [], "y": []}}}',
            r"user 'u': in user_data, but not",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": []}}}',
            r"user 'u': needed are the lists x and",
        ),
        ('{"users": ["u"], "user_data": {"u": [1]}}', r"a\.json, user 'u': needed are the lists"),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[1], [2]], "y": [0]}}}',
            r"a\.json, user 'u': x has 2 samples, y has 1",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[1], [2, 3]], "y": [0, 1]}}}',
            r"a\.json, user 'u': x is no list of numbers",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[NaN]], "y": [0]}}}',
            "x has to be lists of finite numbers",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[1], [2]], "y": [0, 0.5]}}}',
            r"a\.json, user 'u': label 0\.5 of sample 1 is no class",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": [-1]}}}',
            "label -1 of sample 0 is no class",
        ),
        (
            '{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": ["a"]}}}',
            r"user 'u': y is no list of numbers",
        ),
        ('{"users": ["u"], "user_data": {"u": {"x": [], "y": []}}}', "hold no samples"),
        (
            '{"users": ["u", "v"], "user_data": {"u": {"x": [[1]], "y": [0]}, '
            '"v": {"x": [[1, 2]], "y": [0]}}}',
            r"user 'v': x of shape \(2,\), before it was \(1,\)",
        ),
    ],
)
def test_damage_is_refused_with_file_and_user(tmp_path: Path, content: str, message: str):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        data.load("synthetic", tmp_path)
    assert "\n" not in str(caught.value)


def test_femnist_pixels_are_rounded_bytes_that_the_model_sees_as_0_to_1(tmp_path: Path):
    paper, ink = [1.0] * 784, [0.0] * 783 + [0.3]
    write(tmp_path / "train", "a.json", {"f1": ([paper, ink], [0, 61]), "f0": ([ink], [10])})
    write(tmp_path / "test", "a.json", {"f1": ([paper], [36])})
    loaded = data.load("femnist", tmp_path / "train" / "..")
    assert (loaded.x.shape, loaded.x.dtype) == ((4, 1, 28, 28), np.uint8)
    # 0.3 x 255 = 76.5, to the even 76; the last of 784 is the lower right corner
    assert loaded.x[0, 0, 27, 27] == 76
    assert loaded.x[0].sum() == 76
    assert [loaded.class_names[label] for label in loaded.y] == ["A", "0", "z", "a"]
    seen = Transforms(loaded.pipeline, torch.device("cpu")).test(torch.from_numpy(loaded.x))
    assert seen[1].eq(1).all()
    assert seen[0].max().item() == pytest.approx(76 / 255)
    assert data.load("femnist", tmp_path, image_size=14).x.shape == (4, 1, 14, 14)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.5] * 783], [1], "lists of 784 numbers in 0..1"),
        ([[1.5] * 784], [1], "lists of 784 numbers in 0..1"),
        ([[0.5] * 784], [62], r"label 62 of sample 0 is no class of 0\.\.61"),
    ],
)
def test_femnist_refuses_other_pixels_and_labels(tmp_path: Path, x, y, message):
    write(tmp_path / "train", "a.json", {"w": (x, y)})
    with pytest.raises(DataError, match=rf"a\.json, user 'w': .*{message}"):
        data.load("femnist", tmp_path)


def celeba(folder: Path) -> None:
    images = folder / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for i in range(4):
        pixels = np.zeros((218, 178, 3), np.uint8)
        pixels[:109] = 50 * i  # the upper half, also after squashing to a square
        Image.fromarray(pixels).save(images / f"{i}.png")
    write(folder / "data" / "train", "a.json", {"7": (["1.png", "3.png"], [0.0, 1.0])})
    write(folder / "data" / "test", "a.json", {"7": (["2.png"], [1.0])})


def test_celeba_reads_squashed_images_that_the_model_sees_as_0_to_255(tmp_path: Path):
    celeba(tmp_path / "celeba")
    loaded = data.load("celeba", tmp_path / "celeba")
    assert loaded.x.shape == (3, 3, 84, 84)
    assert loaded.y.tolist() == [0, 1, 1]
    assert loaded.class_names == ("not smiling", "smiling")
    seen = Transforms(loaded.pipeline, torch.device("cpu")).test(torch.tensor(loaded.x))
    assert seen[:, 0, 0, 0].tolist() == pytest.approx([50.0, 150.0, 100.0])
    assert seen[1, :, 40].eq(150).all()
    assert seen[1, :, 43].eq(0).all()
    assert data.load("celeba", tmp_path / "celeba", image_size=32).x.shape == (3, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("9.png", r"user '7': sample 1: there is no file .*img_align_celeba/9\.png"),
        ("../x.png", "user '7': sample 1: '../x.png' leaves the data folder"),
        (3, "user '7': x of sample 1 is no file name"),
    ],
)
def test_celeba_refuses_other_files(tmp_path: Path, name, message):
    celeba(tmp_path)
    write(tmp_path / "data" / "train", "a.json", {"7": (["1.png", name], [0, 1])})
    with pytest.raises(DataError, match=message):
        data.load("celeba", tmp_path)


@pytest.mark.parametrize(
    ("which", "samples", "classes"),
    [
        ("synthetic_1_1", 1084, [82, 36, 23, 77, 68, 31, 30, 346, 354, 37]),
        ("synthetic_0_0", 897, [13, 266, 58, 71, 44, 225, 49, 88, 40, 43]),
    ],
)
def test_fedprox_synthetic(shared_data: Path, which, samples, classes):
    folder = shared_data / "leaf-synthetic" / which
    loaded = data.load("synthetic", folder)
    assert loaded.x.shape == (samples, 60)
    assert np.bincount(loaded.y).tolist() == classes
    assert loaded.site_names == tuple(f"f_{k:05d}" for k in range(30))
    content = json.loads((folder / "data" / "test" / "mytest.json").read_text())
    made = partitions.make(loaded, "natural")
    for name, train, test in zip(made.names, made.train, made.test, strict=True):
        own = np.sort(np.concatenate([train, test]))
        assert len(test) == round(0.2 * len(own))
        assert np.array_equal(loaded.x[own], np.float32(content["user_data"][name]["x"]))
        assert loaded.y[own].tolist() == content["user_data"][name]["y"]
