"""Trackers: what they are given is what the tables have, and the tables do not change."""

from __future__ import annotations

import logging
import math
import struct
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

import fedsim
from fedsim.cli import main, options
from fedsim.display import trackers
from fedsim.testing.rounds import config, results

pytestmark = pytest.mark.integration
NAMES = tuple(trackers.TRACKERS)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory, monkeypatch):
    """What the packages write beside the run directory goes to a folder of the test's."""
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("wandb")))
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def settings(**sections):
    """Four rounds with own models of the clients, evaluated in rounds 2 and 4."""
    given = {"train": {"rounds": 4}, "evaluation": {"every": 2}}
    given["engine"] = {"checkpoint_every": 1, "keep_checkpoints": 10}
    return config("fedbn", **{key: value | sections.get(key, {}) for key, value in given.items()})


def run(path, names=NAMES, callbacks=(), **sections):
    made = [fedsim.tracker(name) for name in names]
    return fedsim.run(settings(**sections), path, callbacks=[*made, *callbacks])


def expected(path):
    """By column and round what rounds.csv has."""
    rows = pd.read_csv(path / "rounds.csv").set_index("round").to_dict("index")
    cells = {(c, number): v for number, row in rows.items() for c, v in row.items()}
    return {key: float(value) for key, value in cells.items() if not math.isnan(value)}


def events(path):
    """The events of all event files, read without tensorboardX but for the message itself."""
    found = []
    for file in sorted((path / "tensorboard").iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            assert len(data) >= at + 16 + length, "a record is cut off"
            at += 16 + length
    return found


def in_tensorboard(path):
    """By tag and step the scalars."""
    values = {(v.tag, e.step, v.simple_value) for e in events(path) for v in e.summary.value
              if v.HasField("simple_value")}  # fmt: skip
    found = {(tag, step): value for tag, step, value in values}
    assert len(found) == len(values), "a step has two values"
    return found


def in_mlflow(path):
    """By key and step the metrics of the only run."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(path / "mlflow").as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "fedsim"]
    (only,) = client.search_runs([experiment.experiment_id])
    history = [
        m for key in only.data.metrics for m in client.get_metric_history(only.info.run_id, key)
    ]
    return only, {
        (m.key, m.step): m.value for m in history if not m.key.startswith(("final", "best"))
    }


def assert_tracked(path):
    """MLflow has what rounds.csv has, TensorBoard in float32, and W&B a run."""
    wanted = expected(path)
    assert in_tensorboard(path) == {key: np.float32(value) for key, value in wanted.items()}
    assert list((path / "wandb").glob("offline-run-*/*.wandb"))
    assert in_mlflow(path)[1] == wanted


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The run without trackers."""
    return run(tmp_path_factory.mktemp("plain") / "run", ())


@pytest.mark.slow
def test_the_tables_are_the_same_bytes_and_the_trackers_have_them(plain, tmp_path):
    tracked = run(tmp_path / "tracked")
    assert results(tracked) == results(plain)
    assert (tracked.path / "config.yaml").read_bytes() == (plain.path / "config.yaml").read_bytes()
    more = {p.name for p in tracked.path.iterdir()} - {p.name for p in plain.path.iterdir()}
    assert more == set(NAMES)
    assert_tracked(tracked.path)


@pytest.mark.slow
def test_histograms_of_clients_and_hyperparameters(tmp_path):
    store = run(tmp_path / "run", ("tensorboard",))
    found = {(v.tag, e.step): v.histo for e in events(store.path) for v in e.summary.value
             if v.HasField("histo")}  # fmt: skip
    tags = ("train_loss", "update_norm", "test_loss", "test_accuracy")
    assert found.keys() == {(f"clients/{tag}", step) for tag in tags for step in (2, 4)}
    accuracies = store.read("evaluations").query("round == 4 and split == 'test'")["accuracy"]
    histogram = found["clients/test_accuracy", 4]
    assert (histogram.num, histogram.sum) == (8, pytest.approx(accuracies.sum()))
    assert (histogram.min, histogram.max) == (accuracies.min(), accuracies.max())
    first = {v.tag: v for e in events(store.path) for v in e.summary.value if e.step == 0}
    data = first["_hparams_/session_start_info"].metadata.plugin_data.content
    values = HParamsPluginData.FromString(data).session_start_info.hparams
    assert values["train.lr"].number_value == 0.02
    assert values["algorithm"].string_value == "fedbn"
    assert b"train.lr: 0.02" in first["config/text_summary"].tensor.string_val[0]


@pytest.mark.slow
def test_settings_and_results_in_mlflow(tmp_path):
    store = run(tmp_path / "run", ("mlflow",))
    only, _ = in_mlflow(store.path)
    assert only.info.run_name == "run"
    assert only.info.status == "FINISHED"
    assert (only.data.params["train.lr"], only.data.params["algorithm"]) == ("0.02", "fedbn")
    accuracy = store.summary["final_test_accuracy"]
    assert only.data.metrics["final_test_accuracy"] == accuracy


class Stop(fedsim.Callback):
    def on_round_end(self, round, rows):
        return "stop" if round == 3 else None


def killed(path, checkpoint):
    """A run as a kill after round 3 leaves it, with a newest checkpoint of an earlier round."""
    run(path, callbacks=[Stop()])
    for file in (path / "checkpoints").glob("round-*"):
        if int(file.name[6:12]) > checkpoint:
            file.unlink()
    for name in ("summary.csv", "model.safetensors"):
        (path / name).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [1, 0, 3])
def test_a_resumed_run_has_every_round(checkpoint, plain, tmp_path):
    killed(tmp_path / "run", checkpoint)
    resumed = fedsim.resume(tmp_path / "run")  # the run remembers its trackers
    assert results(resumed) == results(plain)
    assert_tracked(resumed.path)
    assert in_mlflow(resumed.path)[0].info.status == "FINISHED"


@pytest.mark.slow
def test_a_tracker_that_comes_later_gets_the_rounds_before(tmp_path):
    run(tmp_path / "run", (), [Stop()])
    for name in ("summary.csv", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    done = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--track", "tensorboard"])
    assert done.exit_code == 0, done.output
    wanted = {key: np.float32(v) for key, v in expected(tmp_path / "run").items()}
    assert len({step for _, step in wanted}) == 4
    assert in_tensorboard(tmp_path / "run") == wanted


@pytest.mark.slow
def test_a_failed_run_is_closed_and_the_next_one_is_another(tmp_path, monkeypatch):
    class Broken(fedsim.Callback):
        def on_round_end(self, round, rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "failed", callbacks=[Broken()])
    assert in_mlflow(tmp_path / "failed")[0].info.status == "FAILED"
    assert_tracked(run(tmp_path / "next").path)
    assert_tracked(fedsim.resume(tmp_path / "failed").path)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["open", "log"])
@pytest.mark.parametrize("name", NAMES)
def test_an_exception_in_a_tracker_is_a_warning(name, hook, plain, tmp_path, monkeypatch, caplog):
    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(trackers.TRACKERS[name], hook, broken)
    with caplog.at_level(logging.WARNING, "fedsim"):
        assert results(run(tmp_path / "run", (name,))) == results(plain)
    said = [
        r.getMessage()
        for r in caplog.records
        if "failed: OSError('no space left')" in r.getMessage()
    ]
    assert len(said) == 1, "once, not in each round"


ARGUMENTS = ("--engine", "serial", "--rounds", "1", "--clients", "3", "--sample-rate", "1")


@pytest.mark.parametrize("command", [["run"], ["sweep", "grid.yaml"]])
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_said_before_anything_starts(command, name, tmp_path, monkeypatch):
    kind = trackers.TRACKERS[name]
    monkeypatch.setitem(sys.modules, kind.module, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text("grid:\n  seed: [0]\n")
    done = CliRunner().invoke(main, [*command, *ARGUMENTS, "--out", "run", "--track", name])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: --track {name}: ")
    assert done.stderr.endswith(f"pip install {kind.package}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_goes_on_without_a_package_that_has_gone(plain, tmp_path, monkeypatch, caplog):
    run(tmp_path / "run", ("tensorboard",), [Stop()])
    (tmp_path / "run" / "summary.csv").unlink()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with caplog.at_level(logging.WARNING, "fedsim"):
        assert results(fedsim.resume(tmp_path / "run")) == results(plain)
    assert any("resumed without this tracker" in r.getMessage() for r in caplog.records)


def test_names_of_trackers():
    assert tuple(trackers.TRACKERS) == options.TRACKERS
    with pytest.raises(fedsim.core.errors.ConfigError, match="did you mean 'tensorboard'"):
        fedsim.tracker("tensorbord")
    done = CliRunner().invoke(main, ["run", "--track", "tensorbord"])
    assert done.exit_code == 2
