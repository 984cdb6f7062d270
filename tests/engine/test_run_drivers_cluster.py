"""Sixteen runs on a cluster of four nodes with a GPU each, of which an actor takes a half."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

import fedsim
from fedsim.core.errors import ConfigError
from fedsim.training.events import ENDINGS, Done, Job, Lost, RoundEnded, Started
from tests.engine import fake_gpus
from tests.engine.test_run_drivers import Follower, bytes_of, config, processes, run_all

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("no_ray")]
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
    active, counts = set(), {"before": set(), "after": set()}

    def follow(_, job, event):
        if isinstance(event, Started):
            active.add(job.name)
        if isinstance(event, ENDINGS):
            active.discard(job.name)
        lost = bool(follower.of(Lost))
        counts["after" if lost else "before"].add(len(active))
        if isinstance(event, RoundEnded) and len(follower.of(Done)) >= 4 and len(nodes) == 3:
            kill(nodes.pop())

    nodes, follower = list(cluster.worker_nodes), Follower(follow)
    configs = [job.config for job in jobs]
    refused = r"--parallel 5: .* 2 actors of 0.5 CPU and 0.5 GPU"
    with pytest.raises(ConfigError, match=refused), processes(configs, 5):
        pytest.fail("it was made")
    with processes(configs) as (drivers, ray_of_runs):
        assert (ray_of_runs.count, ray_of_runs.reservation.actors) == (4, 2)
        run_all(jobs, drivers, follower)
    assert (max(counts["before"]), max(counts["after"])) == (4, 3), "as many as fit"
    ((_, lost),) = follower.of(Lost)
    assert "of the run's placement group was lost" in lost.reason
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
