"""Several runs: the control loop with scripted drivers, how many fit, and what they will take."""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pipe
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config import experiments
from fedsim.config.resolve import from_flags, resolve
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, DivergedError, HeldError, Interrupted, StoreError
from fedsim.core.machine import PROCESS
from fedsim.core.types import GIB
from fedsim.display import board
from fedsim.engine.ray import several
from fedsim.engine.ray.placement import Node, Share, plan_placement
from fedsim.engine.ray.several import Need, Reservation, plan_runs
from fedsim.studies import capacity, estimate, parallel, sweep
from fedsim.studies.estimate import CONTENTION, Measured
from fedsim.studies.processes import Processes
from fedsim.training import driver
from fedsim.training.callbacks import Callback
from fedsim.training.events import (
    Begun,
    Done,
    Event,
    Failed,
    Job,
    Logged,
    Lost,
    Orders,
    RoundEnded,
    Started,
    Stopped,
)

DONE = Done({})


class Scripted:
    """Drivers whose every job has a list of events; one of each active slot at a time."""

    def __init__(self, count: int, **scripts: Iterable[Event]) -> None:
        self.slots = tuple(range(count))
        self.scripts = {name: deque(events) for name, events in scripts.items()}
        self.active: dict[int, str] = {}
        self.submitted: list[tuple[int, str]] = []
        self.stopped = self.closed = 0

    def submit(self, slot: int, job: Job) -> None:
        assert slot not in self.active
        self.active[slot] = job.name
        self.submitted.append((slot, job.name))

    def events(self, tell: Callable[[int, Event], None]) -> None:
        for slot, name in list(self.active.items()):
            event = self.scripts[name].popleft()
            if isinstance(event, parallel.ENDINGS):
                del self.active[slot]
            tell(slot, event)

    def stop(self) -> None:
        self.stopped += 1
        for name in self.active.values():
            self.scripts[name] = deque([Stopped()])

    def end(self, slot: int) -> None:
        self.scripts[self.active[slot]] = deque([DONE])

    def close(self) -> None:
        self.closed += 1


class Heard:
    """A follower that keeps what it is told, and may answer."""

    def __init__(self, answer: Callable[[int, Job, Event], object] = lambda *_: None) -> None:
        self.answer = answer
        self.events: list[tuple[str, Event]] = []
        self.stops = 0

    def happened(self, slot: int, job: Job, event: Event) -> None:
        self.events.append((job.name, event))
        self.answer(slot, job, event)

    def stopping(self) -> None:
        self.stops += 1

    def of(self, name: str) -> list[Event]:
        return [event for told, event in self.events if told == name]


def control(drivers: Scripted, heard: Heard, names: Sequence[str]) -> None:
    config = resolve()
    jobs = iter([Job(name, config, Path(name)) for name in names])
    parallel.control(lambda: next(jobs, None), drivers, heard)


def round_of(number: int) -> RoundEnded:
    return RoundEnded({"round": number}, 0.1)


def signalled(number: int, name: str) -> Heard:
    """A follower that sends this process a signal after the first round of a run."""

    def send(_: int, job: Job, event: Event) -> None:
        if job.name == name and event == round_of(1):
            os.kill(os.getpid(), number)

    return Heard(send)


def test_every_slot_is_kept_at_work_and_every_event_told() -> None:
    drivers = Scripted(
        2, a=[Started(0, 2), round_of(1), round_of(2), DONE], b=[DONE], c=[DONE], d=[DONE]
    )
    heard = Heard()
    control(drivers, heard, "abcd")
    assert drivers.submitted == [(0, "a"), (1, "b"), (1, "c"), (1, "d")]
    assert [type(event) for event in heard.of("a")] == [Started, RoundEnded, RoundEnded, Done]
    assert drivers.closed == 0, "they are warm for what follows"


def test_a_lost_run_is_resumed_first_and_fails_when_it_is_lost_three_times() -> None:
    drivers = Scripted(1, a=[round_of(1), Lost("gone"), DONE], b=[Lost("gone")] * 3, c=[DONE])
    heard = Heard()
    control(drivers, heard, "abc")
    assert [name for _, name in drivers.submitted] == [*"aa", *"bbb", "c"]
    assert heard.of("a")[1:] == [Lost("gone"), DONE]
    assert heard.of("b")[-1] == Failed("gone, 3 times")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_runs_and_begins_none(number: int) -> None:
    drivers, heard = Scripted(2, a=[round_of(1)], b=[round_of(1)], c=[DONE]), signalled(number, "b")
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as interrupt:
        control(drivers, heard, "abc")
    assert (interrupt.value.number, interrupt.value.again) == (number, False)
    assert [name for _, name in drivers.submitted] == ["a", "b"]
    assert [heard.of(name)[-1] for name in "ab"] == [Stopped()] * 2
    assert (drivers.stopped, heard.stops, signal.getsignal(number)) == (1, 1, before)


def test_a_second_signal_kills_the_drivers() -> None:
    drivers = Scripted(1, a=[round_of(1), round_of(2), round_of(3)])
    drivers.stop = lambda: None  # type: ignore[method-assign]
    heard = Heard(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted) as interrupt:
        control(drivers, heard, "a")
    assert (interrupt.value.again, drivers.closed) == (True, 1)


def test_a_driver_that_is_lost_while_stopping_is_not_made_again() -> None:
    drivers = Scripted(1, a=[round_of(1), Lost("gone")], b=[DONE])
    drivers.stop = lambda: None  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        control(drivers, signalled(signal.SIGTERM, "a"), "ab")
    assert [name for _, name in drivers.submitted] == ["a"]


def job(tmp_path: Path) -> Job:
    given = ("algorithm=fedavg", "train.rounds=3", "engine.kind=serial")
    return Job("run", resolve(from_flags({}, given)), tmp_path / "run")


class Asks(Callback):
    """Gives an order after the first round."""

    def __init__(self, orders: Orders, order: str) -> None:
        self.orders, self.order = orders, order

    def on_round_end(self, round: int, rows: object) -> None:
        setattr(self.orders, self.order, True)


@pytest.mark.integration
def test_a_run_that_was_stopped_is_resumed_to_its_end(tmp_path: Path) -> None:
    told: list[Event] = []
    orders = Orders()
    stops = [Asks(orders, "stop")]
    assert parallel.execute(job(tmp_path), orders, told.append, callbacks=stops) == Stopped()
    assert [type(event) for event in told] == [Begun, Started, RoundEnded]
    assert parallel.execute(job(tmp_path), orders, told.append) == Stopped()  # not begun
    assert (tmp_path / "run/rounds.csv").read_text().count("\n") == 2

    done = parallel.execute(job(tmp_path), Orders(), told.append)
    assert isinstance(done, Done)
    assert done.summary["rounds"] == 3
    assert told[3:5] == [Begun(resumed=True), Started(1, 3)]
    assert [e.row["round"] for e in told if isinstance(e, RoundEnded)] == [1, 2, 3]
    assert parallel.execute(job(tmp_path), Orders(), told.append) == Done({}, before=True)
    assert not list(tmp_path.glob("*interrupted*"))


@pytest.mark.parametrize(
    ("error", "reason", "lasting"),
    [
        (DivergedError("round 2,\nNaN"), "round 2, NaN; no disk", True),
        (KeyError("k"), "unexpected Key", False),
        (ConfigError("data.dir"), "data.dir; no disk", True),
        (HeldError("another live run"), "another live run; no disk", False),
        (StoreError("no space left"), "no space left; no disk", False),
    ],
)
def test_a_failure_is_one_line_with_its_notes(
    error: Exception, reason: str, lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that would come again on any machine are lasting."""
    error.add_note("no\ndisk")
    monkeypatch.setattr(driver, "run", mock.Mock(side_effect=error))
    failed = parallel.execute(job(tmp_path), Orders(), lambda _: None)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith(reason)
    assert "\n" not in failed.reason
    assert type(error).__name__ in failed.traceback
    assert failed.lasting is lasting


def test_a_warning_is_reported_once_whichever_processes_and_runs_repeat_it() -> None:
    drivers = Processes(0)
    texts = ["a.py:1: UserWarning: slow\n", "a.py:2: UserWarning: slow\n"]
    for slot in (0, 1):
        busy = mock.Mock(at_work=True)
        warned = [Logged(logging.WARNING, text, once=True) for text in (*texts, *texts)]
        busy.receive.return_value = [*warned, Logged(logging.INFO, "5 clients")], False
        busy.pipe, other = Pipe()
        other.send_bytes(b"")
        drivers._made[slot] = busy
    told: list[str] = []
    drivers.events(lambda _, event: told.append(event.text))
    drivers.events(lambda _, event: told.append(event.text))
    assert told[:2] == texts
    assert told[2:] == ["5 clients"] * 4


GRID = "grid: {seed: [0, 1, 2, 3, 4, 5]}\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four cores and 16 GiB, without a GPU."""
    monkeypatch.setattr(capacity, "cores", lambda: 4)
    monkeypatch.setattr(capacity, "available_memory", lambda: 16.0 * GIB)
    monkeypatch.setattr(capacity, "num_gpus", lambda: 0)


def configs(count: int = 6, *sets: str) -> list[RunConfig]:
    kind = () if any("kind" in given for given in sets) else ("engine.kind=serial",)
    return [resolve(from_flags({}, (*kind, *sets)))] * count


def kinds(text: str, at_once: capacity.Parallel = "auto", *sets: str) -> set[str]:
    runs = sweep.expand(experiments.parse(text, "g.yaml"), from_flags({}, sets), at_once)
    return {run.config.engine.kind for run in runs}


# how many fit, and with which engine


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("sets", "kind"),
    [
        ((), "serial"),
        (("engine.gpus_per_client=0",), "serial"),
        (("engine.kind=ray",), "ray"),
        (("engine.kind=serial",), "serial"),
        (("engine.actors=2",), "ray"),
        (("engine.gpus_per_client=0.5",), "ray"),
        (("engine.cpus_per_client=2",), "ray"),
    ],
)
def test_the_engine_of_a_sweep(sets: tuple[str, ...], kind: str) -> None:
    assert kinds(GRID, "auto", *sets) == {kind}


@pytest.mark.usefixtures("machine")
def test_few_runs_one_at_a_time_and_gpus_are_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds("grid: {seed: [0, 1, 2]}\n") == {"ray"}, "four actors do more than three processes"
    assert kinds("grid: {seed: [0, 1, 2]}\n", "auto", "train.sample_rate=0.04") == {"serial"}
    assert kinds(GRID, 1) == {"serial"}, "on a laptop"
    monkeypatch.setattr(capacity, "cores", lambda: 16)
    assert kinds(GRID, 1) == {"ray"}
    monkeypatch.setattr(capacity, "cores", lambda: 4)
    monkeypatch.setattr(capacity, "num_gpus", lambda: 1)
    assert kinds(GRID) == kinds(GRID, 1) == {"ray"}
    assert kinds(GRID, "auto", "engine.gpus_per_client=0") == {"serial"}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("runs", "sets", "parallel", "count"),
    [
        (6, (), "auto", 4),
        (6, (), 3, 3),
        (3, (), "auto", 3),
        (1, (), "auto", 1),
        (6, ("train.threads=2",), "auto", 2),
        (6, ("engine.memory_per_client=6",), "auto", 2),
        (6, ("engine.memory_per_client=60",), "auto", 1),
        (6, ("engine.kind=mine:make",), "auto", 1),
        (6, ("engine.kind=mine:make",), 2, 2),
    ],
)
def test_the_number_of_runs_at_once(
    runs: int, sets: tuple[str, ...], parallel: capacity.Parallel, count: int
) -> None:
    assert capacity.local_runs(configs(runs, *sets), parallel) == count


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("sets", "parallel", "message"),
    [
        (
            (),
            5,
            "--parallel 5: so many runs do not fit on this machine, 4 do (4 cores, a run takes",
        ),
        (("train.threads=4",), 2, "1 does (4 cores, a run takes 4 threads"),
        (("engine.memory_per_client=6",), 3, "2 do (4 cores, a run takes 1 thread and about 6.00"),
    ],
)
def test_too_many_runs_are_refused_with_the_number_that_fits(
    sets: tuple[str, ...], parallel: int, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        capacity.local_runs(configs(6, *sets), parallel)
    assert message in str(error.value)


def test_the_memory_of_a_run_grows_with_its_model_and_its_cohort() -> None:
    (small,) = configs(1)
    (large,) = configs(1, "data.name=cifar10", "model.name=resnet18", "data.dir=.")
    (many,) = configs(1, "data.name=cifar10", "model.name=resnet18", "train.sample_rate=1")
    parameters = 11_173_962  # of ResNet-18 for ten classes at 32 x 32
    assert PROCESS < capacity.memory_of(small) < PROCESS + 2**25
    assert capacity.memory_of(large) == pytest.approx(PROCESS + 9 * 4 * parameters, rel=0.02)
    assert capacity.memory_of(many) - capacity.memory_of(large) == pytest.approx(
        45 * 4 * parameters, rel=0.02
    )
    (text,) = configs(1, "data.name=shakespeare")
    assert capacity.memory_of(text) == PROCESS


# what people see of them


def ended(number: int, seconds: float = 2.0) -> RoundEnded:
    return RoundEnded({"round": number, "test_accuracy": None}, seconds)


def board_of(*names: str) -> board.Board:
    return board.Board(total=len(names) + 1, ended=1)


def tell(shown: board.Board, slot: int, name: str, *events: Event) -> None:
    for event in events:
        shown.happened(slot, Job(name, resolve(), Path(name)), event)


def test_what_is_left_follows_from_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = board_of("a1", "a2", "b1")
    assert shown.left() is None
    tell(shown, 0, "a1", Begun(resumed=True), Started(5, 10), ended(6))
    # 20 seconds for a tenth of a run, 3 - 0.6 runs are left
    monkeypatch.setattr(board.time, "monotonic", lambda: shown.start + 20)
    assert shown.left() == pytest.approx(200 * 2.4)


def test_a_board_in_a_pipe_is_a_line_for_each_run_that_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "fedsim")
    shown = board_of("a1", "a2", "b1")
    tell(shown, 0, "a1", Begun(resumed=True), Started(3, 4), ended(4))
    tell(shown, 1, "a2", Begun(resumed=False), Logged(logging.WARNING, "a warning"), Lost("gone"))
    tell(shown, 1, "a2", Begun(resumed=False), Failed("round 1: NaN", "Traceback ...\n"))
    tell(shown, 0, "a1", Done({"final_test_accuracy": 0.5}))
    tell(shown, 0, "b1", Done({}, before=True))
    assert [record.getMessage() for record in caplog.records] == [
        "a1: resumed after an interruption",
        "a2: a warning",
        "a2: gone; resuming it",
        "[2/4] a2: failed: round 1: NaN",
        "[3/4] a1: 0 s, test accuracy 0.5000; about 0 s left",
        "[4/4] b1: finished before",
    ]


# on one Ray

FOUR = [Node(4, 2, f"n{i}") for i in range(4)]


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(several, "cores", lambda: 64)


def need(cohort=5, model_bytes=0, **engine):
    settings = EngineConfig(**{"gpus_per_client": 0.5, **engine})
    return Need(settings, num_clients=50, cohort_size=cohort, model_bytes=model_bytes)


def plan(nodes, runs, at_once="auto", **engine):
    count, reservation = plan_runs([need(**engine)], nodes, runs, at_once)
    return count, reservation.actors


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("runs", "engine", "expected"),
    [
        (16, {"gpus_per_client": None}, (8, 1)),  # a GPU each
        (16, {}, (16, 1)),  # half of one
        (8, {}, (8, 2)),
        (3, {}, (3, 5)),
        (16, {"actors": 2}, (8, 2)),
        (16, {"actors": 3}, (5, 3)),
        (16, {"gpus_per_client": 0.3}, (16, 1)),
        (40, {"gpus_per_client": 0.3, "cpus_per_client": 0.5}, (24, 1)),
        (4, {"gpus_per_client": 1, "cohort": 100}, (4, 2)),
        (16, {"gpus_per_client": 0}, (16, 1)),
        (1, {"actors": "per-client", "gpus_per_client": 0.1, "cpus_per_client": 0.1}, (1, 50)),
    ],
)
def test_the_machines_are_filled(runs, engine, expected):
    assert plan(FOUR, runs, **engine) == expected


@pytest.mark.usefixtures("many_cores")
def test_a_number_that_is_given_leaves_the_rest_to_the_actors():
    assert plan(FOUR, 16, 4) == (4, 4)
    assert plan(FOUR, 16, 4, cohort=2) == (4, 2)
    assert plan(FOUR, 2, 4) == (2, 5), "there are no more runs"


def test_few_cores_drive_few_runs(monkeypatch):
    monkeypatch.setattr(several, "cores", lambda: 2)
    assert plan(FOUR, 16) == (8, 2)
    assert plan(FOUR, 16, 16) == (16, 1), "as it was asked for"


@pytest.mark.usefixtures("many_cores")
def test_runs_of_several_shapes_have_room_for_the_largest():
    mixed = [need(gpus_per_client=0.5), need(gpus_per_client=1, actors=2)]
    assert plan_runs(mixed, FOUR, 6, "auto") == (4, Reservation(Share(1, 1), 2))


@pytest.mark.usefixtures("many_cores")
def test_memory_of_actors_and_of_the_drivers_on_their_machine():
    engine = {"gpus_per_client": 0, "memory_per_client": 1.0, "model_bytes": (GIB - PROCESS) // 9}
    nodes = [Node(64, memory=2 * GIB), Node(64, memory=6 * GIB)]  # a driver takes 1 GiB too
    assert plan(nodes, 16, **engine) == (2, 3)
    assert plan(nodes[:1], 16, **engine) == (1, 1)
    with pytest.raises(ConfigError, match=r"--parallel 16: so many runs with 1 actor of 1 CPU"):
        plan(nodes, 16, 16, **engine)


@pytest.mark.usefixtures("many_cores")
def test_too_many_are_refused_with_the_number_that_fits():
    expected = (
        r"^--parallel 9: so many runs with 2 actors of 1 CPU and 0\.5 GPU each do not fit, 8 do "
        r"\(n0: 4 CPUs, 2 GPUs, n1: .*\); memory: 0\.45 GiB for an actor, 0\.45 GiB on n0 for a "
        r"run$"
    )
    with pytest.raises(ConfigError, match=expected):
        plan(FOUR, 16, 9, actors=2)
    with pytest.raises(ConfigError, match=r"each do not fit, 1 does \("):
        plan([Node(1)], 2, 2, gpus_per_client=0)


@pytest.mark.parametrize("share", [Share(1, 0.5), Share(0.5, 0.1), Share(2, 1), Share(3, 2)])
def test_a_place_is_a_machine_for_one_actor(share):
    places = Reservation(share, 3).machines()
    assert plan_placement(places, share, GIB, 10).per_node == (1, 1, 1)


# what runs will take

TINY = ("engine.kind=serial", "data.num_clients=4", "train.sample_rate=0.5", "train.rounds=40")


def tiny(*sets: str) -> RunConfig:
    return resolve(from_flags({}, TINY), from_flags({}, sets))


def test_a_run_is_its_first_round_the_later_ones_and_its_evaluations() -> None:
    measured = Measured(first=5.0, round=2.5, evaluation=1.0)
    run = tiny("train.rounds=21", "evaluation.every=4")
    assert measured.seconds(run) == 5 + 20 * 2.5 + 20 / 4 * 1
    assert measured.seconds(tiny("train.rounds=1")) == 5


@pytest.mark.parametrize(
    ("slots", "wanted"), [(1, 9.0), (2, 5 * CONTENTION), (3, 4 * CONTENTION), (9, 4 * CONTENTION)]
)
def test_the_longest_runs_start_first(slots: int, wanted: float) -> None:
    assert estimate.makespan([1.0, 4.0, 2.0, 2.0], slots) == wanted


def test_seeds_and_learning_rates_are_of_one_kind_and_methods_of_another() -> None:
    runs = [tiny(), tiny("seed=1", "train.lr=1", "data.seed=3"), tiny("model.name=mlp")]
    assert [len(kind) for kind in capacity.by_kind(runs)] == [2, 1]


@pytest.mark.integration
def test_rounds_are_measured_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measured = estimate.measure(tiny())
    assert min(measured.first, measured.round, measured.evaluation) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DivergedError("round 1")

    monkeypatch.setattr(driver, "run", fail)
    done = CliRunner().invoke(main, ["run", "--dry-run", "--engine", "serial"])
    assert done.exit_code == 1
    assert done.stderr == "error: round 1\nnote: --no-measure lists the runs without training any\n"


def test_the_dry_run_of_a_run_and_of_a_sweep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    measured = Measured(first=36.0, round=36.0, evaluation=0.0)
    trained = []
    monkeypatch.setattr(estimate, "measure", lambda c: trained.append(c.seed) or measured)
    monkeypatch.setattr("fedsim.cli.dry_run.num_gpus", lambda: 2)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    done = CliRunner().invoke(main, ["run", "--dry-run", "--engine", "serial", "--out", "r"])
    assert done.exit_code == 0, done.output
    assert "2.00 (2 GPUs)" in done.stdout, "100 rounds of 36 s on two GPUs"
    (tmp_path / "g.yaml").write_text("engine: {kind: serial}\ngrid: {seed: [4, 5]}\n")
    listed = CliRunner().invoke(main, ["sweep", "g.yaml", "--dry-run", "--parallel", "1"])
    assert listed.stdout.splitlines()[:3] == ["seed=4", "seed=5", ""]
    assert "2 runs" in listed.stdout
    assert trained == [0, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["g.yaml"]
