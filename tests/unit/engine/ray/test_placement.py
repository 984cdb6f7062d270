"""How many actors fit, and what a refusal says."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import ray
from ray.exceptions import RuntimeEnvSetupError

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, FedsimError, Interrupted, one_line
from fedsim.core.machine import available_memory
from fedsim.core.types import GIB
from fedsim.engine.ray import cluster as clusters
from fedsim.engine.ray.cluster import connect, local_node, node_of, plan_for
from fedsim.engine.ray.placement import Node, Share, plan_placement
from tests.commands import clean_environment

GPU2 = [Node(64, 2)]


def plan(nodes, num_clients, cpus_per_client=1.0, gpus_per_client=0.0, actors="auto", memory=0):
    share = Share(cpus_per_client, gpus_per_client)
    return plan_placement(nodes, share, memory, num_clients, actors)


FRACTIONS = {0.6: 2, 0.5: 4, 0.4: 4, 0.34: 4, 0.3333: 6, 0.3: 6, 0.1: 20, 0.7: 2, 1: 2, 2: 1}


@pytest.mark.parametrize(
    ("nodes", "fraction", "slots"),
    [
        *((GPU2, fraction, slots) for fraction, slots in FRACTIONS.items()),
        ([Node(64, 1)], 0.01, 64),
        ([Node(64, 1), Node(64, 3)], 2, 1),
        ([Node(64, 1.9)], 0.5, 2),
    ],
)
def test_a_fraction_never_spans_gpus(nodes, fraction, slots):
    p = plan(nodes, 100, gpus_per_client=fraction)
    assert (p.slots, p.actors, p.per_client) == (slots, slots, False)


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "slots"),
    [
        ([Node(2)], 1.0, 0.0, 2),
        ([Node(2)], 0.25, 0.0, 8),
        ([Node(7)], 2.0, 0.0, 3),
        ([Node(3), Node(3)], 2.0, 0.0, 2),
        ([Node(1)], 0.1, 0.0, 10),
        ([Node(3.0)], 0.3, 0.0, 10),
        ([Node(4, 2)], 1.0, 0.1, 4),
        ([Node(4, 2)], 0.25, 0.25, 8),
        ([Node(2, 4), Node(16, 1)], 1.0, 0.5, 4),
        ([Node(0), Node(2)], 1.0, 0.0, 2),
    ],
)
def test_every_node_is_bounded_by_its_cores_too(nodes, cpus, gpus, slots):
    assert plan(nodes, 100, cpus, gpus).slots == slots


def test_one_actor_per_client_while_they_fit():
    own = plan([Node(8)], 8)
    assert (own.slots, own.actors, own.num_clients, own.per_client) == (8, 8, 8, True)
    assert [own.home(client) for client in range(8)] == list(range(8))
    assert plan([Node(8)], 3).actors == 3
    shared = plan([Node(8)], 50)
    assert (shared.slots, shared.actors, shared.num_clients, shared.per_client) == (8, 8, 50, False)
    assert shared.home(3) is None
    assert plan([Node(8)], 8, actors="per-client").actors == 8


def test_a_number_of_actors():
    assert plan([Node(8)], 50, actors=3).actors == 3
    assert plan([Node(8)], 50, actors="3").actors == 3
    assert plan([Node(8)], 2, actors=4).actors == 2, "at most one actor per client"


def test_the_order_of_nodes_does_not_matter():
    nodes = [Node(4, 2), Node(16), Node(1, 8)]
    one, other = plan(nodes, 100, 0.5, 0.25), plan(nodes[::-1], 100, 0.5, 0.25)
    assert one.actors == other.actors == 10
    assert one.per_node == other.per_node[::-1] == (8, 0, 2)


@pytest.mark.parametrize(
    ("nodes", "asked", "actors", "message"),
    [
        ([Node(2)], {"cpus_per_client": 3.0}, "auto", "1 actor of 3 CPU does not fit, 0 do (this"),
        (GPU2, {"gpus_per_client": 0.6}, 3, "--actors 3: 3 actors of 1 CPU and 0.6 GPU do not fit"),
        (GPU2, {"gpus_per_client": 0.6}, 3, "fit, 2 do (this machine: 64 CPUs, 2 GPUs);"),
        ([Node(8)], {}, "per-client", "8 CPUs, 0 GPUs); a smaller --cpus-per-client may"),
        ([Node(1, 0, "n")] * 9, {"cpus_per_client": 2.0}, "auto", ", and 5 more)"),
        ([Node(99, memory=3 * GIB)], {"memory": GIB}, 8, "needs 1.00 GiB, see engine.memory_per"),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_is_there(nodes, asked, actors, message):
    with pytest.raises(ConfigError) as error:
        plan(nodes, 50, actors=actors, **asked)
    assert message in str(error.value)


def test_a_cluster_that_is_gone():
    with pytest.raises(ConfigError, match="no machine of the cluster is alive"):
        plan([], 3)


def test_the_plan_describes_itself():
    assert str(plan([Node(8)], 50)) == "8 actors shared by 50 clients, 1 CPU each"
    assert str(plan([Node(1)], 1)) == "1 actor for 1 client, 1 CPU each"
    text = str(plan(GPU2, 4, 0.5, 0.25))
    assert text == "4 actors one for each of 4 clients, 0.5 CPU and 0.25 GPU each"


def all_fit(nodes, share, actors, memory):
    """Whether some packing holds so many actors: tries every node and every GPU for each."""
    exact = [Fraction(amount).limit_denominator(10_000) for amount in (share.cpus, share.gpus)]
    state = tuple((Fraction(n.cpus), (Fraction(1),) * int(n.gpus), n.memory) for n in nodes)

    def search(state, left):
        if not left:
            return True
        cpus, gpus = exact
        for i, (free, on, room) in enumerate(state):
            if cpus > free or memory > room:
                continue
            if gpus == 0:
                options = {on}
            elif gpus < 1:
                options = {
                    tuple(sorted([*on[:j], on[j] - gpus, *on[j + 1 :]]))
                    for j in range(len(on))
                    if on[j] >= gpus
                }
            else:
                options = {on[int(gpus) :]} if len(on) >= gpus else set()
            for after in options:
                changed = (free - cpus, after, room - memory)
                if search((*state[:i], changed, *state[i + 1 :]), left - 1):
                    return True
        return False

    return search(state, actors)


def test_the_plan_names_the_gpus_of_its_actors():
    nodes = [Node(8, 1, accelerator="H200"), Node(8)]
    assert plan(nodes, 4, gpus_per_client=0.5).gpu_types == "H200"
    assert plan(nodes, 4).gpu_types == ""


def test_every_actor_that_can_fit_is_placed():
    rng = np.random.default_rng(0)
    found = Counter()
    for _ in range(150):
        nodes = [
            Node(
                float(rng.integers(0, 4)), float(rng.integers(0, 3)), memory=int(rng.integers(1, 9))
            )
            for _ in range(rng.integers(1, 3))
        ]
        gpus = rng.choice([0, 0, 0.3, 0.5, 0.6, 1, 2])
        share = Share(float(rng.choice([0.5, 0.7, 1, 2])), float(gpus))
        memory = int(rng.integers(1, 5))
        most = next(n for n in range(7) if n == 6 or not all_fit(nodes, share, n + 1, memory))
        found[most] += 1
        if most == 0:
            with pytest.raises(ConfigError, match="does not fit, 0 do"):
                plan_placement(nodes, share, memory, 6)
        else:
            p = plan_placement(nodes, share, memory, 6)
            assert p.actors == most
            assert all(
                all_fit([n], share, k, memory) for n, k in zip(nodes, p.per_node, strict=True)
            )
    assert len(found) == 7, f"every number of actors occurs: {found}"


def test_actors_without_a_gpu_leave_the_gpu_nodes_alone():
    assert plan([Node(4, 2), Node(2, 0)], 3).per_node == (1, 2)


def test_memory_bounds_the_number_of_actors():
    nodes = [Node(16, memory=3 * GIB), Node(2, memory=8 * GIB), Node(16, memory=GIB // 2)]
    p = plan(nodes, 50, memory=GIB)
    assert (p.per_node, p.memory) == ((3, 2, 0), GIB)
    assert plan([Node(16)], 50, memory=GIB).actors == 16, "memory is not known"


def test_the_plan_of_a_configuration():
    nodes = [Node(8, memory=100 * GIB)]
    p = plan_for(EngineConfig(cpus_per_client=2), nodes, 6)
    assert (p.actors, p.share) == (4, Share(2.0))
    assert 0.4 * GIB < p.memory < 0.5 * GIB
    larger = plan_for(EngineConfig(), nodes, 6, model_bytes=GIB)
    assert larger.memory == 4 * GIB + p.memory
    assert plan_for(EngineConfig(memory_per_client=50), nodes, 6, GIB).actors == 2


def test_a_machine_as_ray_describes_it():
    resources = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H200": 1.0, "memory": 5e9, "node:x": 1.0}
    assert node_of(resources, "x") == Node(8.0, 2.0, "x", "H200", 5e9)
    assert node_of({}, "head") == Node(0.0, 0.0, "head", "", math.inf)


def test_this_machine(monkeypatch):
    assert GIB // 8 < available_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr("fedsim.engine.ray.cluster.available_memory", lambda: 10.0 * GIB)
    assert local_node().memory == pytest.approx(7 * GIB), "Ray's object store takes 30 %"
    assert local_node().cpus == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers(address):
    with pytest.raises(ConfigError, match=rf"--address {address}: nothing answers there"):
        connect(EngineConfig(address=address))
    assert not ray.is_initialized()


def test_a_working_dir_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"--working-dir .*nowhere: there is no such folder"):
        connect(EngineConfig(working_dir=str(tmp_path / "nowhere")))


def test_serial_on_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--gpus-per-client 1: torch finds no GPU here"):
        fedsim.run(RunConfig(engine={"kind": "serial", "gpus_per_client": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "made"),
    [({}, True), ({"RAY_AUTH_MODE": "token"}, True), ({"RAY_AUTH_TOKEN": "a"}, False),
     ({"RAY_AUTH_TOKEN_PATH": "b"}, False)],
)  # fmt: skip
def test_a_secret_is_made_where_the_user_has_none(given, made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert set(clusters._auth_token()) == ({"RAY_AUTH_TOKEN"} if made else set())
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert clusters._auth_token() == {}


FORK = """
import os, sys, fedsim
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray.cluster import connect

connect(EngineConfig(actors=1))()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    fedsim.run(fedsim.RunConfig(engine={"actors": 1}), sys.argv[1])
except ConfigError as error:
    print(error)
    os._exit(7)
"""


@pytest.mark.slow
@pytest.mark.integration
def test_a_forked_process_is_refused(tmp_path):
    command = [sys.executable, "-c", FORK, str(tmp_path / "run")]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 7, done.stderr
    assert "this process was forked from one that had connected to Ray" in done.stdout


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (Exception("The node timed out\nduring startup"), FedsimError, "timed out during startup"),
        (RuntimeEnvSetupError("Failed to upload working_dir"), ConfigError, "Failed to upload"),
        (SystemExit(15), Interrupted, "15"),
    ],
)
def test_a_start_that_fails_is_one_line(raised, error, message, monkeypatch):
    def init(**_):
        raise raised

    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(error, match=message) as caught:
        connect(EngineConfig())
    if error is ConfigError:
        text = f"Ray cannot start ({one_line(raised)}); --engine serial needs no Ray"
        assert str(caught.value) == text
