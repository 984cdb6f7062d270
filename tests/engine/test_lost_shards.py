"""A node that is lost with the updates it holds, before they are summed up."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.engine.ray.sharded import Aggregators
from tests.engine.test_sharded import bytes_of, cluster_of_two, config, in_one_process

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("no_ray")]


@pytest.mark.parametrize(
    ("method", "moment"),
    [("fedbn", "combine"), pytest.param("fedld", "products", marks=pytest.mark.nightly)],
)
def test_a_node_lost_between_training_and_aggregation(method, moment, tmp_path, monkeypatch):
    asked, ask = [], Aggregators.ask
    with cluster_of_two(head_cpus=0) as exchange:  # so that the other node trains all clients

        def watched(self, what, args, held):
            asked.append(what)
            if asked.count(moment) == 2 and what == moment:
                exchange()
            return ask(self, what, args, held)

        monkeypatch.setattr(Aggregators, "ask", watched)
        store = fedsim.run(config(method), tmp_path / "run")
    assert bytes_of(store) == in_one_process(method)
    errors = store.read("errors")
    assert (errors["round"] == 2).all()
    again = errors[errors["error"].str.contains("object was")]
    assert again["client_id"].nunique() == 4
