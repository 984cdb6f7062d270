"""The run directory: configuration, CSV tables and the final model.

Tables are append-only and flushed after each round: CSV with LF line ends, shortest round-trip
floats, empty for "not available".
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import json
import platform
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save

from fedsim.contracts import Layout, Vector
from fedsim.errors import ConfigError, StoreError
from fedsim.vectors import named_tensors
from fedsim.version import __version__

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "partition": ("client_id", "label", "train_samples", "test_samples", "name"),
    "rounds": (
        *("round", "lr", "cohort_size", "dropped", "train_loss", "val_loss", "val_accuracy"),
        *("test_loss", "test_accuracy", "test_balanced_accuracy", "test_macro_f1", "test_auc"),
        *("conflict_ratio", "update_norm"),
    ),
    "clients": (
        *("round", "client_id", "status", "num_samples", "num_steps"),
        *("train_loss", "update_norm"),
    ),
    "classes": ("round", "label", "support", "recall", "precision"),
    "evaluations": ("round", "client_id", "group", "split", "num_samples", "loss", "accuracy"),
    "timings": ("round", "phase", "seconds", "bytes"),
    "errors": ("round", "client_id", "attempt", "node", "error"),
}
"""The columns of each table; summary.csv also has one per hyperparameter."""

Row = Mapping[str, Any]


class RunStore:
    """A run directory.

    Args:
        path: an existing directory; :meth:`create` makes a new one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunStore:
        """Makes the directory.

        Raises:
            ConfigError: it exists and is not empty.
            StoreError: it cannot be created.
        """
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"--out {path}: cannot be created ({error.strerror})") from error
        return cls(path)

    def write(self, name: str, text: str) -> None:
        """Writes a whole text file."""
        with _writing(self.path / name) as path:
            path.write_text(text, encoding="utf-8", newline="\n")

    def append(self, table: str, rows: Iterable[Row]) -> None:
        """Appends rows to a table; the first call also writes the header."""
        self._append(table, COLUMNS[table], rows)

    def write_summary(self, row: Row) -> None:
        """Writes summary.csv, whose columns are the row's keys."""
        self._append("summary", list(row), [row])

    def _append(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        with _writing(self.path / f"{table}.csv") as path:
            new = not path.exists()
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if new:
                    writer.writerow(columns)
                writer.writerows([cell(row.get(c)) for c in columns] for row in rows)

    def save_model(self, params: Vector, layout: Layout) -> None:
        """Writes model.safetensors with the model's tensor names."""
        with _writing(self.path / "model.safetensors") as path:
            path.write_bytes(save(named_tensors(params, layout)))

    def read(self, table: str) -> pd.DataFrame:
        """A table of the run as a data frame.

        Raises:
            StoreError: the run has no such table.
        """
        path = self.path / f"{table}.csv"
        if not path.is_file():
            found = sorted(p.stem for p in self.path.glob("*.csv"))
            raise StoreError(
                f"{path} does not exist; the run has {', '.join(found) or 'no tables'}"
            )
        return pd.read_csv(path, keep_default_na=False, na_values=[""])


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Turns what the system says into a StoreError that names the file."""
    try:
        yield path
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from error


def cell(value: Any) -> str:
    """A CSV cell: shortest text that reads back as the same number, empty for None and NaN."""
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else repr(float(value))
    return str(value)


def check_free(path: Path) -> None:
    """Refuses a path that holds something.

    Raises:
        ConfigError: it is a file or a directory that is not empty.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--out {path}: exists and is not an empty directory")


def default_path(dataset: str, algorithm: str) -> Path:
    """``runs/<dataset>/<algorithm>/<timestamp>-<id>``, new at each call."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    parts = [name.replace(":", ".") for name in (dataset, algorithm)]
    return Path("runs", *parts, f"{now}-{secrets.token_hex(2)}")


def environment() -> dict[str, object]:
    """Versions, platform and git commit, for env.json."""
    packages = ("torch", "torchvision", "ray", "numpy", "pandas", "scipy", "scikit-learn")
    return {
        "fedsim": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_commit() -> str | None:
    """The commit of the checkout that fedsim is imported from, None outside one."""
    root = Path(__file__).resolve().parents[1]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    found = done.stdout.split("\n") if done.returncode == 0 else [""]
    return found[1] if found[0] and Path(found[0]) == root else None


def to_json(value: object) -> str:
    """Readable JSON with a final line end."""
    return json.dumps(value, indent=2, default=str) + "\n"
