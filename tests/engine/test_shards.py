"""Aggregation spread over nodes gives the driver's bits."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim import algorithms
from fedsim.cohort import Cohort
from fedsim.columns import SHARD, Local, Piece
from fedsim.contracts import ClientUpdate, Layout, RoundContext, Slot
from fedsim.engine.shards import (
    LEAST,
    Aggregator,
    Held,
    Sharded,
    plan_shards,
    split,
    start_aggregators,
)
from fedsim.errors import ContractError, WorkerError

M, SIZE, STATS = 5, 3_300_000, 1001
EMPTY = np.empty(0, np.float32)


def layout():
    edges = [0, 700_001, 700_065, 1_900_000, SIZE - STATS]
    slots = [Slot(f"w{i}", (b - a,), a, b) for i, (a, b) in enumerate(pairwise(edges))]
    return Layout((*slots, Slot("mean", (STATS,), SIZE - STATS, SIZE, "stat")))


def draw(m=M, size=SIZE, round=0):
    return np.random.default_rng([m, round]).standard_normal((m, size), dtype=np.float32)


def cohort(rows, columns=None):
    samples = [10, 30, 20, 50, 40]
    deltas = rows if columns is None else [EMPTY] * len(rows)
    sent = [ClientUpdate(3 * i, samples[i], 4, d) for i, d in enumerate(deltas)]
    return Cohort.of(sent, layout(), columns)


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_ranges_are_whole_shards_and_cover_everything(nodes):
    for size in (1, LEAST, 2 * LEAST - 1, 2 * LEAST, 3_300_000, 9 * LEAST + 1):
        ranges = plan_shards(size, "auto", nodes)
        assert len(ranges) == (min(nodes, size // LEAST) if min(nodes, size // LEAST) > 1 else 0)
        if ranges:
            assert (ranges[0].start, ranges[-1].stop) == (0, size)
            assert all(a.stop == b.start for a, b in pairwise(ranges))
            assert all(r.start % SHARD == 0 and r.stop > r.start for r in ranges)


def test_an_explicit_number_of_ranges_and_none_for_small_vectors():
    assert len(plan_shards(25_000_000, 3, 1)) == 3
    assert plan_shards(25_000_000, 1, 8) == ()
    assert plan_shards(2 * LEAST - 1, 8, 8) == ()


def test_an_aggregator_in_this_process_takes_its_rows_from_shared_parts():
    rows = draw(3, 1000)
    one, two = rows[:2], rows[2:]
    (expected,) = Local(tuple(rows)).products([slice(0, 1000)])
    got = Aggregator().products([Piece(0, 0, 1000)], None, [0, 1, 0], one, one, two)
    np.testing.assert_array_equal(got[0], expected)


def test_whole_updates_are_not_to_be_had():
    spread = Sharded([], plan_shards(SIZE, 2, 2), [Held((), 0)] * M)
    with pytest.raises(ContractError, match=r"engine\.aggregation_shards=1"):
        cohort(draw(M, 10), spread).rows  # noqa: B018


@pytest.fixture(scope="module")
def two_nodes():
    """The ids of two nodes of a cluster that this process has joined."""
    patch = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        common = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 300 << 20}
        cluster = Cluster(
            initialize_head=True, head_node_args={**common, "temp_dir": f"{folder}/h"}
        )
        try:
            del common["include_dashboard"]
            cluster.add_node(**common, temp_dir=f"{folder}/n")
            ray.init(address=cluster.address, log_to_driver=False)
            cluster.wait_for_nodes()
            yield [node["NodeID"] for node in ray.nodes()]
        finally:
            ray.shutdown()
            cluster.shutdown()
            patch.undo()


def trained(node, rows, ranges):
    """Updates as a call on a node leaves them there: by client what holds them."""
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(num_cpus=0, num_returns=len(ranges))(split)
    refs = task.options(scheduling_strategy=place).remote(rows, ranges)
    return [Held(tuple(refs), i) for i in range(len(rows))]


@pytest.mark.ray
def test_the_bits_of_the_driver_for_every_rule(two_nodes):
    ranges = plan_shards(SIZE, "auto", 2)
    assert len(ranges) == 2
    actors = start_aggregators(2)
    methods = {
        "fedavg": {},
        "fedld": {},
        "fedld by tensor": {"blocks": "tensor"},
        "fedgh": {},
        "fedld_released": {},
    }
    states = {name: ({}, {}) for name in methods}
    try:
        for round in range(2):
            ctx = RoundContext(round, 2, 20, 0.1, seed=3)
            rows = draw(round=round)
            held = trained(two_nodes[0], rows[:2], ranges) + trained(two_nodes[1], rows[2:], ranges)
            for name, options in methods.items():
                server = algorithms.load(name.split()[0], options).server
                here, there = cohort(list(rows)), cohort(rows, Sharded(actors, ranges, held))
                params = slice(0, SIZE - STATS)
                assert here.gram(params).tobytes() == there.gram(params).tobytes()
                local = server.step(states[name][0], here, ctx)
                spread = server.step(states[name][1], there, ctx)
                assert local.step.tobytes() == spread.step.tobytes(), name
                assert spread.step.dtype == np.float32
                assert np.abs(local.step).max() > 0
                states[name] = local.state, spread.state
    finally:
        for actor in actors:
            ray.kill(actor)


@pytest.mark.ray
def test_aggregators_are_spread_and_a_dead_one_is_replaced(two_nodes):
    ranges = plan_shards(SIZE, 2, 2)
    actors = start_aggregators(2)
    try:
        rows = draw()
        held = trained(two_nodes[1], rows, ranges)
        where = slice(0, SIZE)
        expected = cohort(list(rows)).gram(where).tobytes()
        assert cohort(rows, Sharded(actors, ranges, held)).gram(where).tobytes() == expected
        ray.kill(actors[0], no_restart=False)
        assert cohort(rows, Sharded(actors, ranges, held)).gram(where).tobytes() == expected
        ray.kill(actors[1])
        with pytest.raises(WorkerError, match="aggregation over the nodes: ActorDiedError"):
            cohort(rows, Sharded(actors, ranges, held)).gram(where)
    finally:
        for actor in actors:
            ray.kill(actor)
