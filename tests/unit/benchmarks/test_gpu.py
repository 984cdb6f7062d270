"""The benchmark of a GPU, tried out on the CPU: equal work, arithmetic, all rows in miniature."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from benchmarks import gpu, loops, models
from benchmarks.gpu import Bench, Case, Part, measure_row
from benchmarks.loops import Loop, StackedLoop, images, seconds_of
from benchmarks.workloads import WORKLOADS, Workload
from fedsim import models as networks
from fedsim.config.sections import TrainConfig
from fedsim.core.types import ModelSpec
from tests.rounding import of_update, sgd_operations

pytestmark = pytest.mark.integration
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


def test_calls_are_timed_until_the_budget_is_used_up():
    calls = []
    assert len(seconds_of(calls.append, CPU, 0.0)) == loops.LEAST
    assert calls == [*range(2 + loops.LEAST)]
    assert len(seconds_of(calls.append, CPU, 60.0)) == loops.MOST


def test_cases_share_a_row_and_fail_alone(monkeypatch, tmp_path):
    shares = []

    def value(number, share):
        shares.append(share)
        return {"round": number}, {"n": number}

    def broken(share):
        raise RuntimeError("CUDA error:\nno such kernel")

    def row(bench):
        yield Case("plain", partial(value, 4.0))
        yield Case("broken", broken)
        yield Case(
            "ours", partial(value, 6.0), (Part(beside="plain: round", target=1.4), Part("train"))
        )

    monkeypatch.setitem(gpu.ROWS, "P", row)
    first, second, third, fourth = measure_row("P", Bench(CPU, tmp_path), 30.0)
    assert 9.9 < shares[0] <= 10.0
    assert 29.9 < shares[1] <= 30.0
    assert (first.value, first.reference, first.missed) == (4.0, None, False)
    assert (second.skipped, second.failed) == (
        "failed: RuntimeError: CUDA error: no such kernel",
        True,
    )
    assert (third.reference, third.ratio.median, third.missed) == (4.0, 1.5, True)
    assert fourth.skipped == "skipped: the row has taken 0 s (--seconds 30)"
    skipped = [*measure_row("P", Bench(CPU, tmp_path), 1e-12)]
    assert [line.value for line in skipped] == [None] * 4
    assert {line.failed for line in skipped} == {False}


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(gpu.main, ["--out", str(tmp_path / "gpu.json")])
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "torch finds no GPU here" in done.output
    assert not any(tmp_path.iterdir())


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
