"""The run directory: what is refused, and what the bytes of a table are."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import subprocess
import sys

import numpy as np
import pytest

import fedsim
from fedsim.core import files
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.rows import TABLES
from fedsim.storage.run_dir import RunWriter, cell, check_free, default_path
from tests.commands import clean_environment
from tests.unit.cli.test_runs import write_run


def row(table, values):
    """A row of a table; what is not given is not available."""
    kind = TABLES[table]
    return kind(**(dict.fromkeys(kind.columns()) | values))


PUBLISHED = {
    "partition": "client_id,label,train_samples,test_samples",
    "split": "sample,part,client_id,label,file,patient,site",
    "rounds": "round,lr,cohort_size,dropped,train_loss,val_loss,val_accuracy,test_loss,"
    "test_accuracy,test_balanced_accuracy,test_macro_f1,test_auc,conflict_ratio,update_norm",
    "clients": "round,client_id,status,num_samples,num_steps,train_loss,update_norm",
    "classes": "round,label,support,recall,precision",
    "confusion": "round,label,prediction,count",
    "evaluations": "round,client_id,group,split,num_samples,loss,accuracy",
    "decomposition": "round,split,scope,local_loss,shift_loss,aggregation_loss,global_loss",
    "loss_matrix": "round,model,owner,loss",
    "cosines": "round,client_a,client_b,cosine",
    "spectrum": "round,axis,share",
    "server": "round,name,value",
    "models": "round,sha256",
    "timings": "round,phase,seconds,bytes",
    "errors": "round,client_id,attempt,node,error",
    "final_clients": "client_id,held_out,split,num_samples,loss,accuracy,finetuned_loss,"
    "finetuned_accuracy",
}


@pytest.mark.parametrize("table", PUBLISHED)
def test_columns_are_the_published_ones_and_more_only_at_the_end(table):
    assert ",".join(TABLES[table].columns()).startswith(PUBLISHED[table])
    assert len(set(TABLES[table].columns())) == len(TABLES[table].columns())


@pytest.mark.parametrize("header", ["", "round,label,recall", f"{PUBLISHED['classes']},auc,more"])
def test_a_table_with_other_columns_is_left_alone(header, tmp_path):
    (tmp_path / "classes.csv").write_text(f"{header}\n")
    with pytest.raises(StoreError, match=r"classes\.csv, line 1: the header is .*expected 'round,"):
        RunWriter(tmp_path).append("classes", [row("classes", {"round": 1})])
    assert (tmp_path / "classes.csv").read_text() == f"{header}\n"


def test_a_new_or_empty_directory_is_taken_and_what_holds_something_is_left(tmp_path):
    new = tmp_path / "a" / "b"
    assert RunWriter.create(new).path == RunWriter.create(new).path == new
    (tmp_path / "full").mkdir()
    for file in ("full/.hidden", "file"):
        (tmp_path / file).write_text("mine")
        name = file.partition("/")[0]
        for refuse in (check_free, RunWriter.create):
            with pytest.raises(ConfigError, match=rf"--out .*{name}: exists and is not an empty"):
                refuse(tmp_path / name)
        assert (tmp_path / file).read_text() == "mine"


def test_what_a_start_leaves_that_failed_right_away_is_no_obstacle(tmp_path):
    with files.lock(tmp_path):
        pass
    (tmp_path / "checkpoints").mkdir()
    assert RunWriter.create(tmp_path).path == tmp_path
    (tmp_path / "checkpoints" / "round-000001.json").write_text("")
    with pytest.raises(ConfigError, match="exists and is not an empty"):
        check_free(tmp_path)


HOLD = """if True:
    import sys, time
    from pathlib import Path
    from fedsim.core import files
    with files.lock(Path(sys.argv[1])):
        print("locked", flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
def test_the_lock_of_another_process_names_it_until_it_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, env=clean_environment()
    ) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            holder = rf"{tmp_path}: another live run .* \(pid {other.pid} on {platform.node()}\)$"
            for _ in range(2):  # to look does not erase the name
                with pytest.raises(ConfigError, match=holder), files.lock(tmp_path):
                    pass
        finally:
            other.kill()
    with files.lock(tmp_path):
        name = f"pid {os.getpid()} on {platform.node()}\n"
        assert (tmp_path / files.LOCK_FILE).read_text() == name
        again = rf"pid {os.getpid()} on "
        with pytest.raises(ConfigError, match=again), files.lock(tmp_path):
            pass
    assert (tmp_path / files.LOCK_FILE).read_text() == ""


@pytest.mark.parametrize(
    ("length", "left"), [(0, None), (30, "round,phase,seconds,bytes\n1,a,"), (99, None)]
)
def test_a_table_is_cut_to_a_length_or_to_its_last_whole_row(length, left, tmp_path):
    text = "round,phase,seconds,bytes\n1,a,0.5,0\n2,a,0."
    (tmp_path / "timings.csv").write_text(text)
    (tmp_path / "errors.csv").write_text("round,cli")
    RunWriter(tmp_path).truncate_tables({"timings.csv": length, "errors.csv": 50} if length else {})
    if length == 99:
        left = "round,phase,seconds,bytes\n1,a,0.5,0\n"
    assert not (tmp_path / "errors.csv").exists()
    assert ((tmp_path / "timings.csv").read_text() if left else None) == left
    assert (tmp_path / "timings.csv").exists() == bool(left)


def test_the_bytes_of_a_table(tmp_path):
    run = RunWriter(tmp_path)
    rows = [
        {"round": 1, "client_id": 0, "status": "ok", "num_samples": 3, "num_steps": np.int64(2)},
        {"update_norm": 0.1 + 0.2, "train_loss": float("nan"), "round": np.int32(1)},
    ]
    run.append("clients", [row("clients", values) for values in rows])
    run.append("clients", [])
    run.append(
        "clients",
        [row("clients", {"round": 2, "train_loss": np.float32(0.5), "status": "dropped"})],
    )
    assert (tmp_path / "clients.csv").read_bytes() == (
        b"round,client_id,status,num_samples,num_steps,train_loss,update_norm,simulated_seconds\n"
        b"1,0,ok,3,2,,,\n"
        b"1,,,,,,0.30000000000000004,\n"
        b"2,,dropped,,,0.5,,\n"
    )


def test_text_with_commas_and_line_ends_stays_one_cell(tmp_path):
    run, text = RunWriter(tmp_path), 'RuntimeError: "a", b\nc'
    run.append(
        "errors",
        [row("errors", {"round": 1, "client_id": 2, "attempt": 1, "node": "", "error": text})],
    )
    assert run.read("errors")["error"].tolist() == [text]


CELLS = {
    **{"": None, "0.1": 0.1, "1.0": 1.0, "1e-300": 1e-300, "5e-324": 5e-324, "1e+22": 1e22},
    **{"-0.0": -0.0, "0.3333333333333333": 1 / 3, "0.6666666666666666": np.float64(2 / 3)},
    **{"0.10000000149011612": np.float32(0.1), "7": 7, "-7": np.int64(-7), "True": True},
    **{"ok": "ok", "inf": float("inf"), " x": "\rx", "-1.5": -1.5, "'s-Graven": "'s-Graven"},
}


@pytest.mark.parametrize("text", CELLS)
def test_cells(text):
    assert cell(CELLS[text]) == text
    assert cell(float("nan")) == cell(np.float32("nan")) == ""


NAMES = ("=1+1", "-1", "@a,b", "'", "a=b", "'s-Graven")


def partition_of(name):
    """The columns of partition.csv for one client."""
    numbers = {"client_id": 0, "label": 0, "train_samples": 3, "test_samples": 0}
    return {k: np.array([v]) for k, v in numbers.items()} | {"name": np.array([name], object)}


@pytest.mark.parametrize("name", NAMES)
def test_names_read_back_as_they_were(name, tmp_path):
    run = RunWriter(tmp_path)
    run.write_partition(partition_of(f"{name} x"))
    assert run.read("partition")["name"].tolist() == [f"{name} x"]


def test_numbers_read_back_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=500) * 10.0 ** rng.integers(-30, 30, 500)
    run = RunWriter(tmp_path)
    run.append("classes", [row("classes", {"round": i, "recall": v}) for i, v in enumerate(values)])
    with (tmp_path / "classes.csv").open() as file:
        written = [float(line.split(",")[3]) for line in list(file)[1:]]
    assert written == values.tolist()
    table = run.read("classes")
    np.testing.assert_allclose(table["recall"], values, rtol=1e-15)
    assert table["precision"].isna().all()
    assert table["round"].tolist() == list(range(500))


def test_only_an_empty_cell_is_not_available(tmp_path):
    names = ["NA", "None", "null", "nan", "N/A", ""]
    run = RunWriter(tmp_path)
    run.append(
        "partition",
        [row("partition", {"client_id": i, "name": name}) for i, name in enumerate(names)],
    )
    read = run.read("partition")
    assert read["name"].tolist()[:5] == names[:5]
    assert read["name"].isna().tolist() == [False] * 5 + [True]
    assert read["label"].isna().all()


def test_a_missing_table_is_named_with_those_that_are_there(tmp_path):
    run = RunWriter(tmp_path)
    with pytest.raises(StoreError, match=r"rounds\.csv does not exist; the run has no tables"):
        run.read("rounds")
    run.append("timings", [])
    run.append("errors", [])
    with pytest.raises(StoreError, match=r"rounds\.csv does not exist; the run has errors, tim"):
        run.read("rounds")


def test_default_paths_are_new():
    paths = {default_path("digits", "my.module:build") for _ in range(20)}
    assert len(paths) >= 19  # two of 20 names in a second are the same once in 350 times
    for path in paths:
        assert re.fullmatch(r"runs/digits/my\.module\.build/\d{8}-\d{6}-[0-9a-f]{4}", str(path))


# What ``fedsim.run`` returns: results to read, and nothing that writes


def test_tables_of_a_run_without_an_end(tmp_path):
    store = fedsim.RunStore(str(write_run(tmp_path / "a")))
    assert store.path == tmp_path / "a"
    assert store.rounds["test_accuracy"].tolist() == [0.25, 0.75, 0.5]
    assert store.read("rounds").equals(store.rounds)
    assert not store.finished
    with pytest.raises(StoreError, match=r"summary\.csv does not exist; the run has rounds"):
        _ = store.summary
    with pytest.raises(StoreError, match=r"clients\.csv does not exist"):
        _ = store.clients


def test_it_reads_and_does_not_write(tmp_path):
    store = fedsim.RunStore(write_run(tmp_path / "a", end=True))
    public = {name for name in dir(store) if not name.startswith("_")}
    assert public == {
        "path", "finished", "summary", "rounds", "clients", "read", "read_environment",
        "read_words", "read_preprocessing",
    }  # fmt: skip
    assert issubclass(RunWriter, fedsim.RunStore)
    before = {file: file.read_bytes() for file in store.path.iterdir()}
    assert (store.summary["rounds"], repr(store), store._repr_html_()) is not None
    assert {file: file.read_bytes() for file in store.path.iterdir()} == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        store.path = tmp_path


def test_the_summary_is_a_dictionary_of_plain_values(tmp_path):
    path = write_run(tmp_path / "a", end=True)
    columns = "run,rounds,lr,collapsed,norm,best_round,site"
    (path / "summary.csv").write_text(f"{columns}\na,3,0.1,False,none,,\n")
    summary = fedsim.RunStore(path).summary
    assert summary == {
        "run": "a", "rounds": 3, "lr": 0.1, "collapsed": False, "norm": "none",
        "best_round": None, "site": None,
    }  # fmt: skip
    assert {type(value) for value in summary.values()} == {str, int, float, bool, type(None)}


def test_the_repr_says_what_the_run_is(tmp_path):
    path = write_run(tmp_path / "a", end=True, algorithm="fedprox", seed=3)
    assert repr(fedsim.RunStore(path)) == (
        f"RunStore({str(path)!r}: method fedprox, data digits, seed 3, state finished, "
        "rounds 3 of 5, final test accuracy 0.5000, best test accuracy 0.7500)"
    )
    assert "state damaged, problem" in repr(fedsim.RunStore(tmp_path / "none"))
