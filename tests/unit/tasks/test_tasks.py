"""Tasks as values: what each has to be, its measures, and runs of one that is no classification."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics

import fedsim
from fedsim import data, tasks
from fedsim.client.criterion import MarginControl, TaskLoss, criterion_of
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError, DivergedError
from fedsim.metrics.outputs import scores_of
from fedsim.metrics.samples import joined, kept, split, streamed
from fedsim.metrics.scores import group_score, mean_scores, score_kept
from fedsim.training.assemble import prepare

REGRESSION = tasks.find("regression")


def numbers(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 1)).astype(np.float32), rng.normal(size=n).astype(np.float32)


@pytest.mark.parametrize("name", tasks.TASKS.names())
def test_a_task_is_whole(name):
    task = tasks.find(name)
    assert task.name == name
    assert task.title
    assert task.cross_entropy or task.primary in {m.name for m in task.measures}
    assert all(m.better in ("up", "down") for m in task.measures)
    assert not (task.streams and any(m.whole for m in task.measures))
    assert set(task.record()) == {"name", "primary", "measures"}


def test_the_measures_of_parts_add_up_to_those_of_the_whole():
    task = replace(REGRESSION, measures=REGRESSION.measures[:2])
    outputs, y = numbers(50)
    whole = kept(task, outputs, y)
    parts = split(whole, [7, 0, 43])
    assert joined(parts).values() == whole.values()
    batches = joined([streamed(task, outputs[:20], y[:20]), streamed(task, outputs[20:], y[20:])])
    assert batches.values() == pytest.approx(whole.values(), rel=1e-12)
    assert batches.loss() == pytest.approx(whole.loss(), rel=1e-12)
    some = np.array([3, 40, 11])
    assert batches.at(some).values() == pytest.approx(whole.at(some).values(), rel=1e-12)
    assert group_score("", parts[2]).num_samples == 43


def test_scores_of_other_tasks_have_no_accuracy():
    outputs, y = numbers(8)
    scores = score_kept(kept(REGRESSION, outputs, y), {"first": np.arange(3)})
    assert scores.accuracy is None
    assert scores.columns("test")["test_rmse"] == scores.measures["rmse"]
    assert scores.groups[0].num_samples == 3
    other = score_kept(kept(REGRESSION, outputs + 1, y))
    mean = mean_scores([replace(scores, groups=()), other])
    rmse = [s.measures["rmse"] for s in (scores, other)]
    assert mean.measures["rmse"] == math.fsum(rmse) / 2


@pytest.mark.parametrize("reduce", [kept, streamed])
def test_outputs_that_are_not_finite_are_refused(reduce):
    outputs, y = numbers(4)
    outputs[2] = np.nan
    with pytest.raises(DivergedError, match=r"1 of 4 evaluated samples .* first of sample 2"):
        reduce(replace(REGRESSION, measures=REGRESSION.measures[:2]), outputs, y)


@pytest.mark.parametrize("seed", range(20))
def test_further_measures_of_classes_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    logits = rng.integers(-3, 4, (n, 2)).astype(np.float32)
    y = np.concatenate([[0, 1], rng.integers(0, 2, n - 2)]).astype(np.int64)
    share = rng.choice([0.5, 0.8, 0.9, 1.0])
    names = ("auc", "balanced_accuracy", "sensitivity", "specificity", f"sensitivity@{share}")
    task = tasks.with_more(tasks.find("classification"), names)
    values = kept(task, logits, y).values()
    predicted, margin = logits.argmax(axis=1), logits[:, 1] - logits[:, 0]
    false, true, _ = metrics.roc_curve(y, margin, drop_intermediate=False)
    expected = (
        metrics.roc_auc_score(y, margin),
        metrics.balanced_accuracy_score(y, predicted),
        metrics.recall_score(y, predicted),
        metrics.recall_score(y, predicted, pos_label=0),
        true[1 - false >= share - 1e-12].max(),
    )
    assert list(values.values()) == pytest.approx(expected, abs=1e-12)


def test_a_measure_without_samples_of_a_kind_is_empty():
    names = ("auc", "sensitivity@0.9", "sensitivity")
    task = tasks.with_more(tasks.find("classification"), names)
    values = kept(task, np.zeros((3, 2), np.float32), np.zeros(3, np.int64)).values()
    assert values == dict.fromkeys(names)


def test_penalties_of_logits_with_another_loss():
    y = np.zeros((2, 1), np.float32)
    dataset = replace(data.load("diabetes"), y=y, task=replace(REGRESSION, margin=None))
    criterion = criterion_of(MarginControl("spectral", 0.5), dataset)
    outputs, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])
    objective, loss = criterion.with_cross_entropy(outputs, targets)
    assert (float(loss), float(objective)) == (2.5, 2.5 + 0.5 * 5)
    weights = torch.tensor([0.25, 0.75])
    objective, loss = criterion.weighted(outputs, targets, weights)
    assert (float(loss), float(objective)) == (3.25, 3.25 + 0.5 * 7)
    assert criterion.count(targets) == 2
    assert criterion.example(outputs).shape == (2, 1)
    pixels = torch.arange(8.0).view(1, 2, 2, 2)
    assert isinstance(criterion, TaskLoss)
    assert criterion._penalties(pixels).tolist() == [float(pixels.square().sum()) / 4]


RUN = {
    "algorithm": "fedavg",
    "data": {
        "name": "diabetes",
        "num_clients": 4,
        "val_fraction": 0.1,
        "client_test_fraction": 0.2,
    },
    "train": {"rounds": 3, "sample_rate": 1.0, "patience": 5},
    "evaluation": {"clients_every": 3, "decompose_every": 3, "finetune_epochs": 1},
    "engine": {"kind": "serial"},
}


@pytest.mark.integration
def test_a_run_of_another_task(tmp_path):
    store = fedsim.run(RunConfig(**RUN), out=tmp_path / "run")
    rounds = store.rounds
    assert list(rounds)[-6:] == [f"{p}_{m}" for p in ("val", "test") for m in ("rmse", "mae", "r2")]
    assert rounds["test_accuracy"].isna().all()
    np.testing.assert_allclose(rounds["test_rmse"] ** 2, rounds["test_loss"], rtol=1e-12)
    summary = store.summary
    assert summary["final_test_rmse"] == rounds["test_rmse"].iloc[-1]
    assert (summary["best_by"], summary["best_round"]) == (
        "val",
        int(rounds["val_rmse"].idxmin()) + 1,
    )
    assert summary["collapsed"] == (rounds["test_r2"].iloc[-1] <= 0)
    own = store.read("evaluations").query("split == 'own_test'")
    np.testing.assert_allclose(own["rmse"] ** 2, own["loss"], rtol=1e-12)
    assert store.read("final_clients")["finetuned_rmse"].notna().all()
    terms = store.read("decomposition").iloc[-1]
    total = terms["local_loss"] + terms["shift_loss"] + terms["aggregation_loss"]
    assert total == pytest.approx(terms["global_loss"], abs=1e-9)
    assert store.read_environment()["task"]["primary"] == "rmse"
    assert set(store.read("partition")["label"]) == {-1}


@pytest.mark.integration
def test_further_measures_are_columns_that_change_no_other(tmp_path):
    settings = RUN | {"data": {"name": "digits", "num_clients": 4, "client_test_fraction": 0.2}}
    settings |= {"train": {"rounds": 2, "sample_rate": 1.0}}
    plain = fedsim.run(RunConfig(**settings), out=tmp_path / "plain")
    more = settings["evaluation"] | {"measures": "auc,balanced_accuracy,sensitivity@0.9"}
    asked = fedsim.run(RunConfig(**settings | {"evaluation": more}), out=tmp_path / "asked")
    for table in ("rounds", "evaluations", "final_clients", "classes"):
        before, after = plain.read(table), asked.read(table)
        pd.testing.assert_frame_equal(before, after[list(before)])
    assert list(asked.rounds)[-2:] == ["val_sensitivity@0.9", "test_sensitivity@0.9"]
    last = ["auc", "balanced_accuracy", "sensitivity@0.9"]
    assert list(asked.read("evaluations"))[-3:] == last


@pytest.mark.integration
def test_stacked_clients_train_as_each_alone(tmp_path):
    runs = []
    for size in (1, 4):
        engine = {"kind": "serial", "client_batch": size}
        store = fedsim.run(RunConfig(**RUN | {"engine": engine}), out=tmp_path / str(size))
        runs.append(store.rounds["test_rmse"])
    np.testing.assert_allclose(*runs, rtol=1e-5)


OWN = """
from dataclasses import replace
from fedsim.tasks import find

def task():
    return replace(find("regression"), loss=lambda outputs, y: (outputs[:, 0] - y).abs())

def none():
    return 3
"""


@pytest.mark.integration
def test_a_task_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("their_task.py").write_text(OWN)
    settings = RUN | {"task": "their_task.py:task"}
    rounds = fedsim.run(RunConfig(**settings), out=tmp_path / "run").rounds
    np.testing.assert_allclose(rounds["test_mae"], rounds["test_loss"], rtol=1e-12)
    with pytest.raises(ConfigError, match=r"returned int, needed is fedsim\.core\.task\.Task"):
        tasks.find("their_task.py:none")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "regresion"}, "unknown task 'regresion'.*did you mean 'regression'"),
        ({"algorithm": "fedld"}, "margin 'marg_log': task regression: .* --margin none"),
        ({"margin": "sigma_damp"}, "task regression has no margins of classes"),
        ({"algorithm": "fedpac", "model": {"name": "mlp"}}, "statistics of classes .* has none"),
        ({"attack": {"name": "label_flip", "fraction": 0.5}}, "attacks on labels .* has none"),
        ({"evaluation": {"target_accuracy": 0.5}}, "target_accuracy .* has no accuracy"),
        ({"evaluation": {"measures": "auc"}}, "task regression has no measure 'auc'"),
        ({"task": "classification"}, "y is float32 .*, needed is int64"),
        ({"data": {"name": "diabetes", "partition": "dirichlet"}}, "samples' classes; .*quantity"),
    ],
)
def test_what_a_task_cannot_have_is_refused(settings, message):
    with pytest.raises((ConfigError, DataError), match=message):
        prepare(RunConfig(**RUN | {"evaluation": {}} | settings))


def test_targets_that_are_wrong_are_named_by_sample():
    y = np.array([0.5, np.nan, 1.0], np.float32)
    with pytest.raises(DataError, match="a target is not finite") as error:
        REGRESSION.check(y)
    assert error.value.row == 1
    assert (
        scores_of(
            np.zeros((2, 1), np.float32), replace(data.load("diabetes"), y=y), np.array([0, 2]), {}
        ).loss
        == 0.625
    )
