"""What ``fedsim.run`` returns: results to read, and nothing that writes."""

from __future__ import annotations

import dataclasses

import pytest

import fedsim
from fedsim.core.errors import StoreError
from fedsim.storage.run_dir import RunWriter
from tests.unit.cli.test_runs import write_run


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
        "read_words",
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


def test_the_html_is_a_table_without_markup_of_the_users(tmp_path):
    path = write_run(tmp_path / "<b>&", end=True)
    html = fedsim.RunStore(path)._repr_html_()
    assert html.startswith("<table><tr>")
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html
    assert ">0.7500</td>" in html
