"""Files that commands write: never into the directory of a run, and whole or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig


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
    [("predict run --out", "p.csv"), ("partition --out", "p")],
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    config = RunConfig(
        algorithm="fedavg",
        data={"num_clients": 4, "val_fraction": 0.1},
        model={"name": "mlp"},
        train={"rounds": 2, "sample_rate": 1, "lr": 0.1},
        engine={"kind": "serial", "keep_every": 1},
    )
    fedsim.run(config, out, progress=False)
    return out


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "most", "name"),
    [
        slow("export RUN --out new/model", 2**14, "new/model"),  # the scripts fit, the model not
        slow("report RUN --out new/report", 2**14, "new/report"),
        slow("curves RUN --out there.png", 2**12, "there.png"),
        ("partition --out new/split", 2**12, "new/split"),
        ("table RUN --out there.csv", 16, "there.csv"),
        ("table RUN --out there.tex", 16, "there.tex"),
        ("predict RUN --out p.csv", 2**10, "p.csv"),
        ("replay RUN --round 2 --set train.lr=0.2 --out r.csv", 2**8, "r.csv"),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    command: str, most: int, name: str, finished: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No file may be longer than ``most``, which fails a write as a full disk does."""
    monkeypatch.chdir(tmp_path)
    words = [str(finished) if word == "RUN" else word for word in command.split()]
    if name.startswith("there"):
        Path(name).write_text("as before")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        done = CliRunner().invoke(main, words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 1, done.output
    assert f"error: {name}: cannot be written (File too large)\n" in done.output
    after = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    assert after == before
