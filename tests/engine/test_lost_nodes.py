"""A run on several nodes that come and go has the bytes of an undisturbed one."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import ray
from ray.cluster_utils import Cluster

import fedsim
from fedsim.engine.ray.pool import ActorPool
from tests.commands import PATIENCE
from tests.engine.chaos import STATEFUL_ONCE, Orders, bytes_of, config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("no_ray")]


@pytest.fixture
def cluster(orders):
    """A head that trains nothing and two nodes with a core each."""
    folder = orders.parent
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": f"{folder}/h"}
    made = Cluster(initialize_head=True, head_node_args=head)
    for name in ("n1", "n2"):
        made.add_node(num_cpus=1, temp_dir=f"{folder}/{name}")
    yield made
    made.shutdown()


@pytest.mark.parametrize("method", STATEFUL_ONCE)
def test_a_node_killed_in_a_round_and_one_that_joins(
    method, cluster, orders, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedsim.engine.ray.executor.REPLAN_INTERVAL", 0.0)
    pools, joined, used = [], [], []
    start, take = ActorPool.__init__, ActorPool.take

    def started(self, *args, **options) -> None:
        start(self, *args, **options)
        pools.append(self)

    def taken(self, slot):
        used.append(self._locations[slot].node_id)
        return take(self, slot)

    def join() -> None:
        joined.append(cluster.add_node(num_cpus=1, temp_dir=f"{orders.parent}/n3").node_id)

    def until_noticed() -> None:  # else Ray may still place actors on the node that is lost
        while sum(node["Alive"] for node in ray.nodes()) > 2:
            time.sleep(0.1)

    def until_up() -> None:  # the actor that this round asked for; else the run is over before it
        starting = list(pools[0].starting)
        ray.wait(starting, num_returns=len(starting), timeout=PATIENCE)

    monkeypatch.setattr(ActorPool, "__init__", started)
    monkeypatch.setattr(ActorPool, "take", taken)
    plan = {2: ("train", "raylet"), 3: until_noticed, 4: join, 5: until_up}
    settings = config(method, address=cluster.address, client_timeout=30)
    store = fedsim.run(settings, tmp_path / "run", [Orders(orders, plan)])
    assert bytes_of(store) == undisturbed(method)
    errors = store.read("errors")
    assert pd.unique(errors["round"][errors["client_id"].notna()]).tolist() == [3]
    assert set(errors["round"]) <= {3, 4}, "an actor may have been on its way to the lost node"
    assert joined[0] in used, "the node that joined had work"
