"""One configuration done in many ways: every way must leave the same bytes.

The serial engine in this process is the reference. The others are Ray with one and with two actors,
one of two processes of a parallel sweep, and a process that is killed in a random round, after
which the run is resumed.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

import fedsim
from benchmarks.draws import Settings, draw
from benchmarks.killed import begin
from benchmarks.results import compared, records, results, write_shakespeare
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import DivergedError, FedsimError
from fedsim.studies.parallel import control
from fedsim.studies.processes import Processes
from fedsim.training.assemble import prepare
from fedsim.training.events import Event, Failed, Job
from fedsim.training.setup import needs_whole_updates

if TYPE_CHECKING:
    from fedsim.engine.ray.pool import Session

ATTEMPTS = 200
"""How many configurations are drawn in the place of one, at most."""
SERIAL, PARALLEL, RESUMED = "serial", "parallel sweep", "killed and resumed"


@dataclass
class Drawn:
    """A configuration and what its runs left.

    Args:
        number: from 1.
        settings: as drawn.
        folder: of its runs, one folder for each way.
        refused: how many were drawn before it and refused, by reason.
        problems: ways that failed or left other bytes.
        killed: how the process ended that was to be killed.
    """

    number: int
    settings: Settings
    folder: Path
    refused: int
    problems: list[str] = field(default_factory=list)
    killed: str = ""

    @property
    def config(self) -> RunConfig:
        """For the serial engine."""
        return RunConfig(**self.settings)

    def on_ray(self, rng: random.Random, actors: int) -> RunConfig:
        """The same on Ray; how data travel and where updates are summed is drawn."""
        engine = {"kind": "ray", "actors": actors, "cpus_per_client": 0.5}
        engine |= {"data_from": rng.choice(("object_store", "node"))}
        if rng.random() < 0.3 and needs_whole_updates(prepare(self.config)) is None:
            engine |= {"aggregation_shards": 2}
        return RunConfig(**self.settings | {"engine": self.settings["engine"] | engine})


def contents(run: Path) -> dict[str, object]:
    """All tables and models of a run; of its summary what is no time, of errors.csv what is late.

    Its other rows name work that was lost, say for lack of memory, and done again.
    """
    tables: dict[str, object] = {}
    for name, path in results(run).items():
        tables[name] = path.read_bytes()
        if name == "summary.csv":
            tables[name] = [dict(compared(row)) for row in records(path)]
        if name == "errors.csv":
            tables[name] = [row for row in records(path) if row["attempt"] == "0"]
    return {name: content for name, content in tables.items() if content != []}


def difference(wanted: Mapping[str, object], actual: Mapping[str, object]) -> str | None:
    """The first file that two runs do not share or in which they differ, and where."""
    for name in sorted(wanted.keys() | actual.keys()):
        if name not in actual or name not in wanted:
            return f"{name}: is {'missing' if name not in actual else 'there in addition'}"
        one, other = wanted[name], actual[name]
        if one == other:
            continue
        if not (isinstance(one, bytes) and isinstance(other, bytes)) or not name.endswith(".csv"):
            return f"{name}: differs"
        lines = list(zip(one.splitlines(), other.splitlines(), strict=False))
        at = next((i for i, (a, b) in enumerate(lines) if a != b), len(lines))
        return f"{name}:{at + 1}: differs"
    return None


class Ways:
    """Draws configurations and does each in all ways.

    Args:
        seed: everything that is drawn follows from it.
        folder: for the runs.
        tell: called with a line about each step.
    """

    def __init__(self, seed: int, folder: Path, tell: Callable[[str], None]) -> None:
        self._seed, self._folder, self._tell = seed, folder, tell
        if not (folder / "shakespeare").exists():
            write_shakespeare(folder)

    def all(self, count: int) -> list[Drawn]:
        """So many configurations, each done in all ways."""
        drawn = []
        for number in range(1, count + 1):
            one = self._drawn(number)
            drawn.append(one)
            self._tell(f"[{number}/{count}] {one.settings['algorithm']}, {one.refused} refused")
        able = [one for one in drawn if not one.problems]
        self._parallel(able)
        self._kill(able)
        from fedsim.engine.ray.pool import Session  # the processes to be killed need no Ray

        with Session(EngineConfig()) as session:
            for one in able:
                self._on_ray(one, session)
        for one in able:
            self._compare(one)
        return drawn

    def _rng(self, one: Drawn, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{one.number}/{what}")

    def _drawn(self, number: int) -> Drawn:
        """A configuration that the serial engine can do, done by it.

        Raises:
            FedsimError: there is none in :data:`ATTEMPTS`, or the run failed otherwise.
        """
        for attempt in range(ATTEMPTS):
            settings = draw(self._seed, number, attempt, self._folder / "shakespeare")
            folder = self._folder / f"{number:03d}"
            one = Drawn(number, settings, folder, attempt)
            out = folder / f"{SERIAL}-{attempt}"
            try:
                fedsim.run(one.config, out, progress=False)
            except FedsimError as error:
                if error.exit_status == 2 or isinstance(error, DivergedError):
                    continue
                one.problems.append(f"{SERIAL}: {error}")
                return one
            out.rename(folder / SERIAL)
            return one
        raise FedsimError(f"configuration {number}: {ATTEMPTS} draws were refused")

    def _parallel(self, drawn: list[Drawn]) -> None:
        """All configurations as the runs of a sweep in two processes."""
        jobs = (Job(str(d.number), d.config, d.folder / PARALLEL) for d in drawn)
        drivers, ends = Processes(2), Ends({str(one.number): one for one in drawn})
        try:
            control(lambda: next(jobs, None), drivers, ends)
        finally:
            drivers.close()
        self._tell("done in two processes")

    def _kill(self, drawn: list[Drawn]) -> None:
        """Begins each run in a process and kills it."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([begin.__module__])
        for one in drawn:
            rng = self._rng(one, "kill")
            after = rng.randint(2, one.settings["train"]["rounds"] - 2)
            arguments = (one.settings, one.folder / RESUMED, after, rng.random())
            process = context.Process(target=begin, args=arguments)
            process.start()
            process.join()
            status = process.exitcode or 0
            one.killed = f"{signal.Signals(-status).name} after round {after}" if status else ""
        self._tell(f"{sum(bool(one.killed) for one in drawn)} processes killed")

    def _on_ray(self, one: Drawn, session: Session) -> None:
        """With one and with two actors; a killed run goes on there or in this process."""
        for actors in (1, 2):
            way = self._rng(one, f"ray {actors}")
            out = one.folder / f"ray with {actors}"
            with noted(one, out.name):
                fedsim.run(one.on_ray(way, actors), out, session=session, progress=False)
        rng, elsewhere = self._rng(one, "resume"), {}
        if rng.random() < 0.5:
            elsewhere = {"engine.kind": "ray", "engine.actors": 2, "engine.cpus_per_client": 0.5}
        with noted(one, RESUMED):
            ray = session if elsewhere else None
            fedsim.resume(one.folder / RESUMED, elsewhere, session=ray, progress=False)
        self._tell(f"[{one.number}] {one.settings['algorithm']}: done on Ray and resumed")

    def _compare(self, one: Drawn) -> None:
        wanted = contents(one.folder / SERIAL)
        failed = {problem.partition(":")[0] for problem in one.problems}
        for way in sorted({PARALLEL, "ray with 1", "ray with 2", RESUMED} - failed):
            problem = difference(wanted, contents(one.folder / way))
            if problem:
                one.problems.append(f"{way}: {problem}")


@contextmanager
def noted(one: Drawn, way: str) -> Iterator[None]:
    """What fails in the block is a problem of the configuration, not the end of the others."""
    try:
        yield
    except FedsimError as error:
        one.problems.append(f"{way}: {error}")


class Ends:
    """Follows the runs of a sweep; a run that fails is a problem of its configuration."""

    def __init__(self, drawn: Mapping[str, Drawn]) -> None:
        self._drawn = drawn

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """See :class:`fedsim.studies.parallel.Follower`."""
        if isinstance(event, Failed):
            self._drawn[job.name].problems.append(f"{PARALLEL}: {event.reason}")

    def stopping(self) -> None:
        """See :class:`fedsim.studies.parallel.Follower`."""


def described(one: Drawn) -> str:
    """A configuration with what was found, as a YAML file that ``fedsim run -c`` takes."""
    text = yaml.safe_dump(one.settings, sort_keys=False, default_flow_style=None)
    problems = "".join(f"# {problem}\n" for problem in one.problems)
    return f"# configuration {one.number}; {one.killed or 'not killed'}\n{problems}{text}"
