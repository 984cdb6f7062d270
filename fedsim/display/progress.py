"""The display of a running experiment: a bar on a terminal, lines in a notebook or a pipe."""

from __future__ import annotations

import builtins
import math
import shlex
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from fedsim.core.measures import CONSTANT, Measures
from fedsim.core.rows import EPSILONS, METRICS, WHEN, metric_column
from fedsim.core.terminal import echo, tell
from fedsim.core.text import counted, decimals, duration
from fedsim.display.tables import show
from fedsim.storage.run_dir import RunStore, last_predictions
from fedsim.training.callbacks import Callback, Rows, RunInfo

LINES = 20
"""About so many lines of progress are printed in a pipe."""


def display(final_table: bool = True) -> Lines:
    """A bar where stdout is a terminal, plain lines elsewhere."""
    return Bar(final_table) if is_terminal() else Lines(final_table)


def displays(wanted: bool | None) -> list[Callback]:
    """What shows the progress of a run from Python; by default in notebooks and terminals."""
    shown = is_terminal() or hasattr(builtins, "__IPYTHON__") if wanted is None else wanted
    return [display(final_table=False)] if shown else []


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def live_bars(ratio: int | None = None) -> Progress:
    """Bars on stderr, each with a name before and a text behind it; names get a ``ratio`` to it."""
    names = Column(no_wrap=True, ratio=ratio)
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=names),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        expand=True,
    )


class Lines(Callback):
    """Plain lines on stdout, at most about :data:`LINES` of them for the rounds."""

    reads_files = False

    def __init__(self, final_table: bool = True) -> None:
        self.final_table = final_table
        self.info: RunInfo | None = None
        self.done = self.failed = 0
        self.recent: deque[float] = deque(maxlen=10)
        self.score = "-"

    def on_run_start(self, info: RunInfo) -> None:
        self.info, self.done = info, info.done
        self._introduce(info)

    def on_round_end(self, round: int, rows: Rows) -> None:
        """Counts the round and reports it: newest primary score, training loss and pace."""
        (row,) = rows["rounds"]
        self.done = round
        self.failed += row["dropped"]
        self.recent.append(rows["timings"][-1]["seconds"])  # of phase total
        measures = self.info.measures if self.info else Measures()
        if row[measures.column("test")] is not None:
            self.score = decimals(row[measures.column("test")])
        text = f"test {measures.title} {self.score}  train loss {decimals(row['train_loss'])}  "
        text += f"{self.pace():.2f} s/round"
        self._report(text + (f"  clients failed {self.failed}" if self.failed else ""))

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        self.close()
        if self.final_table and self.info is not None:
            with suppress(BrokenPipeError):  # nobody reads on, as after ``| head``
                show_result(self.info.out, summary)

    @property
    def how_to_resume(self) -> str:
        """The command that continues the run; empty before it has started."""
        return f"fedsim resume {shlex.quote(str(self.info.out))}" if self.info else ""

    def interrupted(self) -> str:
        """One line for Ctrl-C and SIGTERM."""
        if self.info is None:
            return "interrupted before the first round"
        rounds = f"{self.done} of {counted(self.info.rounds, 'round')}"
        return f"interrupted after {rounds}; resume with: {self.how_to_resume}"

    def close(self) -> None:
        """Nothing to give back."""

    def pace(self) -> float:
        """Seconds per round, mean of the last ten."""
        return sum(self.recent) / len(self.recent)

    def _introduce(self, info: RunInfo) -> None:
        tell(
            f"{info.algorithm} on {info.dataset}, {info.model} "
            f"({info.num_parameters:,} parameters), seed {info.seed}"
        )
        rate = info.config.train.sample_rate
        drawn = rate * info.num_clients
        least = f" (at least one; sample rate {rate:g} gives {drawn:g})" if drawn + 1e-9 < 1 else ""
        batch = info.config.engine.client_batch
        stacked = f" (stacked in blocks of up to {batch})" if batch not in (1, "auto") else ""
        clients, rounds = counted(info.num_clients, "client"), counted(info.rounds, "round")
        tell(f"{clients}, {info.cohort_size} per round{least}{stacked}, {rounds}; {info.engine}")
        for note in info.notes:
            tell(note)
        resuming = f"resuming {info.out} after round {info.done}"
        tell(resuming if info.done else f"writing to {info.out}")

    def _report(self, text: str) -> None:
        rounds = self.info.rounds if self.info else self.done
        if self.done % math.ceil(rounds / LINES) == 0 or self.done == rounds:
            tell(f"round {self.done:>{len(str(rounds))}}/{rounds}  {text}")


class Bar(Lines):
    """A progress bar on stderr; the introduction and the result stay on the screen."""

    def __init__(self, final_table: bool = True) -> None:
        super().__init__(final_table)
        self.bar = live_bars()
        self.task = self.bar.add_task("round", total=None, text="")

    def close(self) -> None:
        self.bar.stop()

    def _introduce(self, info: RunInfo) -> None:
        super()._introduce(info)
        self.bar.start()
        self.bar.update(self.task, total=info.rounds, completed=info.done)

    def _report(self, text: str) -> None:
        rounds = self.info.rounds if self.info else self.done
        left = f"  {duration((rounds - self.done) * self.pace())} left"
        self.bar.update(self.task, completed=self.done, text=text + left)


def show_result(path: Path, summary: Mapping[str, object]) -> None:
    """Prints the final table of a finished run, from its row of summary.csv, and a line where its
    model collapsed."""
    rounds, seconds = cast("int", summary["rounds"]), cast("float", summary["total_seconds"])
    last, store = min(10, rounds), RunStore(path)
    environment = store.read_environment()
    measures = Measures.of(environment)
    title = measures.title
    value = {take: decimals(summary[measures.column("test", take)]) for take in WHEN}
    by = f"(round {summary['best_round']}, chosen by {summary['best_by']} {title})"
    lines = {f"final test {title}": value["final"], f"best test {title}": f"{value['best']} {by}"}
    if last > 1:
        lines[f"mean of last {last} rounds"] = value["last10"]
    others = {
        f"final {score.title}": metric_column("test", name, "final")
        for name, score in measures.scores.items()
        if score.takes and not score.late and name != measures.primary
    } | {METRICS[column].title: column for column in EPSILONS}
    for name, column in others.items():
        if (further := decimals(summary.get(column))) != "-":
            lines[name] = further
    lines |= {"rounds": str(rounds), "seconds": f"{seconds:.1f}", "files": str(path)}
    show([{"result": name, "value": value} for name, value in lines.items()])
    final = last_predictions(store)
    if final is not None and final.collapsed:
        echo(final.describe(environment.get("classes", ())))
    elif summary.get("collapsed") and not measures.of_classes:
        echo(f"the final model collapsed: it is {CONSTANT}")
