"""Published tables: their numbers and claims, the jobs that test them, and the verdicts.

``papers/numbers.csv`` has every number, by table, method and setting: ``value`` with ``sd`` and
``n`` where the paper says them, a ``margin`` of its own, and a row per ``seed`` where each seed's
value is published. ``papers/PAPER.yaml`` says the rest of a paper's tables: where they stand, how
runs measure them, what is claimed, and the jobs. A job is a sweep (:mod:`fedsim.studies.sweep`);
its directory also gets values.csv, what each run gave for each cell of the table, and verdicts.csv,
which follows from it and from the table.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedsim.config import presets
from fedsim.config.experiments import Axis, AxisValue, Experiment, Setting
from fedsim.core import files
from fedsim.core.analysis import analysis
from fedsim.core.errors import ConfigError, StoreError, nearest
from fedsim.storage.run_dir import RunStore
from fedsim.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.studies.sweep import SweepRun

FOLDER = Path(__file__).with_name("papers")
UNITS: Mapping[str, float] = {
    "percent": 100.0, "accuracy": 1.0, "share": 1.0, "rounds": 1.0, "nats": 1.0,
}  # fmt: skip
"""By unit of a published number what a run's value is multiplied by; accuracies of runs lie in
0..1."""
FULL, SCALED = "full", "scaled"
JOBS = (SCALED, FULL)
"""The jobs, the one that is done by default first."""
SEEDS = ("seed", "data.seed")
"""Axes that repeat a method under a setting."""
VALUES, VERDICTS = "values.csv", "verdicts.csv"
"""What a job's directory has beside its sweep."""
COLUMNS = ("table", "job", "method", "setting", "data.seed", "seed", "value", "samples", "version")
"""Of values.csv; ``samples`` is the number of training samples of all clients."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A column of a run's table: its last round, the rows that ``where`` selects by column."""

    column: str
    table: str = "summary"
    where: Mapping[str, object] = field(default_factory=dict)
    absolute: bool = False


@dataclass(frozen=True, kw_only=True)
class Number:
    """A published number, in the table's unit, and the margin of equivalence with it.

    ``sd`` is the standard deviation (ddof 1) over the ``n`` published runs, NaN and None where they
    are not known; ``values`` are by seed, where these are published.
    """

    method: str
    setting: str
    value: float
    margin: float
    sd: float = math.nan
    n: int | None = None
    values: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """That the metric of one method is above that of another one in a setting."""

    above: str
    below: str
    setting: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """Runs that test a table, or a part of it.

    A job ``full`` has the protocol of the paper and tests numbers and claims, one ``scaled`` has
    other data or a smaller network and tests claims alone. ``experiment`` is the preset with the
    seeds of the job, and of its grid what the job names: ``methods`` and ``settings`` have by name
    the labels on axes of the grid. ``data`` says what it needs, ``find`` by which files below the
    data folder that is known (none: it is embedded or generated), ``samples`` how many training
    samples the published runs have, ``seconds`` what it took on two busy cores.
    """

    name: str
    preset: str
    experiment: Experiment
    data: str
    find: tuple[str, ...] = ()
    methods: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, Mapping[str, str]]
    samples: int | None = None
    seconds: float | None = None
    about: str = ""

    @property
    def runs(self) -> int:
        """How many runs it has."""
        return math.prod(len(axis.values) for axis in self.experiment.grid)

    def labels(self, method: str, setting: str) -> dict[str, str] | None:
        """The labels of the runs of a method under a setting; None where the job has none."""
        if method not in self.methods or setting not in self.settings:
            return None
        return {**self.methods[method], **self.settings[setting]}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A published table.

    ``metrics`` are by setting, under ``""`` that of all others; ``margin`` of equivalence was fixed
    before the first run, and a 95 % interval above ``widest`` tests nothing; ``missing`` says why
    nothing of the table can be tested, where no job does.
    """

    name: str
    title: str
    source: str
    provenance: str
    about: str
    metrics: Mapping[str, Metric]
    unit: str
    margin: float
    widest: float
    numbers: tuple[Number, ...]
    claims: tuple[Claim, ...]
    jobs: Mapping[str, Job]
    missing: str

    def metric(self, setting: str) -> Metric:
        """The metric of a setting."""
        return self.metrics.get(setting) or self.metrics[""]

    def tested(self, job: Job) -> tuple[list[Number], list[Claim]]:
        """The numbers and claims that a job tests."""
        numbers = [n for n in self.numbers if job.labels(n.method, n.setting) is not None]
        claims = [
            c
            for c in self.claims
            if None not in (job.labels(c.above, c.setting), job.labels(c.below, c.setting))
        ]
        return numbers if job.name == FULL else [], claims

    def untested(self, job: Job) -> str:
        """Why a job does not test a number."""
        if job.name == FULL:
            return "not in the runs of the full job"
        return f"needs the full job: {self.jobs[FULL].data}"


def names() -> tuple[str, ...]:
    """The names of all tables, sorted."""
    return tuple(sorted(_papers(FOLDER)))


def load(name: str) -> Table:
    """The table of that name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in names():
        raise ConfigError(
            f"fedsim reproduce: unknown table {name!r}{nearest(name, names())}; "
            "'fedsim reproduce --list' shows them"
        )
    entry = _papers(FOLDER)[name]
    metrics, jobs = entry["metric"], entry.get("jobs", {})
    if isinstance(metrics, str) or "column" in metrics:
        metrics = {"": metrics}
    return Table(
        name=name,
        title=entry["title"],
        source=f"{entry['paper']}, {entry['place']}",
        provenance=entry["provenance"],
        about=entry.get("about", ""),
        metrics={
            setting: Metric(**({"column": metric} if isinstance(metric, str) else metric))
            for setting, metric in metrics.items()
        },
        unit=entry["unit"],
        margin=float(entry["margin"]),
        widest=float(entry.get("widest", math.inf)),
        numbers=_numbers(name, float(entry["margin"]), entry.get("runs")),
        claims=tuple(
            Claim(above, below, setting)
            for claim in entry.get("claims", ())
            for above in claim["above"]
            for below in claim["below"]
            for setting in claim["settings"]
        ),
        jobs={job: _job(job, jobs[job]) for job in JOBS if job in jobs},
        missing=entry.get("missing", ""),
    )


@functools.cache
def _papers(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """By table what the YAML files say of it, with the name of its paper."""
    tables: dict[str, Mapping[str, Any]] = {}
    for file in folder.glob("*.yaml"):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        paper = {"paper": content["paper"]}
        tables |= {name: paper | entry for name, entry in content["tables"].items()}
    return tables


@functools.cache
def _rows(folder: Path) -> list[dict[str, str]]:
    """The rows of numbers.csv."""
    lines = (folder / "numbers.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines))


def _numbers(table: str, margin: float, runs: int | None) -> tuple[Number, ...]:
    """The numbers of a table; those of several seeds are their mean."""
    cells: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _rows(FOLDER):
        if row["table"] == table:
            cells.setdefault((row["method"], row["setting"]), []).append(row)
    return tuple(
        Number(
            method=method,
            setting=setting,
            value=math.fsum(float(row["value"]) for row in rows) / len(rows),
            margin=float(rows[0]["margin"] or margin),
            sd=float(rows[0]["sd"] or math.nan),
            n=int(rows[0]["n"]) if rows[0]["n"] else runs,
            values={int(row["seed"]): float(row["value"]) for row in rows if row["seed"]},
        )
        for (method, setting), rows in cells.items()
    )


def _job(name: str, entry: Mapping[str, Any]) -> Job:
    """A job; of an axis of the preset's grid it has the labels that a method or setting names."""
    experiment = presets.load(entry["preset"])
    methods, settings = (
        {cell: {axis: str(label) for axis, label in row.items()} for cell, row in entry[k].items()}
        for k in ("methods", "settings")
    )
    rows = [*methods.values(), *settings.values()]
    named = {pair for row in rows for pair in row.items()}
    grid = [
        Axis(a.name, tuple(v for v in a.values if a.name in SEEDS or (a.name, v.label) in named))
        for a in experiment.grid
    ]
    if "seeds" in entry:
        values = [AxisValue(str(s), {"seed": Setting(s, "seeds")}) for s in entry["seeds"]]
        grid.append(Axis("seed", tuple(values)))
    return Job(
        name=name,
        experiment=replace(experiment, grid=tuple(grid)),
        methods=methods,
        settings=settings,
        find=tuple(entry.get("find", ())),
        **{
            key: entry[key]
            for key in ("preset", "data", "samples", "seconds", "about")
            if key in entry
        },
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """The verdict on one number or claim of a table, an :class:`analysis.verdicts.Verdict`."""

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
        verdict = self.verdict
        number = self.result if isinstance(self.result, Number) else None
        return {
            "method": self.method,
            "setting": self.result.setting,
            "published": number and number.value,
            "published_sd": number and number.sd,
            "published_n": number and number.n,
            "margin": number and number.margin,
            "ours": verdict.ours,
            "n": verdict.n,
            "unit": verdict.unit,
            "difference": verdict.difference,
            "low90": verdict.difference - verdict.half90,
            "high90": verdict.difference + verdict.half90,
            "low95": verdict.difference - verdict.half95,
            "high95": verdict.difference + verdict.half95,
            "p_holm": verdict.p,
            "verdict": verdict.word,
            "needed": verdict.needed,
            "reason": verdict.reason,
        }

    @property
    def cells(self) -> dict[str, str]:
        """As a row of a table of text."""
        verdict, notes = self.verdict, [self.verdict.reason] if self.verdict.reason else []
        published, half, spread = "-", verdict.half95, verdict.p
        if isinstance(self.result, Number):
            runs = [] if math.isnan(self.result.sd) else [f"sd {self.result.sd:g}"]
            runs += [f"n {self.result.n}"] if self.result.n else []
            published = f"{self.result.value:.6g}" + (f" ({', '.join(runs)})" if runs else "")
            half, spread = verdict.half90, verdict.half95
        difference = _text(verdict.difference, "+.4g")
        if not math.isnan(half):
            low, high = verdict.difference - half, verdict.difference + half
            difference += f" [{low:.4g}, {high:.4g}]"
        if verdict.word == analysis("verdicts").UNDECIDED and not math.isnan(spread):
            some = "no number of runs up to 10,000"
            many = f"{verdict.needed or 0:,} {verdict.unit}s"
            notes.append(f"{some if verdict.needed is None else many} would decide")
        return {
            "method": self.method,
            "setting": self.result.setting,
            "published": published,
            "ours": _text(verdict.ours, ".4g"),
            "n": str(verdict.n),
            "difference": difference,
            "p": _text(verdict.p, ".2g"),
            "verdict": verdict.word,
            "note": "; ".join(notes),
        }


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def write(table: Table, job: Job, runs: Sequence[SweepRun], out: Path) -> list[Result]:
    """Writes OUT/values.csv and OUT/verdicts.csv; returns the verdicts.

    Raises:
        StoreError: a finished run lacks a table or a column, or has several rows for one value; or
            a file cannot be written.
    """
    import pandas as pd  # for which no list of the tables has to wait

    values = measured(table, job, runs, out)
    results = judge(table, job, values)
    verdicts = pd.DataFrame([result.row for result in results])
    for name, frame in ((VALUES, values), (VERDICTS, verdicts)):
        files.write(out / name, frame.to_csv(index=False, lineterminator="\n").encode())
    return results


def measured(table: Table, job: Job, runs: Sequence[SweepRun], out: Path) -> pd.DataFrame:
    """The rows of values.csv, in the unit of the table, from the runs of the job's sweep."""
    import pandas as pd

    from fedsim.studies.sweep import plain

    numbers, claims = table.tested(job)
    cells = [(n.method, n.setting) for n in numbers]
    cells += [(method, c.setting) for c in claims for method in (c.above, c.below)]
    rows = []
    for method, setting in dict.fromkeys(cells):
        labels = job.labels(method, setting) or {}
        parts = {f"{axis}={plain(label)}" for axis, label in labels.items()}
        for run in runs:
            if parts <= set(run.name.split(",")):
                value = read(out / run.name, table.metric(setting)) * UNITS[table.unit]
                cell = (table.name, job.name, method, setting, run.config.data.seed)
                store = RunStore(out / run.name)
                samples = None
                if store.finished:
                    samples = int(store.read("partition")["train_samples"].sum())
                rows.append((*cell, run.config.seed, value, samples, __version__))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def read(run: Path, metric: Metric) -> float:
    """The value of a metric in a run directory; NaN where the run is not finished, or has none.

    Raises:
        StoreError: the table or the column is missing, or the value is in no row or several.
    """
    store, path = RunStore(run), run / f"{metric.table}.csv"
    if not store.finished:
        return math.nan
    frame = store.read(metric.table)
    for column in (*metric.where, metric.column):
        if column not in frame.columns:
            raise StoreError(f"{path}: has no column {column!r}")
    for column, value in metric.where.items():
        frame = frame[frame[column] == value]
    if "round" in frame.columns:
        frame = frame[frame["round"] == frame["round"].max()]
    if len(frame) != 1:
        raise StoreError(f"{path}: {len(frame)} rows for {metric.column}, needed is one")
    number = float(frame[metric.column].iloc[0])
    return abs(number) if metric.absolute else number


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
    samples = values["samples"].dropna()
    if job.samples is not None and not (other := samples[samples != job.samples]).empty:
        reason = f"{int(other.iloc[0]):,} training samples, the published runs have {job.samples:,}"
        void = verdicts.Verdict(word=verdicts.UNTESTABLE, reason=reason)
        every: list[Number | Claim] = [*table.numbers, *claims]
        return [Result(result=each, verdict=void) for each in every]
    by_cell = {cell: _series(rows) for cell, rows in values.groupby(["method", "setting"])}
    none: pd.Series[float] = _series(values.iloc[:0])
    results = []
    for number in table.numbers:
        series = by_cell.get((number.method, number.setting), none)
        if number not in numbers:
            verdict = verdicts.Verdict(word=verdicts.UNTESTABLE, reason=table.untested(job))
        elif number.values:
            verdict = verdicts.seeds(series, number.values, number.margin, widest=table.widest)
        else:
            spread = {"sd": number.sd, "n": number.n, "widest": table.widest}
            verdict = verdicts.number(series, number.value, number.margin, **spread)
        results.append(Result(result=number, verdict=verdict))
    pairs = {
        claim: tuple(by_cell.get((m, claim.setting), none) for m in (claim.above, claim.below))
        for claim in claims
    }
    orders = verdicts.orders(pairs, table.margin)
    return results + [Result(result=claim, verdict=orders[claim]) for claim in claims]


def _series(rows: pd.DataFrame) -> pd.Series[float]:
    """The values by run: by partition and seed where there are several partitions."""
    keys = list(reversed(SEEDS)) if rows["data.seed"].nunique() > 1 else ["seed"]
    return rows.set_index(keys)["value"].astype(float)


def counts(words: Iterable[str]) -> Mapping[str, int]:
    """How often each verdict was given, without zeros, in the order of the words."""
    verdicts = list(words)
    return {w: verdicts.count(w) for w in analysis("verdicts").WORDS if w in verdicts}
