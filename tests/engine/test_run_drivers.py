"""Runs side by side on Ray, each in a placement group, have the bytes of runs alone."""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray import shared
from fedsim.engine.ray.groups import Need, shared_ray
from fedsim.engine.ray.pool import Session
from fedsim.studies.parallel import control
from fedsim.studies.processes import Processes
from fedsim.training import setup
from fedsim.training.events import Done, Event, Job, Lost, RoundEnded

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("no_ray")]
TABLES = ("rounds.csv", "clients.csv", "partition.csv", "model.safetensors")


def config(seed, rounds=3, **engine):
    return RunConfig(
        algorithm="fedavg",
        seed=seed,
        data={"num_clients": 2},
        model={"name": "logistic"},
        train={"rounds": rounds, "sample_rate": 1.0},
        engine=engine,
    )


@contextmanager
def processes(configs, parallel="auto"):
    """As many processes as fit for runs on Ray, and what each of them reserves."""
    needs = [Need(engine=configs[0].engine, num_clients=2, cohort_size=2)]
    with shared_ray(EngineConfig(), needs, len(configs), parallel) as shared_by_runs:
        drivers = Processes(shared_by_runs.count, shared_by_runs)
        try:
            yield drivers, shared_by_runs
        finally:
            drivers.close()


def bytes_of(folder: Path):
    return {name: (folder / name).read_bytes() for name in TABLES}


class Follower:
    """Keeps what happened; ``on`` is called with each event."""

    def __init__(self, on=lambda *_: None):
        self.on, self.seen = on, []

    def happened(self, slot: int, job: Job, event: Event) -> None:
        self.seen.append((slot, job.name, event))
        self.on(slot, job, event)

    def stopping(self) -> None:
        pytest.fail("nobody asked for it")

    def of(self, kind):
        return [(name, event) for _, name, event in self.seen if isinstance(event, kind)]


@pytest.fixture(scope="module")
def two_cores(orders):
    """A Ray with two CPUs, which is joined as any other that is there."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def run_all(jobs, drivers, follower):
    left = deque(jobs)
    control(lambda: left.popleft() if left else None, drivers, follower)


def test_four_runs_with_two_drivers_one_of_which_is_killed(two_cores, tmp_path):
    jobs = [Job(f"seed={s}", config(s), tmp_path / f"seed={s}") for s in range(4)]
    killed = []

    def kill(slot, job, event):
        if isinstance(event, RoundEnded) and job.name == "seed=1" and not killed:
            killed.append(drivers.pid(slot))
            os.kill(killed[0], signal.SIGKILL)

    follower = Follower(kill)
    with processes([job.config for job in jobs]) as (drivers, ray_of_runs):
        assert (drivers.slots, ray_of_runs.reservation.actors) == ((0, 1), 1)
        run_all(jobs, drivers, follower)
    assert sorted(name for name, _ in follower.of(Done)) == [job.name for job in jobs]
    (lost,) = follower.of(Lost)
    assert lost[0] == "seed=1"
    assert "its process was ended by SIGKILL" in lost[1].reason
    for job in jobs:
        alone = fedsim.run(config(job.config.seed, kind="serial"), tmp_path / f"{job.name}-alone")
        assert bytes_of(job.out) == bytes_of(alone.path)
    assert ray.is_initialized(), "the connection stays the caller's"


def test_runs_share_the_samples(two_cores, tmp_path, monkeypatch):
    alone = fedsim.run(config(0, kind="serial"), tmp_path / "alone")
    monkeypatch.setattr(shared, "SMALL", 1 << 10)
    register, spec = shared.start_register(), setup.prepare(config(0)).spec
    copy = replace(spec, dataset=replace(spec.dataset, x=spec.dataset.x.copy()))
    first, second = (shared.without_samples(given, register) for given in (spec, copy))
    assert first.dataset.x == second.dataset.x, "one object"
    with Session(EngineConfig(), register=register) as session:
        ours = fedsim.run(config(0), tmp_path / "ours", session=session)
        assert bytes_of(ours.path) == bytes_of(alone.path)
        ray.kill(register)
        again = fedsim.run(config(0), tmp_path / "again", session=session)
        assert bytes_of(again.path) == bytes_of(alone.path)


def test_too_many_are_refused_before_anything_is_made(two_cores):
    expected = r"^--parallel 3: so many runs with 1 .* fit, 2 do \("
    with pytest.raises(ConfigError, match=expected), processes([config(0)] * 4, 3):
        pytest.fail("it was made")
