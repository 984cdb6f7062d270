"""load(): the catalogue, options, a loader of the user's, and what is refused of its data."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from fedsim import RunConfig, data
from fedsim.cli import main
from fedsim.config import experiments
from fedsim.config.resolve import from_flags, resolve, to_yaml
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset, Pipeline
from fedsim.data import readers


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
        ("digits", {"augment": "flp"}, "data.augment 'flp' is unknown .*'flip'"),
        ("digits", {"split": "split_1"}, "digits has no folders of client lists"),
        ("digits", {"folder": Path("x")}, "digits is embedded"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        data.load(name, **options)


def make(folder, image_size=4, seed=0):
    x = np.zeros((6, 1, image_size, image_size), np.uint8)
    return replace(GOOD, name=str(folder), x=x, y=np.arange(6) % 2, test=np.arange(4, 6))


def greedy(folder, **options):
    assert set(options) == {
        *("image_size", "augment", "val_fraction", "test_fraction", "seed", "split")
    }
    return make(folder)


def wrong(folder):
    return 3


def test_own_loader_gets_the_folder_and_what_it_accepts(tmp_path):
    made = data.load(f"{__name__}:make", tmp_path, image_size=6, val_fraction=0.3)
    assert made.name == str(tmp_path)
    assert made.x.shape == (6, 1, 6, 6)
    assert data.load(f"{__name__}:greedy").num_classes == 2


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
def test_own_loader_that_fails_is_refused(name, error, message):
    with pytest.raises(error, match=message):
        data.load(name.format(__name__))


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
        (replace(TOKENS, y=EACH[:, :3]), r"y is int64 \(4, 3\) for x \(4, 5\)"),
        (replace(TOKENS, y=EACH - 1), "sample 0: label -2 is below -1"),
        (replace(TOKENS, y=EACH * 0 - 1), "a sample without any label"),
        (replace(TOKENS, y=np.array([0, 1, -1, 0])), "sample 2: label -1 is below 0"),
        (replace(FEATURES, y=EACH), r"y is int64 \(4, 5\) for x \(4, 7\)"),
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
        ({"class_names": ("a",)}, "needed are 2, there are"),
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


STRIPES = '''
"""Stripes of two directions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.data.dataset import DatasetInfo, Raw, Request


def stripes(
    request: Request,
    *,
    period: Annotated[int, Field(ge=2)] = 4,
    noise: Annotated[float, Field(ge=0)] = 10.0,
) -> Raw:
    """Stripes, one class for each direction."""
    draw = np.random.default_rng(request.seed)
    y = np.arange(200) % 2
    ramp = np.broadcast_to(200.0 * (np.arange(12) % period >= period / 2), (200, 12, 12))
    x = np.where(y[:, None, None] == 1, ramp, ramp.transpose(0, 2, 1))
    x = np.clip(x + noise * draw.standard_normal(x.shape), 0, 255)
    return Raw(
        source="stripes",
        x=x.astype(np.uint8)[:, None],
        y=y,
        class_names=("rows", "columns"),
        mean=(0.5,),
        std=(0.5,),
    )


DATASETS = (
    DatasetInfo(name="stripes", title="stripes", read=stripes, num_classes=2, source="generated"),
)
'''
WITH_OPTIONS = """
import numpy as np
from fedsim.core.types import Dataset, Pipeline

def make(folder, seed=0, *, shade: int = 3, label: str):
    x = np.full((40, 1, 4, 4), shade, np.uint8)
    y = np.arange(40) % 2
    i = np.arange(40)
    pipeline = Pipeline(size=4, mean=(0.5,), std=(0.5,))
    return Dataset(name=label, x=x, y=y, class_names=("a", "b"), train=i[:30], val=i[:0],
                   test=i[30:], pipeline=pipeline)
"""


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A data set with two options: one more file in the folder of readers."""
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "stripes.py").write_text(STRIPES)
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path / "readers")])
    data.catalogue.cache_clear()
    yield
    data.catalogue.cache_clear()
    sys.modules.pop("fedsim.data.readers.stripes", None)


def cli(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.integration
@pytest.mark.usefixtures("stripes")
def test_a_data_set_with_two_options_is_one_file(tmp_path: Path) -> None:
    listed = {row["name"]: row for row in json.loads(cli("list", "datasets", "--format", "json"))}
    assert listed["stripes"]["options"] == {"period": 4, "noise": 10.0}
    assert listed["digits"]["options"] == {}
    assert "period=4 noise=10.0" in cli("list", "datasets")

    arguments = ["-d", "stripes", "--set", "stripes.noise=0", "--set", "stripes.period=6"]
    arguments += ["--clients", "4", "--sample-rate", "1", "--rounds", "1", "--engine", "serial"]
    cli("run", *arguments, "--out", str(tmp_path / "r"))
    written = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert written["stripes"] == {"period": 6, "noise": 0.0}
    row = pd.read_csv(tmp_path / "r" / "summary.csv").iloc[0]
    assert (row["stripes.period"], row["stripes.noise"]) == (6, 0.0)
    x = data.load("stripes", noise=0, period=6).x
    assert x[0, 0, :, 0].tolist() == [0, 0, 0, 200, 200, 200] * 2  # rows
    assert x[1, 0, 0].tolist() == [0, 0, 0, 200, 200, 200] * 2  # columns


@pytest.mark.usefixtures("stripes")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("stripes.periods=4", r"unknown option 'periods' \(did you mean 'period'\?\); allowed: "),
        ("stripes.period=1", r"stripes.period: '1' given; must be greater than or equal to 2"),
        ("stripes.period=a", r"stripes.period: 'a' given; must be a valid integer"),
        ("stripes.noise=true", r"stripes.noise: 'true' given; must be a valid number"),
        ("period=5", r"unknown key 'period' \(did you mean 'stripes.period'\?\)"),
        ("digits.size=5", r"unknown option 'size'; digits has none"),
        ("synthetic.beta=1", r"synthetic.beta: only data set synthetic is drawn with"),
    ],
)
def test_options_are_checked_by_the_signature(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(from_flags({"data.name": ("-d", "stripes")}, [given]))


def test_a_loader_of_the_users_has_options_of_its_own(tmp_path, monkeypatch) -> None:
    (tmp_path / "loader_with_options.py").write_text(WITH_OPTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "loader_with_options:make"
    with pytest.raises(ConfigError, match=f"{name}.label: missing; {name} has no default for it"):
        RunConfig(data={"name": name})
    flags = from_flags({}, [f"data.name={name}", f"{name}.label=toy", f"{name}.shade=7"])
    config = resolve(flags)
    assert config.hyperparameters[name] == {"shade": 7, "label": "toy"}
    again = resolve(experiments.parse(to_yaml(config), "config.yaml").settings)
    assert again == config
    made = data.load(name, shade=9, label="toy")
    assert (made.name, np.unique(made.x).tolist()) == ("toy", [9])


ROWS = tuple(f"{i}.png,{i % 2}" for i in range(12))
HEADER = "filename,label"


def folder(root: Path, rows: tuple[str, ...] = ROWS, header: str = HEADER) -> Path:
    (root / "images").mkdir(parents=True)
    for i in range(12):
        Image.new("RGB", (6, 6), (20 * i, 0, 0)).save(root / "images" / f"{i}.png")
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


@pytest.mark.parametrize("other", ["grade", "level", "class", "diagnosis"])
def test_a_column_of_another_name_beside_label_is_ignored(tmp_path, other):
    rows = tuple(f"{row},{9 + i}" for i, row in enumerate(ROWS))
    loaded = data.load("folder", folder(tmp_path, rows, f"{HEADER},{other}"), image_size=6)
    assert loaded.y.tolist() == [0, 1] * 6
    twice = "Level" if other == "grade" else "Grade"  # which of them is the label is not known
    both = folder(tmp_path / "both", tuple(f"{row},3" for row in ROWS), f"filename,{other},{twice}")
    with pytest.raises(DataError, match="needed are the columns filename, label, each once"):
        data.load("folder", both, image_size=6)
