"""Held-out parts, of samples and of whole patients, and clients that never train."""

from __future__ import annotations

import itertools
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim import data
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.config.sections import DataConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset, Partition, Pipeline
from fedsim.data import holdout, partitions, patients, splits
from fedsim.data.draws import KINDS
from fedsim.data.holdout import (
    fewest_samples,
    held_out,
    held_out_line,
    hold_out,
    hold_out_clients,
    stratified,
)
from fedsim.metrics.splits import clients_with
from fedsim.testing.rounds import config
from fedsim.training import loading
from fedsim.training.assemble import prepare


def test_every_class_gives_its_share():
    # 20 % of 10, 20, 50 and 3: 2, 4, 10 and 0.6 -> 1
    y = np.repeat([0, 1, 2, 3], [10, 20, 50, 3])
    out = held_out(y, None, 0.2, 0, "test", "toy")
    assert np.bincount(y[out]).tolist() == [2, 4, 10, 1]
    assert (np.diff(out) > 0).all()


@pytest.mark.parametrize("fraction", [0.1, 0.25, 1 / 3, 0.9])
def test_a_sample_without_a_patient_is_a_patient_of_its_own(fraction):
    y = np.random.default_rng(0).choice(12, size=500)
    alone = held_out(y, np.arange(500), fraction, 0, "test", "toy")
    assert held_out(y, None, fraction, 0, "test", "toy").tolist() == alone.tolist()


def test_no_patient_is_on_both_sides_and_the_classes_keep_their_share():
    generator = np.random.default_rng(0)
    group = generator.integers(0, 150, size=600)
    y = generator.choice(3, size=600, p=[0.6, 0.3, 0.1])
    for seed in range(5):
        out = held_out(y, group, 0.2, seed, "test", "toy")
        rest = np.setdiff1d(np.arange(600), out)
        assert not set(group[out]) & set(group[rest])
        share = np.bincount(y[out]) / np.bincount(y)
        # a patient has four images on average: the share is met to about a patient
        assert np.abs(share - 0.2).max() < 0.05


@pytest.mark.parametrize("group", [None, np.zeros(4, dtype=np.int64)])
def test_too_few_images_are_refused(group):
    with pytest.raises(DataError, match=r"toy: 4 samples( of 1 patients)? are too few"):
        held_out(np.array([0, 0, 1, 1]), group, 0.1, 0, "test", "toy")


DIGITS = data.load("digits")
FRACTIONS = {"val_fraction": 0.1, "test_fraction": 0.25}


def split(**options: object) -> Partition:
    return partitions.make(DIGITS, "dirichlet", num_clients=20, alpha=0.3, min_samples=4, **options)


def held(**options: object) -> Partition:
    return hold_out(DIGITS, split(), **{**FRACTIONS, **options})


def test_every_sample_stays_with_its_client_in_one_part():
    made = held()
    whole = split()
    for client in range(20):
        parts = [made.train[client], made.val[client], made.test[client]]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(whole.train[client]))
        kept = whole.train[client][np.isin(whole.train[client], parts[0])]
        assert np.array_equal(parts[0], kept)  # the order of training stays
        n = len(whole.train[client])
        assert [len(p) for p in parts[1:]] == [max(1, round(f * n)) for f in (0.1, 0.25)]


@pytest.mark.parametrize("counts", [[40, 40, 20], [10, 1, 1], [3, 5, 7], [1], [100, 1]])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_each_class_gives_its_share_rounded_down_or_up(counts, share):
    labels = np.repeat(np.arange(len(counts)), counts)
    count = max(1, round(share * len(labels)))
    for seed in range(20):
        taken = stratified(labels, count, np.random.default_rng(seed))
        assert len(np.unique(taken)) == len(taken) == count
        wanted = np.array(counts) * count / len(labels)
        got = np.bincount(labels[taken], minlength=len(counts))
        assert (np.abs(got - wanted) < 1).all()


def test_every_sample_is_as_likely_as_any_other():
    # 4 of 12, of whom one is alone in its class: each is taken in a third of the draws
    labels = np.repeat([0, 1, 2], [7, 4, 1])
    drawn = [stratified(labels, 4, np.random.default_rng(seed)) for seed in range(3000)]
    share = np.bincount(np.concatenate(drawn), minlength=12) / 3000
    assert np.abs(share - 1 / 3).max() < 5 * np.sqrt(1 / 3 * 2 / 3 / 3000)


def test_the_draw_is_of_the_seed_and_the_client_not_of_the_order():
    made, again, other = held(), held(), held(seed=1)
    assert all(map(np.array_equal, made.test, again.test))
    assert any(not np.array_equal(a, b) for a, b in zip(made.test, other.test, strict=True))
    turned = Partition(train=tuple(own[::-1] for own in split().train))
    for a, b in zip(hold_out(DIGITS, turned, **FRACTIONS).test, made.test, strict=True):
        assert set(a.tolist()) == set(b.tolist())
    without = held(val_fraction=0.0)
    assert without.val == ()
    assert all(map(np.array_equal, made.test, without.test))


def test_a_client_that_cannot_give_is_named():
    whole = Partition(train=(DIGITS.train[:40], DIGITS.train[40:43]))
    with pytest.raises(
        DataError,
        match=r"digits: client 1 has 3 samples; data.client_val_fraction 0.1 and "
        r"data.client_test_fraction 0.25 leave it 1, data.min_samples is 2",
    ):
        hold_out(DIGITS, whole, min_samples=2, **FRACTIONS)
    assert len(hold_out(DIGITS, whole, **FRACTIONS).train[1]) == 1
    with pytest.raises(DataError, match=r"client 0 has 1 samples; .* leave it 0"):
        hold_out(DIGITS, Partition(train=(DIGITS.train[:1],)), **FRACTIONS)


@pytest.mark.parametrize("fractions", [(0, 0), (0.1, 0), (0, 0.2), (0.3, 0.3), (0.49, 0.5)])
@pytest.mark.parametrize("min_samples", [1, 2, 10])
def test_the_fewest_samples_of_which_enough_are_left(fractions, min_samples):
    count = fewest_samples(min_samples, *fractions)
    left = [n - sum(max(1, round(f * n)) for f in fractions if f) for n in range(count + 1)]
    assert left[count] >= min_samples
    assert max(left[:count], default=0) < min_samples


def sites():
    """Three sites of 6 samples each: 3 in training, 1 for validation and 2 for the test."""
    part = np.tile([0, 0, 0, 1, 2, 2], 3)
    site = np.repeat([0, 1, 2], 6)
    train, val, test = (np.flatnonzero(part == p) for p in range(3))
    dataset = Dataset(
        name="sites", x=np.zeros((18, 2), np.float32), y=np.tile([0, 1], 9),
        class_names=("a", "b"), train=train, val=val, test=test, pipeline=None, site=site,
        site_names=("x", "y", "z"),
    )  # fmt: skip

    def of(part):
        return tuple(part[site[part] == s] for s in range(3))

    return dataset, Partition(train=of(train), val=of(val), test=of(test), names=("x", "y", "z"))


def test_what_they_own_leaves_the_common_parts_but_not_the_split():
    before, partition = sites()
    dataset, after = hold_out_clients(before, partition, 1, seed=0)
    (out,) = after.held_out
    inside = [c for c in range(3) if c != out]
    assert after.participants == tuple(inside)
    for part in ("val", "test"):
        owned = getattr(partition, part)
        assert (
            getattr(dataset, part).tolist() == np.concatenate([owned[c] for c in inside]).tolist()
        )
        assert clients_with(after, part) == tuple(inside)
        assert clients_with(after, part, held_out=True) == (0, 1, 2)
    was, now = splits.rows(before, partition), splits.rows(dataset, after)
    assert sorted(now.sample) == sorted(was.sample) == list(range(18))
    of_it = now.client == out
    assert {splits.PARTS[p] for p in now.part[of_it]} == {"train", "own_val", "own_test"}
    assert pickle.loads(pickle.dumps(after)).held_out == (out,)


def test_numbers_shares_and_the_seed():
    dataset, partition = sites()
    many = Partition(train=tuple(np.array([i]) for i in range(30)))
    drawn = [hold_out_clients(dataset, many, n, seed)[1].held_out for n, seed in (
        (5, 0), (5, 0), (5, 1), (0.1, 0), (0.001, 0), (0, 0),
    )]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(out) for out in drawn] == [5, 5, 5, 3, 1, 0]
    assert all(list(out) == sorted(set(out)) for out in drawn)
    for number in (3, 0.99):
        wanted = f"^data.heldout_clients {number} given; of 3 clients at least one has to train$"
        with pytest.raises(DataError, match=wanted):
            hold_out_clients(dataset, partition, number, 0)
    owner = Partition(train=partition.train, test=(dataset.test, dataset.val[:0], dataset.val[:0]))
    seed = next(s for s in range(99) if hold_out_ids(dataset, partition, s) == (0,))
    with pytest.raises(DataError, match="the clients drawn own all test samples of sites"):
        hold_out_clients(dataset, owner, 1, seed)


def test_by_name_alone_or_with_others():
    dataset, partition = sites()
    for wanted, ids in (("z", (2,)), ("z, x", (0, 2)), ("x,x", (0,))):
        held, after = hold_out_clients(dataset, partition, wanted, 0)
        assert after.held_out == ids
        assert not np.isin(dataset.site[held.train], ids).any(), "nothing is fitted to them"
        assert [len(own) for own in after.train] == [3, 3, 3]
    assert held_out_line(after) == "held out from training: x (client 0)"
    unnamed = replace(partition, names=())
    assert hold_out_clients(dataset, unnamed, "[2]", 0)[1].held_out == (2,)


def test_what_is_fitted_to_training_samples_does_not_see_them():
    dataset, partition = sites()
    seen = []

    def prepare(training):
        seen.append(training.tolist())
        return dataset.x

    data = replace(dataset, prepare=prepare)
    hold_out_clients(data, partition, 1, 0)
    assert seen == [], "as before there were names"
    hold_out_clients(data, partition, "y", 0)
    assert seen == [[0, 1, 2, 12, 13, 14]]


@pytest.mark.parametrize(
    ("wanted", "names", "message"),
    [
        ("zz", "xyz", "zz: no client is 'zz' (did you mean 'z'?); they are x, y, z"),
        ("3", "", "3: no client is '3'; they are 0 to 2, without names"),
        ("x", "xxz", "x: the clients 0, 1 have the name 'x'"),
        ("x,y,z", "xyz", "x,y,z given; of 3 clients at least one has to train"),
    ],
)
def test_names_that_cannot_be_held_out(wanted, names, message):
    dataset, partition = sites()
    with pytest.raises(DataError, match=re.escape(f"data.heldout_clients {message}")):
        hold_out_clients(dataset, replace(partition, names=tuple(names)), wanted, 0)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (2, 2.0), ("0.25", 0.25), (["va", "long beach"], "va,long beach"), ("[va, b]", "va,b"),
        ("va", "va"), ([3], "[3]"), ("[3]", "[3]"), (["ward, 2"], '"ward, 2"'), ([1, 2], "1,2"),
    ],
)  # fmt: skip
def test_numbers_are_counts_but_in_brackets_names(given, kept):
    value = DataConfig(heldout_clients=given).heldout_clients
    assert value == kept
    assert DataConfig(heldout_clients=value).heldout_clients == kept, "as config.yaml has it"


@pytest.mark.parametrize("given", [-1, 1.5, "nan", "inf", True, None, [], "", "a,,b", '"a'])
def test_values_of_no_clients(given):
    with pytest.raises(ConfigError, match="must be"):
        DataConfig(heldout_clients=given)


def hold_out_ids(dataset, partition, seed):
    return hold_out_clients(dataset, partition, 1, seed)[1].held_out


def settings(name="fedavg", **data):
    return config(
        name, "cnn", data={"heldout_clients": 2} | data, train={"sample_rate": 0.5, "rounds": 4}
    )


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn", "pfedla"])
def test_they_never_train_and_are_scored_at_the_end(name, tmp_path):
    store = fedsim.run(settings(name), tmp_path / "run")
    out = set(prepare(settings(name)).partition.held_out)
    assert len(out) == 2
    clients = store.read("clients")
    assert not out & set(clients["client_id"])
    assert set(clients.groupby("round").size()) == {3}  # half of six
    table = store.read("final_clients")
    assert set(table["client_id"]) == out, "the others own no test samples"
    assert set(table["held_out"]) == {1}
    assert set(table["split"]) == {"own_train"}
    sizes = store.read("partition").groupby("client_id")["train_samples"].sum()
    assert table["num_samples"].tolist() == sizes[sorted(out)].tolist()
    assert table["finetuned_accuracy"].isna().all()
    assert store.summary["heldout_accuracy_mean"] == pytest.approx(table["accuracy"].mean())
    assert store.read_environment()["heldout_clients"] == sorted(out)
    if name == "fedbn":
        scored = store.read("evaluations").query("split == 'test'")["client_id"]
        assert set(scored) == set(range(8)) - out


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
    with pytest.raises(DataError, match=r"7 clients with at least 1 .* need 7, .* people has 6"):
        partitions.make(data, "iid", num_clients=7, min_samples=1, group="patient")
    with pytest.raises(DataError, match=r"at least 2 patients .* need 8"):
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
    with pytest.raises(DataError, match=r"none of 1000 draws gives .* patients .*--group none"):
        partitions.make(one, "iid", num_clients=4, min_samples=20, group="patient")


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
