"""Reads the file of a published table; every error names file, line and key."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import yaml

from fedsim.config import presets
from fedsim.config.experiments import Axis, AxisValue, Reader
from fedsim.config.published.tables import JOBS, SEEDS, UNITS, Claim, Job, Metric, Number, Table
from fedsim.core.errors import ConfigError, nearest

METRIC = re.compile(r"(\|?)(?:(\w+)\.)?(\w+)(?:\[(\w+=\w+(?:, *\w+=\w+)*)\])?(\|?)")
TOP = (
    *("title", "source", "provenance", "about", "metric", "unit", "margin", "widest", "runs"),
    *("numbers", "claims", "jobs", "missing"),
)
OF_SOURCE = ("paper", "place", "page")
OF_NUMBER = ("value", "sd", "n", "values", "margin", "missing")
OF_CLAIM = ("above", "below", "settings")
OF_JOB = (
    *("preset", "data", "find", "methods", "settings"),
    *("seeds", "set", "samples", "seconds", "about"),
)
Nodes = Mapping[str, yaml.Node]


class TableReader(Reader):
    """Walks the nodes of the file of a table."""

    def table(self, name: str) -> Table:
        """The table; ``name`` is that of its file."""
        root = self.loader.get_single_node()
        if root is None:
            raise ConfigError(f"{self.source}: is empty")
        top = self.keys(root, "the file", TOP, ("title", "source", "provenance", "metric", "unit"))
        source = self.keys(top["source"], "source", OF_SOURCE, ("paper", "place"))
        unit = self.word(top, "unit", UNITS)
        missing = self.words(top, "missing")
        if "margin" not in top:
            raise ConfigError(f"{self.source} (margin): is missing; it is fixed before the runs")
        margin = self.positive(top["margin"], "margin")
        widest = self.positive(top["widest"], "widest") if "widest" in top else math.inf
        runs = self.whole(top["runs"], "runs", 1) if "runs" in top else None
        numbers = self.numbers(top, margin, runs)
        jobs = self.jobs(top)
        claims = self.claims(top, numbers, jobs)
        if not (jobs or missing):
            raise ConfigError(f"{self.source}: needs 'jobs:', or 'missing:' with what there is not")
        if not (numbers or claims or missing):
            raise ConfigError(f"{self.source}: needs 'numbers:' or 'claims:', or 'missing:'")
        place = self.words(source, "place", "source.place")
        page = self.value(source["page"], "source.page") if "page" in source else None
        made = Table(
            name=name,
            title=self.words(top, "title"),
            source=f"{self.words(source, 'paper', 'source.paper')}, {place}"
            + (f", page {page}" if page is not None else ""),
            provenance=self.words(top, "provenance"),
            about=self.words(top, "about"),
            metrics=self.metrics(top["metric"]),
            unit=unit,
            margin=margin,
            widest=widest,
            numbers=numbers,
            claims=claims,
            jobs=jobs,
            missing=missing,
        )
        self.check_covered(made, top)
        return made

    def keys(
        self, node: yaml.Node, what: str, known: Sequence[str], needed: Sequence[str] = ()
    ) -> dict[str, yaml.Node]:
        """Keys and nodes of a mapping; refuses a key that is not known, or one that is missing."""
        found = dict(self.pairs(node, what))
        for key, value in found.items():
            if key not in known:
                raise ConfigError(
                    f"{self.origin(value, key)}: unknown key{nearest(key, known)}; {what} has "
                    f"{', '.join(known)}"
                )
        for key in needed:
            if key not in found:
                raise ConfigError(f"{self.origin(node, what)}: lacks {key}")
        return found

    def words(self, nodes: Nodes, key: str, title: str = "") -> str:
        """The text of a key; empty where it is not given."""
        if key not in nodes:
            return ""
        text = self.text({title or key: nodes[key]}, title or key) or ""
        if not text:
            raise ConfigError(f"{self.origin(nodes[key], title or key)}: is empty")
        return " ".join(text.split())

    def word(self, nodes: Nodes, key: str, allowed: Mapping[str, object] | Sequence[str]) -> str:
        """One of several words."""
        word = self.words(nodes, key)
        if word not in allowed:
            raise ConfigError(
                f"{self.origin(nodes[key], key)}: {word!r} given; must be one of "
                f"{', '.join(allowed)}{nearest(word, allowed)}"
            )
        return word

    def number(self, node: yaml.Node, key: str) -> float:
        """A finite number."""
        value = self.value(node, key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ConfigError(f"{self.origin(node, key)}: {value!r} given; must be a number")
        return float(value)

    def positive(self, node: yaml.Node, key: str) -> float:
        """A number above 0."""
        value = self.number(node, key)
        if value <= 0:
            raise ConfigError(f"{self.origin(node, key)}: {value:g} given; must be above 0")
        return value

    def whole(self, node: yaml.Node, key: str, least: int) -> int:
        """A whole number from ``least``."""
        value = self.value(node, key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{self.origin(node, key)}: {value!r} given; must be a whole number from {least}"
            )
        return value

    def texts(self, node: yaml.Node, key: str) -> tuple[str, ...]:
        """One text, or a list of texts."""
        value = self.value(node, key)
        listed = value if isinstance(value, list) else [value]
        if not listed or not all(isinstance(each, str) for each in listed):
            raise ConfigError(f"{self.origin(node, key)}: {value!r} given; must be texts")
        return tuple(listed)

    def metrics(self, node: yaml.Node) -> dict[str, Metric]:
        """One metric for all settings, or one for each."""
        if isinstance(node, yaml.MappingNode):
            pairs = self.pairs(node, "metric")
            return {setting: self.metric(each, f"metric.{setting}") for setting, each in pairs}
        return {"": self.metric(node, "metric")}

    def metric(self, node: yaml.Node, key: str) -> Metric:
        """A metric from its text."""
        text = self.words({key: node}, key)
        found = METRIC.fullmatch(text)
        if found is None or found[1] != found[5]:
            raise ConfigError(
                f"{self.origin(node, key)}: {text!r} given; must be COLUMN, TABLE.COLUMN or "
                "TABLE.COLUMN[KEY=VALUE, ...], with bars around it for the absolute value"
            )
        where = dict(part.strip().split("=") for part in (found[4] or "").split(",") if part)
        return Metric(
            table=found[2] or "summary",
            column=found[3],
            where=where,
            absolute=bool(found[1]),
        )

    def numbers(self, top: Nodes, margin: float, runs: int | None) -> tuple[Number, ...]:
        """The numbers, method by method."""
        if "numbers" not in top:
            return ()
        return tuple(
            self.published(node, method, setting, margin, runs)
            for method, row in self.pairs(top["numbers"], "numbers")
            for setting, node in self.pairs(row, f"numbers.{method}")
        )

    def published(
        self, node: yaml.Node, method: str, setting: str, margin: float, runs: int | None
    ) -> Number:
        """A number, with what is known of it."""
        where = f"numbers.{method}.{setting}"
        plain = Number(method=method, setting=setting, value=math.nan, margin=margin, n=runs)
        if not isinstance(node, yaml.MappingNode):
            return replace(plain, value=self.number(node, where))
        given = self.keys(node, where, OF_NUMBER)
        values = {}
        for seed, each in self.seeds_of(given, where):
            values[seed] = self.number(each, f"{where}.values")
        if not values and "value" not in given:
            raise ConfigError(f"{self.origin(node, where)}: lacks value, or values by seed")
        if values and {"value", "sd", "n"} & set(given):
            raise ConfigError(f"{self.origin(node, where)}: has values by seed, which say the rest")
        n = self.whole(given["n"], f"{where}.n", 1) if "n" in given else runs
        sd = self.positive(given["sd"], f"{where}.sd") if "sd" in given else math.nan
        if "sd" in given and (n is None or n < 2):
            raise ConfigError(f"{self.origin(given['sd'], f'{where}.sd')}: needs n, at least 2")
        mean = math.fsum(values.values()) / max(1, len(values))
        return replace(
            plain,
            value=self.number(given["value"], where) if "value" in given else mean,
            margin=self.positive(given["margin"], f"{where}.margin")
            if "margin" in given
            else margin,
            sd=sd,
            n=n,
            values=values,
            missing=self.words(given, "missing", f"{where}.missing"),
        )

    def seeds_of(self, given: Nodes, where: str) -> list[tuple[int, yaml.Node]]:
        """Seeds and nodes of the values by seed."""
        if "values" not in given:
            return []
        node = given["values"]
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise ConfigError(f"{self.origin(node, f'{where}.values')}: must hold 'SEED: NUMBER'")
        pairs = [(self.whole(k, f"{where}.values", 0), v) for k, v in node.value]
        if len(dict(pairs)) < len(pairs):
            raise ConfigError(f"{self.origin(node, f'{where}.values')}: a seed is given twice")
        return pairs

    def claims(
        self, top: Nodes, numbers: Sequence[Number], jobs: Mapping[str, Job]
    ) -> tuple[Claim, ...]:
        """The claims, one for each setting and method below; none may contradict the numbers."""
        if "claims" not in top:
            return ()
        node, made = top["claims"], []
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise ConfigError(f"{self.origin(node, 'claims')}: must be a list of claims")
        values = {(n.method, n.setting): n.value for n in numbers}
        methods = {n.method for n in numbers}.union(*(job.methods for job in jobs.values()))
        settings = {n.setting for n in numbers}.union(*(job.settings for job in jobs.values()))
        for entry in node.value:
            given = self.keys(entry, "claims", OF_CLAIM, OF_CLAIM)
            named = {key: self.texts(given[key], f"claims.{key}") for key in OF_CLAIM}
            for key, known in (("above", methods), ("below", methods), ("settings", settings)):
                for each in named[key]:
                    if each not in known:
                        raise ConfigError(
                            f"{self.origin(given[key], f'claims.{key}')}: unknown {each!r}"
                            f"{nearest(each, known)}"
                        )
            claims = [
                Claim(above, below, setting)
                for above in named["above"]
                for below in named["below"]
                for setting in named["settings"]
            ]
            for claim in claims:
                high = values.get((claim.above, claim.setting), math.inf)
                low = values.get((claim.below, claim.setting), -math.inf)
                if high <= low:
                    raise ConfigError(
                        f"{self.origin(entry, 'claims')}: {claim.above} above {claim.below} under "
                        f"{claim.setting}, but the numbers are {high:g} and {low:g}"
                    )
            made += claims
        return tuple(made)

    def jobs(self, top: Nodes) -> dict[str, Job]:
        """The jobs by name."""
        if "jobs" not in top:
            return {}
        nodes = self.keys(top["jobs"], "jobs", JOBS)
        return {name: self.job(name, nodes[name]) for name in JOBS if name in nodes}

    def job(self, name: str, node: yaml.Node) -> Job:
        """A job; preset, axes and labels must exist."""
        where = f"jobs.{name}"
        given = self.keys(node, where, OF_JOB, ("preset", "data", "methods", "settings"))
        origin = self.origin(given["preset"], f"{where}.preset")
        preset = self.words(given, "preset", f"{where}.preset")
        experiment = presets.load(preset, origin)
        if "set" in given:
            experiment = replace(
                experiment, settings={**experiment.settings, **self.space(given["set"])}
            )
        if "seeds" in given:
            axis = self.axis("seed", given["seeds"])
            experiment = replace(experiment, grid=(*experiment.grid, axis))
        axes = {axis.name: axis for axis in experiment.grid}
        cells: dict[str, dict[str, dict[str, str]]] = {}
        for key in ("methods", "settings"):
            cells[key] = {}
            for label, row in self.pairs(given[key], f"{where}.{key}"):
                cells[key][label] = self.cell(row, f"{where}.{key}.{label}", axes)
        used = {pair for part in cells.values() for row in part.values() for pair in row.items()}
        grid = tuple(
            axis if axis.name in SEEDS else Axis(axis.name, _those(axis, used))
            for axis in experiment.grid
        )
        experiment = replace(experiment, grid=grid)
        for axis in grid:
            if not axis.values:
                which = self.origin(node, where)
                raise ConfigError(f"{which}: neither methods nor settings say which {axis.name}")
        return Job(
            name=name,
            preset=preset,
            experiment=experiment,
            data=self.words(given, "data", f"{where}.data"),
            find=self.texts(given["find"], f"{where}.find") if "find" in given else (),
            samples=self.whole(given["samples"], f"{where}.samples", 1)
            if "samples" in given
            else None,
            methods=cells["methods"],
            settings=cells["settings"],
            seconds=self.positive(given["seconds"], f"{where}.seconds")
            if "seconds" in given
            else None,
            about=self.words(given, "about", f"{where}.about"),
        )

    def cell(self, node: yaml.Node, where: str, axes: Mapping[str, Axis]) -> dict[str, str]:
        """Labels on axes of a grid, ``{AXIS: LABEL}``."""
        labels = {}
        for axis, each in self.pairs(node, where):
            if axis not in axes:
                raise ConfigError(
                    f"{self.origin(each, where)}: the preset's grid has no axis {axis!r}"
                    f"{nearest(axis, axes)}; it has {', '.join(axes)}"
                )
            labels[axis] = str(self.value(each, where))
            known = [value.label for value in axes[axis].values]
            if labels[axis] not in known:
                raise ConfigError(
                    f"{self.origin(each, where)}: {labels[axis]!r} is not on the axis {axis}; it "
                    f"has {', '.join(known)}"
                )
        return labels

    def check_covered(self, table: Table, top: Nodes) -> None:
        """Each method and setting of a job names its runs but for the seeds, and has a metric."""
        for job in table.jobs.values():
            numbers, claims = table.tested(job)
            cells = [(n.method, n.setting) for n in numbers]
            cells += [(m, c.setting) for c in claims for m in (c.above, c.below)]
            free = [axis.name for axis in job.experiment.grid if axis.name not in SEEDS]
            for method, setting in cells:
                labels = job.labels(method, setting) or {}
                for axis in free:
                    if axis not in labels:
                        raise ConfigError(
                            f"{self.origin(top['jobs'], f'jobs.{job.name}')}: {method} under "
                            f"{setting} does not say which {axis}"
                        )
            if not cells:
                where = self.origin(top["jobs"], f"jobs.{job.name}")
                raise ConfigError(f"{where}: tests no number and no claim")
        used = {n.setting for n in table.numbers} | {c.setting for c in table.claims}
        for setting in used:
            if setting not in table.metrics and "" not in table.metrics:
                raise ConfigError(f"{self.origin(top['metric'], 'metric')}: lacks {setting!r}")


def _those(axis: Axis, used: Set[tuple[str, str]]) -> tuple[AxisValue, ...]:
    """The values of an axis that a method or setting of the job names."""
    return tuple(value for value in axis.values if (axis.name, value.label) in used)
