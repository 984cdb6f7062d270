"""Nodes that are lost in a round, and between training and aggregation: the same bytes."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import ray
from ray.cluster_utils import Cluster

import fedsim
from fedsim.engine.ray.sharded import Sharded
from tests.engine import chaos
from tests.engine.chaos import STATEFUL_ONCE, Orders
from tests.engine.test_sharded import bytes_of, cluster_of_two, config, in_one_process

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
def test_a_node_killed_in_a_round(method, cluster, orders, undisturbed, tmp_path):
    def until_noticed() -> None:  # else Ray may still place actors on the node that is lost
        while sum(node["Alive"] for node in ray.nodes()) > 2:
            time.sleep(0.1)

    plan = {2: ("train", "raylet"), 3: until_noticed}
    settings = chaos.config(method, address=cluster.address, client_timeout=30)
    store = fedsim.run(settings, tmp_path / "run", [Orders(orders, plan)])
    assert chaos.bytes_of(store) == undisturbed(method)
    errors = store.read("errors")
    assert pd.unique(errors["round"][errors["client_id"].notna()]).tolist() == [3]
    assert set(errors["round"]) <= {3, 4}, "an actor may have been on its way to the lost node"


@pytest.mark.parametrize(
    ("method", "moment"),
    [("fedbn", "combine"), pytest.param("fedld", "products", marks=pytest.mark.nightly)],
)
def test_a_node_lost_between_training_and_aggregation(method, moment, tmp_path, monkeypatch):
    asked, ask = [], Sharded._ask
    with cluster_of_two(head_cpus=0) as exchange:  # so that the other node trains all clients

        def watched(self, what, *args):
            asked.append(what)
            if asked.count(moment) == 2 and what == moment:
                exchange()
            return ask(self, what, *args)

        monkeypatch.setattr(Sharded, "_ask", watched)
        store = fedsim.run(config(method), tmp_path / "run")
    assert bytes_of(store) == in_one_process(method)
    errors = store.read("errors")
    assert (errors["round"] == 2).all()
    assert errors["error"].str.contains("its work was lost").any()
