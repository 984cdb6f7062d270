"""Runs of regression, several labels and survival: tables, predictions, exports, refusals."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sklearn_metrics

import fedsim
from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.predictions.export import export
from fedsim.predictions.predict import predict
from fedsim.storage.final_models import Description
from fedsim.training.assemble import prepare
from tests.oracles import survival as oracle

pytestmark = pytest.mark.integration
RUN = {
    "algorithm": "fedavg",
    "train": {"rounds": 2, "sample_rate": 1.0, "batch_size": 16, "lr": 0.05},
    "evaluation": {"clients_every": 1},
    "engine": {"kind": "serial"},
}
DIABETES = {"name": "diabetes", "num_clients": 3}
SETS = {
    "regression": "diabetes",
    "multilabel": "synthetic_labels",
    "survival": "synthetic_survival",
}


def settings(task: str, **sections) -> RunConfig:
    """A small run on the embedded data of a task."""
    given = {name: RUN.get(name, {}) | values for name, values in sections.items()}
    return RunConfig(**RUN | {"data": {"name": SETS[task], "num_clients": 3}} | given)


def regression(frame: pd.DataFrame, y: np.ndarray) -> dict[str, float | None]:
    error = frame["prediction"] - y
    r2 = sklearn_metrics.r2_score(y, frame["prediction"])
    return {"rmse": (error**2).mean() ** 0.5, "mae": error.abs().mean(), "r2": r2}


def multilabel(frame: pd.DataFrame, y: np.ndarray) -> dict[str, float | None]:
    chances = frame.filter(like="probability_").to_numpy()
    said = frame.filter(like="prediction_").to_numpy()
    return {
        "auc": sklearn_metrics.roc_auc_score(y, chances),
        "macro_f1": sklearn_metrics.f1_score(y, said, average="macro"),
    }


def survival(frame: pd.DataFrame, y: np.ndarray) -> dict[str, float | None]:
    return {"c_index": oracle.concordance(frame["risk"].tolist(), *y.T.tolist())}


MEASURES = {"regression": regression, "multilabel": multilabel, "survival": survival}


@pytest.mark.parametrize("task", SETS)
def test_predictions_have_the_measures_of_the_tables(task, tmp_path):
    """Of the test part, and of each client's training samples."""
    run = tmp_path / "run"
    last = fedsim.run(settings(task), out=run).rounds.iloc[-1]
    y = data.load(SETS[task], num_clients=3).y
    frame = predict(run)
    by_hand = MEASURES[task](frame, y[frame["sample"]])
    assert {name: last[f"test_{name}"] for name in by_hand} == pytest.approx(by_hand, rel=1e-9)
    clients = pd.read_csv(run / "evaluations.csv").query("round == 2 and split == 'own_train'")
    own = predict(run, split="own_train")
    for row in clients.to_dict("records"):
        some = own[own["client_id"] == row["client_id"]]
        by_hand = MEASURES[task](some, y[some["sample"]])
        assert {name: row[name] for name in by_hand} == pytest.approx(by_hand, rel=1e-9)
    assert Description.read(run).task == task
    assert pd.read_csv(run / "summary.csv")["collapsed"].dtype == bool


def test_the_labels_are_the_classes_of_classes_csv(tmp_path):
    fedsim.run(settings("multilabel"), out=tmp_path / "run")
    rows = pd.read_csv(tmp_path / "run" / "classes.csv").query("round == 2")
    frame = predict(tmp_path / "run")
    y = data.load("synthetic_labels", num_clients=3).y[frame["sample"]]
    for k, row in enumerate(rows.to_dict("records")):
        chance, said = frame[f"probability_finding_{k}"], frame[f"prediction_finding_{k}"]
        assert row["support"] == y[:, k].sum()
        assert row["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(y[:, k], chance))
        assert row["f1"] == pytest.approx(sklearn_metrics.f1_score(y[:, k], said))
        assert row["recall"] == pytest.approx(sklearn_metrics.recall_score(y[:, k], said))


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_the_decomposition_adds_up(task, tmp_path):
    config = settings(task, evaluation={"decompose_every": 1, "decompose_split": "train"})
    fedsim.run(config, out=tmp_path / "run")
    table = pd.read_csv(tmp_path / "run" / "decomposition.csv")
    parts = table["local_loss"] + table["shift_loss"] + table["aggregation_loss"]
    np.testing.assert_allclose(parts, table["global_loss"], rtol=1e-12)
    own = pd.read_csv(tmp_path / "run" / "evaluations.csv").query("split == 'own_train'")
    pooled = own.groupby("round")[["loss", "num_samples"]].apply(
        lambda rows: np.average(rows["loss"], weights=rows["num_samples"])
    )
    np.testing.assert_allclose(table["global_loss"], pooled, rtol=1e-6)  # float32 outputs


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"evaluation": {"decompose_every": 1}}, "decompose_every .* loss is no mean over samples"),
        ({"dp": {"level": "example", "clip": 1.0}}, "dp.level=example.* no mean over samples"),
        ({"engine": {"client_batch": 3}}, "the loss of task survival is of a batch"),
        ({"margin": "marg_log"}, "task survival: its outputs are risk scores, no logits"),
    ],
)
def test_what_needs_a_mean_over_samples_is_refused_for_survival(sections, message):
    margin = {"margin": sections.pop("margin")} if "margin" in sections else {}
    with pytest.raises(ConfigError, match=message):
        prepare(settings("survival", **sections).model_copy(update=margin))


def test_survival_is_not_stacked_where_it_may_be():
    assert prepare(settings("survival")).stacking is None
    assert prepare(settings("regression", engine={"client_batch": 3})).stacking is not None


@pytest.mark.parametrize(
    ("task", "columns", "header"),
    [
        ("regression", {"target": "z+a"}, ["prediction_z", "prediction_a"]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("regression", {"target": "z"}, ["prediction"]),
                ("multilabel", {"target": "a"}, ["prediction_a", "probability_a"]),
                ("survival", {"time": "days", "event": "a"}, ["risk"]),
            )
        ),
    ],
)
def test_new_rows_of_a_table_and_the_exported_network(task, columns, header, tmp_path: Path):
    """The network that is exported gives, for the kept features, what predict says of new rows."""
    draw = np.random.default_rng(0)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [[draw.integers(30, 80), draw.normal(), i % 2, 1 + i] for i in range(60)]
        csv.writer(file).writerows([["age", "z", "a", "days"], *rows])
    (tmp_path / "new.csv").write_text("age\n40\n70\n")
    table = {"name": "csv", "dir": str(tmp_path / "t.csv"), "num_clients": 3, "columns": columns}
    config = RunConfig(**RUN | {"task": task, "data": table, "csv": {"features": "age"}})
    run = tmp_path / "run"
    fedsim.run(config, out=run)
    new = predict(run, rows=tmp_path / "new.csv")
    assert [*new.columns] == ["row", *header]
    own = fedsim.predict(run, split="all", data_dir=tmp_path / "t.csv")
    pd.testing.assert_frame_equal(own, fedsim.predict(run, split="all"))
    export(run, "torch", tmp_path / "exported")
    network = torch.export.load(tmp_path / "exported" / "model.pt2").module()
    ages = pd.read_csv(tmp_path / "t.csv")["age"].loc[predict(run, split="train")["sample"]]
    x = (np.array([[40.0], [70.0]]) - ages.mean()) / (ages.std() + 1e-9)
    outputs = network(torch.tensor(x, dtype=torch.float32)).detach().numpy().astype(np.float64)
    shown = 1 / (1 + np.exp(-outputs)) if task == "multilabel" else outputs
    np.testing.assert_allclose(new[header].to_numpy()[:, -outputs.shape[1] :], shown, rtol=1e-5)


def test_a_task_that_needs_more_outputs_than_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("two_heads.py").write_text(
        "from dataclasses import replace\n\nfrom fedsim import tasks\n\n\n"
        "def task():\n    mse = tasks.find('regression')\n"
        "    return replace(mse, width=lambda y: 2, measures=mse.measures[:2], collapsed=None,\n"
        "        loss=lambda outputs, y: (outputs - y[:, None]).square().mean(dim=1))\n"
    )
    config = RunConfig(**RUN | {"task": "two_heads.py:task", "data": DIABETES})
    assert prepare(config).dataset.class_names == ("output_0", "output_1")


def test_parameters_of_a_task_are_settings(tmp_path, monkeypatch):
    """Of fedsim's and of one's own: they change the loss and are columns of the summary."""
    monkeypatch.chdir(tmp_path)
    Path("scaled.py").write_text(
        "from dataclasses import replace\n\nfrom fedsim import tasks\n\n\n"
        "def task(factor: float = 1.0):\n    mse = tasks.find('regression')\n"
        "    return replace(mse, loss=lambda outputs, y: factor * mse.loss(outputs, y))\n"
    )
    given = {"plain": {"task": "regression"}}
    given["mae"] = {"task": "regression", "regression": {"loss": "mae"}}
    given["own"] = {"task": "scaled.py:task", "scaled.py:task": {"factor": 0.0}}
    runs = {
        name: fedsim.run(RunConfig(**RUN | {"data": DIABETES} | settings), out=tmp_path / name)
        for name, settings in given.items()
    }
    last = {name: run.rounds.iloc[-1] for name, run in runs.items()}
    assert last["plain"]["test_loss"] == pytest.approx(last["plain"]["test_rmse"] ** 2)
    assert last["mae"]["test_loss"] == pytest.approx(last["mae"]["test_mae"])
    assert (last["own"]["test_loss"], last["own"]["train_loss"]) == (0, 0)
    assert pd.read_csv("mae/summary.csv")["regression.loss"].tolist() == ["mae"]
    assert pd.read_csv("own/summary.csv")["scaled.py:task.factor"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"regression": {"loss": "mae"}}, r"regression\.loss: 'mae' given; give task=regression"),
        ({"task": "regression", "regression": {"loss": "l1"}}, "must be 'mse', 'mae' or 'huber'"),
        ({"task": "regression", "regression": {"delta": 0}}, r"regression\.delta: .* 0"),
        ({"task": "survival", "survival": {"tie": "x"}}, "unknown option 'tie'.*'ties'"),
    ],
)
def test_wrong_parameters_of_a_task_are_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(**RUN | sections)
