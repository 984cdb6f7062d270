"""Evaluation, the decomposition of the loss, and both per token."""

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
from fedsim.core.errors import ConfigError
from fedsim.core.types import Owned
from fedsim.engine.base import OUTPUTS
from fedsim.engine.worker import Worker
from fedsim.metrics import outputs
from fedsim.metrics.outputs import token_scores
from fedsim.metrics.scores import group_score, per_sample, score, score_tokens
from fedsim.metrics.splits import clients_with, count, counts, drawn, indices
from fedsim.training import driver as runs
from fedsim.training.assemble import prepare
from tests import texts
from tests.decomposing import (
    SPREADS,
    TERMS,
    config,
    digits,
    mean_loss,
    merged,
    rounds,
    sample_losses,
    terms,
)
from tests.stopping import Stop, Stopper


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


@pytest.mark.integration
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


# Data whose test images belong to clients: each model meets its owner's, and all are pooled
SITES = 4


def hospitals(folder):
    """The small digits at four sites of unequal size; site 3 has a fifth of the test images."""
    data = digits(folder)
    site = np.arange(len(data.y)) % 5 % SITES
    return replace(data, site=site, site_names=tuple("abcd"))


def owned(method, loader="hospitals", **sections):
    """All four sites in each of two rounds."""
    data = {"name": f"{__name__}:{loader}", "partition": "by_site", "num_clients": SITES}
    data |= {"client_val_fraction": 0.0, "client_test_fraction": 0.0}
    evaluation = {"decompose_every": 0, "loss_matrix": False} | sections.pop("evaluation", {})
    return config(method, data=data, train={"sample_rate": 1.0}, evaluation=evaluation, **sections)


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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
@pytest.mark.integration
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


CASES = [
    *((split, scope) for split in ("train", "val", "test") for scope in ("cohort", "population")),
    ("common_test", "cohort"),
]


def decomposing(method, split, scope, **more):
    evaluation = {"decompose_split": split, "decompose_scope": scope} | more
    return config(method, evaluation=evaluation)


def matrix(store, number):
    """The loss matrix of a round from loss_matrix.csv: models by owners, in order."""
    table = store.read("loss_matrix").astype({"model": str, "owner": str})
    table = table[table["round"] == number]
    models, owners = table["model"].unique().tolist(), table["owner"].unique().tolist()
    return models, owners, table["loss"].to_numpy().reshape(len(models), len(owners))


# every kind of method, split and scope
KINDS = ("fedavg", "fedld", "scaffold", "fedbn", "fediir", "fedpac", "fedsr", "pfedla")
"""Two stateless ones, client states, personal slots, a probe, phases with private answers, an
adapted model, a server of its own. A decomposition sees models and states, never the rule."""


def cases_of(method):
    """All of them for a common model and for own ones; the others also when the tests are slow."""
    return CASES if method in ("fedavg", "fedpac") else CASES[2:7:4]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "cases"),
    [
        *((method, cases_of(method)) for method in KINDS),
        *(pytest.param(m, CASES, marks=pytest.mark.slow) for m in KINDS if cases_of(m) != CASES),
    ],
)
def test_the_terms_add_up_and_are_those_of_the_loss_matrix(method, cases, tmp_path):
    for split, scope in cases:
        settings = decomposing(method, split, scope)
        setup = prepare(settings)
        store = fedsim.run(settings, tmp_path / f"{split}-{scope}")
        table = store.read("decomposition")
        assert table["round"].tolist() == [1, 2]
        assert set(table["split"]) == {split}
        assert set(table["scope"]) == {scope}
        gap = table["local_loss"] + table["shift_loss"] + table["aggregation_loss"]
        assert np.abs(gap - table["global_loss"]).max() <= 1e-12
        arrays = np.load(store.path / "loss_matrix.npz", allow_pickle=False)
        assert len(arrays.files) == 6
        for _, row in table.iterrows():
            number = row["round"]
            models, owners, losses = matrix(store, number)
            assert arrays[f"{number}/models"].tolist() == models
            assert arrays[f"{number}/owners"].tolist() == owners
            np.testing.assert_array_equal(arrays[f"{number}/losses"], losses)
            clients = store.read("clients").query("round == @number")
            cohort = clients["client_id"].tolist()
            after = [f"after:{c}" for c in cohort] if setup.personalised else ["after"]
            assert models == [*map(str, cohort), *after]
            everybody = range(setup.partition.num_clients)
            own = list(everybody) if scope == "population" else cohort
            held = [len(getattr(setup.partition, split)[c]) for c in own] if "_" not in split else [
                *(0 for _ in own), len(setup.dataset.test)
            ]  # fmt: skip
            assert owners == [*map(str, own), *(["test"] if "_" in split else [])]
            p = [len(setup.partition.train[c]) for c in cohort]
            last = losses[3:] if setup.personalised else losses[3]
            expected = terms(losses[:3], last, p, held, [own.index(c) for c in cohort])
            assert expected == pytest.approx(dict(row[list(expected)]), rel=1e-12, abs=1e-14)


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedld", "fedpac", "fedbn"])
@pytest.mark.parametrize(
    ("split", "scope", "most"),
    [
        ("train", "cohort", None),
        ("val", "population", None),
        ("train", "population", 5),
        ("common_test", "cohort", None),
    ],
)
def test_the_numbers_are_those_of_the_models_trained_and_tested_again(method, split, scope, most):
    settings = decomposing(method, split, scope, decompose_max_samples=most)
    setup = prepare(settings)
    own_split = "train" if split == "common_test" else split
    everybody = range(setup.partition.num_clients)
    for done in rounds(settings):
        own = everybody if scope == "population" else done.cohort
        part = Owned(own_split, tuple(own), most)
        samples = {c: drawn(setup.partition, settings.seed, part, c) for c in own}
        data = list(samples.values())
        held = [len(getattr(setup.partition, own_split)[c]) for c in own]
        if split == "common_test":
            data, held = [*data, setup.dataset.test], [*(0 for _ in own), 80]
        last = {
            c: merged(setup, done.after.params, done.after.clients.get(c) or {})
            for c in done.cohort
        }
        before = [[mean_loss(setup, done.local[c], part) for part in data] for c in done.cohort]
        after = [[mean_loss(setup, last[c], part) for part in data] for c in done.cohort]
        p = [len(setup.partition.train[c]) for c in done.cohort]
        expected = terms(before, after, p, held, [list(own).index(c) for c in done.cohort])
        (row,) = done.tables["decomposition"]
        for name in (*TERMS, *SPREADS):
            assert row[name] == pytest.approx(expected[name], abs=1e-6), name
        found = [r["loss"] for r in done.tables["loss_matrix"]]
        models = len(done.cohort) if setup.personalised else 1
        np.testing.assert_allclose(found, np.ravel([*before, *after[:models]]), atol=1e-6)
        assert row["local_loss"] != row["global_loss"]
        assert setup.personalised == (method in ("fedpac", "fedbn"))


# when, and whose models
@pytest.mark.integration
@pytest.mark.slow
def test_a_decomposition_changes_nothing_else(tmp_path):
    with_it = fedsim.run(config("fedpac"), tmp_path / "with")
    never = {"decompose_every": 0, "loss_matrix": False}
    without = fedsim.run(config("fedpac", evaluation=never), tmp_path / "without")
    for name in ("rounds.csv", "clients.csv", "evaluations.csv", "model.safetensors"):
        assert (with_it.path / name).read_bytes() == (without.path / name).read_bytes()
    names = {path.name for path in without.path.glob("*")}
    assert not names & {"decomposition.csv", "loss_matrix.csv", "loss_matrix.npz"}


@pytest.mark.integration
def test_a_cohort_of_one_has_no_shift_and_fedavg_no_aggregation_loss(tmp_path):
    settings = config(train={"sample_rate": 1 / 6})
    table = fedsim.run(settings, tmp_path / "run").read("decomposition")
    assert table["shift_loss"].tolist() == [0.0, 0.0]
    assert table["shift_spread"].tolist() == [0.0, 0.0]
    # w + (w' - w) is w' but for the last bit of float32
    np.testing.assert_allclose(table["aggregation_loss"], 0.0, atol=1e-6)


@pytest.mark.integration
def test_the_global_loss_on_the_common_test_part_is_that_of_the_round(tmp_path):
    settings = config("fedld", evaluation={"decompose_split": "common_test"})
    store = fedsim.run(settings, tmp_path / "run")
    globally = store.read("decomposition")["global_loss"]
    np.testing.assert_allclose(globally, store.read("rounds")["test_loss"], rtol=1e-14)


@pytest.mark.integration
@pytest.mark.slow
def test_the_population_is_everybody_and_the_local_term_is_the_cohorts(tmp_path):
    """The local term does not depend on the scope, the global one on its data alone."""
    tables = {
        scope: fedsim.run(decomposing("fedavg", "train", scope), tmp_path / scope)
        for scope in ("cohort", "population")
    }
    cohort, everybody = (tables[s].read("decomposition") for s in ("cohort", "population"))
    np.testing.assert_allclose(cohort["local_loss"], everybody["local_loss"], rtol=1e-6)
    assert (np.abs(cohort["global_loss"] - everybody["global_loss"]) > 1e-3).all()


# part of the data
@pytest.mark.integration
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_part_of_a_clients_data_is_drawn_once(split):
    setup = prepare(config())
    spec, everything = setup.spec, getattr(setup.partition, split)
    for most in (1, 3, 7, 1000):
        part = Owned(split, (4, 0, 2), most)
        for client in part.owners:
            some = drawn(setup.partition, 0, part, client)
            assert len(some) == min(most, len(everything[client]))
            assert len(set(some.tolist())) == len(some)
            assert set(some.tolist()) <= set(everything[client].tolist())
            position = {index: i for i, index in enumerate(everything[client].tolist())}
            places = [position[index] for index in some.tolist()]
            assert places == sorted(places), "in the order of the whole"
            again = drawn(setup.partition, 0, Owned(split, (client,), most), client)
            np.testing.assert_array_equal(again, some)
        whole = [drawn(setup.partition, 0, part, c) for c in part.owners]
        np.testing.assert_array_equal(indices(spec, part), np.concatenate(whole))
        assert counts(setup.partition, part) == [len(some) for some in whole]
        assert count(spec, part) == sum(map(len, whole))
    assert count(spec, "test") == 80


# interrupted, refused, failed
TABLES = ("decomposition.csv", "loss_matrix.csv", "loss_matrix.npz", "cosines.csv", "spectrum.csv",
          "evaluations.csv", "rounds.csv")  # fmt: skip


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedld", "fedpac"])
def test_a_run_that_was_stopped_and_goes_on_has_the_same_tables(method, tmp_path):
    settings = config(
        method,
        train={"rounds": 4},
        evaluation={"decompose_every": 2, "clients_every": 3, "cosines": True},
    )
    whole = fedsim.run(settings, tmp_path / "whole")
    expected = {name: (whole.path / name).read_bytes() for name in TABLES}
    for after in (1, 2, 3, 4):
        run = tmp_path / str(after)
        with pytest.raises(Stop):
            fedsim.run(settings, run, [Stopper(after)])
        store = runs.resume(run)
        for name in TABLES:
            assert (store.path / name).read_bytes() == expected[name], f"{name} after {after}"


@pytest.mark.integration
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_part_that_clients_do_not_own_is_refused(split, tmp_path):
    settings = config(data={f"client_{split}_fraction": 0.0}, evaluation={"decompose_split": split})
    with pytest.raises(ConfigError, match=rf"{split!r}: .* set data\.client_{split}_fraction"):
        fedsim.run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.integration
def test_where_every_client_is_left_out_there_is_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.training.round.without_diverged", lambda *_: [])
    store = fedsim.run(config(engine={"on_client_failure": "drop"}), tmp_path / "run")
    assert store.read("rounds")["dropped"].tolist() == [3, 3]
    assert not list(store.path.glob("decomposition*"))
    assert not list(store.path.glob("loss_matrix*"))


def tokens_drawn(n=5, tokens=4, classes=6, seed=0):
    """Logits (n, T, C) and labels (n, T), the first token of each always counted."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy((rng.normal(size=(n, tokens, classes)) * 3).astype(np.float32))
    labels = rng.integers(-1, classes, size=(n, tokens))
    labels[:, 0] = rng.integers(0, classes, size=n)
    return logits, torch.from_numpy(labels)


# Scores of tokens
def test_tokens_by_hand():
    logits = torch.tensor([
        [[2.0, 0.0, 0.0], [0.0, 0.0, 1.0], [9.0, 0.0, 0.0]],
        [[0.0, 3.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]],
    ])  # fmt: skip
    labels = torch.tensor([[0, 1, -1], [1, -1, -1]])
    got = token_scores(logits, labels)
    # first sample: 0 predicted and right, 2 predicted for 1; second sample: 1 predicted and right
    first = (math.log(math.e**2 + 2) - 2) + math.log(math.e + 2)
    second = math.log(math.e**3 + 2) - 3
    assert got.loss.tolist() == pytest.approx([first, second], rel=1e-14)
    assert (got.correct.tolist(), got.weight.tolist()) == ([1, 1], [2, 1])
    assert group_score("", got).loss == pytest.approx((first + second) / 3, rel=1e-14)
    whole = score_tokens(got, {"second": np.array([1])})
    assert (whole.num_samples, whole.accuracy) == (2, 2 / 3)
    assert (whole.balanced_accuracy, whole.macro_f1, whole.auc, whole.classes) == (None,) * 3 + (
        (),
    )
    (group,) = whole.groups
    assert (group.num_samples, group.accuracy) == (1, 1.0)
    assert group.loss == pytest.approx(second, rel=1e-14)
    assert token_scores(logits, labels, never_right=(1,)).correct.tolist() == [1, 0]
    assert token_scores(logits, labels, never_right=(0, 1)).correct.tolist() == [0, 0]
    assert token_scores(logits, labels, never_right=(1,)).loss.tolist() == got.loss.tolist()


def test_one_token_is_a_sample_with_one_label():
    logits, labels = tokens_drawn(n=40, tokens=1)
    got = token_scores(logits, labels, (2,))
    alone = per_sample(logits[:, 0].numpy(), labels[:, 0].numpy(), (2,))
    np.testing.assert_allclose(got.loss, alone.loss, rtol=1e-13)
    np.testing.assert_array_equal(got.correct, alone.correct)
    np.testing.assert_array_equal(got.weight, alone.weight)
    np.testing.assert_array_equal(alone.weight, np.ones(40))


@pytest.mark.parametrize("rows", [1, 3, 1024])
def test_the_means_are_over_the_labels_that_count(rows, monkeypatch):
    monkeypatch.setattr(outputs, "_ROWS", rows)
    logits, labels = tokens_drawn(n=30)
    counted = labels >= 0
    flat = score(logits[counted].numpy(), labels[counted].numpy())
    got = score_tokens(token_scores(logits, labels))
    assert got.num_samples == 30
    assert got.loss == pytest.approx(flat.loss, rel=1e-13)
    assert got.accuracy == flat.accuracy


def test_classes_that_are_never_right():
    # predictions 0, 1, 1; labels 0, 1, 0: without class 1 only the first counts
    logits = np.array([[2, 0], [0, 1], [0, 1]], dtype=np.float32)
    labels = np.array([0, 1, 0])
    plain, got = score(logits, labels), score(logits, labels, {"all": np.arange(3)}, (1,))
    assert (plain.accuracy, got.accuracy, got.groups[0].accuracy) == (2 / 3, 1 / 3, 1 / 3)
    assert [c.recall for c in got.classes] == [0.5, 0.0]
    assert (got.loss, got.auc) == (plain.loss, plain.auc)
    assert per_sample(logits, labels, (1,)).correct.tolist() == [True, False, False]


# Runs
@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_run_on_labels_of_tokens(method):
    """Every number of the tables, label by label: means over tokens, and over users with any."""
    settings = texts.config(method=method, evaluation={"clients_every": 1})
    setup = prepare(settings)
    data, users = setup.dataset, clients_with(setup.partition, "test")
    for done in rounds(settings):
        models = {
            c: merged(setup, done.after.params, done.after.clients.get(c) or {})
            for c in texts.USERS
        }
        own = {c: texts.token_losses(setup, models[c], setup.partition.test[c]) for c in users}
        losses, right = (np.concatenate(values) for values in zip(*own.values(), strict=True))
        (row,) = done.tables["rounds"]
        assert row["test_loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert row["test_accuracy"] == right.mean()
        assert row["client_test_accuracy"] == pytest.approx(
            np.mean([hits.mean() for _, hits in own.values()]), rel=1e-14
        )
        empty = ("test_balanced_accuracy", "test_macro_f1", "test_auc")
        assert [row[name] for name in empty] == [None] * 3
        assert done.tables["classes"] == []  # the file has its columns and no rows
        table = done.tables["evaluations"]
        found = {r["client_id"]: r for r in table if r["split"] == "own_test"}
        assert tuple(found) == users
        for client, r in found.items():
            assert r["num_samples"] == len(setup.partition.test[client])
            assert r["loss"] == pytest.approx(own[client][0].mean(), rel=1e-5)
            assert r["accuracy"] == own[client][1].mean()
        assert [r["client_id"] for r in table if r["split"] == "own_train"] == list(texts.USERS)
        (group,) = [r for r in table if r.get("group")]
        order = np.concatenate([setup.partition.test[c] for c in users])
        inside = np.repeat(np.isin(order, data.groups["early"]), (data.y[order] >= 0).sum(axis=1))
        assert (group["num_samples"], group["accuracy"]) == (9, right[inside].mean())


@pytest.mark.integration
@pytest.mark.parametrize("scope", ["cohort", "population"])
def test_a_decomposition_weighs_owners_by_their_tokens(scope):
    evaluation = {"decompose_every": 1, "decompose_split": "test", "decompose_scope": scope}
    settings = texts.config(evaluation=evaluation | {"loss_matrix": True})
    setup = prepare(settings)
    users = clients_with(setup.partition, "test")
    seen = 0
    for done in rounds(settings):
        cohort = [c for c in done.cohort if c in users]
        owners = cohort if scope == "cohort" else users
        seen += len(done.cohort) - len(cohort)
        matrix = done.tables["loss_matrix"]
        assert [r["owner"] for r in matrix if r["model"] == "after"] == [str(c) for c in owners]
        assert sorted({r["model"] for r in matrix}) == sorted([*map(str, cohort), "after"])
        found = [
            texts.token_losses(setup, done.after.params, setup.partition.test[c]) for c in owners
        ]
        (row,) = done.tables["decomposition"]
        losses = np.concatenate([losses for losses, _ in found])
        assert row["global_loss"] == pytest.approx(losses.mean(), rel=1e-5)
        own = [
            texts.token_losses(setup, done.local[c], setup.partition.test[c])[0].mean()
            for c in cohort
        ]
        sizes = [len(setup.partition.train[c]) for c in cohort]
        assert row["local_loss"] == pytest.approx(np.average(own, weights=sizes), rel=1e-5)
    assert seen, "a cohort with somebody who counts in nothing"


@pytest.mark.integration
def test_a_cohort_of_whom_nobody_has_test_samples(tmp_path):
    """Their models have nothing to be tested on; the columns of that round are empty."""
    evaluation = {"personal": "cohort_after", "decompose_every": 1, "decompose_split": "test"}
    settings = texts.config("phrases", "fedbn", evaluation, sample_rate=0.2, rounds=8)
    store = fedsim.run(settings, tmp_path / "run")
    alone = store.read("clients").set_index("round")["client_id"]
    nobody = alone.isin(texts.WITHOUT_TEST)
    assert nobody.any()
    assert not nobody.all()
    for row in store.read("rounds").set_index("round").itertuples():
        assert np.isnan(row.test_accuracy) == nobody[row.Index]
        assert np.isnan(row.client_test_accuracy) == nobody[row.Index]
    assert set(store.read("decomposition")["round"]) == set(alone.index[~nobody])
