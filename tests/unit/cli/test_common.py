"""What the commands have in common: a signal during imports, the working folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main


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
