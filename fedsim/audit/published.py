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
from itertools import groupby
from operator import itemgetter
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
class Number:
    """A published number, in the table's unit, and the margin of equivalence with it."""

    method: str
    setting: str
    value: float
    margin: float
    sd: float = math.nan  # standard deviation (ddof 1), NaN where it is not known
    n: int | None = None  # published runs
    values: Mapping[int, float] = field(default_factory=dict)  # by seed, if these are published


@dataclass(frozen=True)
class Claim:
    """That the metric of one method is above that of another one in a setting."""

    above: str
    below: str
    setting: str

    @property
    def method(self) -> str:
        """The two methods."""
        return f"{self.above} > {self.below}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Runs that test a table, or a part of it.

    A job ``full`` has the protocol of the paper and tests numbers and claims, one ``scaled`` has
    other data or a smaller network and tests claims alone.
    """

    name: str
    preset: str
    experiment: Experiment  # the preset, of its grid what the job names, and the job's seeds
    data: str  # what it needs
    methods: Mapping[str, Mapping[str, str]]  # by name the labels on axes of the grid
    settings: Mapping[str, Mapping[str, str]]  # the same
    samples: int | None = None  # of training in the published runs
    seconds: float | None = None  # on two busy cores
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
    """A published table; the fields are the keys of its entry in PAPER.yaml."""

    name: str
    paper: str
    title: str
    place: str
    provenance: str
    about: str = ""
    metric: Mapping[str, Mapping[str, Any]]  # arguments of read by setting, "": of all others
    unit: str
    margin: float  # of equivalence, fixed before the first run
    widest: float = math.inf  # a wider 95 % interval tests nothing
    runs: int | None = None
    numbers: tuple[Number, ...]
    claims: tuple[Claim, ...]
    jobs: Mapping[str, Job]
    missing: str = ""  # why nothing can be tested

    @property
    def source(self) -> str:
        """Paper and place in it."""
        return f"{self.paper}, {self.place}"

    def tested(self, job: Job) -> tuple[list[Number], list[Claim]]:
        """The numbers and claims that a job tests."""
        numbers = [n for n in self.numbers if job.labels(n.method, n.setting) is not None]
        claims = [
            c
            for c in self.claims
            if {c.above, c.below} <= job.methods.keys() and c.setting in job.settings
        ]
        return numbers if job.name == FULL else [], claims


def names() -> tuple[str, ...]:
    """The names of all tables, sorted."""
    return tuple(sorted(_papers(FOLDER)))


def load(name: str) -> Table:
    """The table of that name."""
    if name not in names():
        raise ConfigError(
            f"fedsim reproduce: unknown table {name!r}{nearest(name, names())}; "
            "'fedsim reproduce --list' shows them"
        )
    entry = _papers(FOLDER)[name]
    metric, jobs = entry["metric"], entry.get("jobs", {})
    metric = {"": metric} if isinstance(metric, str) or "column" in metric else metric
    claims = [
        Claim(above, below, setting)
        for claim in entry.get("claims", ())
        for above in claim["above"]
        for below in claim["below"]
        for setting in claim["settings"]
    ]
    parsed = {
        "metric": {k: {"column": m} if isinstance(m, str) else m for k, m in metric.items()},
        "numbers": _numbers(name, float(entry["margin"]), entry.get("runs")),
        "claims": tuple(claims),
        "jobs": {job: _job(job, **jobs[job]) for job in JOBS if job in jobs},
    }
    return Table(name=name, **{**entry, **parsed})


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
    of_table = (row for row in _rows(FOLDER) if row["table"] == table)
    cells = groupby(of_table, itemgetter("method", "setting"))
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
        for (method, setting), rows in ((cell, [*rows]) for cell, rows in cells)
    )


def _job(
    name: str,
    *,
    preset: str,
    methods: Mapping[str, Mapping[str, object]],
    settings: Mapping[str, Mapping[str, object]],
    seeds: Sequence[int] = (),
    **about: Any,
) -> Job:
    """A job; of an axis of the preset's grid it has the labels that a method or setting names."""
    experiment = presets.load(preset)
    of_methods, of_settings = (
        {cell: {axis: str(label) for axis, label in row.items()} for cell, row in rows.items()}
        for rows in (methods, settings)
    )
    named = {p for row in (*of_methods.values(), *of_settings.values()) for p in row.items()}
    grid = [
        Axis(a.name, tuple(v for v in a.values if a.name in SEEDS or (a.name, v.label) in named))
        for a in experiment.grid
    ]
    if seeds:
        values = [AxisValue(str(s), {"seed": Setting(s, "seeds")}) for s in seeds]
        grid.append(Axis("seed", tuple(values)))
    experiment = replace(experiment, grid=tuple(grid))
    return Job(
        name=name, preset=preset, experiment=experiment, methods=of_methods, settings=of_settings,
        **about,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """The verdict on one number or claim of a table, an :class:`analysis.verdicts.Verdict`."""

    result: Number | Claim
    verdict: Any

    @property
    def row(self) -> dict[str, object]:
        """As a row of verdicts.csv."""
        v, number = self.verdict, self.result if isinstance(self.result, Number) else None
        row: dict[str, object] = {"method": self.result.method, "setting": self.result.setting}
        row |= {"published": number and number.value, "published_sd": number and number.sd}
        row |= {"published_n": number and number.n, "margin": number and number.margin}
        row |= {"ours": v.ours, "n": v.n, "unit": v.unit, "difference": v.difference}
        for level, half in ((90, v.half90), (95, v.half95)):
            row |= {f"low{level}": v.difference - half, f"high{level}": v.difference + half}
        return row | {"p_holm": v.p, "verdict": v.word, "needed": v.needed, "reason": v.reason}

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
            none = "no number of runs up to 10,000"
            some = none if verdict.needed is None else f"{verdict.needed:,} {verdict.unit}s"
            notes.append(f"{some} would decide")
        return {
            "method": self.result.method,
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
    """Writes OUT/values.csv and OUT/verdicts.csv; returns the verdicts."""
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
        for run in (run for run in runs if parts <= set(run.name.split(","))):
            store = RunStore(out / run.name)
            samples = (
                int(store.read("partition")["train_samples"].sum()) if store.finished else None
            )
            value = read(store.path, **(table.metric.get(setting) or table.metric[""]))
            value *= 100.0 if table.unit == "percent" else 1.0
            seeds = run.config.data.seed, run.config.seed
            rows.append(
                (table.name, job.name, method, setting, *seeds, value, samples, __version__)
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def read(
    run: Path,
    column: str,
    table: str = "summary",
    where: Mapping[str, object] | None = None,
    *,
    absolute: bool = False,
    mean: bool = False,
) -> float:
    """The value in a column of a run's table, in its last round and the row that ``where`` selects
    by column, or the ``mean`` over several; NaN where the run is not finished, or has none."""
    store, path, where = RunStore(run), run / f"{table}.csv", where or {}
    if not store.finished:
        return math.nan
    frame = store.read(table)
    if missing := [name for name in (*where, column) if name not in frame.columns]:
        raise StoreError(f"{path}: has no column {missing[0]!r}")
    for name, value in where.items():
        frame = frame[frame[name] == value]
    if "round" in frame.columns:
        frame = frame[frame["round"] == frame["round"].max()]
    if len(frame) != 1 and not mean:
        raise StoreError(f"{path}: {len(frame)} rows for {column}, needed is one")
    number = float(frame[column].mean(skipna=False))
    return abs(number) if absolute else number


def judge(table: Table, job: Job, values: pd.DataFrame) -> list[Result]:
    """The verdicts of a job on the numbers and claims of its table, from rows of values.csv.

    A number that the job does not test is "not testable here", with what it would take.
    """
    verdicts = analysis("verdicts")
    untestable = functools.partial(verdicts.Verdict, word=verdicts.UNTESTABLE)
    numbers, claims = table.tested(job)
    samples = values["samples"].dropna()
    if job.samples is not None and not (other := samples[samples != job.samples]).empty:
        reason = f"{int(other.iloc[0]):,} training samples, the published runs have {job.samples:,}"
        every: list[Number | Claim] = [*table.numbers, *claims]
        return [Result(result=each, verdict=untestable(reason=reason)) for each in every]

    def of(method: str, setting: str) -> pd.Series[float]:
        """The values by run: by partition and seed where there are several partitions."""
        rows = values[(values["method"] == method) & (values["setting"] == setting)]
        keys = list(reversed(SEEDS)) if rows["data.seed"].nunique() > 1 else ["seed"]
        return rows.set_index(keys)["value"].astype(float)

    results = []
    for number in table.numbers:
        series = of(number.method, number.setting)
        if number not in numbers:
            needed = f"needs the full job: {table.jobs[FULL].data}" if job.name != FULL else ""
            verdict = untestable(reason=needed or "not in the runs of the full job")
        elif number.values:
            verdict = verdicts.seeds(series, number.values, number.margin, widest=table.widest)
        else:
            spread = {"sd": number.sd, "n": number.n, "widest": table.widest}
            verdict = verdicts.number(series, number.value, number.margin, **spread)
        results.append(Result(result=number, verdict=verdict))
    pairs = {c: (of(c.above, c.setting), of(c.below, c.setting)) for c in claims}
    orders = verdicts.orders(pairs, table.margin)
    return results + [Result(result=claim, verdict=orders[claim]) for claim in claims]


def counts(words: Iterable[str]) -> Mapping[str, int]:
    """How often each verdict was given, without zeros, in the order of the words."""
    verdicts = list(words)
    return {w: verdicts.count(w) for w in analysis("verdicts").WORDS if w in verdicts}
