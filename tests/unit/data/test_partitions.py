"""Partitions: the published draws, the limits, and split files that give them again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.settings import Alpha
from fedsim.core.types import Dataset, Partition, Pipeline
from fedsim.data import draws, holdout, partitions, splits
from fedsim.storage.run_dir import csv_text
from fedsim.training import loading
from fedsim.training.loading import load
from tests.unit.data.conftest import write_users


def dataset(labels: list[int], *, skip: int = 0, **changes: object) -> Dataset:
    """A data set whose training part is everything but the first ``skip`` images and the last."""
    n = len(labels)
    made = Dataset(
        name="toy",
        x=np.zeros((n, 1, 4, 4), dtype=np.uint8),
        y=np.array(labels, dtype=np.int64),
        class_names=tuple(map(str, range(max(labels) + 1))),
        train=np.arange(skip, n - 1),
        val=np.arange(0),
        test=np.array([n - 1]),
        pipeline=Pipeline(size=4, mean=(0.5,), std=(0.5,)),
    )
    return replace(made, **changes)


PUBLISHED = dataset([0] * 600 + [1] * 400 + [0])
TOY = dataset([0, 1, 2] * 40 + [0])


def listed(data: Dataset, file: Path, **options: object) -> Partition:
    """The partition of a file of client lists."""
    data, found = splits.read(data, file)
    return partitions.make(data, "files", listed=found, **options)


@pytest.mark.parametrize(
    ("alpha", "sizes", "ones"),
    [
        (100.0, [187, 217, 201, 201, 194], [71, 85, 70, 84, 90]),
        (1.0, [327, 107, 170, 180, 216], [0, 62, 39, 121, 178]),
        (0.5, [135, 133, 303, 382, 47], [0, 98, 299, 0, 3]),
        (0.1, [245, 131, 243, 23, 358], [245, 131, 0, 23, 1]),
    ],
)
def test_capped_dirichlet_draws_the_published_sizes(alpha, sizes, ones):
    # drawn once by an independent script in the order of calls of SSL-FL's public code:
    # RandomState(2022), labels 600 x 0 then 400 x 1, five clients, minimum 10
    made = partitions.make(
        PUBLISHED, "dirichlet", num_clients=5, alpha=alpha, min_samples=10, seed=2022
    )
    assert [len(i) for i in made.train] == sizes
    assert [int(PUBLISHED.y[i].sum()) for i in made.train] == ones


@pytest.mark.parametrize(
    "kind", ["iid", "dirichlet", "dirichlet_plain", "dirichlet_per_client", "quantity"]
)
@pytest.mark.parametrize("num_clients", [1, 7, 40])
def test_partition_is_disjoint_inside_the_training_part_and_repeatable(kind, num_clients):
    data = dataset([0, 1, 2] * 80 + [0], skip=30)
    made = partitions.make(data, kind, num_clients=num_clients, alpha=10.0, seed=3)
    again = partitions.make(data, kind, num_clients=num_clients, alpha=10.0, seed=3)
    other = partitions.make(data, kind, num_clients=num_clients, alpha=10.0, seed=4)
    together = np.concatenate(made.train)
    assert made.num_clients == num_clients
    assert len(np.unique(together)) == len(together)
    assert set(together.tolist()) <= set(data.train.tolist())
    assert all(np.array_equal(a, b) for a, b in zip(made.train, again.train, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(made.train, other.train, strict=True))
    if kind != "dirichlet_per_client":  # which leaves n modulo K samples over
        assert len(together) == len(data.train)


def test_capped_gives_a_full_client_nothing_of_later_classes():
    # 4 clients, fair share 30: who holds 30 of class 0 may get no more; plain may give more
    made = partitions.make(TOY, "dirichlet", num_clients=4, alpha=0.1, min_samples=1, seed=5)
    for indices in made.train:
        counts = np.bincount(TOY.y[indices], minlength=3)
        before = np.cumsum(counts) - counts
        assert not ((before >= 30) & (counts > 0)).any()


def test_zero_draws_fall_back_to_the_uncapped_proportions():
    # alpha 1e-4 draws exact zeros (or NaN, which stands for its limit): class 0 goes to one
    # client, and where class 1 names the same one, which is full, the uncapped draw holds
    largest = []
    for seed in range(30):
        rng = np.random.RandomState(seed)
        labels = np.repeat([0, 1], 30)
        pieces = draws.dirichlet(draws.Draw(labels=labels, num_clients=2, rng=rng), alpha=1e-4)
        assert np.array_equal(np.sort(np.concatenate(pieces)), np.arange(60))
        largest.append(max(map(len, pieces)))
    assert set(largest) == {30, 60}


def test_per_client_takes_equal_shares_by_the_options():
    made = {
        (prior, order): partitions.make(
            TOY, "dirichlet_per_client", num_clients=7, prior=prior, order=order, alpha=0.3
        )
        for prior in ("uniform", "frequencies")
        for order in ("round_robin", "sequential")
    }
    # floor(120 / 7) = 17
    assert all(len(i) == 17 for m in made.values() for i in m.train)
    contents = {tuple(np.concatenate(m.train).tolist()) for m in made.values()}
    assert len(contents) == 4


def test_quantity_draws_niid_benchs_sizes():
    # their calls: permutation(n), dirichlet(alpha), cut at floor(cumsum(q) n)
    made = partitions.make(TOY, "quantity", num_clients=3, alpha=5.0, min_samples=1, seed=7)
    rng = np.random.RandomState(7)
    order = rng.permutation(120)
    cuts = (np.cumsum(rng.dirichlet([5.0] * 3)) * 120).astype(int)[:-1]
    for own, wanted in zip(made.train, np.split(order, cuts), strict=True):
        assert set(own.tolist()) == set(wanted.tolist())


def test_shards_hold_few_classes_and_equal_sizes():
    made = partitions.make(TOY, "shards", num_clients=6, shards_per_client=2)
    # 12 shards of 10 samples, 4 per class: every shard is of one class
    assert [len(i) for i in made.train] == [20] * 6
    assert all(len(np.unique(TOY.y[i])) <= 2 for i in made.train)


def test_by_site_makes_a_client_of_each_site_with_training_samples():
    site = np.array([0, 2, 2, 0, 2, 0, 1])
    data = dataset([0, 1] * 3 + [0], site=site, site_names=("a", "b", "c"))
    made = partitions.make(data, "by_site", num_clients=2)
    assert partitions.default_kind(data) == "by_site"
    assert made.names == ("a", "c")
    assert [i.tolist() for i in made.train] == [[0, 3, 5], [1, 2, 4]]


def test_files_takes_the_lists_by_sorted_name():
    lists = {"client_2": np.array([3, 1]), "client_1": np.array([0, 2])}
    data = dataset([0, 1] * 3 + [0], clients=lists)
    made = partitions.make(data, "files", num_clients=2)
    assert partitions.default_kind(data) == "files"
    assert made.names == ("client_1", "client_2")
    assert [i.tolist() for i in made.train] == [[0, 2], [3, 1]]
    with pytest.raises(ConfigError, match="has 2 clients, no other number is possible"):
        partitions.make(data, "files", num_clients=3)


def test_files_orders_numbers_as_numbers_and_names_as_text(tmp_path: Path):
    file = tmp_path / "split.csv"
    file.write_text("client,index\n10,0\n10,1\n9,2\n9,3\n")
    assert listed(TOY, file, num_clients=2).names == ("9", "10")
    file.write_text("client,index\nsite b,0\nsite b,1\nsite a,2\nsite a,3\n")
    made = listed(TOY, file, num_clients=2)
    assert made.names == ("site a", "site b")
    assert made.train[0].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("client,index\n0,0\n0,500\n", "row 3: index 500 is outside the training part"),
        ("client,index\n0,0\n1,0\n", "row 3: index 0 is given twice"),
        ("client,index\n0,x\n", "row 2: index 'x' is not a whole number"),
        ("client,position\n0,1\n", "needed are the columns client, index"),
        ("client,index\n0,0\n0,1\n1,2\n", r"client 1 .* has 1 training samples"),
    ],
)
def test_damaged_partition_file_is_refused_with_file_and_row(tmp_path: Path, rows, message):
    file = tmp_path / "split.csv"
    file.write_text(rows)
    with pytest.raises(DataError, match=message) as caught:
        listed(TOY, file, num_clients=2 if "1,2\n" in rows else 1)
    assert "split.csv" in str(caught.value) or "toy" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        ("iid", {"num_clients": 121, "min_samples": 1}, DataError, "need 121 .* toy has 120"),
        ("dirichlet", {"num_clients": 50, "min_samples": 3}, DataError, "need 150"),
        ("by_site", {}, ConfigError, "toy has no sites"),
        ("files", {}, ConfigError, "data.partition_file"),
        ("shards", {"shards_per_client": 0}, ConfigError, "shards_per_client 0"),
        ("shards", {"shards_per_client": 70}, ConfigError, "would need 140 shards"),
    ],
)
def test_impossible_partitions_are_refused(kind, options, error, message):
    with pytest.raises(error, match=message):
        partitions.make(TOY, kind, **{"num_clients": 2, **options})


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet_plain", "quantity"])
def test_unreachable_minimum_ends_with_the_sizes_reached(kind):
    # 2 of 120 samples each would fit, but alpha 0.01 hands classes over nearly whole
    with pytest.raises(DataError, match=r"none of 1000 draws .* reached \[") as caught:
        partitions.make(TOY, kind, num_clients=40, alpha=0.01)
    assert "data.alpha 0.01 with 40 clients and 120 training samples" in str(caught.value)


def test_lists_that_share_or_leave_are_refused():
    shared = dataset([0, 1] * 5, clients={"a": np.array([0, 1]), "b": np.array([1, 2])})
    with pytest.raises(DataError, match="gives a sample to two clients"):
        partitions.make(shared, "files", num_clients=2)
    leaving = dataset([0, 1] * 5, clients={"a": np.array([0, 9])})
    with pytest.raises(DataError, match="outside the training part"):
        partitions.make(leaving, "files", num_clients=1)


def test_table_has_a_row_per_client_and_label():
    made = Partition(train=(np.array([0, 1, 3]), np.array([2, 5])), names=("a", "b"))
    # labels 0 1 2 0 1 2: client a has 0 twice and 1 once, client b has 2 twice
    assert pd.DataFrame(partitions.table(TOY, made)).to_dict("records") == [
        {"client_id": 0, "label": 0, "train_samples": 2, "test_samples": 0, "name": "a"},
        {"client_id": 0, "label": 1, "train_samples": 1, "test_samples": 0, "name": "a"},
        {"client_id": 1, "label": 2, "train_samples": 2, "test_samples": 0, "name": "b"},
    ]
    assert "name" not in partitions.table(TOY, Partition(train=made.train))


def blocks(draw, *, first: int = 1, alpha: Alpha = 0.5):
    """The first clients share a half, the others the rest, in the order of the samples."""
    half = round(len(draw.labels) * alpha)
    rest = np.array_split(np.arange(half, len(draw.labels)), draw.num_clients - first)
    return [*np.array_split(np.arange(half), first), *rest]


def twice(draw):
    return [np.arange(len(draw.labels))] * draw.num_clients


def outside(draw):
    return [np.array([len(draw.labels)])] * draw.num_clients


def test_functions_that_partition_nothing_are_refused():
    with pytest.raises(ConfigError, match="must return 3 arrays of positions from 0 to 119"):
        partitions.make(TOY, f"{__name__}:outside", num_clients=3)
    with pytest.raises(DataError, match="gives a sample to two clients"):
        partitions.make(TOY, f"{__name__}:twice", num_clients=3)


OWN = f"{__name__}:blocks"


def test_options_are_keyword_parameters():
    assert {name: [*partitions.options(name)] for name in partitions.NAMES} == {
        "iid": [],
        "dirichlet": ["alpha"],
        "dirichlet_plain": ["alpha"],
        "dirichlet_per_client": ["alpha", "prior", "order"],
        "quantity": ["alpha"],
        "shards": ["shards_per_client"],
        **{name: [] for name in partitions.FIXED},
    }
    defaults = {
        k: p.default for name in partitions.NAMES for k, p in partitions.options(name).items()
    }
    assert defaults == {name: getattr(RunConfig().data, name) for name in partitions.IN_DATA}


def test_a_partition_of_ones_own_has_options():
    config = RunConfig(
        data={"partition": OWN, "num_clients": 5, "alpha": 0.75}, **{OWN: {"first": 2}}
    )
    assert config.hyperparameters[OWN] == {"first": 2}
    _, made, kind = load(config)
    assert kind == OWN
    sizes = [len(own) for own in made.train]
    assert sizes == [539, 539, 120, 120, 120]


ALL = {"sample_rate": 1.0}
USERS = Dataset(
    name="toy",
    x=np.zeros((9, 2), np.float32),
    y=np.array([0, 1, 0, 1, 0, 1, 0, 1, 0]),
    class_names=("a", "b"),
    train=np.arange(5),
    val=np.arange(5, 6),
    test=np.arange(6, 9),
    pipeline=None,
    site=np.array([0, 2, 2, 0, 1, 2, 0, 2, 1]),
    site_names=("ann", "bob", "cid"),
    sites_are_users=True,
)


def test_users_own_what_is_theirs_and_may_lack_a_part():
    made = partitions.make(USERS, "natural", min_samples=1)
    assert made.names == ("ann", "bob", "cid")
    assert [own.tolist() for own in made.train] == [[0, 3], [4], [1, 2]]
    assert [own.tolist() for own in made.val] == [[], [], [5]]
    assert [own.tolist() for own in made.test] == [[6], [8], [7]]
    # by_site asks for all or nothing
    assert partitions.make(USERS, "by_site", min_samples=1).val == ()


def test_users_with_too_few_samples_leave_all_parts():
    kept = holdout.without_small_users(USERS, 2)
    assert kept.train.tolist() == [0, 1, 2, 3]
    assert kept.val.tolist() == [5]
    assert kept.test.tolist() == [6, 7]
    assert (holdout.num_left_out(kept), holdout.num_left_out(USERS)) == (1, 0)
    assert partitions.make(kept, "natural").names == ("ann", "cid")
    with pytest.raises(DataError, match=r"no user has data.min_samples 3 .* the most is 2"):
        holdout.without_small_users(USERS, 3)


def files(folder: Path) -> str:
    """Users a to d with 1, 5, 6 and 8 training samples; d has no test samples."""
    sizes = {"a": 1, "b": 5, "c": 6, "d": 8}
    train = {
        u: ([[float(i), 1.0] for i in range(n)], [i % 2 for i in range(n)])
        for u, n in sizes.items()
    }
    write_users(folder / "train", "x.json", train)
    write_users(folder / "test", "x.json", {u: ([[9.0, 9.0]] * 2, [0, 1]) for u in "abc"})
    return str(folder)


def test_a_configuration_leaves_small_users_out(tmp_path: Path):
    given = {"name": "synthetic", "dir": files(tmp_path)}
    dataset, partition, kind = load(RunConfig(data=given))
    assert (kind, partition.names) == ("natural", ("b", "c", "d"))
    assert [len(own) for own in partition.test] == [2, 2, 0]
    # everything in the test part is owned, so that it is what the clients own
    assert np.array_equal(np.sort(np.concatenate(partition.test)), dataset.test)
    _, partition, _ = load(RunConfig(data=given | {"min_samples": 6}))
    assert partition.names == ("c", "d")
    # a held-out sample counts as well: 5 - 1 leaves 4
    _, partition, _ = load(RunConfig(data=given | {"min_samples": 5, "client_val_fraction": 0.1}))
    assert partition.names == ("c", "d")
    assert [len(own) for own in partition.val] == [1, 1]
    # what config.yaml says of a finished run gives the same again
    again = given | {"partition": "natural", "num_clients": 3}
    assert load(RunConfig(train=ALL, data=again))[1].names == ("b", "c", "d")


N = 240


def toy(**changes: object) -> Dataset:
    """240 samples of three classes at four sites, with patients and files."""
    made = Dataset(
        name="toy",
        x=np.zeros((N, 1, 4, 4), dtype=np.uint8),
        y=np.arange(N) % 3,
        class_names=("a", "b", "c"),
        train=np.arange(20, 200),
        val=np.arange(20),
        test=np.arange(200, N),
        pipeline=Pipeline(size=4, mean=(0.5,), std=(0.5,)),
        site=np.arange(N) // 2 % 4,
        site_names=("x", "y,z", "=w", "v"),
        patient=np.arange(N) // 2 % 50,
        patient_names=tuple(f"p{i}" for i in range(50)),
        files=tuple(f"images/{i}.png" for i in range(N)),
    )
    return replace(made, **changes)


def written(data: Dataset, made: Partition, file: Path) -> pd.DataFrame:
    file.write_text(csv_text(splits.columns(data, made)), encoding="utf-8", newline="")
    return pd.read_csv(file, keep_default_na=False, dtype=str)


FRACTIONS = [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0), (0.2, 0.2)]


@pytest.mark.parametrize("kind", [*partitions.NAMES])
@pytest.mark.parametrize(("val", "test"), FRACTIONS)
def test_every_partition_reads_back_in_its_order(tmp_path, kind, val, test):
    lists = {"k1": np.arange(30, 90)[::-1], "k0": np.arange(90, 190)}
    data = toy(clients=lists, sites_are_users=kind == "natural")
    made = partitions.make(data, kind, num_clients={"files": 2}.get(kind, 4), alpha=10.0)
    made = holdout.hold_out(data, made, val_fraction=val, test_fraction=test)
    table = written(data, made, tmp_path / "split.csv")
    assert list(table)[:7] == ["sample", "part", "client_id", "label", "file", "patient", "site"]
    bare = replace(data, train=data.test, val=data.train, test=data.val)  # the file says all parts
    again, read = splits.read(bare, tmp_path / "split.csv")
    for part in ("train", "val", "test"):
        assert np.array_equal(getattr(again, part), getattr(data, part))
        assert len(getattr(read, part)) == len(getattr(made, part))
        for a, b in zip(getattr(read, part), getattr(made, part), strict=True):
            assert np.array_equal(a, b)
    assert read.names == made.names
    assert csv_text(splits.columns(again, read)) == (tmp_path / "split.csv").read_text()


def test_the_columns_say_what_is_known(tmp_path):
    data = toy()
    made = partitions.make(data, "by_site")
    table = written(data, made, tmp_path / "split.csv").set_index("sample")
    assert len(table) == N
    assert "name" not in table  # the sites say it
    for i in map(str, range(N)):
        row = table.loc[i]
        assert row["label"] == str(data.y[int(i)])
        assert row["file"] == f"images/{i}.png"
        assert row["patient"] == f"p{int(i) // 2 % 50}"
        assert row["client_id"] == str(int(i) // 2 % 4)  # also of the common parts: its site's
        part = "val" if int(i) < 20 else "train" if int(i) < 200 else "test"
        assert row["part"] == part
    plain = replace(data, site=None, site_names=(), patient=None, patient_names=(), files=())
    dealt = partitions.make(plain, "dirichlet_per_client", num_clients=7, alpha=10.0)
    table = written(plain, dealt, tmp_path / "plain.csv")
    assert list(table) == ["sample", "part", "client_id", "label"]
    left = table[(table["part"] == "train") & (table["client_id"] == "")]
    assert len(left) == 180 - 7 * (180 // 7)
    assert set(table.loc[table["part"] != "train", "client_id"]) == {""}


def test_the_parts_of_a_file_are_not_drawn_again(tmp_path):
    own = {"client_val_fraction": 0.1, "client_test_fraction": 0.2}
    config = RunConfig(data={"num_clients": 10, **own})
    data, made, _ = loading.load(config)
    written(data, made, tmp_path / "split.csv")
    files = {"partition_file": str(tmp_path / "split.csv"), "partition": "files"}
    for seed, fractions in itertools.product((0, 1), (own, {})):
        again = RunConfig(data={**files, **fractions, "seed": seed, "test_fraction": 0.3})
        data2, read, _ = loading.load(again)
        for part in ("train", "val", "test"):
            assert np.array_equal(getattr(data2, part), getattr(data, part))
            for a, b in zip(getattr(read, part), getattr(made, part), strict=True):
                assert np.array_equal(a, b)


GOOD = ["0,train,0,0", "1,train,0,1", "2,train,1,2", "3,train,1,0", "4,test,,1", "5,val,,2"]
HEAD = "sample,part,client_id,label"


@pytest.mark.parametrize(
    ("row", "text", "message"),
    [
        (2, "240,train,0,0", "row 3: sample 240 is not in toy, which has 0..239"),
        (2, "0,train,0,0", "row 3: sample 0 is given twice"),
        (2, "x,train,0,0", "row 3: sample 'x' is not a whole number"),
        (2, "1,training,0,1", "row 3: part 'training' is unknown; known: train, val, test, own_"),
        (2, "1,train,a,1", "row 3: client_id 'a' is not a whole number"),
        (2, "1,train,-2,1", "row 3: a sample of train needs a client"),
        (2, "1,own_test,,1", "row 3: a sample of own_test needs a client"),
        (2, "1,train,0,2", "row 3: label '2' of sample 1 is another one in toy: the split bel"),
        (2, "1,train,0", "row 3: 3 values, the header has 4"),
        (2, '1,train,0,"1', "row 3: a quote is not closed"),
        (3, "2,train,3,2", "client 2 has no training samples; clients are 0, 1"),
        (5, "4,test,7,1", "client 2 has no training samples"),
        (5, "4,val,,1", "no sample is in the part test"),
        (0, "sample,part,label", "the header is sample,part,label, needed are the columns sample"),
    ],
)
def test_a_damaged_file_is_refused_with_its_row(tmp_path, row, text, message):
    lines = [HEAD, *GOOD]
    lines[row] = text
    (tmp_path / "split.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=message) as caught:
        splits.read(toy(), tmp_path / "split.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_with_the_split_of_another_has_its_bytes(tmp_path):
    small = {"train": {"rounds": 2, "sample_rate": 1.0}, "engine": {"kind": "serial"}}
    own = {"num_clients": 4, "val_fraction": 0.1, "client_test_fraction": 0.2}
    config = RunConfig(algorithm="fedavg", model={"name": "logistic"}, data=own, **small)
    first = fedsim.run(config, tmp_path / "first")
    files = {"partition": "files", "partition_file": str(first.path / "split.csv")}
    config = RunConfig(
        algorithm="fedavg",
        model={"name": "logistic"},
        data={**files, "test_fraction": 0.4},
        **small,
    )
    again = fedsim.run(config, tmp_path / "again")
    for name in ("rounds.csv", "clients.csv", "classes.csv", "partition.csv", "split.csv"):
        assert (first.path / name).read_bytes() == (again.path / name).read_bytes()
    done = CliRunner().invoke(
        main,
        ["partition", "--config", str(first.path / "config.yaml"), "--out", str(tmp_path / "p")],
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "p/split.csv").read_bytes() == (first.path / "split.csv").read_bytes()


def test_groups_of_test_samples_follow_an_edited_test_part(tmp_path):
    data = toy(groups={"hard": np.arange(200, 210), "easy": np.arange(210, N)})
    made = partitions.make(data, "iid", num_clients=2)
    table = written(data, made, tmp_path / "split.csv")
    table = table[~table["sample"].isin([str(i) for i in range(205, N)])]
    table.to_csv(tmp_path / "split.csv", index=False)
    again, _ = splits.read(data, tmp_path / "split.csv")
    assert {name: own.tolist() for name, own in again.groups.items()} == {
        "hard": [200, 201, 202, 203, 204]
    }


def patients(file: Path, changed: int | None = None) -> Path:
    """A table of 120 patients of two sites, with gaps; the row ``changed`` has other values."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(120, 3)).round(3).astype(object)
    values[::7, 1] = "?"
    if changed is not None:
        values[changed] = 1e4
    lines = [f"{a},{b},{c},{i % 2},{'ns'[i % 3 == 0]}" for i, (a, b, c) in enumerate(values)]
    file.write_text("a,b,c,target,site\n" + "\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("scaling", ["site", "all", "none"])
@pytest.mark.parametrize("missing", ["mean", "median"])
def test_what_is_fitted_follows_the_file_never_the_draw_that_it_replaces(
    scaling, missing, tmp_path: Path
):
    options = {"csv": {"scaling": scaling, "missing": missing}}

    def config(table: Path, **more: object) -> RunConfig:
        return RunConfig(data={"name": f"csv:{table}", **more}, hyperparameters=options)

    table = patients(tmp_path / "one.csv")
    data, made, _ = loading.load(
        config(table, seed=7, client_test_fraction=0.2, client_val_fraction=0.2)
    )
    written(data, made, tmp_path / "split.csv")
    split = {"partition": "files", "partition_file": str(tmp_path / "split.csv")}
    used = np.concatenate([data.train, data.val, data.test])
    other = patients(tmp_path / "other.csv", changed=int(data.test[0]))
    for seed, read in itertools.product((7, 1, 2), (table, other)):
        again = config(read, seed=seed, **split)
        found, partition, _ = loading.load(again)
        same = np.setdiff1d(used, data.test[:1] if read == other else [])
        assert found.x[same].tobytes() == data.x[same].tobytes()
        parts = found.train, found.val, found.test
        assert loading.read_images(again, partition, parts).tobytes() == found.x.tobytes()
        assert found.prepare is not None
        assert found.prepare(found.train).tobytes() == found.x.tobytes()


def test_the_vocabulary_of_texts_follows_neither_the_draw_nor_the_file(tmp_path: Path):
    texts = [["1", "d", "q", "u", f"word{i} word{i % 7}", "x"] for i in range(40)]
    write_users(tmp_path / "train", "a.json", {"u": (texts, [i % 2 for i in range(40)])})
    given = {"name": "sent140", "dir": str(tmp_path), "min_samples": 1}
    data, made, _ = loading.load(RunConfig(data={**given, "seed": 7}))
    written(data, made, tmp_path / "split.csv")
    split = {"partition": "files", "partition_file": str(tmp_path / "split.csv")}
    for seed in (7, 1):
        again, _, _ = loading.load(RunConfig(data={**given, **split, "seed": seed}))
        assert again.words == data.words
        assert again.x.tobytes() == data.x.tobytes()
        assert again.test.tobytes() == data.test.tobytes()
