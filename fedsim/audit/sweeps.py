"""Verifies what a path leads to: a run, or some runs of a sweep and the sweep's tables."""

from __future__ import annotations

import csv
import secrets
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from fedsim.audit.tables import Difference, is_rounded
from fedsim.audit.verify import NotPossible
from fedsim.core.errors import ConfigError, FedsimError, one_line
from fedsim.storage import directories, status
from fedsim.storage.status import RunStatus

SAMPLE = 5
"""Runs of a sweep that are drawn unless said."""
TABLES = ("summary.csv", "aggregate.csv")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is to be verified.

    Args:
        folder: of the runs.
        runs: directories of the runs that were drawn, in their order; of a run itself the folder.
        finished: directories of all finished runs.
        seed: by which runs and their rounds are drawn.
    """

    folder: Path
    runs: tuple[Path, ...]
    finished: tuple[Path, ...]
    seed: int

    @property
    def is_sweep(self) -> bool:
        """Whether the folder holds runs, rather than being one."""
        return self.runs != (self.folder,)

    @property
    def names(self) -> list[str]:
        """The finished runs that lie in the folder itself, as those of a sweep do."""
        return [run.name for run in self.finished if run.parent == self.folder]

    @property
    def beside_grid(self) -> list[str]:
        """Finished runs that are not of the grid in sweep.json, which its tables leave out."""
        grid = directories.read_grid(self.folder)
        return [] if grid is None else [name for name in self.names if name not in grid]

    @property
    def unfinished(self) -> list[str]:
        """Runs of the grid that are not finished, or not there."""
        grid = directories.read_grid(self.folder) or ()
        return [name for name in grid if name not in self.names]

    @property
    def missing(self) -> list[str]:
        """Files of a sweep that the folder lacks, although it has others of them."""
        names = (directories.GRID, *TABLES)
        there = [name for name in names if (self.folder / name).exists()]
        return [name for name in names if name not in there] if there else []

    def difference(self, *, elsewhere: bool = False) -> Difference | None:
        """The first of a sweep's own tables that is not that of its runs; None where none is.

        Args:
            elsewhere: one of the runs was done on another kind of processor, or with other
                versions: the last digits of the tables may differ.

        Raises:
            NotPossible: a table cannot be read.
        """
        if not self.is_sweep:
            return None
        try:
            self._compare(elsewhere)
        except Difference as difference:
            return difference
        except (FedsimError, OSError, KeyError, IndexError, ValueError, csv.Error) as error:
            raise NotPossible(f"{self.folder}: {one_line(error)}") from error
        return None

    def _compare(self, elsewhere: bool) -> None:
        """The tables of the sweep with those that its finished runs give, line by line."""
        from fedsim.studies import sweep_tables  # SciPy, without which a single run is verified
        from fedsim.studies.sweep import SEEDS, group_of

        if (self.folder / directories.GRID).exists() and directories.read_grid(self.folder) is None:
            raise Difference(directories.GRID, "is not what fedsim writes there")
        paths = [self.folder / name for name in TABLES]
        texts = [path.read_text(encoding="utf-8") for path in paths if path.exists()]
        if len(texts) < 2:
            for path in paths if texts else ():
                if not path.exists():
                    raise Difference(path.name, "is missing")
            return
        runs, groups = ([row[0] for row in _rows(text)[1:]] for text in texts)
        finished = Counter(self.names) - Counter(self.beside_grid)
        for name in (finished - Counter(runs)) + (Counter(runs) - finished):
            words = f"does not name each finished run of the sweep once: {name}"
            raise Difference(TABLES[0], words)
        by_seeds = [{name: group_of(name, seeds) for name in runs} for seeds in (SEEDS, SEEDS[:1])]
        fitting = [each for each in by_seeds if set(each.values()) == set(groups)]
        if not fitting:
            raise Difference(TABLES[1], "its configurations are not those of the runs")
        tables = sweep_tables.tables(fitting[0], self.folder).values()
        for name, text, table in zip(TABLES, texts, tables, strict=True):
            both = (each.splitlines(keepends=True) for each in (sweep_tables.text(table), text))
            for line, (ours, theirs) in enumerate(zip_longest(*both, fillvalue=""), 1):
                if ours != theirs and not (elsewhere and _is_close(ours, theirs)):
                    raise Difference(f"{name}, line {line}", "is not what the runs give")


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines(keepends=True)))


def _is_close(ours: str, theirs: str) -> bool:
    """Whether two lines of a table differ in the rounding of numbers alone."""
    rows = [cells for text in (ours, theirs) for cells in _rows(text)]
    pairs = list(zip_longest(*rows, fillvalue=""))
    return all(len(pair) == 2 and (pair[0] == pair[1] or is_rounded(*pair)) for pair in pairs)


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
    places = sorted(np.random.default_rng(seed).choice(len(finished), size, replace=False).tolist())
    chosen = tuple(finished[place] for place in places)
    return Drawn(folder=folder, runs=chosen, finished=finished, seed=seed)
