"""``fedsim doctor``: plans for GPUs that are not here."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.cli.doctor import Assumed, GpusType
from fedsim.core import machine
from fedsim.engine.ray import cluster


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("8", Assumed(1, 8, 0)),
        ("2x8", Assumed(2, 8, 0)),
        ("2x8:80GB", Assumed(2, 8, 80)),
        ("1x4:24 GiB", Assumed(1, 4, 24)),
    ],
)
def test_assumed_machines(text: str, wanted: Assumed) -> None:
    assert GpusType().convert(text, None, None) == wanted


def test_a_plan_for_gpus_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "num_gpus", lambda: 0)
    monkeypatch.setattr(machine, "num_gpus", lambda: 0)
    command = ["doctor", "--engine", "ray", "--gpus-per-client", "0.5"]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "--assume-gpus 1x8:80GB plans for GPUs that are not here" in refused.stderr
    done = CliRunner().invoke(main, [*command, "--assume-gpus", "2x8:80GB"])
    assert done.exit_code == 0, done.output
    words = " ".join(done.stdout.split())
    assert "32 actors shared by 50 clients, 1 CPU and 0.5 GPU each" in words
    assert "machine 1 16 actors on machine 2 16 actors" in words.replace(
        "on machine 1", "machine 1"
    )
    assert "GPU memory 37.3 GiB for an actor" in words
    assert (
        "GPU memory needed about 0.8 GiB for an actor, and samples where they take at most 9.3 GiB"
        in words
    )


@pytest.mark.parametrize(
    ("given", "needed"),
    [([], "1.3"), (["--client-batch", "auto"], "2.9"), (["--client-batch", "50"], "2.9")],
)
def test_a_block_takes_the_memory_of_its_clients(given: list[str], needed: str) -> None:
    command = ["doctor", "--preset", "pfl_cifar10", "--gpus-per-client", "0.0625", *given]
    done = CliRunner().invoke(main, [*command, "--assume-gpus", "1x1:80GB"])
    assert f"GPU memory needed  about {needed} GiB for an actor" in done.stdout


def test_a_dry_run_says_what_an_actor_takes_and_refuses_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["run", "--dry-run", "--no-measure", "--preset", "pfl_cifar10"]
    command += ["--engine", "ray", "--gpus-per-client", "0.0625"]
    done = CliRunner().invoke(main, command)
    assert "about 1.3 GiB for an actor, and samples" in done.stdout
    monkeypatch.setattr("fedsim.engine.devices.total_memory", lambda: 16 * 10**9)
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "--gpus-per-client 0.1 would fit" in refused.stderr


@pytest.mark.parametrize(("memory", "fraction"), [("16GB", "0.1"), ("80GB", "0.1")])
def test_a_fraction_that_does_not_hold_the_training_is_refused(memory: str, fraction: str) -> None:
    command = ["doctor", "--preset", "table3", "--gpus-per-client", fraction, "--assume-gpus"]
    refused = CliRunner().invoke(main, [*command, f"1x8:{memory}"])
    assert refused.exit_code == 2
    share, named = refused.stderr.split(" of GPU memory, and ")
    assert f"--gpus-per-client {fraction}: training one client takes an estimated" in share
    fitting = re.search(r"--gpus-per-client ([\d.]+) would fit", named)
    assert fitting is not None
    command[4] = fitting[1]
    assert CliRunner().invoke(main, [*command, f"1x8:{memory}"]).exit_code == 0
