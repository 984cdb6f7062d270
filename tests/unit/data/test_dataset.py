"""load(): the catalogue, the embedded set, options, a user's own loader."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsim import RunConfig, data
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset, Pipeline


def test_digits_are_scikit_learns_scaled_to_bytes():
    from sklearn.datasets import load_digits

    digits = data.load("digits")
    original = load_digits()
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.uint8
    # 16 -> 255, 8 -> 127.5 -> 128 (to even), 1 -> 15.94 -> 16
    assert np.array_equal(np.unique(digits.x), np.rint(np.arange(17) * 255 / 16))
    assert np.array_equal(digits.x[:, 0] > 0, original.images > 0)
    assert np.array_equal(digits.y, original.target)
    # 1,797 / 5 = 359.4, each class rounded by itself
    assert abs(len(digits.test) - 359) <= 5
    assert len(digits.train) + len(digits.test) == 1797
    assert digits.pipeline == Pipeline(size=8, mean=(0.5,), std=(0.5,), augment="none")
    assert digits.num_classes == 10


def test_parts_follow_the_data_seed_and_the_fractions():
    first = data.load("digits", seed=1, val_fraction=0.1)
    again = data.load("digits", seed=1, val_fraction=0.1)
    other = data.load("digits", seed=2, val_fraction=0.1)
    plain = data.load("digits", seed=1)
    assert np.array_equal(first.test, again.test)
    assert np.array_equal(first.val, again.val)
    assert not np.array_equal(first.test, other.test)
    assert np.array_equal(first.test, plain.test)  # the validation part comes from the training one
    assert np.array_equal(np.sort(np.concatenate([first.train, first.val])), plain.train)
    assert abs(len(first.val) - 0.1 * len(plain.train)) <= 5
    assert abs(len(data.load("digits", test_fraction=0.5).test) - 898) <= 5


def test_image_size_resizes_once():
    digits = data.load("digits", image_size=16)
    assert digits.x.shape == (1797, 1, 16, 16)
    assert digits.pipeline.size == 16


def test_catalogue_names_readers_and_defaults():
    infos = {info.name: info for info in data.catalogue()}
    assert len(infos) == len(data.catalogue()) >= 29
    assert next(iter(infos)) == "digits"
    assert (infos["retina"].image_size, infos["retina"].default_partition) == (384, "files")
    assert infos["bloodmnist"].num_classes == 8
    assert infos["covid_cxr"].default_partition == "by_site"
    assert (infos["reddit"].default_model, infos["reddit"].default_partition) == (
        "leaf_reddit",
        "natural",
    )
    for info in infos.values():
        assert info.title
        assert info.source
        if info.needs_folder:
            with pytest.raises(ConfigError, match=f"'{info.name}' needs data.dir: a"):
                data.load(info.name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("retinamnst", {}, "unknown data set 'retinamnst' .did you mean 'retinamnist'"),
        ("chestmnist", {}, "14 labels per image"),
        (
            "survival",
            {},
            "unknown data set 'survival'; fedsim trains classifiers, .* no regression",
        ),
        ("digits", {"augment": "flp"}, "data.augment 'flp' is unknown .*'flip'"),
        ("digits", {"split": "split_1"}, "digits has no folders of client lists"),
        ("digits", {"folder": Path("x")}, "digits is embedded"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        data.load(name, **options)


@pytest.mark.parametrize(
    ("key", "value"),
    [("image_size", 0), ("val_fraction", 1.0), ("val_fraction", -0.1), ("test_fraction", 0.0),
     ("num_clients", 0)],
)  # fmt: skip
def test_wrong_settings_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"^data\.{key}: {value} given; must be "):
        RunConfig(data={key: value})


OWN = """
import numpy as np
from fedsim.core.types import Dataset, Pipeline

def make(folder, image_size=4, seed=0):
    x = np.zeros((6, 1, image_size, image_size), np.uint8)
    y = np.array([0, 1, 0, 1, 0, 1])
    return Dataset(name=str(folder), x=x, y=y, class_names=("a", "b"), train=np.arange(4),
                   val=np.arange(0), test=np.arange(4, 6),
                   pipeline=Pipeline(size=image_size, mean=(0.5,), std=(0.5,)))

def greedy(folder, **options):
    assert set(options) == {"image_size", "augment", "val_fraction", "test_fraction", "seed",
                            "split"}
    return make(folder)

def wrong(folder):
    return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_data_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_data_module", raising=False)
    return "own_data_module"


def test_own_loader_gets_the_folder_and_what_it_accepts(own, tmp_path):
    made = data.load(f"{own}:make", tmp_path, image_size=6, val_fraction=0.3)
    assert made.name == str(tmp_path)
    assert made.x.shape == (6, 1, 6, 6)
    assert data.load(f"{own}:greedy").num_classes == 2


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("{}:wrong", DataError, "returned int"),
        ("{}:mke", ConfigError, "did you mean 'make'"),
        ("no_such_module_here:make", ConfigError, "'no_such_module_here' cannot be imported"),
        (":make", ConfigError, "':make' is not of the form module:function"),
        ("os:getcwd", ConfigError, r"takes no arguments"),
        ("os:path", ConfigError, "os has no function 'path'"),
    ],
)
def test_own_loader_that_fails_is_refused(own, name, error, message):
    with pytest.raises(error, match=message):
        data.load(name.format(own))


GOOD = Dataset(
    name="good",
    x=np.zeros((4, 1, 3, 3), np.uint8),
    y=np.array([0, 1, 0, 1]),
    class_names=("a", "b"),
    train=np.arange(2),
    val=np.arange(0),
    test=np.arange(2, 4),
    pipeline=Pipeline(size=3, mean=(0.5,), std=(0.5,)),
)


FEATURES = replace(GOOD, x=np.zeros((4, 7), np.float32), pipeline=None)
TOKENS = replace(FEATURES, x=np.arange(20, dtype=np.int32).reshape(4, 5), vocabulary=20)
EACH = np.array([[-1, 1, 0, 1, -1]] * 4)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (FEATURES, None),
        (replace(FEATURES, x=FEATURES.x[:, :0]), None),
        (replace(FEATURES, x=FEATURES.x.astype(np.float64)), "x is float64"),
        (replace(FEATURES, x=FEATURES.x[None]), "x is float32 .*without a pipeline"),
        (replace(FEATURES, x=FEATURES.x + np.float32(np.inf)), "not finite"),
        (TOKENS, None),
        (replace(TOKENS, y=EACH), None),
        (replace(TOKENS, x=TOKENS.x.astype(np.int64)), "x is int64 .* as tokens"),
        (replace(TOKENS, vocabulary=19), r"tokens outside the vocabulary 0\.\.18"),
        (replace(TOKENS, x=TOKENS.x - 1), "tokens outside the vocabulary"),
        (replace(TOKENS, y=EACH[:, :3]), r"needed is int64 \(4,\) or \(4, 5\)"),
        (replace(TOKENS, y=EACH - 1), "labels outside the classes"),
        (replace(TOKENS, y=EACH * 0 - 1), "a sample without any label"),
        (replace(TOKENS, y=np.array([0, 1, -1, 0])), "labels outside the classes"),
        (replace(FEATURES, y=EACH), r"needed is int64 \(4,\)$"),
    ],
)
def test_features_and_tokens_are_checked(made, message):
    from fedsim.data.dataset import check

    if message is None:
        check(made, "here")
        return
    with pytest.raises(DataError, match=f"^here: data set good: .*{message}"):
        check(made, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"x": np.zeros((4, 1, 3, 3))}, "x is float64"),
        ({"x": np.zeros((4, 1, 3, 5), np.uint8)}, r"x is uint8 \(4, 1, 3, 5\)"),
        ({"x": np.zeros((5, 1, 3, 3), np.uint8)}, "y is int64"),
        ({"y": np.array([0, 1, 2, 1])}, "labels outside the classes"),
        ({"y": np.array([0.0, 1, 0, 1])}, "y is float64"),
        ({"class_names": ("a",)}, "at least two"),
        ({"train": np.arange(0)}, "training part is empty"),
        ({"test": np.arange(0)}, "test part is empty"),
        ({"val": np.array([1])}, "disjoint"),
        ({"val": np.array([4])}, "disjoint"),
        ({"val": np.array([True])}, "int64 index arrays"),
        ({"pipeline": Pipeline(size=3, mean=(0.5,) * 3, std=(0.5,) * 3)}, "mean and std need 1"),
        ({"pipeline": Pipeline(size=3, mean=(0.5,), std=(0.0,))}, "std and size"),
        ({"site": np.zeros(3, np.int64)}, "site"),
        ({"sites_are_users": True}, "users need a site"),
        ({"vocabulary": 9}, "images with a vocabulary of 9"),
        ({"never_right": (2,)}, r"never_right outside 0\.\.1"),
        ({"pipeline": None}, r"x is uint8 .*float32 \(N, d\) without a pipeline"),
    ],
)
def test_every_data_set_is_checked(change, message):
    from fedsim.data.dataset import check

    made = replace(GOOD, **change)
    if message is None:
        check(made, "here")
        return
    with pytest.raises(DataError, match=f"^here: data set good: .*{message}"):
        check(made, "here")
