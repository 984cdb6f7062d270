"""Verifies what a path leads to: a run, or runs of a sweep."""

from __future__ import annotations

import csv
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.audit.recorded import ROUNDING, Difference, distance
from fedsim.audit.verify import NotPossible, Verification, verify
from fedsim.core.errors import ConfigError, FedsimError, one_line
from fedsim.core.reading import check_tree
from fedsim.storage import directories, status
from fedsim.storage.status import RunStatus

SAMPLE = 5
"""Runs of a sweep that are drawn unless said."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is to be verified.

    Args:
        folder: of the runs.
        runs: directories of the runs that were drawn, in their order.
        finished: directories of all finished runs.
        seed: by which runs and their rounds are drawn.
    """

    folder: Path
    runs: tuple[Path, ...]
    finished: tuple[Path, ...]
    seed: int

    def verified(
        self,
        *,
        rounds: int | Literal["all"],
        data_dir: str | None = None,
        overrides: Mapping[str, object] | None = None,
        accept_changed_code: bool = False,
        allow_code: bool = False,
    ) -> Iterator[Verification]:
        """Each run with what was found of it, see :func:`fedsim.audit.verify.verify`.

        Raises:
            NotPossible: a run cannot be verified here.
        """
        for number, run in enumerate(self.runs):
            yield verify(
                run,
                rounds=rounds,
                seed=self.seed + number,
                data_dir=data_dir,
                overrides=overrides,
                accept_changed_code=accept_changed_code,
                allow_code=allow_code,
            )

    @property
    def own(self) -> list[str]:
        """The names of the finished runs that lie in the folder itself, as those of a sweep do."""
        return [run.name for run in self.finished if run.parent == self.folder]

    @property
    def beside_grid(self) -> list[str]:
        """Finished runs that are not of the grid in sweep.json, which its tables leave out."""
        grid = directories.read_grid(self.folder)
        return [] if grid is None else [name for name in self.own if name not in grid]

    @property
    def unfinished(self) -> list[str]:
        """Runs of the grid that are not finished, or not there."""
        own = set(self.own)
        return [name for name in directories.read_grid(self.folder) or () if name not in own]

    @property
    def missing(self) -> list[str]:
        """Files of a sweep that the folder lacks, although it has runs of one."""
        names = (directories.GRID, "summary.csv", "aggregate.csv")
        there = [name for name in names if (self.folder / name).exists()]
        return [name for name in names if name not in there] if there else []

    def tables(self, found: Iterable[Verification] = ()) -> Difference | None:
        """The first of a sweep's own tables that is not that of its runs; None where none is.

        Args:
            found: of its runs: where one was done on another kind of processor, or with other
                versions, the last digits of the tables may differ.

        Raises:
            NotPossible: a table cannot be read.
        """
        if self.runs == (self.folder,):
            return None
        if (self.folder / directories.GRID).exists() and directories.read_grid(self.folder) is None:
            return Difference(directories.GRID, "is not what fedsim writes there")
        beside = self.beside_grid
        try:
            return _difference(
                self.folder,
                [name for name in self.own if name not in beside],
                ROUNDING if any(each.others for each in found) else 0.0,
            )
        except (FedsimError, OSError, KeyError, ValueError) as error:
            raise NotPossible(f"{self.folder}: {one_line(error)}") from error


def drawn(folder: Path, *, sample: int = SAMPLE, seed: int | None = None) -> Drawn:
    """What is to be verified of a run or a sweep.

    Args:
        folder: of the run or the sweep.
        sample: how many finished runs of a sweep are drawn.
        seed: of the draw; None: a new one.

    Raises:
        ConfigError: there is no run.
        NotPossible: no run of the sweep is finished, or the folder cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such run or sweep")
    seed = secrets.randbelow(2**31) if seed is None else seed
    try:
        check_tree(folder)
        runs = [each for each in directories.find(folder) if isinstance(each, RunStatus)]
    except FedsimError as error:
        raise NotPossible(str(error)) from error
    if not runs:
        raise ConfigError(f"{folder}: holds no run")
    if [run.path for run in runs] == [folder]:
        return Drawn(folder=folder, runs=(folder,), finished=(folder,), seed=seed)
    finished = tuple(run.path for run in runs if run.state == status.FINISHED)
    if not finished:
        raise NotPossible(f"{folder}: none of its {len(runs)} runs is finished")
    size = min(sample, len(finished))
    chosen = np.random.default_rng(seed).choice(len(finished), size, replace=False)
    return Drawn(
        folder=folder,
        runs=tuple(finished[number] for number in sorted(chosen.tolist())),
        finished=finished,
        seed=seed,
    )


def _difference(out: Path, finished: Collection[str], rounding: float = 0.0) -> Difference | None:
    """The first place where the tables of a sweep are not those of its runs; None where none is.

    Args:
        out: the directory of the sweep; a folder without tables has none to compare.
        finished: the names of its finished runs.
        rounding: by which numbers may differ, relative to their size where that is above 1.

    Raises:
        FedsimError, OSError, KeyError, ValueError: a table cannot be read.
    """
    import pandas as pd

    from fedsim.studies import sweep_tables  # SciPy, without which a single run is verified
    from fedsim.studies.sweep import SEEDS, group_of
    from fedsim.studies.sweep_tables import AGGREGATE, SUMMARY

    there = [name for name in (SUMMARY, AGGREGATE) if (out / name).exists()]
    if len(there) != 2:
        return (
            Difference(AGGREGATE if SUMMARY in there else SUMMARY, "is missing") if there else None
        )
    runs, rows = (
        pd.read_csv(out / name, dtype=str, keep_default_na=False)[column].tolist()
        for name, column in ((SUMMARY, "run"), (AGGREGATE, "configuration"))
    )
    for name in Counter(finished) - Counter(runs):
        return Difference(SUMMARY, f"leaves out the finished run {name}")
    for name in Counter(runs) - Counter(finished):
        what = "twice" if name in finished else "which is no finished run of the sweep"
        return Difference(SUMMARY, f"names {name}, {what}")
    grouped = ({name: group_of(name, seeds) for name in runs} for seeds in (SEEDS, SEEDS[:1]))
    groups = next((each for each in grouped if set(each.values()) == set(rows)), None)
    if groups is None:
        return Difference(AGGREGATE, "its configurations are not those of the runs")
    for name, frame in sweep_tables.tables(groups, out).items():
        now, recorded = sweep_tables.text(frame), (out / name).read_text(encoding="utf-8")
        lines = zip_longest(*(t.splitlines(keepends=True) for t in (now, recorded)))
        for line, (ours, theirs) in enumerate(lines, 1):
            if ours != theirs and not (rounding and _close(ours, theirs, rounding)):
                return Difference(f"{name}, line {line}", "is not what the runs give")
    return None


def _close(ours: str | None, theirs: str | None, rounding: float) -> bool:
    """Whether two lines of a table differ in the rounding of numbers alone."""
    if ours is None or theirs is None:
        return False
    (a, b) = csv.reader([ours, theirs])
    return len(a) == len(b) and all(
        x == y or distance(x, y) <= rounding for x, y in zip(a, b, strict=True)
    )
