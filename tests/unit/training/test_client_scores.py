"""Clients' own scores, and those of groups of test images: rows of evaluations.csv."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedsim
from fedsim.training.assemble import prepare
from tests.decomposing import config, digits, merged, rounds, sample_losses

pytestmark = pytest.mark.integration

OFF = {"decompose_every": 0, "loss_matrix": False}
METHODS = ("fedavg", "fedld", "fedpac", "fedbn")


def scoring(method="fedavg", **evaluation):
    return config(method, evaluation=OFF | {"clients_every": 1} | evaluation)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_each_client_is_scored_on_each_part_of_its_own(method):
    """By its own model in personalised methods, else by the global one."""
    settings = scoring(method)
    setup = prepare(settings)
    clients = range(setup.partition.num_clients)
    for done in rounds(settings):
        rows = [r for r in done.tables["evaluations"] if r["split"].startswith("own_")]
        found = {(r["split"], r["client_id"]): r for r in rows}
        splits = ("own_train", "own_val", "own_test")
        assert list(found) == [(split, c) for split in splits for c in clients]
        assert not any(r["group"] for r in rows)
        for (split, client), row in found.items():
            own = done.after.clients.get(client) or {}
            model = merged(setup, done.after.params, own)
            index = getattr(setup.partition, split.removeprefix("own_"))[client]
            losses, right = sample_losses(setup, model, index)
            assert row["num_samples"] == len(index)
            assert row["loss"] == pytest.approx(losses.mean(), abs=1e-6)
            assert row["accuracy"] == right.mean()
        accuracies = [found["own_test", c]["accuracy"] for c in clients]
        (row,) = done.tables["rounds"]
        assert row["client_test_accuracy"] == math.fsum(accuracies) / len(clients)


def test_clients_that_never_took_part_have_the_global_model(tmp_path):
    """And those that did have others: in fedpac the heads differ."""
    settings = scoring("fedpac")
    setup = prepare(settings)
    (first, _) = rounds(settings)
    never = [c for c in range(6) if c not in first.cohort]
    (row,) = [
        r
        for r in first.tables["evaluations"]
        if r["split"] == "own_train" and r["client_id"] == never[0]
    ]
    index = setup.partition.train[never[0]]
    plain = sample_losses(setup, first.after.params, index)[0].mean()
    assert row["loss"] == pytest.approx(plain, abs=1e-6)
    taught = first.cohort[0]
    own = merged(setup, first.after.params, first.after.clients[taught])
    assert not np.array_equal(own, first.after.params)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_the_weighted_mean_is_the_global_loss_on_the_union(split, tmp_path):
    settings = scoring(
        "fedld", decompose_every=1, decompose_split=split, decompose_scope="population"
    )
    store = fedsim.run(settings, tmp_path / "run")
    table = store.read("evaluations").query(f"split == 'own_{split}'")
    weighted = (table["loss"] * table["num_samples"]).groupby(table["round"]).sum()
    union = weighted / table.groupby("round")["num_samples"].sum()
    globally = store.read("decomposition").set_index("round")["global_loss"]
    np.testing.assert_allclose(union, globally, rtol=1e-6)


def test_rounds_that_are_due_and_the_last_one(tmp_path):
    settings = scoring(clients_every=2, every=5)
    settings = settings.model_copy(
        update={"train": settings.train.model_copy(update={"rounds": 5})}
    )
    store = fedsim.run(settings, tmp_path / "run")
    table = store.read("evaluations").query("split == 'own_test'")
    assert sorted(set(table["round"])) == [2, 4, 5]
    rows = store.read("rounds")
    assert rows["client_test_accuracy"].notna().tolist() == [False, True, False, True, True]
    assert rows["test_accuracy"].notna().tolist() == [False] * 4 + [True]
    means = table.groupby("round")["accuracy"].mean()
    shown = rows.set_index("round")["client_test_accuracy"].dropna()
    np.testing.assert_allclose(shown, means, rtol=1e-14)
    phases = store.read("timings").query("phase == 'evaluate'")["round"].tolist()
    assert phases == [2, 4, 5]


def test_parts_that_clients_do_not_own_have_no_rows(tmp_path):
    settings = config(
        data={"client_val_fraction": 0.0, "client_test_fraction": 0.0},
        evaluation=OFF | {"clients_every": 1},
    )
    store = fedsim.run(settings, tmp_path / "run")
    splits = set(store.read("evaluations")["split"])
    assert splits == {"own_train", "test"}
    assert store.read("rounds")["client_test_accuracy"].isna().all()


def test_without_it_there_are_no_rows_of_clients(tmp_path):
    store = fedsim.run(config(evaluation=OFF), tmp_path / "run")
    assert store.read("evaluations")["client_id"].isna().all()
    assert store.read("rounds")["client_test_accuracy"].isna().all()


# groups of test images


@pytest.mark.parametrize("method", METHODS)
def test_groups_of_test_images_have_rows_of_their_own(method):
    """In personalised methods the unweighted mean over all clients' models."""
    settings = config(method, evaluation=OFF)
    setup, data = prepare(settings), digits(None)
    for done in rounds(settings):
        rows = [r for r in done.tables["evaluations"] if r.get("group")]
        assert [(r["group"], r["split"], r["num_samples"]) for r in rows] == [
            ("first", "test", 30),
            ("every third", "test", 27),
        ]
        assert all(r["client_id"] is None for r in rows)
        models = [
            merged(setup, done.after.params, done.after.clients.get(c) or {})
            for c in (range(6) if setup.personalised else [0])
        ]
        for row in rows:
            outcomes = [sample_losses(setup, m, data.groups[row["group"]]) for m in models]
            loss = np.mean([losses.mean() for losses, _ in outcomes])
            assert row["loss"] == pytest.approx(loss, abs=1e-6)
            right = np.mean([correct.mean() for _, correct in outcomes])
            assert row["accuracy"] == pytest.approx(right, rel=1e-12)


def test_the_table_of_a_run_has_groups_clients_and_empty_cells(tmp_path):
    store = fedsim.run(scoring("fedpac"), tmp_path / "run")
    lines = (store.path / "evaluations.csv").read_text().splitlines()
    assert lines[0] == "round,client_id,group,split,num_samples,loss,accuracy"
    assert sum(line.startswith("1,,first,test,30,") for line in lines) == 1
    assert sum(line.startswith("2,,every third,test,27,") for line in lines) == 1
    assert sum(line.startswith("2,3,,own_val,") for line in lines) == 1
    assert sum(line.startswith("2,3,,test,80,") for line in lines) == 1, "its model on all"
    table = store.read("evaluations")
    assert len(table) == 2 * (6 + 2 + 3 * 6)
    assert (table["client_id"].isna() == table["group"].notna()).all()
