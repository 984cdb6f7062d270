"""How many runs fit at once, with how many actors each, and what is said where they do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, WorkerError
from fedsim.core.machine import PROCESS
from fedsim.core.types import GIB
from fedsim.engine.ray import groups
from fedsim.engine.ray.groups import Need, Reservation, plan_runs
from fedsim.engine.ray.placement import Node, Share, plan_placement

FOUR = [Node(4, 2, f"n{i}") for i in range(4)]


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    monkeypatch.setattr(groups, "cores", lambda: 64)


def need(cohort=5, model_bytes=0, **engine):
    settings = EngineConfig(**{"gpus_per_client": 0.5, **engine})
    return Need(engine=settings, num_clients=50, cohort_size=cohort, model_bytes=model_bytes)


def plan(nodes, runs, parallel="auto", **engine):
    count, reservation = plan_runs([need(**engine)], nodes, runs, parallel)
    return count, reservation.actors


@pytest.mark.parametrize(
    ("runs", "engine", "expected"),
    [
        (16, {"gpus_per_client": None}, (8, 1)),  # a GPU each
        (16, {}, (16, 1)),  # half of one
        (18, {}, (16, 1)),
        (8, {}, (8, 2)),
        (3, {}, (3, 5)),
        (1, {}, (1, 5)),
        (16, {"actors": 2}, (8, 2)),
        (16, {"actors": 3}, (5, 3)),
        (16, {"gpus_per_client": 0.3}, (16, 1)),
        (40, {"gpus_per_client": 0.3, "cpus_per_client": 0.5}, (24, 1)),
        (4, {"gpus_per_client": 1, "cohort": 100}, (4, 2)),
        (16, {"gpus_per_client": 2}, (4, 1)),
        (16, {"gpus_per_client": 0}, (16, 1)),
        (1, {"actors": "per-client", "gpus_per_client": 0.1, "cpus_per_client": 0.1}, (1, 50)),
    ],
)
def test_the_machines_are_filled(runs, engine, expected):
    assert plan(FOUR, runs, **engine) == expected


def test_a_number_that_is_given_leaves_the_rest_to_the_actors():
    assert plan(FOUR, 16, 4) == (4, 4)
    assert plan(FOUR, 16, 4, cohort=2) == (4, 2)
    assert plan(FOUR, 2, 4) == (2, 5), "there are no more runs"


def test_few_cores_drive_few_runs(monkeypatch):
    monkeypatch.setattr(groups, "cores", lambda: 2)
    assert plan(FOUR, 16) == (8, 2)
    assert plan(FOUR, 16, 16) == (16, 1), "as it was asked for"


def test_runs_of_several_shapes_have_room_for_the_largest():
    mixed = [need(gpus_per_client=0.5), need(gpus_per_client=1, actors=2)]
    assert plan_runs(mixed, FOUR, 6, "auto") == (4, Reservation(Share(1, 1), 2))


def test_memory_of_actors_and_of_the_drivers_on_their_machine():
    engine = {"gpus_per_client": 0, "memory_per_client": 1.0, "model_bytes": (GIB - PROCESS) // 9}
    nodes = [Node(64, memory=2 * GIB), Node(64, memory=6 * GIB)]  # a driver takes 1 GiB too
    assert plan(nodes, 16, **engine) == (2, 3)
    assert plan(nodes[:1], 16, **engine) == (1, 1)
    with pytest.raises(ConfigError, match=r"--parallel 16: so many runs with 1 actor of 1 CPU"):
        plan(nodes, 16, 16, **engine)


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


def test_where_no_run_fits():
    with pytest.raises(ConfigError, match=r"20 actors .* do not fit, 16 do \("):
        plan(FOUR, 16, actors=20, gpus_per_client=0.5, cpus_per_client=0.5)
    with pytest.raises(ConfigError, match="no machine of the cluster is alive"):
        plan([], 2)


@pytest.mark.parametrize("share", [Share(1, 0.5), Share(0.5, 0.1), Share(2, 1), Share(3, 2)])
def test_a_bundle_is_a_machine_for_one_actor(share):
    bundles = [Node(share.cpus, share.gpus)] * 3
    assert plan_placement(bundles, share, GIB, 10).per_node == (1, 1, 1)


@pytest.fixture
def pending(monkeypatch):
    """Ray whose placement groups stay pending on a machine of two CPUs; those that were removed."""
    removed = []
    handle = SimpleNamespace(ready=lambda: "ready")
    monkeypatch.setattr(groups, "placement_group", lambda *_: handle)
    monkeypatch.setattr(groups, "remove_placement_group", removed.append)
    monkeypatch.setattr(groups.ray, "wait", lambda refs, timeout: ([], refs))
    monkeypatch.setattr(groups, "reachable", lambda: ([Node(2)], 0))
    return removed


def test_a_run_waits_for_its_group_until_it_is_ordered_to_stop(pending):
    looks = iter([False, False, True, True])
    assert groups.reserve(Reservation(Share(1), 2), lambda: next(looks)) is None
    assert len(pending) == 1


def test_a_run_that_no_machine_has_room_for_fails(pending, monkeypatch):
    monkeypatch.setattr(groups, "ROOM_TIMEOUT", -1.0)
    with pytest.raises(WorkerError, match=r"room for 3 actors of 1 CPU in .* \(this machine: 2"):
        groups.reserve(Reservation(Share(1), 3), lambda: False)
    assert len(pending) == 1
