"""What a published table is made of: numbers, claims and jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedsim.config.experiments import Experiment

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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Where a run has a number.

    Args:
        table: of a run, ``summary`` or one with rounds.
        column: of the table.
        where: by column the value of the rows that count.
        absolute: whether its absolute value is meant.
    """

    table: str
    column: str
    where: Mapping[str, str] = field(default_factory=dict)
    absolute: bool = False


@dataclass(frozen=True, kw_only=True)
class Number:
    """A published number; ``value``, ``sd`` and ``margin`` are in the table's unit.

    Args:
        method: as the table calls it.
        setting: the same.
        value: the number.
        margin: of equivalence.
        sd: standard deviation (ddof 1) over the published runs; NaN: not known.
        n: number of the published runs; None: not known.
        values: by seed, where they are published.
        missing: why nothing can test it here; empty where a job does.
    """

    method: str
    setting: str
    value: float
    margin: float
    sd: float = math.nan
    n: int | None = None
    values: Mapping[int, float] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True)
class Claim:
    """That the metric of one method is above that of another one in a setting."""

    above: str
    below: str
    setting: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """Runs that test a table, or a part of it.

    Args:
        name: ``scaled`` or ``full``.
        preset: its name.
        experiment: the preset with the seeds and settings of the job.
        data: what it needs, in words.
        find: patterns of files below the data folder; none: the data are embedded or generated.
        methods: by name the labels on axes of the grid.
        settings: the same.
        samples: number of training samples of the published runs; None: not checked.
        seconds: that it took on two busy cores; None: not measured.
        about: what a reader should know.
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

    Args:
        name: of its file.
        title: in words.
        source: paper, and table or figure, with the page where it is known.
        provenance: where the numbers here were read.
        about: what a reader should know.
        metrics: by setting; under ``""`` that of all others.
        unit: of its numbers.
        margin: of equivalence.
        widest: the widest 95 % interval that still tests a number.
        numbers: in their order.
        claims: the same.
        jobs: by name.
        missing: why nothing of it can be tested; empty where a job does.
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
        numbers = [n for n in self.numbers if not n.missing and job.labels(n.method, n.setting)]
        claims = [
            c
            for c in self.claims
            if job.labels(c.above, c.setting) is not None
            and job.labels(c.below, c.setting) is not None
        ]
        return numbers if job.name == FULL else [], claims
