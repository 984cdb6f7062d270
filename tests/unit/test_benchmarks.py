"""The benchmarks: same work on both sides, and right arithmetic. Nothing is timed."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import benchmarks
import fedsim
from benchmarks import decomposition, gpu, loops, models, same_bytes, serverstep, sweeps
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.bare import Bare, job_of, principal
from benchmarks.gpu import Bench
from benchmarks.loops import Loop, StackedLoop, images
from benchmarks.mutations import chosen, mutants_of
from benchmarks.pairing import Pairs, Spread
from benchmarks.report import Result, of_pairs, save
from benchmarks.workloads import WORKLOADS, Workload, run_config
from fedsim import models as networks
from fedsim.config.sections import TrainConfig
from fedsim.core.errors import WorkerError
from fedsim.core.layout import FlatModel
from fedsim.core.types import ModelSpec
from fedsim.training.assemble import prepare
from tests.rounding import of_update, sgd_operations

pytestmark = pytest.mark.integration


# harness


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


def test_ratios_are_pair_by_pair_against_the_faster_loop():
    pairs = Pairs((1.0, 4.0, 9.0), {"slow": (9.0, 9.0, 1.0), "fast": (1.0, 2.0, 3.0)})
    assert pairs.faster == "fast"
    assert pairs.ratio == Spread(2.0, 1.5, 2.5)
    result = of_pairs("W1", "fedavg", pairs, 1.9)
    assert (result.value, result.reference, result.missed) == (4000.0, 2000.0, True)
    assert not of_pairs("W1", "fedavg", pairs, 2.0).missed


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


# gpu


CPU = torch.device("cpu")
SMALL = Workload("", "", clients=5, cohort=3, samples=12, side=8, model="mlp", block=1)


def models_after_two_rounds(kind, **how):
    torch.manual_seed(0)
    loop = kind(SMALL, TrainConfig(batch_size=4, lr=0.1, momentum=0, weight_decay=0),
                *images(SMALL, CPU), **how)  # fmt: skip
    start = torch.cat([w.flatten() for w in loop.world])
    for t in range(2):
        loop.round(t)
    return start, torch.cat([w.flatten() for w in loop.world])


def test_all_forms_of_the_plain_loop_do_the_same_work():
    start, eager = models_after_two_rounds(Loop)
    assert torch.equal(eager, models_after_two_rounds(Loop, graph=True)[1])
    for graph in (False, True):
        stacked = models_after_two_rounds(StackedLoop, graph=graph)[1]
        moved = (eager - start).abs().max().item()
        size, operations = start.abs().max().item(), sgd_operations(steps=6, layers=2, width=64)
        tolerance = of_update(torch.float32, moved, size, 6, operations)
        assert (eager - stacked).abs().max() < tolerance < moved / 1000


def test_both_forms_of_a_stacked_convolution_are_one_convolution_per_client():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, 7, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 5, 4, 3, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    wanted = torch.stack([torch.conv2d(a, b) for a, b in zip(x, w, strict=True)])
    cotangent = torch.randn(wanted.shape, generator=rng, dtype=torch.float64)
    gradients = torch.autograd.grad(wanted, (x, w), cotangent)
    for form in (loops.grouped, loops.unfolded):
        out = form(x, w)
        torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
        for a, b in zip(torch.autograd.grad(out, (x, w), cotangent), gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    loops.convolution(loops.unfolded, x, w)


def test_the_network_of_pfls_job_is_that_of_the_preset(tmp_path):
    plain = models.reddi(10, 3, 32)
    spec = ModelSpec(name="cnn_reddi", num_classes=10, in_channels=3, image_size=32)
    ours = networks.build(spec, 0)
    shapes = [p.shape for p in plain.parameters()]
    assert shapes == [p.shape for p in ours.parameters()]
    assert sum(shape.numel() for shape in shapes) == 1_626_442
    plain.load_state_dict(dict(zip(plain.state_dict(), ours.state_dict().values(), strict=True)))
    x = torch.randn(4, 3, 32, 32)
    assert torch.equal(plain.eval()(x), ours.eval()(x))
    w, config = WORKLOADS["p"], Bench(CPU, tmp_path, data_dir=tmp_path).pfl_job({})
    assert (w.clients, w.cohort, w.model) == (
        config.data.num_clients, config.train.sample_rate * w.clients, "reddi"
    )  # fmt: skip


def tried_out(out: Path, *rows: str) -> dict[str, list[dict]]:
    """The lines of the rows in miniature, by row."""
    arguments = [*rows, "--device", "cpu", "--tiny", "--out", str(out)]
    done = CliRunner().invoke(gpu.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    saved = json.loads(out.read_text())
    assert {"packages", "git_commit", "cuda", "cudnn", "cores", "on", "tiny"} <= set(
        saved["machine"]
    )
    assert out.with_suffix(".md").read_text().splitlines()[2].startswith("| row | case |")
    lines = {row: [r for r in saved["results"] if r["benchmark"] == row] for row in rows}
    for line in saved["results"]:
        assert line["skipped"] == ""
        assert line["value"] > 0
        assert (line["reference"] is None) == (line["against"] == "")
    return lines


def test_the_server_step_in_miniature(tmp_path):
    lines = tried_out(tmp_path / "gpu.json", "K")["K"]
    assert len(lines) == 8
    assert set(lines[1]["details"]["phases"]) == {"products", "sum", "copy"}
    total = lines[1]["details"]["phases"]["products"] + lines[1]["details"]["phases"]["sum"]
    assert np.isclose(lines[1]["value"], total)


@pytest.mark.slow
@pytest.mark.ray
def test_all_rows_in_miniature(tmp_path):
    lines = tried_out(tmp_path / "gpu.json", *gpu.ROWS)
    counts = {row: len(of_row) for row, of_row in lines.items()}
    assert counts.pop("P") >= 22  # more where pfl is installed
    assert counts == {"R": 15, "S": 4, "K": 8, "E": 4, "F": 2}
    ours = lines["P"][0]["details"]
    assert {"train", "aggregate", "evaluate", "total"} <= set(ours["phases"])
    assert ours["rounds"] == 2
    assert "cpu" in str(ours["device"])
    assert ours["clock_ms"] > 0


# mutants


SOURCE = '''\
"""A module."""


class Rule:
    def step(self, x: int | None, n=1) -> int:
        """Text: 1 < 2 and 3."""
        if x is None or not n:
            raise ValueError(f"{x + 1}")
        return min(x, 2) - n
'''


def checkout(folder, path, source=SOURCE):
    file = folder / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    return mutants_of(folder)


def test_one_line_changes_and_texts_types_and_errors_do_not(tmp_path):
    found = checkout(tmp_path, "fedsim/rules.py")
    changed = {}
    for name, mutant in found.items():
        before, after = SOURCE.splitlines(), mutant.applied(SOURCE).splitlines()
        (line,) = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        assert line == mutant.line - 1
        changed[name.removeprefix("Rule.step: ")] = after[line].strip()
    assert changed == {
        "or -> and, 1/1": "if x is None and not n:",
        "is -> is not, 1/1": "if x is not None or not n:",
        "drop not, 1/1": "if x is None or (n):",
        "return None, 1/1": "return None",
        "- -> +, 1/1": "return min(x, 2) + n",
        "min -> max, 1/1": "return max(x, 2) - n",
        "2 + 1, 1/1": "return min(x, 3) - n",
    }


def test_the_same_names_and_choice_after_a_move(tmp_path):
    before = checkout(tmp_path / "before", "fedsim/rules.py")
    renamed = SOURCE.replace("x", "value")
    after = checkout(tmp_path / "after", "fedsim/server/rules.py", renamed)
    for package in ("client", "algorithms", "metrics", "training"):
        (tmp_path / "after" / "fedsim" / package).mkdir()
    after = mutants_of(tmp_path / "after")
    assert before.keys() == after.keys() != set()
    by = {name: m.function for name, m in after.items()}
    assert chosen(set(by), by, 0, 1) == chosen(set(by), by, 0, 9)[:1]
    assert len(chosen(set(by), by, 0, 9)) == 2  # of one function
