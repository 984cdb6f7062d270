"""Files that cannot be used end a command with one line, exit 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedsim.cli import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


def npz(labels: np.ndarray, name: str = "retinamnist.npz") -> None:
    """A MedMNIST file of 5 classes, 40 images in each part."""
    images = np.zeros((len(labels), 28, 28, 3), np.uint8)
    parts = ("train", "val", "test")
    np.savez(
        name, **{f"{p}_images": images for p in parts}, **{f"{p}_labels": labels for p in parts}
    )


def truncated_npz() -> None:
    npz(np.arange(40)[:, None] % 5)
    content = Path("retinamnist.npz").read_bytes()
    Path("retinamnist.npz").write_bytes(content[: len(content) // 2])


MEDMNIST = ("-d", "retinamnist", "--data-dir", ".")
CASES = {
    "missing": (lambda: None, MEDMNIST, ["retinamnist.npz"]),
    "truncated npz": (truncated_npz, MEDMNIST, ["retinamnist.npz"]),
    "label outside": (lambda: npz(np.full((40, 1), 7)), MEDMNIST, ["retinamnist.npz", "7", "0..4"]),
    "unknown key": (
        lambda: Path("e.yaml").write_text("seed: 1\ntrain:\n  lr: 0.1\n  epoks: 3\n"),
        ("-c", "e.yaml"),
        ["e.yaml:4", "train.epoks"],
    ),
    "no YAML": (lambda: Path("e.yaml").write_text("seed: [1\n"), ("-c", "e.yaml"), ["e.yaml"]),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_exit_2_and_nothing_written(case: str, tmp_path: Path) -> None:
    make, arguments, parts = CASES[case]
    make()
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(main, ["run", "--engine", "serial", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
    assert sorted(p for p in tmp_path.iterdir() if p.name != "cache") == before
    assert not list(tmp_path.glob("cache/**/*.npy"))
