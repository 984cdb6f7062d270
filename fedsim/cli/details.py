"""What ``fedsim show`` and ``fedsim compare`` say of a run, read from its files alone."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.cli import names
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.reading import parse_json, read_bytes
from fedsim.storage import directories, status
from fedsim.storage.status import RunStatus

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
WIDTH = 60
"""A curve has at most so many characters."""
Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Details:
    """A run, read from its files.

    Args:
        settings: all of them by dotted key, under the present names of keys; what an earlier
            version did not know yet has the value that stands for it.
        environment: env.json; empty where it is damaged.
        collapsed: whether the final model is no better than chance, by summary.csv; None where it
            does not say, as for unfinished runs and those of earlier versions.
        rounds: the rows of rounds.csv.
        classes: the rows of classes.csv of the newest evaluated round.
    """

    status: RunStatus
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    collapsed: bool | None
    rounds: Sequence[Row]
    classes: Sequence[Row]

    @property
    def digests(self) -> dict[str, str]:
        """``data_digest``, and ``code.ROLE`` for each function of the user's; as far as known."""
        from fedsim.training.provenance import Provenance

        try:
            known = Provenance.read(self.status.path)
        except ConfigError:  # a damaged env.json says nothing here
            return {}
        found = {} if known.data is None else {"data_digest": known.data.short}
        return found | {f"code.{role}": code.short for role, code in known.code.items()}

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The settings that are not the default: their value and the default."""
        standard = default_settings(self.settings)
        return {
            key: (value, standard.get(key))
            for key, value in self.settings.items()
            if value != standard.get(key)
        }

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """By column of rounds.csv: its value at the end, in the best round and the mean of the
        evaluated rounds among the last ten; without columns that are empty."""
        best = status.best_row(self.rounds)
        recent = [r for r in self.rounds if int(r["round"]) > len(self.rounds) - 10]
        found = {}
        for column in self.rounds[0] if self.rounds else ():
            values = curve(self.rounds, column)
            if values and column.startswith(("val_", "test_", "client_test_", "train_loss")):
                last = curve(recent, column).values()
                found[column] = {
                    "final": list(values.values())[-1],
                    "best": status.number(best[column]) if best else None,
                    "last10": math.fsum(last) / len(last) if last else None,
                }
        return found

    @property
    def best_round(self) -> int | None:
        """The round that counts as the best, by validation or test accuracy."""
        best = status.best_row(self.rounds)
        return None if best is None else int(best["round"])


def read(run: str | Path) -> Details:
    """Reads a run, which may be unfinished or of an earlier version.

    Raises:
        ConfigError: there is no run, or its configuration cannot be read.
        StoreError: one of its tables cannot be read.
    """
    from fedsim.config import experiments

    path = Path(run)
    if not path.is_dir():
        raise ConfigError(f"RUN {path}: there is no such folder")
    if not status.is_run({entry.name for entry in path.iterdir()}):
        hint = f"; 'fedsim runs {path}' lists those below it" if any(directories.find(path)) else ""
        raise ConfigError(f"RUN {path}: holds no run{hint}")
    given = experiments.read(path / "config.yaml").settings
    try:
        found = status.read(path)
        if found.state == status.DAMAGED:
            raise ValueError(found.problem)
        rounds = _table(path / "rounds.csv", numbers=True)
        classes = _table(path / "classes.csv")
    except (OSError, ValueError, csv.Error) as error:
        raise StoreError(f"{path}: cannot be read ({error})") from error
    used = {given[key].value for key in ("algorithm", "data.name") if key in given}
    values = {
        key: setting.value
        for key, setting in given.items()
        # an earlier version wrote the options of all data sets
        if setting.former_key is None or key.partition(".")[0] in used
    }
    return Details(
        status=found,
        settings=_filled(values),
        environment=_environment(path),
        collapsed=_collapsed(path),
        rounds=rounds,
        classes=[row for row in classes if row["round"] == classes[-1]["round"]],
    )


def default_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every key for the method, data set and model of these settings."""
    from fedsim.config.sections import fields

    found = {key: field.default for key, field in fields().items()}
    for section in {key.rpartition(".")[0] for key in settings}:
        found |= {f"{section}.{leaf}": v for leaf, v in names.defaults(section).items()}
    data = names.catalogue()["datasets"].get(str(settings.get("data.name")), {})
    filled = {"model.name": data.get("model"), "data.partition": data.get("partition")}
    filled["data.group"] = "none"  # what a run without known patients has
    return found | {key: value for key, value in filled.items() if value is not None}


def _filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the keys that an earlier version did not know.

    Model and partition have the data set's default where the first versions left them open.
    """
    from fedsim.config import earlier

    found = earlier.values(*earlier.used(settings)) | dict(settings)
    standard = default_settings(found)
    left_open = [key for key in ("model.name", "data.partition") if found[key] is None]
    return found | {key: standard[key] for key in left_open}


def _table(file: Path, numbers: bool = False) -> list[dict[str, str]]:
    """The rows of a table, none where the run has none.

    Raises:
        OSError, ValueError, csv.Error: it cannot be read; ``round`` is no whole number; with
            ``numbers``, a cell is no number.
    """
    rows = status.table(file) if file.exists() else []
    for line, row in enumerate(rows, 2):
        if not row.get("round", "").isdigit():
            raise ValueError(f"{file}, line {line}: round is no whole number")
        for column, cell in row.items() if numbers else ():
            if cell and not _is_number(cell):
                raise ValueError(f"{file}, line {line}: {column} is {cell!r}, not a number")
    return rows


def _environment(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_bytes(path / "env.json"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _collapsed(path: Path) -> bool | None:
    rows = status.table(path / "summary.csv") if (path / "summary.csv").exists() else []
    said = rows[0].get("collapsed") if rows else None
    return said == "True" if said else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def curve(rows: Sequence[Row], column: str) -> dict[int, float]:
    """The values of a column by round, without rounds that have none."""
    pairs = ((int(row["round"]), status.number(row.get(column))) for row in rows)
    return {number: value for number, value in pairs if value is not None}


def sparkline(values: Sequence[float], blocks: str = BLOCKS) -> str:
    """The values as a line of blocks, lowest to highest; long ones are thinned out."""
    if len(values) > WIDTH:
        last = len(values) - 1
        values = [values[round(i * last / (WIDTH - 1))] for i in range(WIDTH)]
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(blocks[round((v - low) / width * (len(blocks) - 1))] for v in values)


def text(value: object) -> str:
    """A setting as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
