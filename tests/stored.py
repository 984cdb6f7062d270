"""Stores a run of this version for the tests of all later ones: ``python -m tests.stored NAME``.

``tests/data/runs/NAME.zip`` then holds a run twice: ``finished``, and ``interrupted`` as a kill
leaves it after the first of its two rounds. NAME is the version, as in ``0.2.0``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "runs"
COMMAND = (
    *("run", "--engine", "serial", "--algorithm", "fedprox", "--dataset", "digits"),
    *("--model", "logistic", "--clients", "2", "--sample-rate", "1", "--rounds", "2"),
)
"""Arguments that every version takes."""
LAST = ("summary.csv", "*.safetensors", "checkpoints/*-000002.*")
"""What a run writes after its last round."""


def pack(finished: Path, name: str) -> None:
    """Stores a finished run."""
    with tempfile.TemporaryDirectory() as folder:
        for state in ("finished", "interrupted"):
            shutil.copytree(finished, Path(folder, state), ignore=shutil.ignore_patterns(".lock"))
        for pattern in LAST:
            for file in Path(folder, "interrupted").glob(pattern):
                file.unlink()
        shutil.make_archive(str(FOLDER / name), "zip", folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        subprocess.run([sys.executable, "-m", "fedsim", *COMMAND, "--out", str(out)], check=True)
        pack(out, sys.argv[1])
