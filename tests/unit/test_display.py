"""What is shown of running experiments: lines, bars, and trackers, which change no table."""

from __future__ import annotations

import builtins
import logging
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from tensorboardX.proto.event_pb2 import Event

import fedsim
from fedsim.cli import main, options
from fedsim.config.run import RunConfig
from fedsim.core.rows import RoundRow, Row, TimingRow
from fedsim.display import progress, tables, trackers
from fedsim.testing.rounds import config, results
from fedsim.training.callbacks import RunInfo

INFO = RunInfo(
    out=Path("out"), algorithm="fedld", dataset="digits", model="cnn", num_parameters=1234,
    num_clients=50, cohort_size=5, rounds=100, engine="serial", seed=3, config=RunConfig(),
)  # fmt: skip
SUMMARY = {
    "final_test_accuracy": 0.5, "best_test_accuracy": 0.75, "best_round": 7, "best_by": "test",
    "last10_test_accuracy": 0.625, "rounds": 100, "total_seconds": 12.34,
}  # fmt: skip


def rows(
    number: int, seconds: float, dropped: int = 0, accuracy: float | None = None
) -> dict[str, list[Row]]:
    row = RoundRow(
        round=number, lr=0.1, cohort_size=5, dropped=dropped, train_loss=1.0 / number,
        test_accuracy=accuracy,
    )  # fmt: skip
    timing = TimingRow(round=number, phase="total", seconds=seconds, bytes=0)
    return {"rounds": [row], "timings": [timing]}


def watch(watcher: progress.Lines, last: int) -> None:
    watcher.on_run_start(INFO)
    for number in range(1, last + 1):
        accuracy = 0.5 if number % 2 else None
        watcher.on_round_end(number, rows(number, 0.25, int(number == 4), accuracy))


def test_lines_are_at_most_about_twenty(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = progress.Lines()
    watch(watcher, 100)
    watcher.on_run_end(SUMMARY)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:3] == [
        "fedld on digits, cnn (1,234 parameters), seed 3",
        "50 clients, 5 per round, 100 rounds; serial",
        "writing to out",
    ]
    # every 100 / 20 = 5 rounds; round 10 has no accuracy of its own, but that of round 9
    rounds = [line for line in lines if line.startswith("round ")]
    assert len(rounds) == 20
    seconds = "0.25 s/round  clients failed 1"
    assert [rounds[0], rounds[1]] == [
        f"round   5/100  test accuracy 0.5000  train loss 0.2000  {seconds}",
        f"round  10/100  test accuracy 0.5000  train loss 0.1000  {seconds}",
    ]
    assert lines[-6].split() == ["final", "test", "accuracy", "0.5000"]
    assert lines[-5].endswith("0.7500 (round 7, chosen by test accuracy)")
    assert lines[-1].split() == ["files", "out"]
    assert "balanced" not in out, "what summary.csv does not have is left out"
    assert err == ""


def test_the_result_shows_the_other_metrics_and_a_collapse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"balanced_accuracy": 0.5, "macro_f1": 0.25, "auc": 0.875}
    summary = SUMMARY | {f"final_test_{name}": value for name, value in metrics.items()}
    progress.show_result(tmp_path, summary | {"epsilon": 7.5})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[4:8]] == [
        ["final", "balanced", "accuracy", "0.5000"],
        ["final", "macro-F1", "0.2500"],
        ["final", "AUC", "0.8750"],
        ["epsilon", "7.5000"],
    ]
    assert lines[-1].startswith("files"), "nothing is said of a collapse"
    classes = "round,label,support,recall,precision\n1,0,30,1.0,0.75\n1,1,10,0.0,0.0\n"
    (tmp_path / "classes.csv").write_text(classes)
    (tmp_path / "env.json").write_text('{"classes": ["no DR", "DR"]}')
    progress.show_result(tmp_path, summary)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "class 0 (no DR) is predicted for all 40 test samples in the last evaluation; balanced "
        "accuracy is that of chance, 0.5000 (2 classes)"
    )


def test_the_bar_stays_on_stderr_and_gives_the_terminal_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    watcher = progress.Bar()
    try:
        watch(watcher, 12)
    finally:
        watcher.close()
    out, err = capsys.readouterr()
    assert "round" not in out.replace("per round", "").replace("100 rounds", "")
    assert "12/100" in err
    assert "test accuracy 0.5000  train loss 0.0833" in err
    assert "clients failed 1  22 s left" in err
    assert watcher.interrupted() == (
        "interrupted after 12 of 100 rounds; resume with: fedsim resume out"
    )


def test_aligned_columns() -> None:
    rows = [{"name": "a", "n": "10"}, {"name": "long", "n": "-"}, {"name": "b", "n": "5 +- 2"}]
    assert tables.aligned(rows) == ["name       n", "a         10", "long       -", "b     5 +- 2"]


def test_python_shows_progress_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert progress.displays(None) == progress.displays(False) == []
    assert [type(shown) for shown in progress.displays(True)] == [progress.Lines]
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    assert [type(shown) for shown in progress.displays(None)] == [progress.Lines], "a notebook"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    (bar,) = progress.displays(None)
    assert isinstance(bar, progress.Bar)
    assert not bar.final_table


# ---- trackers

NAMES = tuple(trackers.TRACKERS)


@pytest.fixture(autouse=True)
def _folders(tmp_path_factory, monkeypatch):
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
@pytest.mark.parametrize("checkpoint", [1, 0])
def test_a_resumed_run_has_every_round(checkpoint, plain, tmp_path):
    killed(tmp_path / "run", checkpoint)
    resumed = fedsim.resume(tmp_path / "run")  # the run remembers its trackers
    assert results(resumed) == results(plain)
    assert_tracked(resumed.path)
    assert in_mlflow(resumed.path)[0].info.status == "FINISHED"


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
@pytest.mark.parametrize(("name", "hook"), [("tensorboard", "open"), ("mlflow", "log")])
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


@pytest.mark.parametrize(
    ("command", "name"),
    [(["run"], "tensorboard"), (["run"], "mlflow"), (["sweep", "grid.yaml"], "wandb")],
)
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


def test_names_of_trackers():
    assert tuple(trackers.TRACKERS) == options.TRACKERS
    with pytest.raises(fedsim.core.errors.ConfigError, match="did you mean 'tensorboard'"):
        fedsim.tracker("tensorbord")
    done = CliRunner().invoke(main, ["run", "--track", "tensorbord"])
    assert done.exit_code == 2
