"""The metrics in a round's tables are those of scikit-learn for its models' predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics

import fedsim
from fedsim.config.run import RunConfig
from fedsim.engine.base import OUTPUTS
from fedsim.engine.worker import Worker
from fedsim.training.assemble import prepare
from tests.decomposing import config, digits, merged, rounds, sample_losses

pytestmark = pytest.mark.integration


def validated(folder):
    """The small digits with a common validation part that has all classes."""
    data = digits(folder)
    return replace(data, train=data.train[60:], val=data.train[:60])


def settings(method: str, **evaluation: object) -> RunConfig:
    data = {
        "name": f"{__name__}:validated",
        "client_val_fraction": 0.0,
        "client_test_fraction": 0.2,
    }
    evaluation = {"decompose_every": 0, "loss_matrix": False} | evaluation
    return config(method, data=data, evaluation=evaluation)


def oracle(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Metrics of one model; F1 over the classes with support, AUC of class against rest."""
    z = logits.astype(np.float64)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    predicted, classes = logits.argmax(axis=1), np.unique(labels)
    aucs = [metrics.roc_auc_score(labels == c, p[:, c]) for c in classes]
    scores = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(labels, predicted, labels=classes, average="macro"),
        "auc": np.mean(aucs),
    }
    return scores | {f"auc of {c}": value for c, value in zip(classes, aucs, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_the_tables_of_a_round_follow_from_the_predictions(method: str) -> None:
    chosen = settings(method)
    setup = prepare(chosen)
    worker = Worker(setup.spec, torch.device("cpu"))
    clients = range(setup.partition.num_clients) if setup.personalised else [None]
    assert setup.personalised == (method == "fedbn")
    for done in rounds(chosen):
        (row,) = done.tables["rounds"]
        confusion = np.zeros((10, 10), dtype=int)
        wanted: dict[str, list[Mapping[str, float]]] = {"val": [], "test": []}
        for client in clients:
            state = done.after.clients.get(client) or {}
            for part, found in wanted.items():
                labels = setup.dataset.y[getattr(setup.dataset, part)]
                logits = worker.evaluate(done.after.params, state, part, OUTPUTS)
                found.append(oracle(logits, labels))
                if part == "test":
                    confusion += metrics.confusion_matrix(
                        labels, logits.argmax(1), labels=range(10)
                    )
        means = {
            part: {key: np.mean([one[key] for one in found]) for key in found[0]}
            for part, found in wanted.items()
        }
        for part, found in means.items():
            for name in ("accuracy", "balanced_accuracy", "macro_f1", "auc"):
                assert row[f"{part}_{name}"] == pytest.approx(found[name], rel=0, abs=1e-12)
        own = [means["test"][f"auc of {c}"] for c in range(10)]
        assert [c["auc"] for c in done.tables["classes"]] == pytest.approx(own, rel=0, abs=1e-12)
        pairs = {(r["label"], r["prediction"]): r["count"] for r in done.tables["confusion"]}
        assert list(pairs.items()) == [
            ((i, j), confusion[i, j]) for i, j in np.argwhere(confusion).tolist()
        ], "sorted, and none with count 0"
        for c in done.tables["classes"]:
            mine = confusion[c["label"]]
            assert mine.sum() == c["support"] * len(clients)
            assert c["recall"] == pytest.approx(mine[c["label"]] / mine.sum(), rel=0, abs=1e-12)
            if not setup.personalised:
                claimed = confusion[:, c["label"]].sum()
                precision = mine[c["label"]] / claimed if claimed else 0
                assert c["precision"] == pytest.approx(precision, rel=0, abs=1e-12)


@pytest.mark.parametrize(("method", "split"), [("fedavg", "own_test"), ("fedbn", "test")])
def test_the_spread_over_the_clients_is_that_of_evaluations(method, split, tmp_path) -> None:
    store = fedsim.run(settings(method, clients_every=2), tmp_path / "run", progress=False)
    table = store.read("evaluations")
    assert set(table["split"]) >= {"own_test"}
    last = table[(table["round"] == 2) & (table["split"] == split) & table["client_id"].notna()]
    accuracies = sorted(last["accuracy"])
    assert len(accuracies) == 6
    assert store.summary["client_accuracy_worst"] == accuracies[0]
    # the 10th percentile of 6 lies half of the way from the first to the second
    tenth = (accuracies[0] + accuracies[1]) / 2
    assert store.summary["client_accuracy_p10"] == pytest.approx(tenth, abs=1e-15)
    assert store.summary["client_accuracy_std"] == pytest.approx(last["accuracy"].std(ddof=0))


def test_a_run_that_predicts_one_class_says_so(tmp_path) -> None:
    """All images are drawn the same, so that every prediction is."""
    chosen = config(data={"name": f"{__name__}:blank"}, evaluation={"decompose_every": 0,
                    "loss_matrix": False})  # fmt: skip
    store = fedsim.run(chosen, tmp_path / "run", progress=False)
    assert store.summary["collapsed"]
    assert store.summary["final_test_balanced_accuracy"] == pytest.approx(0.1)
    assert store.read("confusion").query("round == 2")["prediction"].nunique() == 1


def blank(folder):
    """The small digits without anything to see."""
    data = digits(folder)
    return replace(data, x=np.zeros_like(data.x))


# Data whose test images belong to clients: each model meets its owner's, and all are pooled


SITES = 4


def hospitals(folder):
    """The small digits at four sites of unequal size; site 3 has a fifth of the test images."""
    data = digits(folder)
    site = np.arange(len(data.y)) % 5 % SITES
    return replace(data, site=site, site_names=tuple("abcd"))


def validated_hospitals(folder):
    """The same with a common validation part."""
    data = hospitals(folder)
    return replace(data, train=data.train[40:], val=data.train[:40])


def owned(method, loader="hospitals", **sections):
    """All four sites in each of two rounds."""
    data = {"name": f"{__name__}:{loader}", "partition": "by_site", "num_clients": SITES}
    data |= {"client_val_fraction": 0.0, "client_test_fraction": 0.0}
    evaluation = {"decompose_every": 0, "loss_matrix": False} | sections.pop("evaluation", {})
    return config(method, data=data, train={"sample_rate": 1.0}, evaluation=evaluation, **sections)


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
    settings = owned("fedavg", "validated_hospitals")
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


# Clients' own scores, and those of groups of test images: rows of evaluations.csv


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
