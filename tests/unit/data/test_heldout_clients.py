"""Clients that never train: ``data.heldout_clients``."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import fedsim
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset, Partition
from fedsim.data import splits
from fedsim.data.holdout import hold_out_clients
from fedsim.metrics.splits import clients_with
from fedsim.testing.rounds import config
from fedsim.training.assemble import prepare


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


def hold_out_ids(dataset, partition, seed):
    return hold_out_clients(dataset, partition, 1, seed)[1].held_out


@pytest.mark.parametrize(("value", "words"), [(1.5, "whole number"), (-1, "0"), (True, "true")])
def test_values_that_cannot_be_used(value, words):
    with pytest.raises(ConfigError, match=f"data.heldout_clients: .*{words}|{words}"):
        config("fedavg", data={"heldout_clients": value})


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


@pytest.mark.slow
@pytest.mark.integration
def test_the_others_are_drawn_as_if_there_were_no_more(tmp_path):
    store = fedsim.run(settings(), tmp_path / "run")
    out = prepare(settings()).partition.held_out
    split = store.read("split")
    split.loc[split["part"].eq("train") & split["client_id"].isin(out), "part"] = "drop"
    ids = {c: i for i, c in enumerate(sorted(set(range(8)) - set(out)))}
    split = split[split["part"] != "drop"]
    split["client_id"] = split["client_id"].map(ids)
    split.to_csv(tmp_path / "six.csv", index=False, float_format="%.0f")
    six = {"partition_file": str(tmp_path / "six.csv"), "num_clients": 6, "heldout_clients": 0}
    other = fedsim.run(settings(**six), tmp_path / "six")
    a, b = store.read("clients"), other.read("clients")
    assert a["client_id"].map(ids).tolist() == b["client_id"].tolist(), "the same are drawn"
    assert a["num_samples"].tolist() == b["num_samples"].tolist()
