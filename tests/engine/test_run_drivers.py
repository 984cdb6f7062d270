"""Runs side by side on Ray, on one machine and on four, have the bytes of runs alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray.several import Need, shared_ray
from fedsim.studies.parallel import control
from fedsim.studies.processes import Processes
from fedsim.training.events import ENDINGS, Done, Event, Job, Lost, RoundEnded, Started
from tests.engine import fake_gpus

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


def test_too_many_are_refused_before_anything_is_made(two_cores):
    expected = r"^--parallel 3: so many runs with 1 .* fit, 2 do \("
    with pytest.raises(ConfigError, match=expected), processes([config(0)] * 4, 3):
        pytest.fail("it was made")


# sixteen runs on a cluster of four nodes with a GPU each, of which an actor takes a half

RUNS, ROUNDS = 16, 20
HALF = {"gpus_per_client": 0.5, "cpus_per_client": 0.5, "actors": 2}


@pytest.fixture
def cluster(orders):
    """A head and three nodes with a core and a GPU each: room for eight actors."""
    size = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 << 20}
    head = {**size, "include_dashboard": False, "temp_dir": f"{orders.parent}/h"}
    made = Cluster(initialize_head=True, head_node_args=head)
    for name in ("n1", "n2", "n3"):
        made.add_node(**size, temp_dir=f"{orders.parent}/{name}")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The bytes of each run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    runs = [fedsim.run(config(s, ROUNDS, kind="serial"), folder / str(s)) for s in range(RUNS)]
    return [bytes_of(run.path) for run in runs]


def kill(node) -> None:
    """Ends the processes of a node as a power cut does."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [raylet, *raylet.children(recursive=True)]:
        process.kill()


def test_a_node_is_lost_in_the_middle(cluster, alone, tmp_path):
    fake_gpus.connect(cluster.address)
    jobs = [Job(str(s), config(s, ROUNDS, **HALF), tmp_path / str(s)) for s in range(RUNS)]
    active, most = set(), set()

    def follow(_, job, event):
        if isinstance(event, Started):
            active.add(job.name)
        if isinstance(event, ENDINGS):
            active.discard(job.name)
        most.add(len(active))
        if isinstance(event, RoundEnded) and len(follower.of(Done)) >= 4 and len(nodes) == 3:
            kill(nodes.pop())

    nodes, follower = list(cluster.worker_nodes), Follower(follow)
    with processes([job.config for job in jobs]) as (drivers, ray_of_runs):
        assert (ray_of_runs.count, ray_of_runs.reservation.actors) == (4, 2)
        run_all(jobs, drivers, follower)
    assert max(most) == 4, "as many as fit"
    assert len(follower.of(Done)) == RUNS
    assert [bytes_of(job.out) for job in jobs] == alone


def test_the_sweep_is_killed_and_started_again(cluster, alone, tmp_path):
    file, out = tmp_path / "seeds.yaml", tmp_path / "out"
    given = {
        "algorithm": "fedavg",
        "data": {"num_clients": 2},
        "model": {"name": "logistic"},
        "train": {"rounds": ROUNDS, "sample_rate": 1.0},
        "engine": HALF,
        "grid": {"seed": list(range(RUNS))},
    }
    file.write_text(yaml.safe_dump(given))
    command = [sys.executable, "-m", "tests.engine.fake_gpus", cluster.address, "sweep", str(file)]
    command += ["--out", str(out), "--parallel"]
    here = {"cwd": Path(__file__).parents[2], "env": {**os.environ}}  # its cluster's secret, too
    options = {"capture_output": True, "text": True, **here}

    first = subprocess.Popen([*command, "4"], stdout=subprocess.PIPE, **here)
    while len(list(out.glob("*/summary.csv"))) < 4 and first.poll() is None:
        time.sleep(0.1)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    first.stdout.close()
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/summary.csv")}
    assert 4 <= len(finished) < RUNS

    refused = subprocess.run([*command, "5"], **options)
    assert refused.returncode == 2
    assert re.match(r"error: --parallel 5: so many runs with 2 actors .*, 4 do \(", refused.stderr)
    assert refused.stderr.count("\n") == 1

    again = subprocess.run([*command, "auto"], **options)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert [bytes_of(out / f"seed={s}") for s in range(RUNS)] == alone
    assert "seed=15" in again.stdout
