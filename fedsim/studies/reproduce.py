"""Tests a published table: the runs of a job, what they gave, and a verdict on each result.

A job is a sweep (:mod:`fedsim.studies.sweep`). Its directory also gets values.csv, what each run
gave for each cell of the table, and verdicts.csv, which follows from it and from the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim.config.published.tables import SEEDS, UNITS, Claim, Job, Metric, Number, Table
from fedsim.core import files
from fedsim.core.analysis import analysis
from fedsim.core.errors import StoreError, one_line
from fedsim.studies.sweep import SweepRun, plain
from fedsim.version import __version__

VALUES, VERDICTS = "values.csv", "verdicts.csv"
"""What a job's directory has beside its sweep."""
COLUMNS = (
    *("table", "job", "method", "setting", "data.seed", "seed", "value", "samples", "version"),
)  # fmt: skip
"""Of values.csv; a run without the value, such as one that failed, has an empty one. ``samples`` is
the number of training samples of all clients."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found of one result of a table.

    Args:
        result: the number or the claim.
        verdict: an :class:`analysis.verdicts.Verdict`.
    """

    result: Number | Claim
    verdict: Any

    @property
    def method(self) -> str:
        """The method, or the two of an order."""
        if isinstance(self.result, Number):
            return self.result.method
        return f"{self.result.above} > {self.result.below}"

    @property
    def row(self) -> dict[str, object]:
        """As a row of verdicts.csv."""
        number = self.result if isinstance(self.result, Number) else None
        found = self.verdict
        return {
            "method": self.method,
            "setting": self.result.setting,
            "published": number.value if number else None,
            "published_sd": number.sd if number else None,
            "published_n": number.n if number else None,
            "margin": number.margin if number else None,
            "ours": found.ours,
            "n": found.n,
            "unit": found.unit,
            "difference": found.difference,
            "low90": found.difference - found.half90,
            "high90": found.difference + found.half90,
            "low95": found.difference - found.half95,
            "high95": found.difference + found.half95,
            "p_holm": found.p,
            "verdict": found.word,
            "needed": found.needed,
            "reason": found.reason,
        }


def measured(table: Table, job: Job, runs: Sequence[SweepRun], out: Path) -> pd.DataFrame:
    """The rows of values.csv, in the unit of the table.

    Args:
        table: that is tested.
        job: of the table.
        runs: of its sweep.
        out: its directory.

    Raises:
        StoreError: a finished run lacks a table or a column, or has several rows for one value.
    """
    numbers, claims = table.tested(job)
    cells = [(n.method, n.setting) for n in numbers]
    cells += [(method, c.setting) for c in claims for method in (c.above, c.below)]
    labels = {run.name: _labels(run.name) for run in runs}
    rows = []
    for method, setting in dict.fromkeys(cells):
        wanted = {axis: plain(text) for axis, text in (job.labels(method, setting) or {}).items()}
        for run in runs:
            if wanted.items() <= labels[run.name].items():
                value = read(out / run.name, table.metric(setting)) * UNITS[table.unit]
                seeds = (run.config.data.seed, run.config.seed)
                where = (table.name, job.name, method, setting)
                rows.append((*where, *seeds, value, samples(out / run.name), __version__))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _labels(name: str) -> dict[str, str]:
    """By axis the label in the name of a run's directory."""
    return {axis: label for axis, _, label in (part.partition("=") for part in name.split(","))}


def read(run: Path, metric: Metric) -> float:
    """The value of a metric in a run directory; NaN where the run is not finished, or has none.

    Raises:
        StoreError: the table or the column is missing, or the value is in no row or several.
    """
    if not (run / "summary.csv").exists():
        return math.nan
    path = run / f"{metric.table}.csv"
    try:
        frame = pd.read_csv(path)
        for column, value in metric.where.items():
            frame = frame[frame[column].astype(str) == value]
        if "round" in frame.columns:
            frame = frame[frame["round"] == frame["round"].max()]
        values = pd.to_numeric(frame[metric.column]).astype(float)
    except KeyError as error:
        raise StoreError(f"{path}: has no column {error}") from error
    except (ValueError, OSError) as error:
        raise StoreError(f"{path}: cannot be read as a table ({one_line(error)})") from error
    if len(values) != 1:
        raise StoreError(f"{path}: {len(values)} rows for {metric.column}, needed is one")
    return abs(float(values.iloc[0])) if metric.absolute else float(values.iloc[0])


def samples(run: Path) -> int | None:
    """The number of training samples of all clients; None where the run is not finished."""
    if not (run / "summary.csv").exists():
        return None
    try:
        return int(pd.read_csv(run / "partition.csv")["train_samples"].sum())
    except (ValueError, KeyError, OSError) as error:
        raise StoreError(f"{run}/partition.csv: cannot be read ({one_line(error)})") from error


def judge(table: Table, job: Job, values: pd.DataFrame) -> list[Result]:
    """The verdicts of a job on the numbers and claims of its table.

    A number that the job does not test is "not testable here", with what it would take.

    Args:
        table: that is tested.
        job: of the table.
        values: rows of values.csv of this table and job.
    """
    verdicts = analysis("verdicts")
    numbers, claims = table.tested(job)
    if other := _other_samples(job, values):
        void = verdicts.Verdict(word=verdicts.UNTESTABLE, reason=other)
        every: list[Number | Claim] = [*table.numbers, *claims]
        return [Result(result=each, verdict=void) for each in every]
    by_cell = {cell: _series(rows) for cell, rows in values.groupby(["method", "setting"])}
    none: pd.Series[float] = _series(values.iloc[:0])
    results = []
    for number in table.numbers:
        own = by_cell.get((number.method, number.setting), none)
        if number not in numbers:
            found = verdicts.Verdict(word=verdicts.UNTESTABLE, reason=untested(table, number, job))
        elif number.values:
            found = verdicts.seeds(own, number.values, number.margin, widest=table.widest)
        else:
            found = verdicts.number(
                own, number.value, number.margin, sd=number.sd, n=number.n, widest=table.widest
            )
        results.append(Result(result=number, verdict=found))
    pairs = {
        claim: tuple(by_cell.get((m, claim.setting), none) for m in (claim.above, claim.below))
        for claim in claims
    }
    ordered = verdicts.orders(pairs, table.margin)
    return results + [Result(result=claim, verdict=ordered[claim]) for claim in claims]


def _other_samples(job: Job, values: pd.DataFrame) -> str:
    """Why runs test nothing that have fewer or more training samples than the published ones."""
    found = values["samples"].dropna()
    if job.samples is None or (found == job.samples).all():
        return ""
    other = int(found[found != job.samples].iloc[0])
    return f"{other:,} training samples, the published runs have {job.samples:,}"


def untested(table: Table, number: Number, job: Job | None) -> str:
    """Why a job, or no job at all, tests a number."""
    if number.missing or table.missing:
        return number.missing or table.missing
    full = table.jobs.get("full")
    if full is None:
        return "there is no full job, and a scaled one has other data or a smaller network"
    if job is None or job.name != full.name:
        return f"needs the full job: {full.data}"
    return "not in the runs of the full job"


def _series(rows: pd.DataFrame) -> pd.Series[float]:
    """The values by run: by partition and seed where there are several partitions."""
    keys = list(reversed(SEEDS)) if rows["data.seed"].nunique() > 1 else ["seed"]
    return rows.set_index(keys)["value"].astype(float)


def write(table: Table, job: Job, runs: Sequence[SweepRun], out: Path) -> list[Result]:
    """Writes OUT/values.csv and OUT/verdicts.csv; returns the verdicts.

    Raises:
        StoreError: see :func:`measured`, or a file cannot be written.
    """
    values = measured(table, job, runs, out)
    results = judge(table, job, values)
    frame = pd.DataFrame([result.row for result in results])
    for name, made in ((VALUES, values), (VERDICTS, frame)):
        files.write(out / name, made.to_csv(index=False, lineterminator="\n").encode())
    return results


def counts(words: Iterable[str]) -> Mapping[str, int]:
    """How often each verdict was given, without zeros, in the order of the words."""
    given = list(words)
    return {w: given.count(w) for w in analysis("verdicts").WORDS if w in given}


def cells(result: Result) -> dict[str, str]:
    """A result as a row of a table of text."""
    found, number = result.verdict, isinstance(result.result, Number)
    difference = "-"
    if not math.isnan(found.difference):
        half = found.half90 if number else found.half95
        difference = f"{found.difference:+.4g}"
        if not math.isnan(half):
            low, high = found.difference - half, found.difference + half
            difference += f" [{low:.4g}, {high:.4g}]"
    notes = [found.reason] if found.reason else []
    known = found.half95 if number else found.p
    if found.word == analysis("verdicts").UNDECIDED and not math.isnan(known):
        few = "no number of runs up to 10,000" if found.needed is None else f"{found.needed:,}"
        unit = "" if found.needed is None else f" {found.unit}s"
        notes.append(f"{few}{unit} would decide")
    return {
        "method": result.method,
        "setting": result.result.setting,
        "published": _published(result.result) if isinstance(result.result, Number) else "-",
        "ours": "-" if math.isnan(found.ours) else f"{found.ours:.4g}",
        "n": str(found.n),
        "difference": difference,
        "p": "-" if math.isnan(found.p) else f"{found.p:.2g}",
        "verdict": found.word,
        "note": "; ".join(notes),
    }


def _published(number: Number) -> str:
    """``0.7319 (sd 0.1811, n 5)``."""
    known = [] if math.isnan(number.sd) else [f"sd {number.sd:g}"]
    known += [] if number.n is None else [f"n {number.n}"]
    return f"{number.value:.6g}" + (f" ({', '.join(known)})" if known else "")
