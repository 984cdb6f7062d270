"""The readers on real samples of the data sets, where these lie beside the checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim import data
from fedsim.core.rng import torch_scope
from fedsim.data import partitions
from fedsim.data.transforms import Transforms


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("split", ["split_1", "split_2", "split_3"])
def test_retina(shared_data: Path, split):
    loaded = data.load("retina", shared_data / "fedld-layout", split=split, image_size=64)
    assert (len(loaded.train), len(loaded.test)) == (50, 10)
    assert np.bincount(loaded.y).tolist() == [30, 30]
    made = partitions.make(loaded, "files", num_clients=5)
    assert sum(len(i) for i in made.train) == 50
    # stored as 64 x 64, so nothing is resized: each value is the file's
    name = (shared_data / "fedld-layout/Retina/train.csv").read_text().split()[0]
    original = np.load(shared_data / "fedld-layout/Retina/train" / name)
    assert np.array_equal(loaded.x[0], original.transpose(2, 0, 1))
    transforms = Transforms(loaded.pipeline, torch.device("cpu"))
    with torch_scope(0):
        batch = transforms.train(torch.from_numpy(loaded.x[loaded.train[:4]]))
    assert batch.shape == (4, 3, 64, 64)
    assert torch.isfinite(batch).all()


def test_covid_fl(shared_data: Path):
    loaded = data.load("covid_fl", shared_data / "fedld-layout" / "COVID-FL", image_size=32)
    assert (len(loaded.train), len(loaded.test)) == (45, 11)
    made = partitions.make(loaded, "files", num_clients=6)
    assert made.names == ("actualmed", "cohen-papers", "figure1", "nih", "radiopaedia", "sirm")
    assert [len(i) for i in made.train] == [8, 8, 8, 8, 8, 5]


def test_covid_cxr_by_site(shared_data: Path):
    loaded = data.load("covid_cxr", shared_data / "covid-cxr")
    assert loaded.x.shape == (1224, 1, 64, 64)
    assert np.bincount(loaded.y).tolist() == [521, 524, 179]
    patients = np.load(shared_data / "covid-cxr" / "covid_cxr_64.npz")["patients"]
    assert not set(patients[loaded.train]) & set(patients[loaded.test])
    share = np.bincount(loaded.y[loaded.test]) / np.bincount(loaded.y)
    assert np.abs(share - 0.2).max() < 0.03
    made = partitions.make(loaded, partitions.default_kind(loaded), num_clients=6)
    assert made.names[3] == "nih"


@pytest.mark.parametrize(
    ("name", "below", "shape", "parts"),
    [
        ("retinamnist", "retinamnist", (1600, 3, 28, 28), (1080, 120, 400)),
        ("pneumoniamnist", "", (5856, 1, 28, 28), (4708, 524, 624)),
        ("mnist", "mnist", (16000, 1, 28, 28), (6000, 0, 10000)),
        ("cifar10", "cifar10-small", (1250, 3, 32, 32), (1000, 0, 250)),
    ],
)
def test_sets_with_parts_of_their_own(shared_data: Path, name, below, shape, parts):
    loaded = data.load(name, shared_data / below)
    assert loaded.x.shape == shape
    assert (len(loaded.train), len(loaded.val), len(loaded.test)) == parts


def test_counts_of_the_samples(shared_data: Path):
    retinamnist = data.load("retinamnist", shared_data)
    assert np.bincount(retinamnist.y[retinamnist.test]).tolist() == [174, 46, 92, 68, 20]
    mnist = data.load("mnist", shared_data)
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(mnist.y[mnist.test]).tolist() == counts
    cifar = data.load("cifar10", shared_data / "cifar10-small")
    assert np.bincount(cifar.y[cifar.test]).tolist() == [25, 20, 24, 22, 19, 25, 29, 24, 34, 28]
    assert cifar.class_names[0] == "airplane"
