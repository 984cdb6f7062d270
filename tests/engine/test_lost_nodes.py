"""A run on several nodes that come and go has the bytes of an undisturbed one."""

from __future__ import annotations

import pandas as pd
import pytest
from ray.cluster_utils import Cluster

import fedsim
from tests.engine.chaos import STATEFUL, Orders, bytes_of, config

pytestmark = [pytest.mark.ray, pytest.mark.slow]


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


@pytest.mark.parametrize("method", STATEFUL)
def test_a_node_killed_in_a_round_and_one_that_joins(
    method, cluster, orders, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedsim.engine.ray_engine.REPLAN", 0.0)
    plan = {
        2: ("train", "raylet"),
        4: lambda: cluster.add_node(num_cpus=1, temp_dir=f"{orders.parent}/n3"),
    }
    settings = config(method, address=cluster.address, client_timeout=30)
    store = fedsim.run(settings, tmp_path / "run", Orders(orders, plan))
    assert bytes_of(store) == undisturbed(method)
    assert pd.unique(store.read("errors")["round"]).tolist() == [3]
