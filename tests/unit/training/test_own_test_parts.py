"""Data whose test images belong to clients: each model meets its owner's, and all are pooled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedsim
from fedsim.config.run import RunConfig
from fedsim.training.assemble import prepare
from tests.decomposing import config, digits, merged, rounds, sample_losses

pytestmark = pytest.mark.integration

SITES = 4


def hospitals(folder):
    """The small digits at four sites of unequal size; site 3 has a fifth of the test images."""
    data = digits(folder)
    site = np.arange(len(data.y)) % 5 % SITES
    return replace(data, site=site, site_names=tuple("abcd"))


def validated(folder):
    """The same with a common validation part."""
    data = hospitals(folder)
    return replace(data, train=data.train[40:], val=data.train[:40])


def owned(method, loader="hospitals", **sections):
    """All four sites in each of two rounds."""
    data = {"name": f"{__name__}:{loader}", "partition": "by_site", "num_clients": SITES}
    data |= {"client_val_fraction": 0.0, "client_test_fraction": 0.0}
    evaluation = {"decompose_every": 0, "loss_matrix": False} | sections.pop("evaluation", {})
    return config(method, data=data, train={"sample_rate": 1.0}, evaluation=evaluation, **sections)


def test_the_clients_own_the_test_images_of_their_site():
    setup = prepare(owned("fedavg"))
    assert setup.tests_are_owned
    assert [len(own) for own in setup.partition.test] == [32, 16, 16, 16]
    assert not prepare(config("fedavg")).tests_are_owned, "a common test part beside own ones"


def test_few_sites_make_a_cohort_of_one():
    data = {"name": f"{__name__}:hospitals", "partition": "by_site"}
    assert prepare(RunConfig(algorithm="fedavg", data=data)).cohort_size == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedpac", "fedbn"])
def test_the_test_columns_are_pooled_over_the_clients(method):
    settings = owned(method)
    setup = prepare(settings)
    for done in rounds(settings):
        (row,) = done.tables["rounds"]
        losses, right = [], []
        for client, index in enumerate(setup.partition.test):
            own = done.after.clients.get(client) or {}
            found = sample_losses(setup, merged(setup, done.after.params, own), index)
            losses.append(found[0])
            right.append(found[1])
        assert row["test_accuracy"] == np.concatenate(right).mean()
        assert row["test_loss"] == pytest.approx(np.concatenate(losses).mean(), abs=1e-6)
        mean = np.mean([hits.mean() for hits in right])
        assert row["client_test_accuracy"] == pytest.approx(mean, abs=1e-12)
        assert row["client_test_accuracy"] != row["test_accuracy"]
        support = {c["label"]: c["support"] for c in done.tables["classes"]}
        assert support == dict(enumerate(np.bincount(setup.dataset.y[setup.dataset.test]).tolist()))
        clients = [r for r in done.tables.get("evaluations", []) if r.get("client_id") is not None]
        if method == "fedavg":
            assert clients == []
        else:
            assert [(r["client_id"], r["num_samples"]) for r in clients] == [
                (c, len(index)) for c, index in enumerate(setup.partition.test)
            ]
            assert [r["accuracy"] for r in clients] == [hits.mean() for hits in right]
        groups = {r["group"]: r for r in done.tables["evaluations"] if r.get("group")}
        positions = np.concatenate(setup.partition.test)
        for name, group in setup.dataset.groups.items():
            inside = np.isin(positions, group)
            assert groups[name]["num_samples"] == inside.sum()
            assert groups[name]["accuracy"] == np.concatenate(right)[inside].mean()


def test_a_common_validation_part_is_scored_beside_the_clients_test_images():
    settings = owned("fedavg", "validated")
    setup = prepare(settings)
    assert setup.tests_are_owned
    for done in rounds(settings):
        (row,) = done.tables["rounds"]
        for part, index in (("val", np.arange(40)), ("test", setup.dataset.test)):
            losses, right = sample_losses(setup, done.after.params, index)
            assert row[f"{part}_accuracy"] == right.mean()
            assert row[f"{part}_loss"] == pytest.approx(losses.mean(), abs=1e-6)


@pytest.mark.parametrize("personal", ["cohort_before", "cohort_after"])
def test_the_cohorts_own_models_meet_the_cohorts_test_images(personal, tmp_path):
    settings = owned("fedpac", evaluation={"personal": personal})
    settings = settings.model_copy(
        update={"train": settings.train.model_copy(update={"sample_rate": 0.5})}
    )
    store = fedsim.run(settings, tmp_path / "run")
    setup, seen = prepare(settings), store.read("evaluations").query("split == 'test'")
    cohorts = store.read("clients").groupby("round")["client_id"].apply(list)
    rows = seen[seen["client_id"].notna()]
    assert rows.groupby("round")["client_id"].apply(lambda c: sorted(map(int, c))).tolist() == [
        sorted(cohort) for cohort in cohorts
    ]
    classes = store.read("classes")
    for number, cohort in cohorts.items():
        support = classes["support"][classes["round"] == number].sum()
        assert support == sum(len(setup.partition.test[c]) for c in cohort)
