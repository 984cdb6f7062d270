"""How many actors fit, and what a refusal advises."""

from __future__ import annotations

import math
import re

import pytest

from fedsim.core.errors import ConfigError
from fedsim.engine.ray.placement import Node, Share, plan_placement

GPU2 = [Node(64, 2)]


def plan(nodes, num_clients, cpus_per_client=1.0, gpus_per_client=0.0, actors="auto", memory=0):
    share = Share(cpus_per_client, gpus_per_client)
    return plan_placement(nodes, share, memory, num_clients, actors)


@pytest.mark.parametrize(
    ("nodes", "fraction", "slots"),
    [
        (GPU2, 0.6, 2),
        (GPU2, 0.5, 4),
        (GPU2, 0.4, 4),
        (GPU2, 0.34, 4),
        (GPU2, 0.3333, 6),
        (GPU2, 0.3, 6),
        (GPU2, 0.1, 20),
        (GPU2, 0.7, 2),
        (GPU2, 1, 2),
        (GPU2, 2, 1),
        ([Node(64, 1)], 0.01, 64),
        ([Node(64, 5)], 2, 2),
        ([Node(64, 1), Node(64, 3)], 2, 1),
        ([Node(64, 1), Node(64, 2)], 0.4, 6),
        ([Node(64, 1.9)], 0.5, 2),
    ],
)
def test_a_fraction_never_spans_gpus(nodes, fraction, slots):
    p = plan(nodes, 100, gpus_per_client=fraction)
    assert (p.slots, p.actors, p.shared) == (slots, slots, True)


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
    assert (own.slots, own.actors, own.num_clients, own.shared) == (8, 8, 8, False)
    assert [own.home(client) for client in range(8)] == list(range(8))
    assert plan([Node(8)], 3).actors == 3
    shared = plan([Node(8)], 50)
    assert (shared.slots, shared.actors, shared.num_clients, shared.shared) == (8, 8, 50, True)
    assert shared.home(3) is None
    assert list(shared.slots_for(49)) == list(range(8))
    assert shared.options(7) == Share(1.0, 0.0)
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


def advice(message):
    """The fractions that a refusal names: {"cpus_per_client": ..., "gpus_per_client": ...}."""
    found = re.findall(r"--(cpus|gpus)-per-client (\S+) would", message)
    return {f"{kind}_per_client": float(value) for kind, value in found}


REFUSED = [
    ([Node(2)], {"cpus_per_client": 3.0}, "auto", {"cpus_per_client": 2.0}),
    ([Node(2)], {"cpus_per_client": 1.0}, "per-client", {"cpus_per_client": 0.25}),
    ([Node(3), Node(2)], {"cpus_per_client": 2.0}, 4, {"cpus_per_client": 1.0}),
    ([Node(7)], {"cpus_per_client": 0.9}, "per-client", {"cpus_per_client": 0.875}),
    ([Node(64, 2)], {"gpus_per_client": 0.6}, "per-client", {"gpus_per_client": 0.25}),
    ([Node(64, 2)], {"gpus_per_client": 0.6}, 3, {"gpus_per_client": 0.5}),
    ([Node(64, 2)], {"gpus_per_client": 0.4}, 5, {"gpus_per_client": 0.3333}),
    ([Node(64, 1)], {"gpus_per_client": 2}, "auto", {"gpus_per_client": 1.0}),
    ([Node(64, 4)], {"gpus_per_client": 3}, 2, {"gpus_per_client": 2.0}),
    ([Node(64, 1), Node(64, 1)], {"gpus_per_client": 2}, "auto", {"gpus_per_client": 1.0}),
    ([Node(2, 1)], {"gpus_per_client": 0.5}, 8,
     {"cpus_per_client": 0.25, "gpus_per_client": 0.125}),
    ([Node(64)], {"gpus_per_client": 0.5}, "auto", {"gpus_per_client": 0.0}),
    ([Node(1)], {"gpus_per_client": 0.5, "cpus_per_client": 4.0}, "auto",
     {"cpus_per_client": 1.0, "gpus_per_client": 0.0}),
    ([Node(0), Node(2)], {"cpus_per_client": 1.0}, 4, {"cpus_per_client": 0.5}),
    ([Node(0, 0), Node(2, 1)], {"gpus_per_client": 0.5}, 4,
     {"cpus_per_client": 0.5, "gpus_per_client": 0.25}),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "asked", "actors", "advised"), REFUSED)
def test_a_refusal_names_the_nearest_fraction_that_really_fits(nodes, asked, actors, advised):
    with pytest.raises(ConfigError) as error:
        plan(nodes, 8, actors=actors, **asked)
    message = str(error.value)
    assert "\n" not in message
    assert advice(message) == advised
    accepted = plan(nodes, 8, actors=actors, **(asked | advised))
    wanted = {"per-client": 8, "auto": min(accepted.slots, 8)}.get(actors, actors)
    assert accepted.actors == wanted > 0
    for key, value in advised.items():
        finer = {key: value + 0.001} if value % 1 else {key: value + 1}
        if value == 0:
            continue
        with pytest.raises(ConfigError):
            plan(nodes, 8, actors=actors, **(asked | advised | finer))


def test_a_refusal_says_what_was_asked_and_what_is_there():
    with pytest.raises(ConfigError) as error:
        plan([Node(8, 2, "gpu-node")], 50, 1.0, 0.5, "per-client")
    for part in ("--actors per-client", "50 actors", "0.5 GPU", "gpu-node: 8 CPUs, 2 GPUs"):
        assert part in str(error.value)


def test_a_hopeless_number_of_actors_is_a_plain_refusal():
    # 2 / 50000 lies below Ray's finest fraction of 0.0001: no advice, and no crash
    with pytest.raises(ConfigError, match="50000 actors") as error:
        plan([Node(2)], 50_000, actors="per-client")
    assert advice(str(error.value)) == {}


def test_no_core_is_a_plain_refusal():
    with pytest.raises(ConfigError, match=r"1 actor of 1 CPU does not fit, 0 do") as error:
        plan([Node(0)], 3)
    assert advice(str(error.value)) == {}


def test_a_cluster_that_is_gone():
    with pytest.raises(ConfigError, match="no machine of the cluster is alive"):
        plan([], 3)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_cores_must_be_positive_numbers(value):
    with pytest.raises(ConfigError, match=r"--cpus-per-client .* 0.0001 or more$"):
        plan([Node(8)], 3, value)


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_gpus_must_be_numbers_from_zero(value):
    with pytest.raises(ConfigError, match=r"--gpus-per-client .* or 0"):
        plan(GPU2, 3, 1.0, value)


@pytest.mark.parametrize("value", [1.5, 2.25])
def test_above_one_gpu_the_number_is_whole(value):
    with pytest.raises(ConfigError, match=f"{value:g}.* whole, such as {int(value)} or"):
        plan([Node(64, 8)], 3, 1.0, value)


def test_the_plan_describes_itself():
    assert plan([Node(8)], 50).describe() == "8 actors shared by 50 clients, 1 CPU each"
    assert plan([Node(1)], 1).describe() == "1 actor one for each of 1 clients, 1 CPU each"
    text = plan(GPU2, 4, 0.5, 0.25).describe()
    assert text == "4 actors one for each of 4 clients, 0.5 CPU and 0.25 GPU each"


@pytest.mark.parametrize("actors", [0, -1, "x", "0"])
def test_actors_must_be_a_number_above_zero(actors):
    with pytest.raises(ConfigError, match=r"--actors .*: must be auto, per-client or a number"):
        plan([Node(8)], 4, actors=actors)


def test_a_fraction_finer_than_rays_finest_is_refused():
    with pytest.raises(ConfigError, match=r"--gpus-per-client 1e-05: must be 0\.0001 or more"):
        plan([Node(8, 1)], 4, gpus_per_client=1e-5)
