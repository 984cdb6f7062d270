"""The summary of a run, callbacks, early stopping and simulated costs."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import fedsim
from fedsim import tasks
from fedsim.algorithms.base import Algorithm, Probe
from fedsim.cli import main
from fedsim.client import LocalRule, Uplink
from fedsim.config.keys import KEYS, is_setting
from fedsim.config.resolve import load_config
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.rows import TABLES, RoundRow, TimingRow
from fedsim.identity import resume
from fedsim.identity.provenance import Data, Provenance
from fedsim.metrics.collapse import final_predictions
from fedsim.server.base import Exchanged
from fedsim.storage.run_dir import RunWriter
from fedsim.storage.tables import Outcome
from fedsim.testing.rounds import config, results
from fedsim.training import driver
from fedsim.training.assemble import prepare
from fedsim.training.early_stopping import EarlyStopping
from fedsim.training.summary import settings_of, summarise
from tests.decomposing import named_tensors
from tests.stopping import Stop, Stopper

SECTIONS = {"data", "model", "train", "evaluation", "clock"}
LAST = [
    *("client_test_accuracy", "simulated_seconds", "downlink_bytes", "uplink_bytes"),
    *("target_accuracy", "rounds_to_target", "seconds_to_target", "simulated_seconds_to_target"),
    *(
        f"{when}_test_{metric}"
        for metric in ("balanced_accuracy", "macro_f1", "auc")
        for when in ("final", "best", "last10")
    ),
    *("client_accuracy_std", "client_accuracy_p10", "client_accuracy_worst", "collapsed"),
    *("final_test_ece", "best_test_ece", "last10_test_ece", "client_accuracy_gini"),
    *("data_digest", "label"),
]
DIGESTS = Data("a", "b", "c", None)
COLUMNS = [
    *("run_id", "algorithm", "dataset", "model", "num_clients", "sample_rate", "alpha", "seed"),
    *("rounds", "final_test_accuracy", "best_test_accuracy", "best_round", "best_by"),
    *("last10_test_accuracy", "total_seconds"),
]


def summary(
    tmp_path, test, val=None, alpha=0.5, costs=None, tables=None, f1=None, digests=None, **config
):
    """The summary of a run whose rounds have these accuracies; None where not evaluated.

    Round t took t seconds; ``costs`` are further columns of all rounds, ``tables`` further tables.
    """
    val = [None] * len(test) if val is None else val
    f1 = [None] * len(test) if f1 is None else f1
    store = RunWriter.create(tmp_path / "run-7")
    for name, text in (tables or {}).items():
        store.write(name, text)
    store.append(
        "rounds",
        [
            RoundRow(
                round=t,
                lr=0.1,
                cohort_size=1,
                dropped=0,
                test_accuracy=a,
                test_loss=None if a is None else 0.0,
                val_accuracy=v,
                val_loss=None if v is None else 0.0,
                test_macro_f1=f,
                **(costs or {}),
            )
            for t, (a, v, f) in enumerate(zip(test, val, f1, strict=True), start=1)
        ],
    )
    phases = [("train", 1000.0), ("total", 1.0)]
    rounds = range(1, len(test) + 1)
    store.append(
        "timings",
        [TimingRow(round=t, phase=p, seconds=s * t, bytes=0) for t in rounds for p, s in phases],
    )
    setup = SimpleNamespace(
        config=RunConfig(**config),
        dataset=SimpleNamespace(name="digits"),
        task=tasks.find("classification"),
        measure_columns=(),
        model=SimpleNamespace(name="cnn"),
        partition=SimpleNamespace(num_clients=50),
        alpha=alpha,
        provenance=Provenance(data=digests),
    )
    row = summarise(setup, store, 1.5)
    store.write_summary(row)
    return row, store


def test_best_is_the_earliest_of_equals_on_the_test_part(tmp_path):
    row, _ = summary(tmp_path, [0.1, 0.7, 0.5, 0.7, 0.6])
    assert (row["best_by"], row["best_round"], row["best_test_accuracy"]) == ("test", 2, 0.7)
    assert row["final_test_accuracy"] == 0.6


def test_best_is_chosen_on_the_validation_part_where_there_is_one(tmp_path):
    row, _ = summary(tmp_path, [0.9, 0.2, 0.3, 0.4], val=[0.1, 0.8, 0.8, 0.7])
    assert (row["best_by"], row["best_round"], row["best_test_accuracy"]) == ("val", 2, 0.2)


def test_rounds_without_evaluation_are_left_out(tmp_path):
    test = [None, 0.5, None, 0.4, None, 0.3, 0.2]
    row, _ = summary(tmp_path, test)
    assert (row["rounds"], row["best_round"], row["final_test_accuracy"]) == (7, 2, 0.2)
    assert row["last10_test_accuracy"] == pytest.approx((0.5 + 0.4 + 0.3 + 0.2) / 4)


def test_last_ten_are_rounds_not_evaluations(tmp_path):
    # 24 rounds, evaluated in 5, 10, 15, 20, 24: those of 15..24 count
    test = [t / 100 if t % 5 == 0 or t == 24 else None for t in range(1, 25)]
    row, _ = summary(tmp_path, test)
    assert row["last10_test_accuracy"] == pytest.approx((0.15 + 0.20 + 0.24) / 3)


def test_an_outcome_by_hand():
    accuracy = {t: float(t) for t in range(1, 13)}
    assert Outcome.of(accuracy, 4, 12) == Outcome(12.0, 4.0, sum(range(3, 13)) / 10)
    assert Outcome.of({1: 0.5, 3: math.nan, 4: 0.25}, None, 4).last10 == 0.375
    assert Outcome.of({}, None, 3) == Outcome(None, None, None)


def test_hyperparameters_of_the_methods_in_use_are_columns(tmp_path):
    row, _ = summary(
        tmp_path, [0.1], algorithm="fedprox", server="fedgh", margin="marg_log", margin_weight=0.2,
        fedprox={"mu": 0.3},
    )  # fmt: skip
    extra = dict(list(row.items())[15 : -len(LAST)])
    assert {key: v for key, v in extra.items() if key.partition(".")[0] not in SECTIONS} == {
        **{"server": "fedgh", "margin": "marg_log", "margin_weight": 0.2},
        **{"fedprox.mu": 0.3, "fedprox.prox_form": "squared"},
        **{"fedgh.order": "random", "fedgh.weights": "samples"},
    }


def test_totals_of_bytes_and_simulated_seconds_and_the_last_mean_over_clients(tmp_path):
    costs = {"downlink_bytes": 300, "uplink_bytes": 200, "simulated_seconds": 1.5}
    _, store = summary(tmp_path, [0.1, 0.2], costs=costs | {"client_test_accuracy": 0.4})
    (row,) = store.read("summary")[LAST[:4]].to_dict("records")
    assert list(row.values()) == [0.4, 3.0, 600, 400]


def test_when_the_target_was_first_reached(tmp_path):
    # rounds 2 and 4 are evaluated; a target that is met counts; rounds 1 to 4 took 1 + 2 + 3 + 4 s
    wanted = {"evaluation": {"target_accuracy": 0.6}}
    costs = {"simulated_seconds": 1.5}
    row, _ = summary(tmp_path / "a", [None, 0.5, None, 0.6, 0.9], costs=costs, **wanted)
    assert [row[key] for key in LAST[4:8]] == [0.6, 4, 10.0, 6.0]
    assert "evaluation.target_accuracy" not in row


def test_a_target_that_was_not_reached_and_one_without_a_clock(tmp_path):
    row, _ = summary(tmp_path / "a", [0.5, 0.59], evaluation={"target_accuracy": 0.6})
    assert [row[key] for key in LAST[4:8]] == [0.6, None, None, None]
    _, store = summary(tmp_path / "b", [0.7, 0.5], evaluation={"target_accuracy": 0.6})
    (found,) = store.read("summary")[LAST[4:]].to_dict("records")
    assert [found[key] for key in LAST[4:7]] == [0.6, 1, 1.0]
    assert pd.isna(found["simulated_seconds_to_target"])


def test_other_metrics_are_those_of_the_same_rounds(tmp_path):
    # the best round is 3 by validation accuracy, whatever the other metrics are
    row, _ = summary(
        tmp_path, [None, 0.9, 0.4, 0.5], val=[None, 0.1, 0.8, 0.3], f1=[None, 0.7, 0.2, 0.6]
    )
    assert [row[f"{when}_test_macro_f1"] for when in ("final", "best")] == [0.6, 0.2]
    assert row["last10_test_macro_f1"] == pytest.approx((0.7 + 0.2 + 0.6) / 3)
    assert pd.isna(row["final_test_auc"])
    assert row["collapsed"] is None


EVALUATIONS = "round,client_id,group,split,num_samples,loss,accuracy\n"


def test_the_spread_of_the_clients_is_that_of_their_last_evaluation(tmp_path):
    rows = ["1,0,,test,9,1.0,0.0", "4,0,,val,9,1.0,0.0", "4,,group a,test,9,1.0,0.0"]
    accuracies = [0.1, 0.3, 0.4, 0.8, 0.9]
    rows += [f"3,{c},,test,9,1.0,{a}" for c, a in enumerate(accuracies)]
    rows += ["4,0,,own_test,9,1.0,0.7"]
    table = EVALUATIONS + "\n".join(rows) + "\n"
    row, _ = summary(tmp_path, [0.1] * 4, tables={"evaluations.csv": table})
    # mean 0.5, deviations 0.4 0.2 0.1 0.3 0.4: std sqrt(0.46 / 5); the percentile lies 0.4 of the
    # way from the first to the second
    assert [row[key] for key in LAST[-10:-7]] == pytest.approx([(0.46 / 5) ** 0.5, 0.18, 0.1])


def test_the_spread_is_that_of_the_clients_own_test_parts_where_those_are_evaluated(tmp_path):
    rows = "2,0,,own_test,9,1.0,0.25\n2,5,,own_test,9,1.0,0.75\n2,5,,own_train,9,1.0,0.0\n"
    tables = {"evaluations.csv": EVALUATIONS + rows}
    row, _ = summary(tmp_path, [0.1, 0.2], tables=tables)
    assert [row[key] for key in LAST[-10:-7]] == pytest.approx([0.25, 0.3, 0.25])


def classes(*rows):
    """classes.csv of an old run: label, support, recall and precision after the first round."""
    header = "round,label,support,recall,precision\n"
    return {"classes.csv": header + "".join(f"1,{','.join(map(str, row))}\n" for row in rows)}


@pytest.mark.parametrize(
    ("rows", "collapsed", "words"),
    [
        # one class alone is predicted
        (
            [(0, 60, 1.0, 0.6), (1, 30, 0.0, 0.0), (2, 10, 0.0, 0.0), (3, 0, "", 0.0)], True,
            "class 0 (a) is predicted for all 100 test samples in the last evaluation; balanced "
            "accuracy is that of chance, 0.3333 (3 classes)",
        ),
        # one that no test sample has
        (
            [(0, 60, 0.0, 0.0), (1, 40, 0.0, 0.0), (2, 0, "", 0.0)], True,
            "balanced accuracy 0.0000 in the last evaluation is at most that of chance, 0.5000 "
            "(2 classes)",
        ),
        # class 0 is always right, but also class 1 is predicted, for samples of class 2
        ([(0, 60, 1.0, 0.75), (1, 30, 0.0, 0.0), (2, 10, 0.0, 0.0)], True, "balanced accuracy 0.3"),
        # hits of a random model below chance
        ([(0, 50, 0.5, 0.5), (1, 50, 0.48, 0.49)], True, "balanced accuracy 0.4900 in the last"),
        # the majority class nearly always
        ([(0, 60, 1.0, 0.61), (1, 40, 0.05, 1.0)], False, None),
        # a mean over three models, rounded
        ([(0, 1, 1 / 3, 0.3), (1, 1, 1 / 3 + 1e-16, 0.3), (2, 1, 1 / 3, 0.3)], True, "balanced"),
        # one class in the test part, where chance is 1; text with a label per token
        ([(0, 60, 1.0, 1.0), (1, 0, "", 0.0)], None, None),
        ([], None, None),
    ],
)  # fmt: skip
def test_collapse_is_balanced_accuracy_at_most_that_of_chance(tmp_path, rows, collapsed, words):
    row, store = summary(tmp_path, [0.6], tables=classes(*rows))
    assert row["collapsed"] is collapsed
    if words is not None:
        assert final_predictions(store.read("classes")).describe(["a", "b", "c"]).startswith(words)
    elif collapsed is None and rows:
        assert final_predictions(store.read("classes")) is None


def test_the_data_are_named_by_their_digest_unless_the_settings_decide_them(tmp_path):
    row, store = summary(tmp_path / "files", [0.5], digests=DIGESTS)
    assert row["data_digest"] == DIGESTS.short == store.summary["data_digest"]
    assert DIGESTS.short.startswith("sha256:"), "no CSV reader takes it for a number"
    data = {"name": "synthetic", "dir": None}
    row, _ = summary(tmp_path / "drawn", [0.5], digests=DIGESTS, data=data)
    assert row["data_digest"] is None
    data = {"name": "synthetic", "dir": "a folder of LEAF's"}
    row, _ = summary(tmp_path / "leaf", [0.5], digests=DIGESTS, data=data)
    assert row["data_digest"] == DIGESTS.short


def test_every_column_is_a_setting_or_an_outcome(tmp_path):
    given = {
        "attack": {"name": "alie"}, "clock": {"samples_per_second": 9.0}, "server": "fedgh",
        "dp": {"level": "user", "clip": 1.0}, "margin": "marg_log",
    }  # fmt: skip
    row, _ = summary(tmp_path, [0.1], **given)
    without_effect = {key for key, declared in KEYS.items() if declared.role != "result"}
    written = settings_of(RunConfig(**given)).keys() - without_effect
    named = [*COLUMNS[1:7], "rounds", "best_by"]
    assert {name for name in row if is_setting(name)} == {*named, *written}


class Recorder(fedsim.Callback):
    def __init__(self, path, stop_after=None):
        self.path, self.stop_after, self.told = path, stop_after, []

    def on_run_start(self, info):
        self.told.append(("start", info))

    def on_round_end(self, round, rows):
        # the round is on disk when a callback hears of it
        assert (self.path / "rounds.csv").read_text().count("\n") == round + 1
        self.told.append(("round", rows))
        return "stop" if round == self.stop_after else None

    def on_run_end(self, summary):
        self.told.append(("end", summary))


@pytest.mark.integration
@pytest.mark.integration
def test_every_round_with_all_its_rows(tmp_path):
    recorder = Recorder(tmp_path / "run")
    store = fedsim.run(config("fedavg"), tmp_path / "run", callbacks=[recorder])
    assert [kind for kind, _ in recorder.told] == ["start", "round", "round", "round", "end"]
    info = recorder.told[0][1]
    assert (info.algorithm, info.dataset, info.num_clients) == ("fedavg", "digits", 8)
    assert (info.cohort_size, info.rounds, info.done) == (2, 3, 0)
    assert info.config.train.rounds == 3
    rounds = [rows for kind, rows in recorder.told if kind == "round"]
    assert [rows["rounds"][0].train_loss for rows in rounds] == (
        store.read("rounds")["train_loss"].tolist()
    )
    assert [row["client_id"] for rows in rounds for row in rows["clients"]] == (
        store.read("clients")["client_id"].tolist()
    )
    assert all({"rounds", "clients", "timings"} <= rows.keys() <= TABLES.keys() for rows in rounds)
    assert recorder.told[-1][1]["final_test_accuracy"] == store.summary["final_test_accuracy"]


@pytest.mark.integration
@pytest.mark.integration
def test_one_that_reads_no_files_does_not_wait_for_them(tmp_path, monkeypatch):
    class Quick(fedsim.Callback):
        reads_files = False

        def on_round_end(self, round, rows):
            told.append(set(rows))
            called.set()

    def late(self, table, rows):
        assert called.wait(30)
        append(self, table, rows)

    append, called, told = RunWriter.append, threading.Event(), []
    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "append", late)
        run = fedsim.run(config("fedavg"), tmp_path / "run", callbacks=[Quick()])
    assert all("rounds" in tables and "models" not in tables for tables in told)
    recorder = Recorder(tmp_path / "other")
    other = fedsim.run(config("fedavg"), tmp_path / "other", callbacks=[Quick(), recorder])
    hashes = [rows["models"][0].sha256 for kind, rows in recorder.told if kind == "round"]
    assert hashes == run.read("models")["sha256"].tolist()
    assert results(other) == results(run)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("every", [0, 1, 5])
def test_stop_ends_the_run_in_order(every, tmp_path):
    settings = config("scaffold", evaluation={"every": 1}, engine={"checkpoint_every": every})
    through = fedsim.run(settings, tmp_path / "through")
    recorder = Recorder(tmp_path / "stopped", stop_after=2)
    store = fedsim.run(settings, tmp_path / "stopped", callbacks=[recorder])
    assert recorder.told[-1][0] == "end"
    assert store.summary["rounds"] == 2
    assert (store.path / "model.safetensors").exists()
    assert (store.path / "checkpoints" / "round-000002.json").exists() == (every > 0)
    ours, theirs = (s.path.joinpath("rounds.csv").read_text() for s in (store, through))
    assert theirs.startswith(ours)
    assert ours.count("\n") == 3
    assert fedsim.resume(store.path).path == store.path  # a finished run


@pytest.mark.integration
@pytest.mark.integration
def test_a_run_that_stops_before_its_first_evaluation_has_no_accuracy(tmp_path):
    recorder = Recorder(tmp_path / "run", stop_after=1)
    store = fedsim.run(config("fedavg"), tmp_path / "run", callbacks=[recorder])
    assert store.summary["rounds"] == 1
    assert store.read("summary")[["final_test_accuracy", "best_round"]].isna().all(axis=None)


class Broken(fedsim.Callback):
    def on_run_start(self, info):
        raise ValueError("no start")

    def on_round_end(self, round, rows):
        raise ValueError(f"no round {round}")

    def on_run_end(self, summary):
        raise SystemExit("no end")


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.integration
def test_an_exception_is_a_warning_and_changes_no_byte(tmp_path, caplog):
    plain = results(fedsim.run(config("fedavg"), tmp_path / "plain"))
    recorder = Recorder(tmp_path / "broken")
    with caplog.at_level(logging.WARNING, "fedsim"):
        store = fedsim.run(config("fedavg"), tmp_path / "broken", callbacks=[Broken(), recorder])
    assert results(store) == plain
    assert len(recorder.told) == 5, "the others are called all the same"
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "on_run_start of callback Broken failed: ValueError('no start')"
    assert "on_round_end of callback Broken failed: ValueError('no round 2')" in said
    assert said[-1] == "on_run_end of callback Broken failed: SystemExit('no end')"
    assert len(said) == 5


@pytest.mark.integration
@pytest.mark.integration
def test_callbacks_are_closed_at_the_end_and_after_an_error(tmp_path, monkeypatch):
    class Closed(fedsim.Callback):
        closed = 0

        def close(self):
            self.closed += 1

    callback = Closed()
    fedsim.run(config("fedavg", train={"rounds": 1}), tmp_path / "run", callbacks=[callback])
    assert callback.closed == 1

    def full(*_):
        raise StoreError("no space left")

    monkeypatch.setattr(driver, "run_round", full)
    with pytest.raises(StoreError):
        fedsim.run(config("fedavg"), tmp_path / "failed", callbacks=[callback])
    assert callback.closed == 2


def stops_after(patience: int | None, accuracies: list[float | None]) -> int | None:
    """The round, from 1, after which a run with these validation accuracies ends."""
    stopping = EarlyStopping(patience)
    for round, accuracy in enumerate(accuracies, start=1):
        stopping.add(round, accuracy)
        if stopping.due:
            return round
    return None


@pytest.mark.parametrize(
    ("patience", "accuracies", "wanted"),
    [
        (1, [0.5, 0.5], 2),  # as good is not better
        (2, [0.5, 0.4, 0.6, 0.5, 0.6, 0.7], 5),
        (3, [0.5, 0.4, 0.6, 0.5, 0.6, 0.7], None),
        (2, [None, 0.5, None, 0.4, None, 0.3, None], 6),  # evaluations count, not rounds
        (1, [0.0, 0.0], 2),
        (1, [None] * 9, None),
        (None, [0.5] * 9, None),
    ],
)
def test_evaluations_without_a_better_accuracy(patience, accuracies, wanted) -> None:
    assert stops_after(patience, accuracies) == wanted


def still(**train: object) -> RunConfig:
    """A run whose model hardly moves: its validation accuracy stays what it is."""
    train = {"rounds": 12, "lr": 1e-12, "patience": 3} | train
    data = {"val_fraction": 0.1, "test_fraction": 0.5}
    return config("scaffold", "mlp", data=data, train=train | {"momentum": 0.0},
                  evaluation={"every": 2}, engine={"checkpoint_every": 1})  # fmt: skip


def early_stopping_contents(run: Path) -> dict[str, bytes]:
    names = {path.name for path in run.iterdir() if path.is_file()}
    names -= {"timings.csv", "env.json", "summary.csv", "config.yaml"}
    return {name: (run / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends after round 8: evaluations after rounds 2, 4, 6 and 8, none better."""
    return fedsim.run(still(), tmp_path_factory.mktemp("early") / "run").path


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_ends_in_order(ended: Path, tmp_path: Path) -> None:
    store = fedsim.RunStore(ended)
    assert store.read("rounds")["round"].tolist() == list(range(1, 9))
    assert (store.summary["rounds"], store.summary["best_round"]) == (8, 2)
    assert store.summary["train.patience"] == 3
    assert (ended / "model.safetensors").exists()
    assert fedsim.resume(ended).path == ended, "it is finished"
    assert resume.is_complete(still(), ended), "so that a sweep skips it"
    with pytest.raises(ConfigError, match=r"another train\.patience \(3, wanted 4\)"):
        resume.is_complete(still(patience=4), ended)
    through = fedsim.run(still(patience=None), tmp_path / "through")
    for table in ("rounds.csv", "clients.csv", "classes.csv", "confusion.csv"):
        begun, whole = ((path / table).read_bytes() for path in (ended, through.path))
        assert whole.startswith(begun)
    assert len(through.read("rounds")) == 12


@pytest.mark.integration
@pytest.mark.parametrize("after", [1, 4, 7, 8])
def test_a_resumed_run_ends_after_the_same_round(after: int, ended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stop):
        fedsim.run(still(), run, callbacks=[Stopper(after)])
    assert not (run / "summary.csv").exists()
    watcher = Stopper(0)
    fedsim.resume(run, callbacks=[watcher])
    assert watcher.rounds == list(range(after + 1, 9))
    assert early_stopping_contents(run) == early_stopping_contents(ended)


@pytest.mark.integration
def test_without_a_validation_part_it_is_refused(tmp_path: Path) -> None:
    flags = ["--engine", "serial", "--clients", "20", "--patience", "2", "--out"]
    done = CliRunner().invoke(main, ["run", *flags, str(tmp_path / "run")])
    assert done.exit_code == 2
    assert done.stderr == (
        "error: train.patience 2 given; data set digits has no validation part to measure "
        "accuracy on: set data.val_fraction too, as in 0.1\n"
    )
    assert not (tmp_path / "run").exists()


LOGISTIC = 64 * 10 + 10
"""Parameters of the logistic model on digits."""
SPEEDS = "client_id,samples_per_second,download_mb_s,upload_mb_s"


def simulated_costs_config(algorithm="fedavg", **changes):
    """6 clients of digits, cohorts of 3, 3 rounds, one process."""
    sections = {
        "data": {"num_clients": 6},
        "model": {"name": "logistic"},
        "train": {"rounds": 3, "sample_rate": 0.5},
        "evaluation": {"every": 3},
        "engine": {"kind": "serial"},
    }
    for key, value in changes.items():
        sections[key] = sections.get(key, {}) | value if isinstance(value, dict) else value
    return RunConfig(algorithm=algorithm, **sections)


def run(path, *given, **changes):
    return fedsim.run(simulated_costs_config(*given, **changes), path)


def simulated_costs_contents(store):
    names = ("rounds", "clients", "classes", "partition", "errors")
    files = [store.path / f"{name}.csv" for name in names] + [store.path / "model.safetensors"]
    return {file.name: file.read_bytes() for file in files if file.exists()}


# bytes
@pytest.mark.integration
def test_fedavg_sends_the_model_to_each_client_and_back(tmp_path):
    store = run(tmp_path / "run")
    table = store.read("rounds")
    assert table["downlink_bytes"].tolist() == [3 * 4 * LOGISTIC] * 3
    assert table["uplink_bytes"].tolist() == [3 * 4 * LOGISTIC] * 3
    assert table["simulated_seconds"].isna().all()
    assert store.read("clients")["simulated_seconds"].isna().all()
    (row,) = store.read("summary").to_dict("records")
    assert row["downlink_bytes"] == row["uplink_bytes"] == 9 * 4 * LOGISTIC
    assert math.isnan(row["simulated_seconds"])


@pytest.mark.integration
@pytest.mark.slow
def test_fedbn_sends_less_and_fedpac_also_heads_and_prototypes(tmp_path):
    layout = prepare(simulated_costs_config(model={"name": "cnn"})).layout
    norm = sum(s.stop - s.start for s in layout.slots if s.batchnorm)
    head = sum(s.stop - s.start for s in layout.slots if s.head)
    (weight,) = (s.shape for s in layout.slots if s.head and len(s.shape) == 2)
    assert norm > 0
    table = run(tmp_path / "bn", "fedbn", model={"name": "cnn"}).read("rounds")
    assert (table["downlink_bytes"] == 3 * 4 * (layout.size - norm)).all()
    assert (table["uplink_bytes"] == 3 * 4 * (layout.size - norm)).all()
    table = run(tmp_path / "pac", "fedpac", model={"name": "cnn"}).read("rounds")
    # up: prototypes and H (C, d), counts (C,) int64, V and the head beside the features
    uploads = 4 * (layout.size - head) + 4 * (2 * math.prod(weight) + 1 + head) + 8 * weight[0]
    assert (table["uplink_bytes"] == 3 * uploads).all()
    # down: features and a mixed head; prototypes (C, d) and which are known (C,) from round 2 on
    sent, known = 4 * layout.size, 4 * math.prod(weight) + weight[0]
    assert table["downlink_bytes"].tolist() == [3 * sent, 3 * (sent + known), 3 * (sent + known)]


@dataclass(frozen=True)
class Asked(LocalRule):
    """Uploads five numbers in a pass before training."""

    def phases(self, env):
        return ()

    def finish(self, env, s):
        return Uplink({"answer": np.zeros(5)})


@dataclass(frozen=True)
class Answer:
    """Sends seven numbers to everybody."""

    def __call__(self, cohort, state, ctx):
        return Exchanged(downlink={"mean": np.zeros(7, np.float32)})


def probing() -> Algorithm:
    return Algorithm(probe=Probe(Asked(), Answer()))


@pytest.mark.integration
def test_a_pass_before_training_has_its_own_bytes(tmp_path):
    # a client's pace is known whatever it does before
    slow = {"samples_per_second": 100, "upload_mb_s": 1e-6, "work": 0.1}
    table = run(tmp_path / "run", f"{__name__}:probing", clock=slow).read("rounds")
    assert table["uplink_bytes"].tolist() == [3 * (4 * LOGISTIC + 4 * 5)] * 3
    assert table["downlink_bytes"].tolist() == [3 * (4 * LOGISTIC + 4 * 7)] * 3
    # 1 byte per second up
    plain = run(tmp_path / "plain", clock=slow).read("rounds")
    more = table["simulated_seconds"] - plain["simulated_seconds"]
    assert more.to_numpy() == pytest.approx(np.full(3, 20.0))


# seconds
def everybody(tmp_path, *pace, **changes):
    """Both of two clients in one round, at the given paces."""
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([SPEEDS, *pace]) + "\n")
    changes["clock"] = changes.get("clock", {}) | {"trace": str(trace)}
    train = {"rounds": 1, "sample_rate": 1.0, "batch_size": 100, "local_epochs": 2}
    return run(
        tmp_path / "run", data={"num_clients": 2, "partition": "iid"}, train=train, **changes
    )


@pytest.mark.integration
def test_the_seconds_of_a_round_by_hand(tmp_path):
    store = everybody(tmp_path, "0,100,0.0013,0.0026", "1,200,0.001,0.002")
    clients = store.read("clients")
    n = clients["num_samples"].to_numpy()
    # 2600 bytes each way: 2 s + 1 s, and 2.6 s + 1.3 s; two epochs between
    seconds = [2 + 2 * n[0] / 100 + 1, 2.6 + 2 * n[1] / 200 + 1.3]
    assert clients["simulated_seconds"].to_numpy() == pytest.approx(np.array(seconds))
    (row,) = store.read("rounds").to_dict("records")
    assert row["simulated_seconds"] == pytest.approx(max(seconds))
    assert store.read("summary")["simulated_seconds"][0] == row["simulated_seconds"]
    assert not (store.path / "errors.csv").exists()


@pytest.mark.integration
def test_a_client_that_is_late_is_left_out_at_the_deadline(tmp_path):
    late = {"deadline": 20}
    store = everybody(tmp_path, "0,1,1,1", "1,1000,1,1", clock=late)
    clients, (row,) = store.read("clients"), store.read("rounds").to_dict("records")
    assert clients["status"].tolist() == ["dropped", "ok"]
    assert clients["num_steps"].tolist() == [0, 2 * math.ceil(clients["num_samples"][1] / 100)]
    assert (row["cohort_size"], row["dropped"], row["simulated_seconds"]) == (2, 1, 20)
    # it was sent the model, which it trained in vain
    assert (row["downlink_bytes"], row["uplink_bytes"]) == (8 * LOGISTIC, 4 * LOGISTIC)
    (error,) = store.read("errors").to_dict("records")
    assert (error["client_id"], error["attempt"]) == (0, 0)
    assert error["error"].startswith("late: needs ")


@pytest.mark.integration
def test_a_client_that_is_late_does_the_steps_that_fit(tmp_path):
    # 100 samples a step at 10 per second: one step in 20 s less the milliseconds on the way
    partial = {"deadline": 20, "late": "partial"}
    store = everybody(tmp_path, "0,10,1,1", "1,1000,1,1", clock=partial)
    clients, (row,) = store.read("clients"), store.read("rounds").to_dict("records")
    full = 2 * math.ceil(clients["num_samples"][1] / 100)
    assert clients["num_steps"].tolist() == [1, full]
    assert clients["simulated_seconds"][0] == pytest.approx(10 + 2 * 0.0026)
    assert row["dropped"] == 0
    assert row["simulated_seconds"] == clients["simulated_seconds"][0]


@pytest.mark.integration
@pytest.mark.slow
def test_the_work_that_is_planned_is_the_work_that_is_done(tmp_path):
    store = run(tmp_path / "run", clock={"work": "uniform(0.1, 0.9)"}, train={"batch_size": 7})
    full = run(tmp_path / "full", train={"batch_size": 7}).read("clients")
    clients = store.read("clients")
    setup = prepare(
        simulated_costs_config(clock={"work": "uniform(0.1, 0.9)"}, train={"batch_size": 7})
    )
    planned = [
        setup.clock.participation(t - 1, c, n).max_steps
        for t, c, n in clients[["round", "client_id", "num_samples"]].itertuples(index=False)
    ]
    assert clients["num_steps"].tolist() == planned
    assert (clients["num_steps"] < full["num_steps"]).all()
    assert store.read("rounds")["simulated_seconds"].isna().all()


# absent clients
@pytest.mark.integration
def test_if_nobody_answers_the_model_is_kept(tmp_path):
    settings = {"clock": {"availability": 1e-9, "samples_per_second": 10}}
    store = run(tmp_path / "run", "fedpac", model={"name": "cnn"}, **settings)
    setup = prepare(simulated_costs_config("fedpac", model={"name": "cnn"}))
    initial = named_tensors(setup.initial, setup.layout)
    final = load_file(store.path / "model.safetensors")
    for name, tensor in initial.items():
        np.testing.assert_array_equal(tensor, final[name])
    assert load_file(store.path / "clients.safetensors") == {}
    table = store.read("rounds")
    assert table["dropped"].tolist() == [3, 3, 3]
    columns = ["downlink_bytes", "uplink_bytes", "simulated_seconds"]
    assert (table[columns] == 0).all(axis=None)
    assert len(store.read("errors")) == 9


# the run directory
CLOCK = {
    **{"samples_per_second": "lognormal(200, 1)", "upload_mb_s": "choice(0.001, 0.01)"},
    **{"availability": 0.8, "work": "uniform(0.3, 1)", "deadline": 4, "late": "partial"},
}


@pytest.mark.integration
@pytest.mark.slow
def test_a_run_with_a_clock_that_goes_on_has_the_same_bytes(tmp_path):
    settings = simulated_costs_config(
        "fedbn", model={"name": "cnn"}, clock=CLOCK, train={"rounds": 5}
    )
    wanted = fedsim.run(settings, tmp_path / "wanted")
    assert wanted.read("rounds")["dropped"].sum() > 0
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(settings, tmp_path / "run", callbacks=[Stopper(2, KeyboardInterrupt)])
    store = driver.resume(tmp_path / "run")
    assert simulated_costs_contents(store) == simulated_costs_contents(wanted)
    again = fedsim.run(load_config(file=wanted.path / "config.yaml"), tmp_path / "again")
    assert simulated_costs_contents(again) == simulated_costs_contents(wanted)
