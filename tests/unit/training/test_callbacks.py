"""Callbacks: what they are told, how they end a run, and that they change nothing else."""

from __future__ import annotations

import logging
import threading

import pytest

import fedsim
from fedsim.core.errors import StoreError
from fedsim.core.rows import TABLES
from fedsim.storage.run_dir import RunWriter
from fedsim.testing.rounds import config, results
from fedsim.training import driver

pytestmark = pytest.mark.integration


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
