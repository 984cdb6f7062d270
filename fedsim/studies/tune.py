"""The trials of a search: their runs, as jobs of run drivers, and their values.

A trial is one run per training seed. Its value is the mean over the seeds of a validation metric
after the last evaluated round. The earlier trials from which a trial is proposed are chosen by
number, not by which ended first, so that the table of a search does not depend on timing. There is
one exception: where one seed of a trial fails and the pruner stops the trial at an earlier round,
the trial is failed or pruned, whichever is seen first.

The best of many values is optimistic, since it was chosen for being high: the best trials may be
confirmed on fresh training seeds, as a sweep in the search's directory.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedsim.core import files
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.core.settings import Scalar
from fedsim.identity import resume
from fedsim.storage import status, trials
from fedsim.storage.run_dir import RunStore
from fedsim.storage.trials import Trial, best, lowest
from fedsim.studies.parallel import Drivers
from fedsim.studies.proposals import Proposal
from fedsim.studies.search import CONFIRMED, SearchPlan, begun_in, write_best
from fedsim.studies.sweep import SweepRun, check_finished
from fedsim.training.events import Done, Event, Failed, Job, Lost, RoundEnded, Started, Stopped

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("fedsim")
Verdict = tuple[trials.State, float | None, str | None]
"""State, value and reason of a failure."""
FOLDER = "confirm"
FEWEST = 3
"""Fresh seeds of a trial, or as many as the search has."""
ENDS = ("_mean", "_std", "_ci95")
"""Ends of the names of the columns that a trial without a value leaves empty."""


@dataclass(kw_only=True)
class Running:
    """A trial in progress."""

    proposal: Proposal
    rounds: int  # of a whole run
    series: dict[int, dict[int, float]]  # by seed, the metric by round, of evaluated rounds
    waiting: deque[int]  # seeds whose runs have not begun
    slots: dict[int, int | None] = field(default_factory=dict)  # of active runs; None: not known
    reports: dict[int, float] = field(default_factory=dict)  # by round, to the pruner
    verdict: Verdict | None = None  # where it is known before all runs have ended

    def take(self, seed: int, row: Mapping[str, Any], by: str) -> None:
        """Records the metric of a row of rounds.csv."""
        if row[by] not in (None, ""):
            self.series[seed][int(row["round"])] = float(row[by])

    def report(self) -> None:
        """Reports rounds that all seeds have completed, until the pruner stops the trial."""
        common = set.intersection(*(set(of_seed) for of_seed in self.series.values()))
        for round in sorted(common - set(self.reports)):
            if self.verdict is not None:
                return
            value = fmean(of_seed[round] for of_seed in self.series.values())
            self.reports[round] = value
            if self.proposal.report(round, value) and round < self.rounds:
                self.verdict = ("pruned", value, None)

    def ended(self, by: str) -> Trial | None:
        """The trial, once all of its runs have ended."""
        if self.slots or (self.verdict is None and self.waiting):
            return None
        state, value, error = self.verdict or self._value(by)
        failed = state == "failed"
        return Trial(
            number=self.proposal.number,
            params=self.proposal.params,
            state=state,
            value=value,
            reports={} if failed else self.reports,  # how far the other seeds got depends on timing
            marks={} if failed else self.proposal.marks,
            error=error,
        )

    def _value(self, by: str) -> Verdict:
        """The mean over the seeds after the last evaluated round of each."""
        last = [of_seed[max(of_seed)] for of_seed in self.series.values() if of_seed]
        value = fmean(last) if len(last) == len(self.series) else math.nan
        if math.isfinite(value):
            return "complete", value, None
        return "failed", None, f"{by} is empty or not finite"


class Tuning:
    """A search in a directory, which holds no other one; it continues after the trials that have
    ended there, and the runs of the others are resumed."""

    def __init__(
        self, plan: SearchPlan, out: Path, trackers: Sequence[str] = (), accept: bool = False
    ) -> None:
        self.plan, self.out, self.trackers = plan, out, tuple(trackers)
        self.accept = accept
        self._begun = begun_in(out, plan)
        self.most_at_once = int((self._begun or {}).get("ahead", 1))
        self.trials = {trial.number: trial for trial in trials.read(out)}
        self.running: dict[int, Running] = {}
        self.params = {number: trial.params for number, trial in self.trials.items()}
        self._drivers: Drivers | None = None
        self._jobs: dict[Path, tuple[int, int]] = {}

    def check_runs(self) -> None:
        """Refuses finished runs of other code, unless that is accepted, or of other data."""
        runs = []
        for number in {*range(self.plan.count), *self.params}:
            for run, seed in ((self._folder(number, s), s) for s in self.plan.seeds):
                if RunStore(run).finished and number in self.params:
                    runs.append((self.plan.config(self.params[number], seed), run))
                elif RunStore(run).finished:
                    runs.append((resume.configuration(run), run))
        check_finished(runs, self.accept)

    @property
    def left(self) -> list[tuple[int, int]]:
        """Trial and seed of the runs left; those of a pruned or failed trial may be skipped."""
        numbers = [number for number in range(self.plan.count) if number not in self.trials]
        return [(number, seed) for number in numbers for seed in self.plan.seeds]

    @property
    def ended(self) -> list[Trial]:
        """The trials that have ended, by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    @property
    def leaders(self) -> list[Trial]:
        """The complete trials, the best first; a FedsimError where the search ended with none."""
        leaders = self._best()
        if not leaders and not self.left:
            states = [trial.state for trial in self.ended]
            counts = ", ".join(
                f"{states.count(s)} {s}" for s in ("pruned", "failed") if s in states
            )
            reason = next((f": {trial.error}" for trial in self.ended if trial.error), "")
            title = self.plan.title and f" {self.plan.title}:"
            raise FedsimError(f"{self.out}:{title} no trial is complete ({counts}){reason}")
        return leaders

    def _best(self) -> list[Trial]:
        """The complete trials so far, the best first."""
        return best(self.ended, self.plan.proposer.by, self.plan.proposer.measures)

    def begin(self, drivers: Drivers) -> None:
        """Writes the first files; the jobs of :meth:`next_job` can then be done by the drivers.

        In a new search their number decides how many trials may be in progress: one with one
        driver, else twice as many as the drivers run at once, so that drivers do not wait for a
        single slow trial.
        """
        if self._begun is None:
            slots, seeds = len(drivers.slots), len(self.plan.seeds)
            self.most_at_once = 1 if slots == 1 else 2 * math.ceil(slots / seeds)
            self.out.mkdir(parents=True, exist_ok=True)
            self._begun = self.plan.record
        self._begun |= {"ahead": self.most_at_once, "trials": self.plan.count}
        trials.write_study(self.out, self._begun)
        confirmed = not self.left and (self.out / CONFIRMED).exists()  # best.yaml, on fresh seeds
        self._write([] if confirmed else self._best())
        self._drivers = drivers

    def next_job(self) -> Job | None:
        """The next run: of a trial in progress, else of a new one."""
        while True:
            for number, running in sorted(self.running.items()):
                if running.waiting and running.verdict is None:
                    return self._job(number, running, running.waiting.popleft())
            new = next((n for n in range(self.plan.count) if n not in self.params), None)
            if new is None or any(n not in self.trials for n in range(self._ended_before(new))):
                return None
            self._propose(new)

    def _ended_before(self, number: int) -> int:
        """How many trials must have ended before a trial is proposed."""
        return max(0, number - self.most_at_once + 1)

    def _propose(self, number: int) -> None:
        """Begins a trial, which fails at once if its values are incompatible."""
        ended = self._ended_before(number)
        proposal = self.plan.proposer.propose(
            number,
            [self.trials[before] for before in range(ended)],
            [self.params[before] for before in range(ended, number)],
        )
        self.params[number] = proposal.params
        try:
            config = self.plan.config(proposal.params, self.plan.seeds[0])
        except ConfigError as error:
            self._add(
                Trial(number=number, params=proposal.params, state="failed", error=str(error))
            )
            return
        self.running[number] = Running(
            proposal=proposal,
            rounds=config.train.rounds,
            series={seed: {} for seed in self.plan.seeds},
            waiting=deque(self.plan.seeds),
        )

    def _job(self, number: int, running: Running, seed: int) -> Job:
        running.slots[seed] = None
        out = self._folder(number, seed)
        self._jobs[out] = number, seed
        config = self.plan.config(running.proposal.params, seed)
        name = out.relative_to(self.out.parent if self.plan.title else self.out).as_posix()
        return Job(name, config, out, self.trackers, self.accept)

    def _folder(self, number: int, seed: int) -> Path:
        return self.out / trials.folder_of(number) / f"seed={seed}"

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """Handles an event of one of its runs, see :class:`~fedsim.studies.parallel.Follower`."""
        number, seed = self._jobs[job.out]
        running, by = self.running[number], self.plan.proposer.by
        if isinstance(event, Started | RoundEnded):
            running.slots[seed] = slot
        if isinstance(event, Started | Done):
            for row in status.rounds(job.out):
                running.take(seed, row, by)
        if isinstance(event, RoundEnded):
            running.take(seed, event.row, by)
        if isinstance(event, Lost | Stopped):
            running.slots[seed] = None  # it has not ended
        if isinstance(event, Failed):
            self._failed(running, job, event)
        if isinstance(event, Done | Failed):
            running.slots.pop(seed)
        running.report()
        if running.verdict is not None and self._drivers is not None:
            for place in running.slots.values():
                if place is not None:
                    self._drivers.end(place)
        trial = running.ended(by)
        if trial is not None:
            del self.running[number]
            self._add(trial)

    def _failed(self, running: Running, job: Job, event: Failed) -> None:
        """Fails the trial where its run would fail again on any machine. Any other failure ends the
        search, and so do settings or data that no trial can use."""
        if not event.lasting:
            raise FedsimError(f"{job.name}: {event.reason}; the same command continues the search")
        if event.exit_status == 2 and all(t.state == "failed" for t in self.trials.values()):
            raise ConfigError(event.reason)
        running.verdict = running.verdict or ("failed", None, event.reason)

    def _add(self, trial: Trial) -> None:
        """Records a trial that has ended."""
        self.trials[trial.number] = trial
        by = self.plan.proposer.by
        leader = self._best()
        self._write(leader if leader[:1] == [trial] else [])
        texts = {
            "complete": f"{by} {trial.value or 0.0:.4f}",
            "pruned": f"pruned after round {max(trial.reports, default=0)}",
            "failed": f"failed: {trial.error}",
        }
        so_far = f"; best {leader[0].value:.4f} of trial {leader[0].number}" if leader else ""
        title = f"{self.plan.title}: " if self.plan.title else ""
        head = f"{title}[{len(self.trials)}/{self.plan.count}] trial {trial.number}"
        logger.info("%s: %s: %s%s", head, params_text(trial.params), texts[trial.state], so_far)

    def _write(self, leader: Sequence[Trial]) -> None:
        """Writes the trials and, if there is a first one of ``leader``, best.yaml."""
        trials.write(self.out, list(self.plan.proposer.space), self.ended)
        for trial in leader[:1]:
            write_best(self.plan, self.out, trial, f"{self.plan.proposer.by} {trial.value!r}")

    def confirmations(self, count: int, seeds: Iterable[int]) -> list[SweepRun]:
        """The runs of the best trials on fresh seeds."""
        return [
            SweepRun(f"trial={t.number},seed={s}", f"trial={t.number}", config)
            for t in self.leaders[:count]
            for s in seeds
            for config in [self.plan.config(t.params, s)]
        ]


def params_text(params: Mapping[str, Scalar]) -> str:
    """The values of the searched keys in a line, real numbers with four digits."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in params.items()}
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def seeds_after(used: Iterable[int], count: int) -> list[int]:
    """The seeds that follow the largest used one, or the first ones where none is used."""
    first = max(used, default=-1) + 1
    return list(range(first, first + count))


def write_confirmed(
    plan: SearchPlan,
    out: Path,
    leaders: Sequence[Trial],
    seeds: Sequence[int],
    failed: Collection[str],
    table: pd.DataFrame,
) -> pd.DataFrame:
    """Writes confirm.csv, and best.yaml of the trial with the best mean on the fresh seeds.

    ``leaders`` are the trials, the best of the search first, ``failed`` names runs of theirs,
    ``table`` is aggregate.csv of the others. A trial with a seed without a finite metric has
    failed, as in the search; where all have, best.yaml is that of the search.
    """
    import pandas as pd  # for which no run has to wait

    by = plan.proposer.by
    rows = [_confirmed(trial, by, out, seeds, failed, table) for trial in leaders]
    confirmed = pd.DataFrame(rows).sort_values(
        f"{by}_mean", ascending=lowest(by, plan.proposer.measures), kind="stable", ignore_index=True
    )
    files.write(out / CONFIRMED, confirmed.to_csv(index=False, lineterminator="\n").encode())
    leader, value = leaders[0], f"{by} {leaders[0].value!r}"
    mean = float(confirmed[f"{by}_mean"].iloc[0])
    if not math.isnan(mean):
        (leader,) = [trial for trial in leaders if trial.number == confirmed["trial"].iloc[0]]
        value = f"{by} {mean!r}, mean over {len(seeds)} fresh training seeds"
    write_best(plan, out, leader, value)
    return confirmed


def _confirmed(
    trial: Trial,
    by: str,
    out: Path,
    seeds: Sequence[int],
    failed: Collection[str],
    table: pd.DataFrame,
) -> dict[str, Any]:
    """The row of a trial in confirm.csv."""
    from fedsim.studies.sweep_tables import spread

    group = f"trial={trial.number}"
    names = [f"{group},seed={seed}" for seed in seeds]
    values = []
    for name in (name for name in names if name not in failed):
        rounds = status.rounds(out / FOLDER / name)
        last = [value for row in rounds if (value := status.number(row[by])) is not None]
        values.append(last[-1] if last else math.nan)
    row: dict[str, Any] = {"trial": trial.number, "value": trial.value, **trial.params}
    row |= {"n": len(values)} | {f"{by}{end}": math.nan for end in ENDS}
    groups = table.set_index("configuration").drop(columns="label", errors="ignore")
    if group in groups.index:
        row |= {str(key): value for key, value in groups.loc[group].items()}
    else:
        row |= dict.fromkeys(map(str, groups)) | {"n": 0, "runs": 0}
    finite = sum(map(math.isfinite, values))
    if finite == len(names):
        row |= {f"{by}_{end}": value for end, value in spread(values).items()}
    else:
        row |= {column: math.nan for column in map(str, table) if column.endswith(ENDS)}
    return row | {"failed": len(names) - finite}
