"""``fedsim doctor``: plans for GPUs that are not here."""

from __future__ import annotations

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
