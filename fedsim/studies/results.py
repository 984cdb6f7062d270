"""The results of a sweep or a study, as its directory has them; nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsim.core.analysis import analysis
from fedsim.core.errors import StoreError
from fedsim.core.text import counted
from fedsim.storage import directories
from fedsim.storage.run_dir import RunStore, html_table
from fedsim.storage.tables import frame
from fedsim.studies import plan

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["seed", "partition"]


@dataclass(frozen=True, repr=False)
class SweepStore:
    """The results of a sweep, finished or not; ``path`` is its directory."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @property
    def folder(self) -> Path:
        """Where the runs lie."""
        return self.path

    @property
    def runs(self) -> list[RunStore]:
        """The runs that have begun, in the order of the grid."""
        folders = [self.folder / name for name in directories.read_grid(self.folder) or ()]
        return [RunStore(folder) for folder in folders if (folder / "rounds.csv").exists()]

    @property
    def finished(self) -> bool:
        """Whether all runs of the grid have ended."""
        names = directories.read_grid(self.folder)
        return names is not None and len(names) == sum(run.finished for run in self.runs)

    @property
    def summary(self) -> pd.DataFrame:
        """summary.csv: a row per finished run; a StoreError where it is not there yet."""
        return frame(self.folder / "summary.csv")

    def table(
        self,
        metric: str | None = None,
        *,
        by: Sequence[str] | None = None,
        at: Literal["final", "best", "last10"] = "final",
        columns: str | None = None,
        baseline: str | None = None,
        unit: Unit | None = None,
    ) -> pd.DataFrame:
        """A table as ``fedsim table`` makes it: all its numbers, at full precision.

        Args:
            metric: what it shows, see ``fedsim table --help``; None: accuracy, or the primary
                measure of the task.
            by: columns of :attr:`summary` that distinguish its rows; None: the label, and settings
                that runs of one label differ in.
            at: rounds of a score: the last, the best, or the mean of the last ten.
            columns: column of :attr:`summary`, one group of rows per value.
            baseline: the label that the others are compared with.
            unit: what intervals and tests are over.

        Raises:
            FedsimError: runs that cannot be compared, no finished run, or an unknown name.
        """
        runs = self._summaries()
        by_default, default_unit = self._grouping(runs, [columns] if columns else [])
        groups, over = tuple(by or by_default), unit or default_unit
        shown = metric or analysis("scores").measures_of(runs).primary
        made = analysis("tables.scores").make(
            shown, runs, groups, columns, baseline, takes=(at,), unit=over
        )
        return made[0].data

    def curves(
        self,
        metric: str | None = None,
        *,
        by: Sequence[str] | None = None,
        unit: Unit | None = None,
    ) -> pd.DataFrame:
        """A column of rounds.csv, such as ``test_loss``, by group and round; None: the primary
        measure of the task on the test part.

        ``by`` and ``unit`` are as in :meth:`table`. Columns are ``label``, ``round``, ``mean``,
        ``low``, ``high`` (of the 95 % interval, NaN for a single unit) and ``n``.

        Raises:
            FedsimError: runs that cannot be averaged, no finished run, or no such metric.
        """
        import pandas as pd

        runs, curves, analysed = self._summaries(), analysis("figures.curves"), analysis("runs")
        by_default, default_unit = self._grouping(runs)
        groups = tuple(by or by_default)
        shown = metric or analysis("scores").measures_of(runs).column("test")
        over = analysed.unit_among(runs, groups, unit or default_unit)
        rows = [
            {
                "label": group.label,
                "round": round,
                **{name: getattr(estimate, name) for name in ("mean", "low", "high", "n")},
            }
            for group in analysed.group(runs, groups, over)
            for round, values in curves.by_round(group, shown).iterrows()
            for estimate in [analysis("stats").of_runs(values)]
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}: {', '.join(self._headline().values())})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table({"directory": str(self.path), **self._headline()})

    def _headline(self) -> dict[str, str]:
        """What a reader wants to know first; never an error."""
        names = directories.read_grid(self.folder)
        runs = self.runs
        total = counted(len(runs if names is None else names), "run")
        headline = {"runs": f"{total}, {sum(run.finished for run in runs)} finished"}
        try:
            return headline | {"methods": " ".join(map(str, self.summary["label"].unique()))}
        except (StoreError, KeyError):
            return headline

    def _grouping(
        self, runs: pd.DataFrame, columns: Sequence[str] = ()
    ) -> tuple[Sequence[str], str]:
        """The columns that distinguish methods, and the unit, where none are given."""
        return analysis("runs").default_by(runs, "seed", columns), "seed"

    def _summaries(self) -> pd.DataFrame:
        finished, _ = analysis("runs").find([self.folder])
        return analysis("runs").summaries(finished)


class StudyStore(SweepStore):
    """The results of a study: those of its comparison, and what was chosen before."""

    @property
    def folder(self) -> Path:
        """Where the runs of the comparison lie."""
        return self.path / plan.RUNS

    @property
    def chosen(self) -> pd.DataFrame:
        """chosen.csv: for each method and partition the settings with the best validation metric;
        a StoreError where it is not there yet."""
        return frame(self.path / plan.CHOSEN)

    @property
    def report(self) -> Path:
        """The page of the report."""
        return self.path / plan.REPORT / "report.html"

    def _grouping(
        self,
        runs: pd.DataFrame,  # noqa: ARG002
        columns: Sequence[str] = (),  # noqa: ARG002
    ) -> tuple[Sequence[str], str]:
        return plan.grouping(self.path)
