"""Data of regression, several labels and survival: embedded, generated, MedMNIST's, FLamby's."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fedsim import data
from fedsim.config import presets
from fedsim.config.experiments import Setting
from fedsim.core.errors import DataError
from fedsim.studies import sweep
from fedsim.testing import check_reader
from fedsim.training.assemble import prepare

CASES = ["options", "arrays and labels", "read again"]


@pytest.mark.parametrize(
    "name", ["diabetes", "breast_cancer", "synthetic_labels", "synthetic_survival"]
)
def test_embedded_tables_are_data_sets(name):
    check_reader(name, cases=CASES)


def test_artificial_sites_are_parts_of_a_sorted_feature():
    d = data.load("diabetes", sites=4)
    assert np.bincount(d.site).tolist() == [111, 110, 111, 110]
    ages = [d.x[d.site == k, 0] for k in range(4)]
    assert all(ages[k].max() <= ages[k + 1].min() for k in range(3))
    assert (d.y.mean(), d.y.std()) == pytest.approx((0, 1), abs=1e-6)


@pytest.mark.parametrize("name", ["synthetic_labels", "synthetic_survival"])
def test_a_hospital_is_the_same_among_more(name):
    few, many = (data.load(name, num_clients=k, seed=3) for k in (2, 5))
    assert np.array_equal(few.x, many.x[: len(few.x)])
    assert np.array_equal(few.y, many.y[: len(few.y)])
    assert not np.array_equal(few.x[:9], data.load(name, num_clients=2, seed=4).x[:9])


def test_censoring_is_that_of_an_average_patient():
    """Without features' effect the share is exact; the rest of its 7,500 patients moves it."""
    for censored in (0.0, 0.2, 0.6):
        y = data.load("synthetic_survival", num_clients=50, censored=censored).y
        assert 1 - y[:, 1].mean() == pytest.approx(censored, abs=0.1 if censored else 1e-4)
        assert y[:, 0].min() >= 1
        assert (y[:, 0] % 1 == 0).all()


def chests(folder: Path, **change) -> Path:
    draw = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 10), ("val", 4), ("test", 5)):
        arrays[f"{part}_images"] = draw.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        arrays[f"{part}_labels"] = draw.integers(0, 2, (n, 14)).astype(np.uint8)
    np.savez(folder / "chestmnist.npz", **arrays | change)
    return folder


def test_chestmnist_has_fourteen_labels_an_image(tmp_path):
    d = data.load("chestmnist", chests(tmp_path))
    assert (d.y.shape, d.y.dtype, d.x.shape) == ((19, 14), np.float32, (19, 1, 28, 28))
    assert d.class_names[-1] == "hernia"
    assert d.task.name == "multilabel"
    for odd in (np.full((4, 14), 2), np.zeros((4, 13), np.uint8)):
        with pytest.raises(DataError, match=r"val_labels: labels are .* \(N, 14\), each 0 or 1"):
            data.load("chestmnist", chests(tmp_path, val_labels=odd))


FEATURES = [f"feature, {k}" for k in range(39)]
"""FLamby's names have commas, too."""


def checkout(root: Path, odd: dict[str, object] | None = None) -> Path:
    """A folder with FLamby's layout: six regions with 12 training and 6 test patients each, and one
    more patient in no part. ``odd``: changed cells of the first patient."""
    folder = root / "flamby" / "datasets" / "fed_tcga_brca"
    (folder / "dataset_creation_scripts").mkdir(parents=True)
    draw = np.random.default_rng(0)
    patients, folds = [], []
    for i in range(6 * 18 + 1):
        cells = dict(zip(FEATURES, draw.integers(0, 2, 39).tolist(), strict=True))
        outcome = {"E": float(draw.integers(0, 2)), "T": float(draw.integers(0, 50))}
        patients.append({"pid": f"TCGA-{i}", **cells, **outcome})
        fold = "train" if i % 18 < 12 else "test"
        folds.append({"pid": f"TCGA-{i}", "fold": fold, "fold2": f"{fold}_{i // 18}"})
    patients[0] |= odd or {}
    files = {
        "brca.csv": patients[::-1],
        "dataset_creation_scripts/train_test_split.csv": folds[:-1],
    }
    for name, rows in files.items():
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return root


def test_tcga_brca_is_read_from_a_checkout_of_flamby(tmp_path):
    root = checkout(tmp_path)
    d = data.load("fed_tcga_brca", root)
    assert (d.x.shape, d.y.shape) == ((108, 39), (108, 2))
    assert np.bincount(d.site[d.train]).tolist() == [12] * 6
    assert np.bincount(d.site[d.test]).tolist() == [6] * 6
    assert d.site[:3].tolist() == [5, 5, 5]  # in the order of brca.csv, without the last patient
    inner = data.load("fed_tcga_brca", root / "flamby" / "datasets" / "fed_tcga_brca")
    assert np.array_equal(inner.x, d.x)
    place = {"data.dir": Setting(str(root), "--data-dir")}
    runs = sweep.expand(presets.load("flamby_tcga_brca"), place)
    assert len(runs) == 30
    setup = prepare(runs[0].config)
    assert setup.layout.size == 40
    assert setup.tests_are_owned


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"T": -1}, "the time is -1"),
        ({"E": 3}, "the event is 3; it is 0 or 1"),
        ({"E": ""}, "brca.csv, row 110, column e: '' is no finite number"),
        ({"pid": "TCGA-x"}, "108 patients, 107 are in brca.csv"),
    ],
)
def test_a_damaged_checkout_is_refused(tmp_path, odd, message):
    with pytest.raises(DataError, match=message):
        data.load("fed_tcga_brca", checkout(tmp_path, odd))


def test_a_folder_without_the_table_is_named(tmp_path):
    with pytest.raises(DataError, match=r"a checkout of FLamby, with flamby/.*brca\.csv"):
        data.load("fed_tcga_brca", tmp_path)
