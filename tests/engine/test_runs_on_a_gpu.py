"""Runs on a GPU as a user starts them: killed, with fractions, two at once, out of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.config.run import RunConfig
from fedsim.core.errors import FedsimError
from tests.commands import temporary_sandbox, wait_for_exit, wait_for_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ray,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FILES = ("rounds.csv", "clients.csv", "classes.csv", "partition.csv", "model.safetensors")


def contents(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in FILES}


@pytest.mark.parametrize(
    "engine",
    [
        ("--engine", "serial", "--gpus-per-client", "1"),
        ("--gpus-per-client", "0.25", "--cpus-per-client", "0.1"),
    ],
    ids=["serial", "4 actors"],
)
def test_killed_and_resumed(engine):
    job = ("run", "--model", "cnn_reddi", "--set", "data.image_size=28", "--rounds", "100", *engine)
    with temporary_sandbox() as sandbox:
        wait_for_exit(sandbox.start(*job, "--out", "whole"))
        killed = sandbox.start(*job, "--out", "killed")
        wait_for_rows(killed, sandbox.work / "killed" / "rounds.csv", 5)
        killed.kill()
        killed.wait()
        assert not (sandbox.work / "killed" / "summary.csv").exists()
        wait_for_exit(sandbox.start("resume", "killed"))
        assert contents(sandbox.work / "killed") == contents(sandbox.work / "whole")


def device_of(run: Path) -> str:
    return json.dumps(json.loads((run / "env.json").read_text())["device"])


@pytest.mark.parametrize("share", [None, "0.5", "0.125", "0.0625"])
def test_the_main_job_starts_ends_and_names_the_gpu(share):
    arguments = () if share is None else ("--gpus-per-client", share)
    with temporary_sandbox() as sandbox:
        out, err = wait_for_exit(sandbox.start("run", "--rounds", "3", *arguments, "--out", "run"))
        assert f"{share or 1} GPU" in out + err
        assert torch.cuda.get_device_name() in device_of(sandbox.work / "run")


def test_two_processes_share_a_gpu():
    with temporary_sandbox() as sandbox:
        runs = [sandbox.start("run", "--rounds", "20", "--out", name) for name in ("a", "b")]
        for process in runs:
            wait_for_exit(process)
        assert contents(sandbox.work / "a") == contents(sandbox.work / "b")


class Greedy(nn.Module):
    """Asks for a tenth of the GPU in each training step."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and torch.is_grad_enabled() and len(x) > 2:  # a new model sees two images
            total = torch.cuda.get_device_properties(x.device).total_memory
            torch.empty(total // 10, dtype=torch.uint8, device=x.device)
        return x


def greedy(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    pixels = in_channels * image_size**2
    return nn.Sequential(Greedy(), nn.Flatten(), nn.Linear(pixels, num_classes))


def test_out_of_memory_names_the_fraction_that_fits(shared_ray, tmp_path):
    config = RunConfig(
        model={"name": f"{__name__}:greedy"},
        train={"rounds": 1},
        engine={"gpus_per_client": 0.0625, "max_retries": 0, "cpus_per_client": 0.1},
    )
    fits = r"out of GPU memory: .*; --gpus-per-client 0\.\d+ would fit: one client needs about"
    with pytest.raises(FedsimError, match=fits):
        fedsim.run(config, tmp_path / "run", session=shared_ray)
