"""The table of results, and the files beside it."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.pairing import Pairs, Spread
from benchmarks.processes import available_memory
from benchmarks.serverstep import Step
from fedsim.engine.ray.cluster import local_node
from fedsim.identity.environment import versions
from fedsim.storage.run_dir import to_json


@dataclass(frozen=True)
class Result:
    """A line of the table.

    Args:
        benchmark: W1, A1, ...
        case: method and variant.
        value: what was measured, in ``unit``.
        reference: what it is compared with, in the same unit; None where there is nothing.
        against: what the reference is.
        ratio: value over reference, pair by pair; None where there is nothing.
        target: the most that the ratio, or the value where there is no ratio, shall be.
        skipped: why nothing was measured.
        failed: whether that is a failure, after which the status is 1.
        details: everything else, for the JSON file.
    """

    benchmark: str
    case: str
    unit: str = "ms"
    value: float | None = None
    reference: float | None = None
    against: str = ""
    ratio: Spread | None = None
    target: float | None = None
    skipped: str = ""
    failed: bool = False
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def missed(self) -> bool:
        """Whether the target is missed."""
        reached = self.value if self.ratio is None else self.ratio.median
        return self.target is not None and reached is not None and reached > self.target

    def cells(self) -> dict[str, str]:
        """The line as text."""
        ratio = self.ratio
        verdict = "" if self.target is None else ("missed" if self.missed else "met")
        return {
            "benchmark": self.benchmark,
            "case": self.case,
            "measured": self.skipped or f"{_number(self.value)} {self.unit}",
            "reference": "" if self.reference is None else f"{_number(self.reference)} {self.unit}",
            "against": self.against,
            "ratio": "" if ratio is None else f"{ratio.median:.2f}",
            "quartiles": "" if ratio is None else f"{ratio.low:.2f} to {ratio.high:.2f}",
            "target": "" if self.target is None else f"{self.target:g}",
            "": "" if self.skipped else verdict,
        }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{0 if value >= 1000 else 2}f}"


def of_pairs(benchmark: str, case: str, pairs: Pairs, target: float | None) -> Result:
    """The line of a workload: milliseconds per round beside the faster bare loop."""
    bare = {label: Spread.of(seconds) for label, seconds in pairs.bare.items()}
    return Result(
        benchmark,
        case,
        "ms",
        1e3 * Spread.of(pairs.fedsim).median,
        1e3 * bare[pairs.faster].median,
        f"bare, {pairs.faster}",
        pairs.ratio,
        target,
        details={
            "seconds_per_round": asdict(pairs),
            "best": {"fedsim": min(pairs.fedsim)} | {k: min(v) for k, v in pairs.bare.items()},
        },
    )


def of_step(step: Step, target: float) -> Result:
    """The line of a server step beside its floor."""
    case = f"{step.method}, m = {step.m}, d = {step.d / 1e6:.1f} M"
    if step.skipped:
        return Result("A1", case, skipped=f"skipped: {step.skipped}")
    median = Spread.of(step.seconds).median
    details = {"seconds": step.seconds, "floors": step.floors, "tables": step.tables}
    return Result(
        "A1", case, "ms", 1e3 * median, 1e3 * Spread.of(step.floors).median, "floor", step.ratio,
        target, details=details,
    )  # fmt: skip


def machine_facts() -> dict[str, object]:
    """What the figures depend on."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return versions() | {
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": int(local_node().cpus),
        "gpu": gpu,
        "available_memory_gib": round(available_memory() / 2**30, 1),
        "load_average": os.getloadavg(),
    }


def save(results: Sequence[Result], facts: Mapping[str, object], path: Path) -> Path:
    """Writes ``path`` (JSON, everything) and the table as CSV beside it; returns the latter.

    The JSON file holds ``machine`` and ``results``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [asdict(result) | {"missed": result.missed} for result in results]
    path.write_text(to_json({"machine": facts, "results": lines}), encoding="utf-8")
    table = path.with_suffix(".csv")
    columns = "benchmark case unit value reference against ratio ratio_low ratio_high target"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file,
            [*columns.split(), "missed", "skipped"],
            extrasaction="ignore",
            lineterminator="\n",
        )
        writer.writeheader()
        for result, line in zip(results, lines, strict=True):
            ratio = result.ratio
            row = line | {"ratio": ratio and ratio.median, "ratio_low": ratio and ratio.low}
            writer.writerow(row | {"ratio_high": ratio and ratio.high})
    return table
