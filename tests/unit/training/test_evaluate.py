"""The metrics in a round's tables are those of scikit-learn for its models' predictions."""

from __future__ import annotations

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
from tests.decomposing import config, digits, rounds

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
