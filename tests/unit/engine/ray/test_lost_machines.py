"""What becomes of waiting runs where a machine of the cluster is lost; Ray is a fake."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import WorkerError
from fedsim.engine.drivers import Done, Failed, Job, Lost
from fedsim.engine.ray import drivers
from fedsim.engine.ray.groups import Need
from fedsim.engine.ray.placement import Node

SMALL, LARGE = 0.5, 1.0


@dataclass
class Cluster:
    """Machines with GPUs, and the groups of one actor each that are on them."""

    gpus: dict[str, float]
    groups: list[FakeGroup] = field(default_factory=list)
    now: float = 0.0

    def reachable(self):
        return [Node(8, gpus, name) for name, gpus in self.gpus.items()], 0

    def home(self, amount):
        """A machine with so much of a GPU free; None: there is none."""
        used = {name: 0.0 for name in self.gpus}
        for group in self.groups:
            if group.node in used:
                used[group.node] += group.shape.share.gpus
        return next((n for n, gpus in self.gpus.items() if gpus - used[n] >= amount), None)

    def pending(self, shape):
        return FakeGroup(self, shape)


class FakeGroup:
    """A group, and the wait for it."""

    def __init__(self, cluster, shape):
        self.cluster, self.shape, self.node = cluster, shape, None
        self.ready = object()

    def group(self, timeout=0.0):
        self.node = self.cluster.home(self.shape.share.gpus)
        if self.node is None:
            return None
        self.cluster.groups.append(self)
        return self

    def lost(self):
        return "" if self.node in self.cluster.gpus else f"{self.node} was lost"

    def remove(self):
        if self in self.cluster.groups:
            self.cluster.groups.remove(self)


class FakeDriver:
    """A driver whose runs end when the test says so."""

    def __init__(self):
        call = SimpleNamespace(remote=lambda *_: object())
        self.told = self.run = self.stop = call


class Drivers(drivers.RayDrivers):
    """Run drivers, and how the runs of the slots ended."""

    def _driver(self):
        return FakeDriver()

    def look(self, cluster, seconds):
        """Lets time pass; the endings meanwhile."""
        found = []
        for _ in range(int(seconds)):
            cluster.now += 1.0
            self.events(lambda slot, event: found.append((slot, event)))
        return found

    def end(self, slot, event):
        (seat,) = [seat for seat in self._seats if seat.slot == slot]
        self._free(seat, event, lambda *_: None)

    @property
    def busy(self):
        return sorted(seat.job.name for seat in self._seats if seat.job)


def job(name, gpus):
    engine = EngineConfig(gpus_per_client=gpus, actors=1)
    return Job(name, RunConfig(algorithm="fedavg", engine=engine), Path(name))


def need_of(config):
    return Need(engine=config.engine, num_clients=1, cohort_size=1)


@pytest.fixture
def start(monkeypatch):
    """Starts drivers on a fake cluster, whose clock is the test's."""

    def made(gpus, first, **given):
        cluster = Cluster(gpus)
        context = SimpleNamespace(get_node_id=lambda: "0a" * 28)
        monkeypatch.setattr(drivers, "connect", lambda _: lambda: None)
        monkeypatch.setattr(drivers, "own_processes", dict)
        monkeypatch.setattr(drivers, "start_register", lambda **_: None)
        monkeypatch.setattr(drivers, "Pending", cluster.pending)
        monkeypatch.setattr(drivers.groups, "reachable", cluster.reachable)
        monkeypatch.setattr(drivers, "time", SimpleNamespace(monotonic=lambda: cluster.now))
        monkeypatch.setattr(drivers.ray, "is_initialized", lambda: True)
        monkeypatch.setattr(drivers.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(drivers.ray, "wait", lambda owed, **_: ([], owed))
        monkeypatch.setattr(drivers.ray, "kill", lambda _: None)
        needs = [need_of(j.config) for j in first]
        return cluster, Drivers(print, EngineConfig(), needs, need_of, **given)

    return made


def test_a_run_without_a_machine_for_it_fails_while_others_go_on(start) -> None:
    jobs = [job("small", SMALL), job("large", LARGE), job("large again", LARGE)]
    cluster, found = start({"a": 1.0, "b": 1.0}, jobs[:2])
    assert found.slots == (0, 1)
    found.submit(0, jobs[0])
    found.submit(1, jobs[1])
    found.look(cluster, 1)
    assert found.busy == ["large", "small"]
    home = next(group.node for group in cluster.groups if group.shape.share.gpus == LARGE)
    cluster.gpus = {"a": 0.5}
    assert home == "b"
    found.end(1, Lost("b was lost"))
    found.submit(1, jobs[1])
    assert found.look(cluster, drivers.LOST_TIMEOUT) == []
    ((slot, event),) = found.look(cluster, 3 * drivers.CHECK_INTERVAL)
    assert (slot, found.busy) == (1, ["small"])
    assert event == Failed(
        "no machine of the cluster has had room for 1 actor of 1 CPU and 1 GPU in 180 s "
        "(a: 8 CPUs, 0.5 GPUs)"
    )
    found.submit(1, jobs[2])
    ((slot, event),) = found.look(cluster, 2 * drivers.CHECK_INTERVAL)
    assert isinstance(event, Failed), "the next run of this shape does not wait as long again"
    found.end(0, Done({}))
    found.submit(0, job("small again", SMALL))
    found.look(cluster, 2)
    assert found.busy == ["small again"]


def test_smaller_runs_do_not_wait_behind_it(start) -> None:
    large, small = job("large", LARGE), job("small", SMALL)
    cluster, found = start({"a": 1.0}, [large, small])
    cluster.gpus = {"a": 0.5}
    found._seats[0].give_up()
    found.slots = (0, 1)
    found.submit(0, large)
    found.submit(1, small)
    assert found.look(cluster, 3 * drivers.CHECK_INTERVAL) == []
    assert found.busy == ["small"], "in a group that is smaller than the plan's"


def test_a_machine_that_comes_back_takes_the_run(start) -> None:
    large, small = job("large", LARGE), job("small", SMALL)
    cluster, found = start({"a": 1.0, "b": 1.0}, [small, large])
    found.submit(0, small)
    cluster.gpus = {"a": 0.5}
    found.submit(1, large)
    assert found.look(cluster, drivers.LOST_TIMEOUT - 10) == []
    cluster.gpus = {"a": 0.5, "b": 1.0}
    assert found.look(cluster, 2 * drivers.LOST_TIMEOUT) == []
    assert found.busy == ["large", "small"]


def test_groups_without_a_run_do_not_keep_a_run_out(start) -> None:
    small = [job(f"small {i}", SMALL) for i in range(2)]
    cluster, found = start({"a": 1.0, "b": 1.0}, [*small, job("large", LARGE)], parallel=2)
    assert [group.node for group in cluster.groups] == ["a", "a"]
    del cluster.gpus["b"]
    found.submit(0, job("large", LARGE))
    assert found.look(cluster, 3 * drivers.CHECK_INTERVAL) == []
    assert found.busy == ["large"]


def test_without_room_for_any_run_all_end(start) -> None:
    cluster, found = start({"a": 1.0}, [job("large", LARGE)])
    found.submit(0, job("large", LARGE))
    cluster.gpus = {}
    found.end(0, Lost("a was lost"))
    found.submit(0, job("large", LARGE))
    with pytest.raises(WorkerError, match="no machine of the cluster has had room for a run in"):
        found.look(cluster, 2 * drivers.LOST_TIMEOUT)
