"""The run directory: configuration, CSV tables and the final model.

Tables are append-only and flushed after each round; all other files are written as a whole or not
at all. CSV with LF line ends, shortest round-trip floats, empty for "not available".
"""

from __future__ import annotations

import datetime
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.core import files
from fedsim.core.errors import ConfigError, DataError, StoreError, nearest, one_line
from fedsim.core.reading import parse_json
from fedsim.core.rows import TABLES, FinalClientRow, PartitionRow, Row
from fedsim.core.types import Array
from fedsim.metrics.collapse import FinalPredictions, final_predictions
from fedsim.storage import status, tables
from fedsim.storage.tables import TableDigest
from fedsim.storage.tables import cell as cell
from fedsim.storage.tables import csv_text as csv_text

if TYPE_CHECKING:
    import pandas as pd

GROWING = tuple(t for t in TABLES if t not in ("partition", "split", "final_clients"))
"""The tables to which rounds add rows."""

DIAGNOSTIC = ("timings", "errors")
"""Tables without results: a run resumes even if they lost rows."""

_FILES = frozenset(f"{table}.csv" for table in GROWING)


def html_table(rows: Mapping[str, str]) -> str:
    """Names and values as a table for notebooks."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for key, value in rows.items()
    )
    return f"<table>{cells}</table>"


@dataclass(frozen=True, repr=False)
class RunStore:
    """The results of a run, finished or not, as its directory ``path`` has them; nothing here
    writes."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @property
    def finished(self) -> bool:
        """Whether the run has ended: summary.csv is its last file."""
        return (self.path / "summary.csv").exists()

    def __repr__(self) -> str:
        headline = self._headline()
        return f"RunStore({str(self.path)!r}: " + ", ".join(map(" ".join, headline.items())) + ")"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table({"run": str(self.path), **self._headline()})

    def _headline(self) -> dict[str, str]:
        """What a reader wants to know first; never an error."""
        run = status.read(self.path)
        headline: dict[str, object] = {
            "method": run.algorithm,
            "data": run.dataset,
            "seed": run.seed,
            "state": run.state,
            "problem": run.problem,
            "rounds": run.rounds_done
            if run.rounds is None
            else f"{run.rounds_done} of {run.rounds}",
        }
        for name in ("final", "best"):
            value = getattr(run, name)
            headline[f"{name} test {run.measure}"] = None if value is None else f"{value:.4f}"
        return {key: str(value) for key, value in headline.items() if value is not None}

    @property
    def rounds(self) -> pd.DataFrame:
        """rounds.csv: a row per round that is complete."""
        return self.read("rounds")

    @property
    def clients(self) -> pd.DataFrame:
        """clients.csv: a row per round and client of its cohort."""
        return self.read("clients")

    @property
    def summary(self) -> dict[str, Any]:
        """The row of summary.csv as Python values, None for what is missing; a StoreError where
        the run has not ended."""
        rows = self.read("summary")
        if rows.empty:
            raise StoreError(f"{self.path / 'summary.csv'}: has no row below its header")
        values = {str(key): column.tolist()[0] for key, column in rows.items()}
        return {key: None if value != value else value for key, value in values.items()}  # NaN

    def read(self, table: str) -> pd.DataFrame:
        """A table as a data frame; a StoreError where there is none, or it is damaged."""
        return tables.frame(self.path / f"{table}.csv")

    def read_environment(self) -> dict[str, Any]:
        """What env.json says, {} where there is none; a ConfigError where it is damaged."""
        content: dict[str, Any] = self._json("env.json", {})
        return content

    def read_words(self) -> tuple[str, ...] | None:
        """The vocabulary of a run on texts, in the order of their tokens; None without one."""
        words = self._json(files.VOCABULARY, [])
        return tuple(map(str, words)) or None

    def read_preprocessing(self) -> dict[str, Any] | None:
        """What new samples are prepared by; None where the run kept nothing for that."""
        content: dict[str, Any] = self._json(files.PREPROCESSING, {})
        return content or None

    def _json(self, name: str, missing: Any) -> Any:
        """The content of a file, of the type of what stands for a missing one."""
        path = self.path / name
        try:
            content = parse_json(path.read_bytes()) if path.exists() else missing
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: damaged: {one_line(error)}; restore it") from error
        if not isinstance(content, type(missing)):
            raise ConfigError(f"{path}: damaged: not what fedsim writes there")
        return content


class RunWriter(RunStore):
    """A run directory that is written; a StoreError where one of its files cannot be."""

    _digests: dict[str, TableDigest]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_digests", {})

    @classmethod
    def create(cls, path: Path) -> RunWriter:
        """Makes the directory; a ConfigError where it exists, not empty, or cannot have the name.

        The name is part of summary.csv.
        """
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"--out {path}: cannot be created ({error.strerror})") from error
        return cls(path)

    def write(self, name: str, text: str) -> None:
        """Writes a text file, as a whole or not at all."""
        files.write(self.path / name, text.encode())

    def write_partition(self, table: Mapping[str, Array]) -> None:
        """Writes partition.csv as a whole, of columns (n,); a DataError where one is there that
        says something else: the data are not those that the run began with."""
        whole = {"name": np.full(len(table["label"]), ""), **table}
        ordered = {name: whole[name] for name in PartitionRow.columns() if name in whole}
        self._write_once("partition.csv", tables.csv_text(ordered))

    def write_split(self, columns: Mapping[str, Array]) -> None:
        """Writes split.csv as :meth:`write_partition` does; the columns are (n,) each."""
        self._write_once("split.csv", tables.csv_text(columns))

    def write_vocabulary(self, words: Sequence[str]) -> None:
        """Writes vocabulary.json as :meth:`write_partition` does; nothing where there are none."""
        if words:
            self._write_once(files.VOCABULARY, json.dumps(list(words), indent=0) + "\n")

    def write_preprocessing(self, known: Mapping[str, Any]) -> None:
        """Writes preprocessing.json as :meth:`write_partition` does."""
        self._write_once(files.PREPROCESSING, json.dumps(known, indent=1) + "\n")

    def _write_once(self, name: str, text: str) -> None:
        """Writes a file; where it is there, it must have this text."""
        path = self.path / name
        if not path.exists():
            self.write(name, text)
        elif path.read_bytes() != text.encode():
            raise DataError(
                f"{path}: the data now give another {path.stem}; they, or this file, have changed "
                "since the run began, which cannot go on with them"
            )

    def append(self, table: str, rows: Iterable[Row]) -> None:
        """Appends rows to a table, and to its digest; the first call also writes the header.

        Optional columns are there where the first rows have a value in them. A StoreError where the
        table has other columns.
        """
        rows, columns, optional = list(rows), TABLES[table].columns(), TABLES[table].optional()
        digest = None if table in DIAGNOSTIC else self._digest(table)
        with (
            files.writing(self.path / f"{table}.csv") as path,
            path.open("a+", encoding="utf-8", newline="") as file,
        ):
            file.seek(0)
            header = file.readline().removesuffix("\n")
            empty = {c for c in optional if all(row[c] is None for row in rows)}
            further = tuple(rows[0].further) if rows else ()
            used = *(c for c in columns if c not in empty), *further
            begun = tuple(header.split(",")) if file.tell() else used
            expected = *(c for c in columns if c not in optional or c in begun), *further
            if begun != expected:
                raise StoreError(
                    f"{path}, line 1: the header is {header!r}, expected {','.join(columns)!r}"
                )
            text = tables.rows_text(begun, rows, header=not file.tell())
            file.write(text)
        if digest is not None:
            digest.add(text.encode())

    def _digest(self, table: str) -> TableDigest:
        if table not in self._digests:
            self._digests[table] = TableDigest(self.path / f"{table}.csv")
        return self._digests[table]

    def table_digests(self) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of each table with results that exists, by its name."""
        here = [name.removesuffix(".csv") for name in self._tables()]
        return {t: self._digest(t).record() for t in here if t not in DIAGNOSTIC}

    def write_final_clients(self, rows: Iterable[FinalClientRow]) -> None:
        """Writes final_clients.csv as a whole."""
        rows = list(rows)
        columns = list(rows[0]) if rows else list(FinalClientRow.columns())
        self.write("final_clients.csv", tables.rows_text(columns, rows, header=True))

    def write_summary(self, row: Mapping[str, Any]) -> None:
        """Writes summary.csv, whose columns are the row's keys."""
        self.write("summary.csv", tables.rows_text(list(row), [row], header=True))

    def table_sizes(self) -> dict[str, int]:
        """Bytes of each table that grows with the rounds and exists, by file name.

        Of a table with a digest those that were written here: nobody else's are part of it.
        """
        return self._tables() | {f"{name}.csv": d.size for name, d in self._digests.items()}

    def _tables(self) -> dict[str, int]:
        """The size of each table that grows with the rounds and exists, by file name."""
        with files.reading(self.path), os.scandir(self.path) as entries:
            return {e.name: e.stat().st_size for e in entries if e.name in _FILES}

    def truncate_tables(self, sizes: Mapping[str, int]) -> None:
        """Truncates the tables to these sizes in bytes, and deletes those without one.

        A table that is shorter is truncated to its last whole row.
        """
        self._digests.clear()
        here = self.table_sizes()
        for table in GROWING:
            with files.writing(self.path / f"{table}.csv") as path:
                wanted, size = sizes.get(path.name, 0), here.get(path.name, 0)
                if size < wanted:
                    wanted = path.read_bytes().rfind(b"\n") + 1 if size else 0
                if wanted:
                    os.truncate(path, wanted)
                else:
                    path.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Deletes the files that a process was writing when it was killed."""
        for folder in (self.path, self.path / "checkpoints"):
            with files.writing(folder):
                for path in folder.glob(f"{files.UNFINISHED}*"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def save_loss_matrix(self) -> None:
        """Writes loss_matrix.npz from loss_matrix.csv: for each decomposed round r the arrays
        ``r/models``, ``r/owners`` and ``r/losses`` (models, owners)."""
        arrays: dict[str, Any] = {}
        table = self.read("loss_matrix").astype({"model": str, "owner": str})
        for number, rows in table.groupby("round"):
            models, owners = rows["model"].unique().tolist(), rows["owner"].unique().tolist()
            arrays[f"{number}/models"] = np.array(models)
            arrays[f"{number}/owners"] = np.array(owners)
            arrays[f"{number}/losses"] = rows["loss"].to_numpy().reshape(len(models), len(owners))
        data = io.BytesIO()
        np.savez(data, **arrays)  # NumPy 2.1 would take allow_pickle for the name of an array
        files.write(self.path / "loss_matrix.npz", data.getvalue())


def check_free(path: Path) -> None:
    """Refuses a path in use, or inside a run directory, by a ConfigError; the leftovers of a run
    that failed at its start do not count."""
    if path.exists() and (not path.is_dir() or not all(map(is_leftover, path.iterdir()))):
        raise ConfigError(f"--out {path}: exists and is not an empty directory")
    check_outside_runs(path)


def check_outside_runs(path: Path, flag: str = "--out") -> None:
    """Refuses a path inside a run directory by a ConfigError that names the flag."""
    folder = files.run_around(path)
    if folder is not None:
        raise ConfigError(f"{flag} {path}: lies inside the run directory {folder}")


def is_leftover(path: Path) -> bool:
    """True for the lock file and for an empty folder of checkpoints."""
    if path.name == "checkpoints" and path.is_dir():
        return not any(path.iterdir())
    return path.name == files.LOCK_FILE


def default_path(dataset: str, algorithm: str) -> Path:
    """``runs/<dataset>/<algorithm>/<timestamp>-<id>``, new at each call."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    parts = [name.replace(":", ".") for name in (dataset, algorithm)]
    return Path("runs", *parts, f"{now}-{secrets.token_hex(2)}")


def last_predictions(store: RunStore) -> FinalPredictions | None:
    """What the last evaluation in a run's classes.csv says of a collapse, see
    :func:`fedsim.metrics.collapse.final_predictions`; None without that table, too."""
    has_classes = (store.path / "classes.csv").is_file()
    return final_predictions(store.read("classes")) if has_classes else None


def client_number(run: Path, num_clients: int, client: int | str, flag: str = "--client") -> int:
    """The number of a client that is given by number, or by the name of its site, user or file; a
    ConfigError where the run has no such client, or several of this name."""
    last = num_clients - 1
    if not isinstance(client, str):
        if not 0 <= client <= last:
            raise ConfigError(f"{flag} {client}: the run has the clients 0 to {last}")
        return client
    table = RunStore(run).read("partition").drop_duplicates("client_id")
    named = table.reindex(columns=["client_id", "name"]).dropna()
    numbers = [int(k) for k in named["client_id"][named["name"].astype(str) == client]]
    if len(numbers) > 1:
        listed = ", ".join(map(str, numbers))
        raise ConfigError(f"{flag} {client}: the clients {listed} have this name; give a number")
    if not numbers:
        names = [str(name) for name in named["name"]]
        reason = "have other names" + nearest(client, names) if names else "have no names"
        raise ConfigError(f"{flag} {client}: the clients of the run, 0 to {last}, {reason}")
    return numbers[0]


def to_json(value: object) -> str:
    """Readable JSON with a final line end."""
    return json.dumps(value, indent=2, default=str) + "\n"
