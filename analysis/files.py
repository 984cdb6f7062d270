"""The files of run directories: the one reader of CSV tables, names of classes and of clients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim.core.reading import parse_json

from . import AnalysisError


def read_table(
    path: Path, numbers: Sequence[str], texts: Sequence[str] = (), optional: Sequence[str] = (),
    optional_texts: Sequence[str] = (),
) -> pd.DataFrame:  # fmt: skip
    """Reads a CSV file that must have these columns, of numbers and text; an empty field is NaN."""
    if not path.is_file():
        raise AnalysisError(f"{path}: there is no such file")
    try:
        with warnings.catch_warnings():  # lines longer than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path, keep_default_na=False, na_values=[""], index_col=False, low_memory=False,
                dtype=dict.fromkeys([*texts, *optional_texts], "str") or None,  # not {}: slow
            )  # fmt: skip
    except (ValueError, OSError, pd.errors.ParserWarning) as error:
        reason = str(error).strip().partition("\n")[0]
        raise AnalysisError(f"{path}: cannot be read as CSV ({reason})") from error
    missing = [column for column in (*numbers, *texts) if column not in frame.columns]
    if missing:
        raise AnalysisError(
            f"{path}: no column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}"
        )
    for column in (*numbers, *frame.columns.intersection(list(optional))):
        if not pd.api.types.is_numeric_dtype(frame[column]):
            values = pd.to_numeric(frame[column], errors="coerce")
            for row in frame.index[values.isna() & frame[column].notna()]:
                raise AnalysisError(
                    f"{path}, line {row + 2}: {column} is {frame[column][row]!r}, not a number"
                )
            frame[column] = values
    return frame


def csv_text(frame: pd.DataFrame) -> str:
    """A table as CSV."""
    return frame.to_csv(index=False, lineterminator="\n")


def header(file: Path) -> list[str]:
    """The columns of a table that has rows; none where it has not, or there is no such file."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8") as lines:
        names = [name.strip().strip('"') for name in lines.readline().split(",")]
        return names if lines.readline().strip() else []


def has_rows(file: Path, columns: Sequence[str]) -> bool:
    """Whether the table exists, has these columns and at least one row."""
    return bool(names := header(file)) and set(columns) <= set(names)


def read_env(run: Path) -> Mapping[str, Any]:
    """What env.json of a run says; nothing where there is none."""
    file = run / "env.json"
    try:
        return dict(parse_json(file.read_bytes())) if file.is_file() else {}
    except (OSError, ValueError, TypeError) as error:
        raise AnalysisError(f"{file}: cannot be read as JSON ({error})") from error


def read_grid(folder: Path) -> dict[str, tuple[int, dict[str, str]]]:
    """Of each run of a sweep, by its folder's name, its place in the order of the sweep's file and
    the names of the rows of the grid by axis; nothing where sweep.json is missing, or damaged."""
    try:
        content = parse_json((folder / "sweep.json").read_bytes())
        names = [str(name) for name in content["runs"]]
        rows = [{str(k): str(v) for k, v in row.items()} for row in content.get("rows", [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    rows += [{}] * (len(names) - len(rows))
    return {name: (place, row) for place, (name, row) in enumerate(zip(names, rows, strict=False))}


def class_names(run: Path) -> list[str] | None:
    """The names of a run's classes, by label; None where env.json does not have them."""
    return [str(name) for name in read_env(run).get("classes") or ()] or None


def client_names(run: Path) -> Mapping[int, str]:
    """The names of a run's clients by id; empty where partition.csv does not name all of them."""
    file = run / "partition.csv"
    if not has_rows(file, ("name",)):
        return {}
    frame = read_table(file, ("client_id",), ("name",)).drop_duplicates("client_id")
    if not frame["name"].notna().all():
        return {}
    return dict(zip(frame["client_id"].astype(int), frame["name"], strict=True))


def read_partition(path: Path) -> pd.DataFrame:
    """Reads a partition.csv, given as the file or as its run directory."""
    file = path / "partition.csv" if path.is_dir() else path
    frame = read_table(file, ("client_id", "label", "train_samples"), optional_texts=("name",))
    if frame.empty:
        raise AnalysisError(f"{file}: no rows; a partition has one per client and label")
    return frame
