"""Files that commands write: never into the directory of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder that looks like the directory of a run, and a link to it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "env.json"):
        (folder / name).write_text("")
    (tmp_path / "link").symlink_to(folder)
    return folder


@pytest.mark.parametrize("below", ["run", "run/new/..", "link", "link/new"])
@pytest.mark.parametrize(
    ("command", "name"),
    [("predict run --out", "p.csv"), ("partition --out", "p"), ("partition --plot", "p.png")],
)
def test_nothing_is_written_into_a_run(
    run: Path, command: str, name: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "new").mkdir()
    before = sorted(run.rglob("*"))
    monkeypatch.chdir(run.parent)
    done = CliRunner().invoke(main, [*command.split(), f"{below}/{name}"])
    assert done.exit_code == 2, done.output
    assert done.output.count("\n") == 1
    assert f"{below}/{name}: lies inside the run directory {run}" in done.output
    assert sorted(run.rglob("*")) == before


def test_beside_a_run_is_not_in_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    done = CliRunner().invoke(main, ["predict", "run", "--out", "run/../p.csv"])
    assert "lies inside" not in done.output
