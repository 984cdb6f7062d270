"""fundus-sites through the folder loader: sites, and both eyes of a patient together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim import data
from fedsim.core.types import Dataset, Partition
from fedsim.data import partitions, patients

CLASSES = {
    "odir": ("cataract", "glaucoma", "normal"),
    "eyepacs": ("dr", "normal"),
    "retina_dataset": ("cataract", "glaucoma"),
}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small copy of the layout: 12 patients of each site and class, every other with two eyes.

    The patients' numbers begin anew at each site.
    """
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    root, lines = tmp_path / "fundus-sites", ["filename,label,site,patient"]
    (root / "images").mkdir(parents=True)
    for site, labels in CLASSES.items():
        for patient in range(12 * len(labels)):
            label = labels[patient % len(labels)]
            for eye in ("left", "right")[: 1 + patient // 2 % 2]:
                name = f"{site}-{patient}_{eye}.jpg"
                Image.new("RGB", (16, 12), (5 * patient, 90, 40)).save(root / "images" / name)
                lines.append(f"{name},{label},{site},{patient}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def owners(dataset: Dataset, partition: Partition) -> dict[tuple[int, int], set[str]]:
    """Client or part of each patient, known by site and number."""
    assert dataset.site is not None
    assert dataset.patient is not None
    places = {f"client {k}": own for k, own in enumerate(partition.train)}
    places |= {"test": dataset.test, "val": dataset.val}
    found: dict[tuple[int, int], set[str]] = {}
    for place, samples in places.items():
        for i in samples:
            key = int(dataset.site[i]), int(dataset.patient[i])
            found.setdefault(key, set()).add(place)
    return found


def loaded(root: Path, size: int) -> Dataset:
    return data.load("folder", root, image_size=size, val_fraction=0.1, seed=3, group="patient")


def make(dataset: Dataset, kind: str, clients: int | None) -> Partition:
    group = patients.grouping(dataset, kind, "patient")
    return partitions.make(
        dataset, kind, num_clients=clients, alpha=0.5, min_samples=2, seed=3, group=group
    )


def check(dataset: Dataset, clients: int) -> None:
    """By site each site is a client; dealt out, each patient is with one client or in one part."""
    by_site = make(dataset, "by_site", None)
    assert by_site.names == dataset.site_names == ("eyepacs", "odir", "retina_dataset")
    dealt = make(dataset, "dirichlet", clients)
    assert len(dealt.train) == clients
    for partition in (by_site, dealt):
        found = owners(dataset, partition)
        assert max(map(len, found.values())) == 1, "a patient in two places"
        members = np.concatenate(partition.train)
        assert sorted(members) == sorted(dataset.train)


def test_a_small_copy_of_the_layout(copy: Path):
    dataset = loaded(copy, 8)
    assert dataset.class_names == ("cataract", "dr", "glaucoma", "normal")
    assert dataset.x.shape == (126, 3, 8, 8)
    counts = Counter(map(int, dataset.site if dataset.site is not None else ()))
    assert counts == {0: 36, 1: 54, 2: 36}
    check(dataset, 5)


def test_samples_dealt_one_by_one_split_patients(copy: Path):
    dataset = data.load("folder", copy, image_size=8, seed=3)
    partition = partitions.make(
        dataset, "dirichlet", num_clients=5, alpha=0.5, min_samples=2, seed=3
    )
    assert max(map(len, owners(dataset, partition).values())) > 1


def test_the_data_set_itself(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = shared_data / "fundus-sites"
    if not root.is_dir():
        pytest.skip(f"needs the sample data set {root}, which is not here")
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    dataset = loaded(root, 16)
    assert len(dataset.y) == 937
    assert dataset.site is not None
    pairs = zip(dataset.site.tolist(), dataset.y.tolist(), strict=True)
    by_class = Counter((dataset.site_names[s], dataset.class_names[c]) for s, c in pairs)
    assert by_class == {
        ("odir", "normal"): 181,
        ("odir", "glaucoma"): 150,
        ("odir", "cataract"): 149,
        ("eyepacs", "normal"): 138,
        ("eyepacs", "dr"): 118,
        ("retina_dataset", "glaucoma"): 101,
        ("retina_dataset", "cataract"): 100,
    }
    check(dataset, 50)
