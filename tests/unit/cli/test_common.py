"""What the commands have in common: a signal during imports, the working folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.cli.common import importing
from fedsim.core.errors import Interrupted


def imported(signals: list[int], done: list[int]) -> None:
    """Imports during which these signals come; ``done`` are those after which they went on."""
    with importing():
        for number in signals:
            signal.raise_signal(number)
            done.append(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_end_of_the_imports(number):
    """Raised within them it left the lock of logging taken, and Ray's start waited for ever."""
    before, done = signal.getsignal(number), []
    with pytest.raises(Interrupted):
        imported([number], done)
    assert done == [number]
    assert signal.getsignal(number) is before


def test_the_second_signal_does_not_wait():
    done = []
    with pytest.raises(Interrupted):
        imported([signal.SIGINT, signal.SIGINT, signal.SIGINT], done)
    assert done == [signal.SIGINT]


@pytest.mark.skipif(os.name == "nt", reason="Windows removes no folder in use")
@pytest.mark.parametrize("command", [["run", "--out", "x"], ["runs"], ["show", "x"], ["doctor"]])
def test_a_working_folder_that_was_removed_is_said(command, tmp_path: Path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the working folder was removed meanwhile: change to one")
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0
