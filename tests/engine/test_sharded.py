"""Aggregation spread over nodes gives the driver's bits."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import nn

import fedsim
from fedsim import algorithms
from fedsim.attacks.base import AttackedCohort, Malicious
from fedsim.attacks.min_max import MinMax
from fedsim.config.run import RunConfig
from fedsim.core.errors import WorkerError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.engine.ray.sharded import Aggregators, Held, Sharded, plan_shards, split
from fedsim.models.vision import SplitModel
from fedsim.server import ClipNorms
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.engine.broken import Holder
from tests.tasks import tasks

pytestmark = pytest.mark.ray


M, SIZE, STATS = 5, 3_300_000, 1001

EMPTY = np.empty(0, np.float32)


def layout():
    edges = [0, 700_001, 700_065, 1_900_000, SIZE - STATS]
    slots = [
        Slot(name=f"w{i}", shape=(b - a,), start=a, stop=b)
        for i, (a, b) in enumerate(pairwise(edges))
    ]
    return Layout(
        (*slots, Slot(name="mean", shape=(STATS,), start=SIZE - STATS, stop=SIZE, role="stat"))
    )


def draw(m=M, size=SIZE, round=0):
    return np.random.default_rng([m, round]).standard_normal((m, size), dtype=np.float32)


def cohort(rows, columns=None):
    samples = [10, 30, 20, 50, 40]
    deltas = rows if columns is None else [EMPTY] * len(rows)
    sent = [
        ClientUpdate(client_id=3 * i, num_samples=samples[i], num_steps=4, delta=d)
        for i, d in enumerate(deltas)
    ]
    return Cohort.of(sent, layout(), columns)


@contextmanager
def cluster_of_two(head_cpus=1):
    """A cluster of two nodes, and what exchanges the second for another."""
    patch = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        store = {"object_store_memory": 300 << 20}
        head = {**store, "num_cpus": head_cpus, "include_dashboard": False}
        head["temp_dir"] = f"{folder}/h"
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes = [cluster.add_node(**store, num_cpus=1, temp_dir=f"{folder}/n1")]

            def exchange():
                """Another node instead of the second."""
                cluster.remove_node(nodes.pop(), allow_graceful=False)
                nodes.append(cluster.add_node(**store, num_cpus=1, temp_dir=f"{folder}/n2"))

            ray.init(address=cluster.address, log_to_driver=False)
            cluster.wait_for_nodes()
            yield exchange
        finally:
            ray.shutdown()
            cluster.shutdown()
            patch.undo()


@pytest.fixture(scope="module")
def two_nodes(no_ray):
    """The ids of two nodes of a cluster that this process has joined."""
    with cluster_of_two():
        yield [node["NodeID"] for node in ray.nodes()]


def block(client):
    ctx = RoundContext(round=0, num_rounds=2, num_clients=20, lr=0.1, seed=3)
    return tuple(tasks([client], ctx))


def trained(node, rows, ranges, first=0):
    """Updates as a call on a node leaves them there: by client what holds them."""
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(num_cpus=0, num_returns=len(ranges), max_retries=0)(split)
    refs = task.options(scheduling_strategy=place).remote(rows, ranges)
    return {3 * (first + i): Held(tuple(refs), i, block(3 * (first + i))) for i in range(len(rows))}


def no_other(incident):
    """No update is lost, an aggregator at most."""
    raise AssertionError(incident)


METHODS = {
    "fedavg": {},
    "fedld": {},
    "fedld by tensor": {"blocks": "tensor"},
    "fedgh": {},
    "fedld_released": {},
    "krum": {},
    "centered_clipping": {"tau": 1500.0},
    "geometric_median": {},
    "nnm": {},
    "bucketing": {},
    "trimmed_mean": {},
    "coordinate_median": {},
    "bulyan": {},
    "trimmed_mean after nnm": {},
    "trimmed_mean clipped": {},
    "coordinate_median attacked": {},
}


@pytest.mark.slow
def test_the_bits_of_the_driver_for_every_rule(two_nodes):
    check_bits(two_nodes, METHODS)


def check_bits(nodes, methods):
    """Two rounds of servers, once with the updates here and once spread over two aggregators."""
    ranges = plan_shards(SIZE, "auto", 2)
    assert len(ranges) == 2
    aggregators = Aggregators(ranges)
    states = {name: (RuleState(), RuleState()) for name in methods}
    try:
        for round in range(2):
            ctx = RoundContext(round=round, num_rounds=2, num_clients=20, lr=0.1, seed=3)
            rows = draw(round=round)
            one, other = nodes
            held = trained(one, rows[:2], ranges) | trained(other, rows[2:], ranges, 2)
            for name, options in methods.items():
                server = algorithms.load(name.split()[0], options).server
                if name.endswith("clipped"):  # the norms are about 1800
                    server = replace(server, receive=(ClipNorms(1500.0),))
                if name.endswith("nnm"):
                    server = replace(server, receive=algorithms.load("nnm", {}).server.receive)
                if name.endswith("attacked"):
                    server = replace(
                        server, attack=AttackedCohort(Malicious(frozenset([3, 9])), MinMax())
                    )
                spread = Sharded(aggregators=aggregators, held=held, again=no_other, max_retries=0)
                here, there = cohort(list(rows)), cohort(rows, spread)
                params = slice(0, SIZE - STATS)
                assert here.norms(params).tobytes() == there.norms(params).tobytes()
                assert here.gram(params).tobytes() == there.gram(params).tobytes()
                local = server.step(states[name][0], here, ctx)
                spread = server.step(states[name][1], there, ctx)
                assert local.step.tobytes() == spread.step.tobytes(), name
                assert spread.step.dtype == np.float32
                assert np.abs(local.step).max() > 0
                states[name] = local.state, spread.state
    finally:
        aggregators.close()


@pytest.mark.slow
def test_aggregators_are_spread_and_a_dead_one_is_replaced_a_bounded_number_of_times(two_nodes):
    ranges = plan_shards(SIZE, 2, 2)
    aggregators = Aggregators(ranges)
    try:
        rows, where = draw(), slice(0, SIZE)
        held = trained(two_nodes[1], rows, ranges)
        expected = cohort(list(rows)).gram(where).tobytes()
        ask = lambda _: ray.get_runtime_context().get_node_id()  # noqa: E731 - travels by value
        places = [actor.__ray_call__.remote(ask) for actor in aggregators.actors]
        assert sorted(ray.get(places)) == sorted(two_nodes), "one on each node"
        for retries in (1, 0):
            spread = Sharded(
                aggregators=aggregators, held=held, again=no_other, max_retries=retries
            )
            ray.kill(aggregators.actors[retries])
            if retries:
                assert cohort(rows, spread).gram(where).tobytes() == expected
                continue
            with pytest.raises(WorkerError, match="aggregation over the nodes: its process died"):
                cohort(rows, spread).gram(where)
    finally:
        aggregators.close()


@pytest.mark.slow
def test_lost_updates_are_computed_again(two_nodes):
    ranges = plan_shards(SIZE, 2, 2)
    aggregators, incidents = Aggregators(ranges), []
    rows, where = draw(), slice(0, SIZE)

    def train(node):
        held = {}
        for i, row in enumerate(rows):
            held |= trained(two_nodes[(i + node) % 2], row[None], ranges, i)
        return held

    def again(incident):
        incidents.append(incident)
        return [
            ClientUpdate(client_id=c, num_samples=1, num_steps=1, held=h)
            for c, h in train(1).items()
        ]

    dead = ray.remote(num_cpus=0)(Holder).remote()
    ray.kill(dead)

    def lose(spread, client):
        one, _ = spread.held[client].parts
        spread.held[client] = Held((one, dead.ping.remote()), 0, block(client))

    try:
        expected = cohort(list(rows))
        spread = Sharded(aggregators=aggregators, held=train(0), again=again, max_retries=1)
        there = cohort(rows, spread)
        lose(spread, 3)
        assert there.gram(where).tobytes() == expected.gram(where).tobytes()
        weights = [np.arange(1.0, M + 1)]
        lose(spread, 12)
        step = there.step(weights, [where])
        assert step.tobytes() == expected.step(weights, [where]).tobytes()
        assert [(i.client_id, i.attempt) for i in incidents] == [(None, 1)] * 2
        lose(spread, 0)
        spread.max_retries = 0
        with pytest.raises(WorkerError, match="aggregation over the nodes: its process died"):
            cohort(rows, spread).gram(where)
    finally:
        aggregators.close()


def wide(num_classes, in_channels, image_size):
    """A network of 2.6 M entries with BatchNorm: enough for two ranges."""
    d, width = in_channels * image_size**2, 33_000
    hidden = [nn.Linear(d, width), nn.BatchNorm1d(width), nn.ReLU()]
    return SplitModel(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(width, num_classes))


def config(method, shards="auto", **engine):
    return RunConfig(
        algorithm=method,
        data={"num_clients": 8},
        model={"name": "tests.engine.test_sharded:wide"},
        train={"rounds": 3, "sample_rate": 0.5},
        evaluation={"every": 2},
        engine={"aggregation_shards": shards, **engine},
    )


def bytes_of(store):
    tables = ("rounds.csv", "clients.csv", "classes.csv", "model.safetensors")
    return {name: (store.path / name).read_bytes() for name in tables}


@cache
def in_one_process(method):
    """The bytes of a method's run in one process, computed when first asked for."""
    with tempfile.TemporaryDirectory() as folder:
        return bytes_of(fedsim.run(config(method, kind="serial"), Path(folder) / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedld", *(pytest.param(m, marks=pytest.mark.nightly) for m in ("fedavg", "fedbn"))]
)
def test_whole_runs_have_the_bytes_of_one_process(method, two_nodes, tmp_path, monkeypatch):
    asked, ask = [], Sharded._ask

    def watched(self, what, *args):
        asked.append((what, len(self.aggregators.actors), len(self.held)))
        return ask(self, what, *args)

    monkeypatch.setattr(Sharded, "_ask", watched)
    for shards in ("auto", 2):
        asked.clear()
        store = fedsim.run(config(method, shards), tmp_path / str(shards))
        assert bytes_of(store) == in_one_process(method)
        assert {("products", 2, 4), ("combine", 2, 4)} == set(asked)
        assert not (store.path / "errors.csv").exists()


def plain(num_classes, in_channels, image_size):
    """The same without BatchNorm, whose stale statistics the driver needs whole."""
    d, width = in_channels * image_size**2, 36_000
    hidden = [nn.Linear(d, width), nn.ReLU()]
    return SplitModel(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(width, num_classes))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["centralized", "buffered"])
def test_a_lost_update_of_pooled_data_or_of_an_older_model_is_made_anew(
    method, two_nodes, tmp_path, monkeypatch
):
    """One part of the first client's update is lost in every round while it is summed up."""
    given = config("fedavg" if method == "buffered" else method, 2)
    changes = {"model": given.model.model_copy(update={"name": "tests.engine.test_sharded:plain"})}
    if method == "buffered":
        schedule = {"schedule": "tests.seams:buffered", "rounds": 4}
        changes["train"] = given.train.model_copy(update=schedule)
        speeds = {"samples_per_second": "lognormal(100, 0.8)"}
        changes["clock"] = given.clock.model_copy(update=speeds)
    given = given.model_copy(update=changes)
    serial = given.model_copy(update={"engine": given.engine.model_copy(update={"kind": "serial"})})
    wanted = bytes_of(fedsim.run(serial, tmp_path / "serial", progress=False))
    dead = ray.remote(num_cpus=0)(Holder).remote()
    ray.kill(dead)
    ask, lost = Sharded._ask, []

    def losing(self, what, *args):
        if what == "combine":
            client, own = next(iter(self.held.items()))
            self.held[client] = Held((own.parts[0], dead.ping.remote()), own.row, own.block)
            lost.append((client, own.block[0].version))
        return ask(self, what, *args)

    monkeypatch.setattr(Sharded, "_ask", losing)
    store = fedsim.run(given, tmp_path / "ray", progress=False)
    assert bytes_of(store) == wanted
    assert len(store.read("errors")) == len(lost) == given.train.rounds
    if method == "buffered":
        assert any(version < t for t, (_, version) in enumerate(lost))
