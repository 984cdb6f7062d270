"""A run that is ended in any way and goes on ends with the bytes of one that was not."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.cli.options import flag_names
from fedsim.config.keys import FREE
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import (
    ConfigError,
    DataError,
    DivergedError,
    Interrupted,
    StoreError,
    WorkerError,
    exit_status,
)
from fedsim.engine.base import Incident
from fedsim.engine.serial import SerialExecutor
from fedsim.identity import resume
from fedsim.storage import checkpoint
from fedsim.storage.checkpoint import encode_record
from fedsim.storage.run_dir import RunStore, RunWriter
from fedsim.training import driver
from fedsim.training.early_stopping import EarlyStopping
from tests.commands import clean_environment
from tests.sampling import marked_beside
from tests.stopping import Stop, Stopper

pytestmark = pytest.mark.integration

ROUNDS = 6
METHODS = ("fedavg", "fedbn", "fedpac", "fedld", "fedld_released")
ONCE = marked_beside(("fedbn",), METHODS)
"""One of them, and with the slow tests the others."""


def config(method="fedavg", rounds=ROUNDS, **engine):
    return RunConfig(
        algorithm=method,
        data={"num_clients": 8, "alpha": 1.0, "test_fraction": 0.05},
        model={"name": "cnn" if method == "fedbn" else "mlp"},
        train={"rounds": rounds, "sample_rate": 0.375},
        engine={"kind": "serial"} | engine,
    )


def contents(run: Path) -> dict[str, bytes]:
    """What must be the same: all but times, environment, summary, placement and checkpoints."""
    names = {p.name for p in run.iterdir() if p.is_file()}
    names -= {"timings.csv", "env.json", "summary.csv", "config.yaml", files.LOCK_FILE}
    return {name: (run / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return {m: contents(fedsim.run(config(m), folder / m).path) for m in METHODS}


def stopped(path: Path, after: int, method="fedavg", error=Stop, **engine) -> Path:
    with pytest.raises(error):
        fedsim.run(config(method, **engine), path, [Stopper(after, error)])
    return path


def records(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").glob("*.json"))


@pytest.fixture
def told(caplog):
    """A function that gives the messages logged so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "fedsim"]


@pytest.fixture(autouse=True)
def silent(request, caplog):
    """Nothing is logged where a test does not ask what was."""
    yield
    if "told" not in request.fixturenames:
        assert not [r.getMessage() for r in caplog.get_records("call") if r.name == "fedsim"]


@pytest.mark.parametrize("method", ONCE)
def test_stopped_after_any_round_the_bytes_are_the_same(method, tmp_path, undisturbed):
    for after in range(1, ROUNDS + 1) if method == "fedbn" else (1, 4, ROUNDS):
        run = stopped(tmp_path / str(after), after, method)
        watcher = Stopper(0)
        store = driver.resume(run, callbacks=[watcher])
        assert contents(store.path) == undisturbed[method], f"stopped after round {after}"
        assert watcher.rounds == list(range(after + 1, ROUNDS + 1))
        assert watcher.infos[0].done == after
        timings = store.read("timings")
        assert not timings.duplicated(["round", "phase"]).any()
        assert timings.loc[timings["phase"] == "checkpoint", "round"].max() == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "fedld_released"])
@pytest.mark.parametrize(("every", "after", "start"), [(2, 3, 3), (4, 6, 6), (0, 2, 2)])
def test_an_end_leaves_a_checkpoint_of_the_last_complete_round(
    method, every, after, start, tmp_path, undisturbed
):
    run = stopped(tmp_path / "run", after, method, checkpoint_every=every)
    assert records(run)[-1] == f"round-{start:06d}.json"
    assert contents(driver.resume(run).path) == undisturbed[method]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "every"), [("fedbn", 0), ("fedbn", 1), ("fedpac", 4)])
def test_client_states_on_disk_give_the_same_bytes(method, every, tmp_path, undisturbed):
    engine = {"state_memory": 0, "checkpoint_every": every}
    store = fedsim.run(config(method, **engine), tmp_path / "run")
    assert contents(store.path) == undisturbed[method]
    run = stopped(tmp_path / "stopped", 5, method, **engine)
    assert contents(driver.resume(run).path) == undisturbed[method]


# damaged checkpoints


@pytest.fixture(scope="module")
def after_four(tmp_path_factory):
    return stopped(tmp_path_factory.mktemp("after") / "four", 4, "fedbn")


def newest_files(run: Path) -> list[Path]:
    record = run / "checkpoints" / records(run)[-1]
    content = json.loads(record.read_text())["checkpoint"]
    newest = f"clients-{content['round']:06d}.safetensors"
    names = [record.name, *content["arrays"], newest]
    return [record.parent / name for name in names]


def round_of(record: str) -> int:
    return int(record.removeprefix("round-").removesuffix(".json"))


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped": lambda path: flip(path, 0.5),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 10),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    which, damage, after_four, tmp_path, undisturbed, told
):
    if (which, damage) == (0, "missing"):
        pytest.skip("a checkpoint without its record does not count")
    run = shutil.copytree(after_four, tmp_path / "run")
    DAMAGE[damage](newest_files(run)[which])
    before = round_of(records(run)[0])
    watcher = Stopper(0)
    driver.resume(run, callbacks=[watcher])
    (line,) = told()
    assert re.match(r".*round-000004\.json cannot be used: ", line)
    assert watcher.infos[0].done == before < 4
    assert contents(run) == undisturbed["fedbn"]
    assert len(records(run)) == 2
    assert round_of(records(run)[1]) == ROUNDS


def shared_segment(run: Path) -> str:
    """A file of client states that all checkpoints of a run need."""
    contents = [json.loads((run / "checkpoints" / record).read_text()) for record in records(run)]
    return min(set.intersection(*(set(c["checkpoint"]["segments"]) for c in contents)))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["records", "segment"])
def test_where_no_checkpoint_is_whole_nothing_is_changed(
    what, after_four, tmp_path, undisturbed, told
):
    run = shutil.copytree(after_four, tmp_path / "run")
    for name in records(run) if what == "records" else [shared_segment(run)]:
        flip(run / "checkpoints" / name, 0.9)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    damage = (
        r"it(s checksum is wrong| is damaged)" if what == "records" else r"clients-\S+ is damaged"
    )
    both = rf"round-000004\.json: {damage}; round-00000\d\.json: {damage}"
    end = rf"remove {run}/checkpoints to start again from round 1"
    with pytest.raises(
        StoreError, match=rf"^none of 2 checkpoints of {run} can be .*{both}; {end}$"
    ):
        driver.resume(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    shutil.rmtree(run / "checkpoints")
    driver.resume(run)
    assert told() == [f"{run}: there is no checkpoint to resume from; starting again from round 1"]
    assert contents(run) == undisturbed["fedbn"]


@pytest.mark.slow
def test_a_table_that_lost_rows_is_not_gone_on_with(after_four, tmp_path, undisturbed, told):
    run = shutil.copytree(after_four, tmp_path / "run")
    os.truncate(run / "clients.csv", (run / "clients.csv").stat().st_size - 1)
    driver.resume(run)
    assert told()[0].endswith("cannot be used: clients.csv is shorter than it was then")
    assert contents(run) == undisturbed["fedbn"]


# changed tables


def change(path: Path, line: int) -> None:
    """Another digit in a line of a file, whose length stays the same."""
    lines = path.read_text().splitlines(keepends=True)
    at = max(i for i, letter in enumerate(lines[line - 1]) if letter.isalnum())
    other = "8" if lines[line - 1][at] != "8" else "3"
    lines[line - 1] = lines[line - 1][:at] + other + lines[line - 1][at + 1 :]
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    ("table", "line"),
    [("rounds", 1), ("rounds", 3), ("clients", 2), ("clients", 10), ("classes", 17)],
)
def test_a_changed_row_is_refused(table, line, after_four, tmp_path):
    run = shutil.copytree(after_four, tmp_path / "run")
    file = run / f"{table}.csv"
    change(file, line)
    assert file.stat().st_size == (after_four / file.name).stat().st_size
    before = contents(run)
    done = CliRunner().invoke(main, ["resume", str(run)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{file}: not what fedsim wrote" in done.stderr
    assert contents(run) == before


@pytest.mark.slow
def test_rows_and_files_of_later_rounds_and_of_a_kill_go(after_four, tmp_path, undisturbed):
    run = shutil.copytree(after_four, tmp_path / "run")
    with (run / "rounds.csv").open("a") as file:
        file.write("5,0.01,3")
    (run / "errors.csv").write_text("round,client_id,attempt,node,error\n5,1,1,,lost\n")
    for folder in (run, run / "checkpoints"):
        (folder / f"{files.UNFINISHED}x").mkdir()
        (folder / f"{files.UNFINISHED}x" / "file").write_text("half")
        (folder / f"{files.UNFINISHED}y").write_text("of fedsim 0.1.0")
    (run / "checkpoints" / "notes.txt").write_text("mine")
    driver.resume(run)
    assert contents(run) == undisturbed["fedbn"]
    assert not list(run.rglob(f"{files.UNFINISHED}*"))
    assert (run / "checkpoints" / "notes.txt").read_text() == "mine"


def reseal(record: Path, **changes) -> None:
    content = json.loads(record.read_text())["checkpoint"]
    record.write_bytes(encode_record(content | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": 2, "fedsim": "9.9"},
            r"format 2, written by fedsim 9\.9; this one reads format 1",
        ),
        ({"layout": "other"}, "the model has other tensors"),
        ({"settings": {}}, r"the run began without the key algorithm: another version of fedsim"),
        ({"device": "NVIDIA H200"}, "device cpu instead of NVIDIA H200 as in the rounds before"),
    ],
)
def test_what_does_not_fit_is_refused_and_left(changes, message, after_four, tmp_path):
    run = shutil.copytree(after_four, tmp_path / "run")
    reseal(run / "checkpoints" / records(run)[-1], **changes)
    with pytest.raises(ConfigError, match=message):
        driver.resume(run)
    assert contents(run) == contents(after_four)


def test_another_version_of_fedsim_is_told(after_four, tmp_path, undisturbed, told):
    run = shutil.copytree(after_four, tmp_path / "run")
    reseal(run / "checkpoints" / records(run)[-1], fedsim="9.9")
    driver.resume(run)
    (line,) = told()
    assert line.endswith(f"written by fedsim 9.9, goes on with {fedsim.__version__}")
    assert contents(run) == undisturbed["fedbn"]


@pytest.mark.slow
def test_another_version_of_torch_is_told_once(after_four, tmp_path, undisturbed, told):
    run = shutil.copytree(after_four, tmp_path / "run")
    before = json.loads((run / "env.json").read_text())
    now = before["packages"]["torch"]
    before["packages"]["torch"] = "1.0"
    (run / "env.json").write_text(json.dumps(before))
    with pytest.raises(Stop):
        driver.resume(run, callbacks=[Stopper(5)])
    (line,) = told()
    assert line == (
        f"{run}: the rounds so far were done with torch 1.0, those that follow with torch {now}: "
        "the last digits may differ from those of a run without interruption"
    )
    driver.resume(run)
    assert told() == [line], "the newest rounds were done with this version"
    assert contents(run) == undisturbed["fedbn"]


# what is refused


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("train", "lr", 0.02), ("train", "rounds", 9), ("data", "alpha", 0.5),
     ("engine", "on_client_failure", "drop")],
)  # fmt: skip
def test_an_edited_configuration_is_refused_with_its_key(section, key, value, after_four, tmp_path):
    run = shutil.copytree(after_four, tmp_path / "run")
    values = yaml.safe_load((run / "config.yaml").read_text())
    values[section][key] = value
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    before = contents(run)
    with pytest.raises(ConfigError, match=rf"config\.yaml \({section}\.{key}\): {value!r} given"):
        driver.resume(run)
    assert contents(run) == before


@pytest.mark.slow
def test_placement_may_change(after_four, tmp_path, undisturbed):
    run = shutil.copytree(after_four, tmp_path / "run")
    changes = {"engine.cpus_per_client": 2, "engine.checkpoint_every": 5, "engine.actors": 7}
    before = (run / "config.yaml").read_bytes()
    driver.resume(run, changes)
    assert contents(run) == undisturbed["fedbn"]
    assert (run / "config.yaml").read_bytes() == before
    with pytest.raises(
        ConfigError, match=r"train\.lr: train\.lr cannot change in a run that has begun"
    ):
        driver.resume(run, {"train.lr": 1.0})


@pytest.mark.parametrize("name", ["partition.csv", "split.csv"])
def test_other_data_are_refused(after_four, tmp_path, name):
    run = shutil.copytree(after_four, tmp_path / "run")
    flip(run / name, 0.5)
    with pytest.raises(DataError, match=rf"{name}: .*they, or this file, have changed"):
        driver.resume(run)


def test_other_listed_clients_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = tmp_path / "clients.csv"
    listed.write_text("round,client_id\n1,0\n1,1\n2,2\n")
    wanted = config(rounds=2)
    train = {**wanted.train.model_dump(), "selection": "fixed", "clients": "clients.csv"}
    wanted = RunConfig(**{**wanted.model_dump(), "train": train})
    with pytest.raises(Stop):
        fedsim.run(wanted, "run", [Stopper(1)])
    kept, before = listed.read_text(), contents(tmp_path / "run")
    listed.write_text(kept.replace("2,2", "2,3"))
    with pytest.raises(DataError, match=r"train\.clients clients\.csv: it has changed since"):
        driver.resume(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    listed.write_text(kept)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises((ConfigError, DataError), match=r"clients\.csv"):
        driver.resume(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert driver.resume(tmp_path / "run").clients.client_id.tolist() == [0, 1, 2]


def test_a_finished_run_is_left_as_it_is(tmp_path):
    store = fedsim.run(config(rounds=1), tmp_path / "run")
    times = {p: p.stat().st_mtime_ns for p in store.path.rglob("*")}
    assert driver.resume(store.path).path == store.path
    assert {p: p.stat().st_mtime_ns for p in store.path.rglob("*")} == times


@pytest.mark.parametrize("missing", [["summary.csv"], ["summary.csv", "model.safetensors"]])
def test_killed_after_the_last_round(missing, tmp_path, undisturbed):
    run = fedsim.run(config(), tmp_path / "run").path
    wanted = pd.read_csv(run / "summary.csv").drop(columns="total_seconds")
    for name in missing:
        (run / name).unlink()
    driver.resume(run)
    assert contents(run) == undisturbed["fedavg"]
    pd.testing.assert_frame_equal(
        pd.read_csv(run / "summary.csv").drop(columns="total_seconds"), wanted
    )


def test_killed_before_the_first_round(tmp_path, undisturbed, told):
    run = stopped(tmp_path / "run", 1)
    shutil.rmtree(run / "checkpoints")
    for name in ("partition", "rounds", "clients", "classes", "timings"):
        (run / f"{name}.csv").unlink()
    driver.resume(run)
    assert told() == [f"{run}: there is no checkpoint to resume from; starting again from round 1"]
    assert contents(run) == undisturbed["fedavg"]


# errors


class Failing(SerialExecutor):
    """Loses a client in round 3 and fails."""

    def run(self, tasks, models, states):
        if tasks[0].ctx.round == 2:
            self._incidents.append(Incident(tasks[0].client, 1, "node", "lost"))
            raise WorkerError("round 3: no actor came up")
        return super().run(tasks, models, states)


def test_an_error_leaves_a_checkpoint_and_what_was_lost(tmp_path, undisturbed, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(driver, "make_executor", lambda s, _: Failing(s.spec, s.config.engine))
        with pytest.raises(WorkerError, match="no actor came up"):
            fedsim.run(config(checkpoint_every=5), tmp_path / "run")
    assert records(tmp_path / "run") == ["round-000002.json"]
    (lost,) = RunStore(tmp_path / "run").read("errors").to_dict("records")
    assert (lost["round"], lost["error"]) == (3, "lost")
    assert contents(driver.resume(tmp_path / "run").path) == undisturbed["fedavg"]


@pytest.fixture(autouse=True)
def without_rest(monkeypatch):
    """A checkpoint follows each round that ends after the one before is written."""
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)


def full_disk(monkeypatch, pattern: str, after: int) -> None:
    """Lets the disk be full for files of a name, from a number of them on."""
    real, count = files.os.fsync, [0]

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        count[0] += re.search(pattern, name) is not None
        if count[0] > after and re.search(pattern, name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", fsync)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "memory"),
    [("round-.*json", 1), ("round-.*tensors", 1), ("rounds.csv", 1), ("clients-", 1),
     ("clients-", 0)],
)  # fmt: skip
def test_a_full_disk_is_a_clear_error_and_tears_nothing(
    pattern, memory, tmp_path, undisturbed, monkeypatch
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        full_disk(patch, pattern, 1)  # a busy disk makes few checkpoints, but always the last
        with pytest.raises(StoreError, match=r"/(run|checkpoints)/.* \(No space left on device\)"):
            fedsim.run(config("fedbn", state_memory=memory), run)
    assert records(run)
    driver.resume(run)
    assert contents(run) == undisturbed["fedbn"]


# what is written while the next round is done


def beside(monkeypatch, at: int, table: str = "clients", call=lambda path: None) -> list[int]:
    """Has a round's table written, after a call, only once the next round is being done.

    Returns:
        The rounds as they begin.
    """
    append, do, begun, next_begun = RunWriter.append, driver.run_round, [], threading.Event()

    def late(self, name, rows):
        rows = list(rows)
        if name == table and rows[0]["round"] == at:
            assert at == ROUNDS or next_begun.wait(30)
            call(self.path / f"{table}.csv")
        append(self, name, rows)

    def watched(setup, executor, state, ctx, log):
        begun.append(log.round)
        if log.round == at + 1:
            next_begun.set()
        return do(setup, executor, state, ctx, log)

    monkeypatch.setattr(RunWriter, "append", late)
    monkeypatch.setattr(driver, "run_round", watched)
    return begun


def full(path: Path) -> None:
    with path.open("a") as file:
        file.write("3,1,o")
    raise StoreError(f"{path}: cannot be written (No space left)")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_round_begins_before_the_one_before_is_written(
    method, tmp_path, undisturbed, monkeypatch
):
    written = []
    begun = beside(monkeypatch, 3, call=lambda _: written.append(list(begun)))
    run = fedsim.run(config(method), tmp_path / "run").path
    assert written == [[1, 2, 3, 4]]  # and no further one
    assert contents(run) == undisturbed[method]


@pytest.mark.slow
@pytest.mark.parametrize("error", [WorkerError, DivergedError, Interrupted])
@pytest.mark.parametrize("fits", [True, False])
def test_what_ends_a_round_lets_the_one_before_be_written(
    fits, error, tmp_path, undisturbed, monkeypatch
):
    """As if that had been done first: it is complete, or its own error is what ends the run."""
    run, ended = tmp_path / "run", threading.Event()

    def late(path):
        assert ended.wait(30)
        if not fits:
            full(path)

    def end(setup, executor, state, ctx, log):
        if log.round < 4:
            return do(setup, executor, state, ctx, log)
        threading.Timer(0.2, ended.set).start()  # when this round has ended
        if error is Interrupted:
            signal.raise_signal(signal.SIGINT)
        raise error("round 4")

    with monkeypatch.context() as patch:
        do = driver.run_round
        patch.setattr(driver, "run_round", end)
        beside(patch, 3, call=late)
        with pytest.raises(error if fits else StoreError) as caught:
            fedsim.run(config("fedbn", checkpoint_every=9), run)
    assert fits or "No space left" in str(caught.value)
    assert records(run) == [f"round-{3 if fits else 2:06d}.json"]
    assert contents(driver.resume(run).path) == undisturbed["fedbn"]


def killed_while_writing(run: Path, table: str) -> None:
    """A run whose process ends in the middle of a row of round 3, while round 4 is done."""

    def torn(path):
        with path.open("a") as file:
            file.write("3,1,o")
        while not records(run):  # another thread is writing the first one
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    beside(pytest.MonkeyPatch(), 3, table, torn)
    fedsim.run(config("fedbn", state_memory=0), run)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["rounds", "clients", "models", "timings"])
def test_killed_while_a_round_is_written(table, tmp_path, undisturbed):
    arguments = (tmp_path / "run", table)
    process = get_context("spawn").Process(target=killed_while_writing, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert contents(driver.resume(tmp_path / "run").path) == undisturbed["fedbn"]


# signals


@pytest.mark.slow
def test_a_signal_between_the_rows_of_a_round_waits(tmp_path, undisturbed, monkeypatch):
    real = RunWriter.append

    def append(self, table, rows):
        rows = list(rows)
        if table == "clients" and rows[0]["round"] == 3:
            signal.raise_signal(signal.SIGTERM)
        real(self, table, rows)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "append", append)
        watcher = Stopper(0)
        with pytest.raises(Interrupted) as caught:
            fedsim.run(config("fedbn"), tmp_path / "run", [watcher])
    assert exit_status(caught.value) == 143
    assert watcher.rounds == [1, 2, 3]  # what is written down is told
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert records(tmp_path / "run")[-1] == "round-000003.json"
    assert contents(driver.resume(tmp_path / "run").path) == undisturbed["fedbn"]


def test_a_second_signal_does_not_wait(tmp_path, monkeypatch):
    def add(self, number, accuracy):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(EarlyStopping, "add", add)
    with pytest.raises(Interrupted) as caught:
        fedsim.run(config(checkpoint_every=9), tmp_path / "run")
    assert caught.value.again
    assert not (tmp_path / "run" / "checkpoints").exists()


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    environment = clean_environment()
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "fedsim", *args]
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=cwd,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "status"),
    [(15, 143), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 130), (9, -9)))],
)
def test_signals_to_a_process(number, status, tmp_path):
    long = 400
    args = ["run", "-a", "fedbn", "--rounds", str(long), "--clients", "8", "--sample-rate", "0.375"]
    args += ["--engine", "serial", "--set", f"evaluation.every={long}", "--out", "r"]
    with start(*args, cwd=tmp_path) as process:
        while len(list((tmp_path / "r" / "checkpoints").glob("*.json"))) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == status, errors
    if number != 9:
        line = rf"interrupted after (\d+) of {long} rounds; resume with: fedsim resume r\n"
        result = re.fullmatch(line, errors)
        assert result, errors
        assert records(tmp_path / "r")[-1] == f"round-{int(result[1]):06d}.json"
    rows = len(pd.read_csv(tmp_path / "r" / "rounds.csv"))
    assert rows < long
    # it can go on: some rounds more, then compare with a run that was never disturbed
    after = rows + 4
    wanted = quit_after(tmp_path / "other", long, after)
    with pytest.raises(Stop):
        driver.resume(tmp_path / "r", callbacks=[Stopper(after)])
    assert contents(tmp_path / "r") == contents(wanted)


def quit_after(path: Path, long: int, after: int) -> Path:
    """A run of the same configuration, stopped after a round."""
    settings = RunConfig(
        algorithm="fedbn",
        data={"num_clients": 8},
        train={"rounds": long, "sample_rate": 0.375},
        evaluation={"every": long},
        engine={"kind": "serial"},
    )
    with pytest.raises(Stop):
        fedsim.run(settings, path, [Stopper(after)])
    return path


# the command line


@pytest.mark.slow
def test_the_command_goes_on_and_shows_a_finished_run(after_four, tmp_path, undisturbed, told):
    run = shutil.copytree(after_four, tmp_path / "run")
    flip(newest_files(run)[1], 0.5)
    first = CliRunner().invoke(main, ["resume", str(run), "--checkpoint-every", "2"])
    assert first.exit_code == 0, first.output
    assert re.search(rf"resuming {run} after round [123]\n", first.stdout)
    assert first.stderr.count("\n") == 1
    assert contents(run) == undisturbed["fedbn"]
    again = CliRunner().invoke(main, ["resume", str(run)])
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"{run} is finished; its result:\n")
    shown = [done.stdout.partition("\nresult ")[2] for done in (first, again)]
    assert shown[0] == shown[1] != ""


DAMAGED = [b"{", b"", b"[]", b"3", b"\xff\xfe"]


@pytest.mark.parametrize(
    ("name", "content"),
    [*itertools.product(["env.json", "config.yaml"], DAMAGED), ("env.json", b"[" * 100_000)],
    ids=lambda value: repr(value[:12]),
)
def test_a_damaged_file_is_refused_and_named(name, content, after_four, tmp_path, undisturbed):
    run = shutil.copytree(after_four, tmp_path / "run")
    whole = (run / name).read_bytes()
    (run / name).write_bytes(content)
    before = contents(run)
    done = CliRunner().invoke(main, ["resume", str(run), "--engine", "serial"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{run / name}" in done.stderr
    assert contents(run) == before
    assert (run / name).read_bytes() == content
    (run / name).write_bytes(whole)
    assert CliRunner().invoke(main, ["resume", str(run)]).exit_code == 0
    assert contents(run) == undisturbed["fedbn"]


def test_what_resume_takes_is_what_may_change():
    assert set(main.commands["resume"].flags) == (flag_names().keys() & FREE) - {"label"}


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.slow
def test_a_sweep_sets_aside_what_it_cannot_go_on_with(tmp_path):
    wanted = config("fedbn")
    run = stopped(tmp_path / "run", 2, "fedbn")
    assert resume.can_resume(wanted, run)
    assert resume.can_resume(config("fedbn", actors=3, checkpoint_every=7), run)
    assert not resume.can_resume(config("fedbn", rounds=7), run)
    assert not resume.can_resume(wanted, tmp_path / "nothing")
    (run / "config.yaml").write_text("a: [")
    assert not resume.can_resume(wanted, run)
    run = stopped(tmp_path / "early", 1)
    shutil.rmtree(run / "checkpoints")
    assert not resume.can_resume(config(), run)
