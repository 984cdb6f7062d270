"""``fedsim tune`` in processes that are killed or told to end: the same command, the same table."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.commands import (
    PATIENCE,
    Sandbox,
    count_rows,
    temporary_sandbox,
    wait_for_exit,
    wait_for_rows,
)

pytestmark = pytest.mark.slow

SEARCH = """
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 6, sample_rate: 0.5, local_epochs: 5}
search:
  train.lr: loguniform(0.001, 1)
grid: {seed: [0, 1]}
"""
FILES = ("trials.csv", "trials.jsonl", "best.yaml", "study.json")
COUNT = 6


@pytest.fixture
def sandbox():
    with temporary_sandbox() as found:
        (found.work / "search.yaml").write_text(SEARCH)
        yield found


def begin(sandbox: Sandbox, out: str, parallel: int):
    return sandbox.start(
        *("tune", "search.yaml", "--trials", str(COUNT), "--pruner", "asha", "--out", out),
        *("--parallel", str(parallel), "--engine", "serial"),
    )


def wait_for_a_run_under_way(process, out: Path, done: int) -> None:
    """Returns when another trial has ended and a run after it has done a round, not its last."""
    wait_for_rows(process, out / "trials.csv", done + 1)
    ended = count_rows(out / "trials.csv")
    while process.poll() is None:
        tables = out.glob(f"trial-{ended:04d}/*/rounds.csv")
        if any(1 <= count_rows(table) < 6 for table in tables):
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("parallel", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_killed_and_told_to_end_a_search_goes_on_to_the_same_table(parallel, sandbox):
    wait_for_exit(begin(sandbox, "whole", parallel))
    out = sandbox.work / "killed"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = begin(sandbox, "killed", parallel)
        wait_for_a_run_under_way(process, out, count_rows(out / "trials.csv"))
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number], said
        assert sandbox.left() == {}
        assert count_rows(out / "trials.csv") < COUNT
    assert "interrupted; the search is in killed, the same command continues" in said
    wait_for_exit(begin(sandbox, "killed", parallel))
    for name in FILES:
        found, wanted = ((folder / name).read_bytes() for folder in (out, sandbox.work / "whole"))
        if name == "trials.jsonl":  # in the order in which the trials ended
            found, wanted = (b"".join(sorted(text.splitlines())) for text in (found, wanted))
        assert found == wanted, name
    for run in out.glob("trial-*/seed=?/rounds.csv"):
        whole = sandbox.work / "whole" / run.relative_to(out)
        shorter, longer = sorted([run.read_bytes(), whole.read_bytes()], key=len)
        assert longer.startswith(shorter)
