"""data.group=patient: whole patients in one client and one part, near the sizes asked for."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset, Partition, Pipeline
from fedsim.data import holdout, partitions, patients
from fedsim.data.draws import KINDS
from fedsim.training import loading

DEALT = [kind for kind in partitions.NAMES if kind not in ("by_site", "natural", "files")]


def people(count: int, seed: int, *, largest: int = 6, classes: int = 3) -> Dataset:
    """A data set of ``count`` patients with 1 to ``largest`` samples, at two sites."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, largest + 1, count)
    patient = np.repeat(np.arange(count), sizes)
    n = len(patient)
    own = draw.integers(0, classes, count)[patient]
    y = np.where(draw.random(n) < 0.8, own, draw.integers(0, classes, n))
    # patient 7 of one site and patient 7 of the other are two people with one name
    return Dataset(
        name="people",
        x=np.zeros((n, 1, 2, 2), dtype=np.uint8),
        y=y,
        class_names=tuple("abcdefgh"[:classes]),
        train=np.arange(n),
        val=np.arange(0),
        test=np.arange(0),
        pipeline=Pipeline(size=2, mean=(0.5,), std=(0.5,)),
        site=patient % 2,
        site_names=("east", "west"),
        patient=patient // 2,
        patient_names=tuple(map(str, range(count))),
    )


def keys(data: Dataset, own: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(data.site[own].tolist(), data.patient[own].tolist(), strict=True))


def assert_apart(data: Dataset, made: Partition) -> None:
    """No (site, patient) is in two clients or in two parts."""
    parts = [*made.train, *made.val, *made.test, data.val, data.test]
    for one, other in itertools.combinations([keys(data, own) for own in parts], 2):
        assert one.isdisjoint(other)


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize(("val", "test"), [(0.0, 0.0), (0.0, 0.2), (0.15, 0.25)])
def test_no_patient_is_in_two_clients_or_parts(kind, val, test):
    for seed, count, k in itertools.product(range(4), (60, 300), (1, 4, 9)):
        data = people(count, seed)
        parts = 1 + (val > 0) + (test > 0)
        made = partitions.make(
            data, kind, num_clients=k, alpha=5.0, seed=seed, group="patient", min_patients=parts
        )
        assert np.array_equal(np.sort(np.concatenate(made.train)), data.train)
        assert_apart(data, made)
        whole = [len(own) for own in made.train]
        made = holdout.hold_out(
            data, made, val_fraction=val, test_fraction=test, seed=seed, group="patient"
        )
        assert_apart(data, made)
        for name, fraction in (("val", val), ("test", test)):
            for n, own in zip(whole, getattr(made, name), strict=bool(fraction)):
                assert len(own) > 0
                assert abs(len(own) - max(1, round(fraction * n))) <= 6


@pytest.mark.parametrize("kind", ["iid", "dirichlet_per_client", "shards"])
def test_equal_kinds_stay_within_two_patients_of_equal_sizes(kind):
    for seed in range(5):
        data = people(300, seed)
        made = partitions.make(data, kind, num_clients=8, seed=seed, group="patient")
        sizes = [len(own) for own in made.train]
        assert max(abs(n - len(data.train) / 8) for n in sizes) <= 12


@pytest.mark.parametrize("kind", DEALT)
def test_patients_of_one_sample_give_the_sizes_of_samples(kind):
    data = people(240, 3, largest=1)
    label = data.y
    one, other = (
        partitions.make(data, kind, num_clients=6, alpha=2.0, seed=5, group=group)
        for group in ("none", "patient")
    )
    assert [len(own) for own in one.train] == [len(own) for own in other.train]
    if KINDS[kind].by_label:
        for a, b in zip(one.train, other.train, strict=True):
            assert np.array_equal(np.bincount(label[a]), np.bincount(label[b]))


def test_classes_are_dealt_by_the_patients_most_frequent_class():
    labels = np.array([0, 0, 1, 2, 1, 2, 2, 1])
    member = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    assert patients.most_frequent(labels, member).tolist() == [0, 2, 1]  # ties: the lowest
    for seed in range(5):
        data = people(400, seed, classes=4)
        of_sample = patients.of(data)
        label = patients.most_frequent(data.y, of_sample)[of_sample]
        made = partitions.make(
            data, "shards", num_clients=8, shards_per_client=1, seed=seed, group="patient"
        )
        assert max(len(np.unique(label[own])) for own in made.train) <= 3
        assert sum(len(np.unique(label[own])) for own in made.train) <= 8 + 3


def test_none_gives_the_bytes_that_data_without_patients_have():
    data = people(100, 0)
    bare = replace(data, patient=None, patient_names=())
    for kind in DEALT:
        one = partitions.make(data, kind, num_clients=5, alpha=5.0)
        other = partitions.make(bare, kind, num_clients=5, alpha=5.0)
        assert all(map(np.array_equal, one.train, other.train))


def test_what_patients_cannot_give_is_refused():
    data = people(6, 0)
    with pytest.raises(DataError, match=r"7 clients with at least one .* need 7, .* people has 6"):
        partitions.make(data, "iid", num_clients=7, min_samples=1, group="patient")
    with pytest.raises(DataError, match=r"at least 2 \(for its own held-out parts\) .* need 8"):
        partitions.make(data, "iid", num_clients=4, min_samples=1, group="patient", min_patients=2)
    alone = Partition(train=(np.flatnonzero(patients.of(data) == 0),))
    with pytest.raises(DataError, match="client 0 has too few patients for a test part of its own"):
        holdout.hold_out(data, alone, test_fraction=0.2, group="patient")
    with pytest.raises(
        ConfigError, match=r"data.group 'patient': digits does not say which patients"
    ):
        loading.load(RunConfig(data={"group": "patient"}))
    with pytest.raises(ConfigError, match=r"data.group: .*'none' or 'patient'"):
        RunConfig(data={"group": "site"})
    big = np.zeros(100, dtype=np.int64)
    big[:3] = [1, 2, 3]
    one = replace(people(60, 0), patient=None)
    n = len(one.y)
    one = replace(one, site=None, site_names=(), patient=np.resize(big, n), patient_names=())
    with pytest.raises(DataError, match=r"patients: none of 1000 draws gives .*--group none"):
        partitions.make(one, "iid", num_clients=4, min_samples=20, group="patient")


def test_own_parts_take_large_and_small_patients_of_every_class():
    data = people(40, 1, largest=8)
    client = Partition(train=(data.train,))
    size = np.bincount(patients.of(data))
    held = np.zeros(len(size))
    for seed in range(200):
        made = holdout.hold_out(data, client, test_fraction=0.25, seed=seed, group="patient")
        held[np.unique(patients.of(data)[made.test[0]])] += 1
    assert held.min() > 0
    assert 0.5 < held[size >= 6].mean() / held[size <= 3].mean() < 2


def write_folder(root: Path, sites: int = 3) -> Path:
    """Images of two classes with patients and sites; patient names repeat at other sites."""
    draw, lines = np.random.default_rng(0), ["filename,label,site,patient"]
    (root / "images").mkdir(parents=True)
    for i in range(180):
        Image.fromarray(draw.integers(0, 255, (6, 6, 3), dtype=np.uint8)).save(
            root / "images" / f"{i}.png"
        )
        patient = int(draw.integers(25))
        lines.append(f"{i}.png,{'ill' if patient % 3 else 'well'},site{i % sites},p{patient}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def owners(file: Path) -> dict[tuple[str, str], set[tuple[str, str]]]:
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for row in csv.DictReader(file.open()):
        key = row["site"], row["patient"]
        found.setdefault(key, set()).add((row["part"], row["client_id"]))
    return found


OWN = ["--set", "data.client_val_fraction=0.2", "--set", "data.client_test_fraction=0.2"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dirichlet", "iid", "quantity", "shards", "by_site"])
def test_patients_stay_whole_in_a_folder_with_three_sites(tmp_path, kind):
    root = write_folder(tmp_path / "eyes")
    args = ["partition", "-d", "folder", "--data-dir", str(root), "--partition", kind]
    args += ["--set", "data.image_size=6", "--set", "data.val_fraction=0.15", "--alpha", "3"]
    args += ["--sample-rate", "1", *OWN, *(["--clients", "4"] if kind != "by_site" else [])]
    explicit = [["--group", "patient"]] if kind == "by_site" else []
    for group in ([], *explicit):  # the default where patients are known
        out = tmp_path / f"split{len(group)}"
        done = CliRunner().invoke(main, [*args, *group, "--out", str(out)])
        assert done.exit_code == 0, done.output
        found = owners(out / "split.csv")
        assert len(found) == 70
        for places in found.values():
            assert len({part for part, _ in places}) == 1, places
            assert len({client for _, client in places}) == 1, places
        line = done.stdout.splitlines()[1]
        assert " patients, each with one client" in line
    done = CliRunner().invoke(main, [*args, "--group", "none", "--out", str(tmp_path / "apart")])
    assert done.exit_code == 0, done.output
    line = done.stdout.splitlines()[1]
    assert "have samples in several parts" in line
    if kind != "by_site":
        assert line.startswith("patients are split over clients (data.group=none): ")
        split = {key for key, v in owners(tmp_path / "apart/split.csv").items()
                 if len({client for _, client in v - {("test", ""), ("val", "")}}) > 1}  # fmt: skip
        assert f"(data.group=none): {len(split)} of " in line


def test_client_lists_that_split_a_patient_are_refused_where_asked(tmp_path):
    root = write_folder(tmp_path / "eyes")
    lists = tmp_path / "split.csv"
    lists.write_text("client,index\n" + "".join(f"{i % 2},{i}\n" for i in range(100)))
    args = ["-d", "folder", "--data-dir", str(root), "--set", f"data.partition_file={lists}"]
    args += ["--sample-rate", "1", "--set", "data.image_size=6"]
    done = CliRunner().invoke(main, ["partition", *args])
    assert done.exit_code == 0, done.output
    assert "patients are split over clients (data.group=none)" in done.stdout
    done = CliRunner().invoke(main, ["partition", *args, "--group", "patient"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "the client lists of folder give patient p" in done.stderr
    assert "with these lists only 'none' is allowed" in done.stderr


def config(root: Path, **changes: object) -> RunConfig:
    return RunConfig(
        algorithm="fedavg",
        model={"name": "logistic"},
        data={"name": "folder", "dir": str(root), "image_size": 6, "partition": "dirichlet",
              "num_clients": 4, **changes},
        train={"rounds": 1, "sample_rate": 1.0},
        engine={"kind": "serial"},
    )  # fmt: skip
