"""``fedsim predict --data-dir NEW``: texts with the run's vocabulary, classes by their names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset
from fedsim.storage.run_dir import RunStore
from tests.texts import MODELS
from tests.unit.data.conftest import write_users

pytestmark = pytest.mark.integration

WORDS = ("good", "bad", "fine", "dull", "warm", "cold", "rain")


def tweets(folder: Path, users: dict[str, list[str]]) -> Path:
    """A folder of sent140; positive is what has an even number of letters."""
    found = {
        user: ([["", "", "", "", text] for text in texts], [len(text) % 2 for text in texts])
        for user, texts in users.items()
    }
    write_users(folder / "train", "a.json", found)
    write_users(folder / "test", "a.json", {u: (x[:1], y[:1]) for u, (x, y) in found.items()})
    return folder


def settings(folder: Path, data: str = "sent140", **sections: Any) -> RunConfig:
    return RunConfig(
        algorithm="fedavg",
        data={"name": data, "dir": str(folder), "min_samples": 1, "partition": "natural"},
        model={"name": MODELS["moods"]},
        train={"rounds": 1, "sample_rate": 1.0, "batch_size": 4, "lr": 0.1},
        evaluation={"batch_size": 1},  # the last bits of a row depend on the others in its batch
        engine={"kind": "serial"},
        **sections,
    )


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    draw = np.random.default_rng(0)
    return {f"u{i}": [" ".join(draw.choice(WORDS, 4)) for _ in range(6)] for i in range(3)}


@pytest.fixture(scope="module")
def run(texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    folder = tmp_path_factory.mktemp("texts")
    return fedsim.run(settings(tweets(folder / "data", texts)), folder / "run")


def scores(frame: pd.DataFrame) -> list[list[float]]:
    return frame[["probability_0", "probability_1"]].to_numpy().tolist()


def test_new_texts_are_read_with_the_vocabulary_of_the_run(run, texts, tmp_path):
    """Though the same words would have other numbers in these."""
    own = scores(fedsim.predict(run.path, split="all"))[: 3 * 6]
    new = tweets(tmp_path / "new", {"u1": [*texts["u1"], *reversed(WORDS)], "u9": ["rain " * 20]})
    assert scores(fedsim.predict(run.path, data_dir=new))[:6] == own[6:12]


def test_words_that_the_run_does_not_know_are_one(run, texts, tmp_path):
    own = scores(fedsim.predict(run.path, split="all"))[: 3 * 6]
    more = {"u8": ["snow snow snow snow"], "u9": ["wind wind wind wind"]}
    new = tweets(tmp_path / "new", {"u1": texts["u1"]} | more)
    found = scores(fedsim.predict(run.path, data_dir=new))
    assert found[:6] == own[6:12]
    assert found[6] == found[7]


def test_a_run_on_the_words_of_another_place_needs_its_own_texts_no_more(texts, tmp_path):
    store = fedsim.run(settings(tweets(tmp_path / "data", texts)), tmp_path / "run")
    wanted = fedsim.predict(store.path, split="all")
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    pd.testing.assert_frame_equal(fedsim.predict(store.path, data_dir=moved), wanted)


def test_texts_with_other_words_are_not_the_data_of_the_run(texts, tmp_path):
    """Though every client has as many samples with the same labels."""
    store = fedsim.run(settings(tweets(tmp_path / "data", texts)), tmp_path / "run")
    other = {user: [text.replace("rain", "snow") for text in own] for user, own in texts.items()}
    tweets(tmp_path / "data", other)
    with pytest.raises(DataError, match=r"vocabulary\.json: the data now give another vocabulary"):
        fedsim.predict(store.path)


@pytest.mark.parametrize("content", ["", '{"a": 1}'])
def test_a_damaged_vocabulary_is_refused(content, run, texts, tmp_path):
    broken = shutil.copytree(run.path, tmp_path / "run")
    (broken / "vocabulary.json").write_text(content)
    new = tweets(tmp_path / "new", {"u1": texts["u1"]})
    with pytest.raises(ConfigError, match=r"vocabulary\.json: damaged: "):
        fedsim.predict(broken, data_dir=new)


# Classes


def features(folder: Path) -> Dataset:
    """Features whose first number tells the class, with the class names of the folder."""
    names = tuple(Path(folder, "names").read_text().split())
    order = [("low", "middle", "high", "other").index(name) for name in names]
    y = np.arange(60) % len(names)
    x = np.random.default_rng(4).normal(size=(60, 3))
    x[:, 0] = np.array(order)[y] * 3
    return Dataset(
        name="own", x=x.astype(np.float32), y=y, class_names=names, train=np.arange(40),
        val=np.arange(0), test=np.arange(40, 60), pipeline=None,
    )  # fmt: skip


def on_features(tmp_path: Path, names: str) -> Path:
    (tmp_path / "names").write_text(names)
    return tmp_path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    folder = tmp_path_factory.mktemp("features")
    found = RunConfig(
        algorithm="fedavg",
        data={"name": f"{__name__}:features", "dir": str(on_features(folder, "low middle high"))}
        | {"num_clients": 2, "partition": "iid"},
        model={"name": "logistic"},
        train={"rounds": 20, "sample_rate": 1.0, "batch_size": 8, "lr": 0.1},
        engine={"kind": "serial"},
    )
    return fedsim.run(found, folder / "run")


def predicted(run: Path, folder: Path, tmp_path: Path) -> Result:
    file = tmp_path / "p.csv"
    args = ["predict", str(run), "--data-dir", str(folder), "--out", str(file)]
    return CliRunner().invoke(main, args)


def test_classes_in_another_order_are_found_by_name(measured, tmp_path):
    done = predicted(measured.path, on_features(tmp_path, "high low middle"), tmp_path)
    assert done.exit_code == 0, done.output
    assert "the classes have the numbers of the run, by name: low, middle, high" in done.output
    frame = pd.read_csv(tmp_path / "p.csv")
    assert frame["label_name"].tolist() == ["high", "low", "middle"] * 20
    assert frame["label"].tolist() == [2, 0, 1] * 20
    assert (frame["label"] == frame["prediction"]).mean() > 0.7


def test_a_class_that_the_run_does_not_know_is_refused(measured, tmp_path):
    done = predicted(measured.path, on_features(tmp_path, "low other high"), tmp_path)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert (
        "classes are low, other, high, those of the run low, middle, high; unknown" in done.stderr
    )
    assert not (tmp_path / "p.csv").exists()
