"""The harness of the benchmarks: same work on both sides, right arithmetic. Nothing is timed."""

from __future__ import annotations

import csv
import json
import mmap
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import benchmarks
import fedsim
from benchmarks import decomposition, gpu, models, pairing, same_bytes, serverstep, sweeps
from benchmarks.__main__ import BENCHMARKS, _peers, main
from benchmarks.bare import Bare, job_of, principal
from benchmarks.pairing import Pairs, Spread, Turns, compare
from benchmarks.processes import below, own_memory, peak_memory, proportional, start_up
from benchmarks.report import Result, of_pairs, of_step, save
from benchmarks.serverstep import Machine, Step
from benchmarks.workloads import WORKLOADS, run_config
from fedsim.core.errors import FedsimError, WorkerError
from fedsim.core.layout import FlatModel
from fedsim.training.assemble import prepare
from tests.commands import clean_environment

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("key", "clients", "cohort", "samples", "parameters"),
    [
        ("w1", 50, 50, 20, 64 * 32 + 32 + 32 * 10 + 10),
        ("w2", 50, 5, 120, 1_663_370),
        ("w3", 10, 10, 20, 25_595_560),
        ("w4_1000", 1000, 100, 20, 650),
        ("w4_10000", 10_000, 100, 20, 650),
    ],
)
def test_workloads_have_the_stated_sizes(key, clients, cohort, samples, parameters):
    setup = prepare(run_config(WORKLOADS[key], "fedavg", 3))
    assert setup.partition.num_clients == clients
    assert setup.cohort_size == cohort
    assert {len(indices) for indices in setup.partition.train} == {samples}
    assert setup.layout.num_params == parameters
    train = setup.config.train
    assert (train.lr, train.momentum, train.weight_decay) == (0.01, 0.5, 5e-4)
    assert (train.batch_size, train.local_epochs, setup.config.evaluation.every) == (50, 1, 3)


def fedsim_model(setup, store):
    flat = FlatModel(models.__dict__[setup.model.name.partition(":")[2]](
        setup.dataset.num_classes, setup.dataset.x.shape[1], setup.model.image_size
    ), torch.device("cpu"))  # fmt: skip
    from safetensors.torch import load_file

    flat.model.load_state_dict(load_file(store.path / "model.safetensors"))
    return flat.vector()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "method", "processes", "threads"),
    [("w1", "fedld", 2, 1), ("w3_small", "fedavg", 1, 2)],
)
def test_the_bare_loop_does_the_same_work(key, processes, threads, method, tmp_path):
    # several steps per client, and every knob large enough to show
    knobs = {"batch_size": 8, "local_epochs": 2, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.05}
    config = run_config(WORKLOADS[key], method, 3, train=knobs, kind="serial")
    setup = prepare(config)
    ours = fedsim_model(setup, fedsim.run(config, tmp_path / "run"))
    with Bare("bare", job_of(setup, method, threads, 2), processes) as bare:
        seconds = bare.rounds(0, 2) + bare.rounds(2, 1)
        theirs = bare.world()
        for process in bare._processes:
            process.kill()
            process.join()
        with pytest.raises(WorkerError, match=r"the bare loop \(bare\): a process has ended"):
            bare.rounds(3, 1)
    assert len(seconds) == 3
    moved = np.linalg.norm(ours - setup.initial)
    assert np.linalg.norm(theirs - setup.initial) == pytest.approx(moved, rel=1e-4)
    assert np.abs(ours - theirs).max() < 1e-5
    assert moved > 100 * np.linalg.norm(ours - theirs), "the difference is small beside the way"


def test_principal_is_the_rule_of_fedld():
    updates = np.random.default_rng(0).standard_normal((6, 400))
    shares = np.full(6, 1 / 6)
    c = principal(torch.from_numpy(updates), torch.from_numpy(shares)).numpy()
    np.testing.assert_allclose(c @ updates, fedsim.aggregate(updates, np.ones(6)), rtol=1e-9)


class FakeBare:
    def __init__(self, label, seconds=1.0, processes=1):
        self.label, self.seconds, self.processes, self.calls = label, seconds, processes, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.append("closed")

    def rounds(self, first, count):
        self.calls.append((first, count))
        return [99.0, *[self.seconds] * (count - 1)]


def test_the_two_sides_take_turns_over_the_same_rounds():
    bares = [FakeBare("a", 2.0), FakeBare("b", 3.0)]
    turns = Turns(bares, block=3, repeats=2)
    for number in range(turns.rounds):
        turns.on_round_end(number + 1, {})
    assert turns.rounds == 1 + 2 * 4 + 1
    assert turns.timed == [3, 4, 5, 7, 8, 9]
    assert [b.calls for b in bares] == [[(1, 4), (5, 4)]] * 2, "rounds from 0, one to warm up"
    assert turns.bare == {"a": [2.0, 2.0], "b": [3.0, 3.0]}
    assert len(turns.fedsim) == 2


def test_ratios_are_pair_by_pair_against_the_faster_loop():
    pairs = Pairs((1.0, 4.0, 9.0), {"slow": (9.0, 9.0, 1.0), "fast": (1.0, 2.0, 3.0)})
    assert pairs.faster == "fast"
    assert pairs.ratio == Spread(2.0, 1.5, 2.5)
    result = of_pairs("W1", "fedavg", pairs, 1.9)
    assert (result.value, result.reference, result.missed) == (4000.0, 2000.0, True)
    assert not of_pairs("W1", "fedavg", pairs, 2.0).missed


@pytest.mark.slow
def test_one_run_gives_as_many_pairs_as_asked(monkeypatch):
    bares = []

    def started(label, job, processes):
        bares.append(FakeBare(label, 0.5, processes))
        assert job.threads * processes == 3
        return bares[-1]

    monkeypatch.setattr(pairing, "Bare", started)
    monkeypatch.setattr(pairing, "local_node", lambda: SimpleNamespace(cpus=3.0))
    pairs = compare(replace(WORKLOADS["w1"], block=2), "fedavg", 2, kind="serial")
    assert len(pairs.fedsim) == 2
    assert pairs.bare == {"1 x 3 thread": (0.5, 0.5), "3 x 1 thread": (0.5, 0.5)}
    assert [bare.calls for bare in bares] == [[(1, 3), (4, 3), "closed"]] * 2
    assert {"train", "aggregate", "total"} <= set(pairs.phases)
    assert pairs.phases["total"] >= pairs.phases["train"] > 0


def test_the_floor_is_the_larger_of_reading_and_computing():
    machine = Machine(bandwidth=40e9, rate=100e9)
    reads = 2 * 5 * 1e6 * 4 / 40e9
    assert machine.floor(5, 10**6) == pytest.approx(reads)
    assert machine.floor(50, 10**6) == pytest.approx(50 * 51 * 1e6 / 100e9)
    step = Step("fedld", 5, 10**6, (2.0, 4.0, 12.0), (1.0, 1.0, 4.0))
    assert step.ratio == Spread(3.0, 2.5, 3.5)
    assert of_step(step, 3.0).missed is False
    assert of_step(step, 2.9).missed is True


def test_decomposed_rounds_take_turns_with_others():
    timings = pd.DataFrame(
        {
            "round": [number for number in range(1, 7) for _ in range(2)],
            "phase": ["train", "total"] * 6,
            "seconds": [99.0, 50.0, 99.0, 60.0, 99.0, 1.0, 99.0, 3.0, 99.0, 2.0, 99.0, 4.0],
        }
    )
    turns = decomposition.turns_of(timings)
    assert turns == decomposition.Turns((1.0, 2.0), (3.0, 4.0))
    assert turns.ratio == Spread.of([3.0, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize("case", decomposition.CASES)
def test_every_second_round_is_decomposed(case, tmp_path):
    settings = decomposition.config("serial", 1, **decomposition.CASES[case])
    store = fedsim.run(settings, tmp_path / "run")
    assert store.read("decomposition")["round"].tolist() == [2, 4]
    turns = decomposition.turns_of(store.read("timings"))
    assert (len(turns.plain), len(turns.decomposed)) == (1, 1)
    assert (settings.algorithm, settings.data.num_clients) == ("fedld", 50)


@pytest.mark.parametrize("method", serverstep.METHODS)
def test_the_measured_step_is_the_methods_own(method):
    rows = serverstep.updates(4, 5000)
    assert len({row.tobytes() for row in rows}) == 4
    expected = fedsim.aggregate(rows, [100] * 4, method)
    np.testing.assert_array_equal(serverstep.step(method, rows), expected)


def test_steps_are_measured_or_skipped_with_a_reason(monkeypatch):
    rates = iter([1e9, 2e9, 4e9])
    done = list(serverstep.measure(2, [3], [1000], lambda: Machine(next(rates), 1e15)))
    floors = (24_000 / 2e9, 24_000 / 4e9)  # the first repetition warms up
    assert [(s.method, s.m, s.d, len(s.seconds), s.floors) for s in done] == [
        (method, 3, 1000, 2, floors) for method in serverstep.METHODS
    ]
    monkeypatch.setattr(serverstep, "available_memory", lambda: 1 << 30)
    skipped = list(serverstep.measure(2, [50], [23_500_000]))
    assert {len(s.seconds) for s in skipped} == {0}
    assert "5.7 GiB, 1.0 GiB are free" in of_step(skipped[0], 2.0).cells()["measured"]


def test_memory_of_a_process_without_what_is_shared(tmp_path):
    before = own_memory(os.getpid())
    own = bytearray(os.urandom(1 << 20) * 64)
    with mmap.mmap(-1, 1):
        grown = own_memory(os.getpid()) - before
    assert 0.9 * len(own) < grown < 1.5 * len(own)
    assert proportional(os.getpid()) > len(own)
    assert own_memory(2**22 + 1) == proportional(2**22 + 1) == 0, "no such process"


def test_processes_below():
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    code += "; sys.stdin.read(); p.kill(); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as child:
        assert child.stdin
        assert child.stdout
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= set(below(os.getpid()))
        assert grandchild in below(child.pid)
        child.stdin.close()


@pytest.mark.slow
def test_a_run_is_watched_from_outside():
    arguments = ["--engine", "serial", "--rounds", "1", "--sample-rate", "0.02"]
    peak = peak_memory(arguments, tree=True)
    assert 50 << 20 < peak.driver <= peak.tree
    assert start_up(arguments) > 0
    with pytest.raises(FedsimError, match=r"ended with 2"):
        peak_memory(["--algorithm", "fedlb"], tree=False)
    with pytest.raises(FedsimError, match=r"ended without a round"):
        start_up(["--algorithm", "fedlb"])


def test_results_are_saved_line_by_line(tmp_path):
    results = [
        Result("W1", "fedavg", "ms", 8.0, 4.0, "bare", Spread(2.0, 1.5, 2.5), 2.0),
        Result("A1", "fedavg", skipped="skipped: no memory"),
        Result("M1", "fedld", "GiB", 9.0, target=8.0),
    ]
    table = save(results, {"cores": 2}, tmp_path / "new" / "b.json")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["missed"] for row in rows] == ["False", "False", "True"]
    assert (rows[0]["ratio"], rows[0]["ratio_low"], rows[0]["ratio_high"]) == ("2.0", "1.5", "2.5")
    assert rows[1]["ratio"] == rows[1]["value"] == ""
    saved = json.loads((tmp_path / "new" / "b.json").read_text())
    assert saved["machine"] == {"cores": 2}
    assert saved["results"][0]["ratio"]["median"] == 2.0
    assert [r.cells()[""] for r in results] == ["met", "", "missed"]


def test_every_benchmark_of_the_readme_exists():
    page = Path(benchmarks.__file__).with_name("README.md").read_text()
    table = page.split("## What is measured", 1)[1].split("\n## ", 1)[0]
    named = re.findall(r"^\| ([A-Z]+[0-9]*) \|", table, re.MULTILINE)
    assert {"W1", "G3"} < set(named) == set(BENCHMARKS) | set(sweeps.cases(2)) | set(gpu.ROWS)
    done = CliRunner().invoke(main, ["W9"])
    assert done.exit_code == 2


def test_same_bytes_allows_new_columns_and_no_other_change(tmp_path):
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text("round,loss\n1,0.5\n2,\n")
    for text, wanted in (
        ("round,loss,auc\n1,0.5,0.75\n2,,\n", True),
        ("round,loss\n1,0.5\n2,\n", True),
        ("round,auc,loss\n1,0.75,0.5\n2,,\n", False),
        ("round,loss,auc\n1,0.50,0.75\n2,,\n", False),
        ("round,loss,auc\n1,0.5,0.75\n", False),
        ("round\n1\n2\n", False),
    ):
        after.write_text(text)
        assert same_bytes.equal(before, after) == wanted


def test_same_bytes_compares_what_summaries_have_in_common(tmp_path):
    before, after = tmp_path / "a" / "summary.csv", tmp_path / "b" / "summary.csv"
    for path, text in (
        (before, "run_id,dataset,seed,total_seconds\na,digits,0,1.5\n"),
        (after, "run_id,dataset,auc,seed,total_seconds\nb,digits,0.75,0,2.5\n"),
    ):
        path.parent.mkdir()
        path.write_text(text)
    assert same_bytes.equal(before, after)
    assert not same_bytes.equal(after, before), "a column went"
    after.write_text("run_id,dataset,auc,seed,total_seconds\nb,digits,0.75,1,2.5\n")
    assert not same_bytes.equal(before, after)


TORCHRUN = """Traceback (most recent call last):
  File "/x/benchmarks/peers_pfl.py", line 17, in <module>
ModuleNotFoundError: No module named 'pfl'
E1123 09:00:00 api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
benchmarks.peers_pfl FAILED
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_a_peer_that_fails_says_why_and_what_was_measured_stays(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{TORCHRUN}END\nexit 1\n")
    python.chmod(0o755)
    timed = SimpleNamespace(fedsim=(0.1, 0.2))
    monkeypatch.setattr("benchmarks.__main__.compare", lambda *_, **__: timed)

    def measured(options):
        yield Result("W1", "fedavg", "ms", 12.5)
        yield from _peers("W1", "w1", options)

    monkeypatch.setitem(BENCHMARKS, "W1", measured)
    out = tmp_path / "table.json"
    given = ["W1", "--peers", "pfl", "--pfl-python", str(python), "--out", str(out)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 1
    why = "pfl-research, a process per core ended with status 1: ModuleNotFoundError: No module"
    first, second = csv.DictReader(out.with_suffix(".csv").open())
    assert (first["value"], second["skipped"]) == ("12.5", f"failed: {why} named 'pfl'")
    assert "12.50 ms" in done.stdout, "the table is shown"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "flower,tff"], "'tff' given; allowed: flower, pfl"),
        (["--peers", "pfl"], "--peers pfl needs --pfl-python"),
    ],
)
def test_peers_are_known_and_have_a_python(arguments, message):
    done = CliRunner().invoke(main, ["W1", *arguments, "--flower-python", sys.executable])
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("same", [True, False])
def test_sweeps_are_compared_turn_by_turn_and_must_have_the_same_bytes(monkeypatch, same):
    def sweep(preset, arguments, folder):
        serial = "serial" in arguments
        (folder / "one-run").mkdir(parents=True)
        (folder / "one-run" / "rounds.csv").write_bytes(b"b" if serial and not same else b"a")
        (folder / "one-run" / "timings.csv").write_text(" ".join(arguments))
        return {"2": 6.0, "1": 8.0 if serial else 12.0}[arguments[1]]

    monkeypatch.setattr(sweeps, "sweep_seconds", sweep)
    found = sweeps.measure(sweeps.cases(2)["SW"], 3)
    if same:
        ray, serial = found
        assert (ray.ratio.median, serial.ratio.median) == (0.5, 0.75)
        assert (ray.value, ray.reference, serial.reference) == (6.0, 12.0, 8.0)
        assert not ray.missed
        assert not serial.missed
    else:
        with pytest.raises(FedsimError, match="not the same bytes"):
            list(found)
