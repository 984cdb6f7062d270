"""Clients that ask for different shares, against a packer that tries everything; memory; files."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import ray

from fedsim.config.resolve import EngineConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import GIB
from fedsim.engine.ray.cluster import available_memory, local_node, machines, node_of, plan_for
from fedsim.engine.ray.placement import plan_placement
from fedsim.engine.ray.resources import Demand, Node, Share, pack, read_shares

GPU2 = [Node(64, 2)]
BIG, SMALL = Share(1.0, 0.6), Share(1.0, 0.3)


def exact(amount):
    return Fraction(amount).limit_denominator(10_000)


def all_fit(nodes, shares, memory=0):
    """Whether some packing holds all actors: tries every node and every GPU for each."""
    state = tuple((exact(n.cpus), (Fraction(1),) * int(n.gpus), n.memory) for n in nodes)

    def search(state, left):
        if not left:
            return True
        cpus, gpus = exact(left[0].cpus), exact(left[0].gpus)
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
                rest = sorted(on, key=lambda left: left == 1)
                enough = on.count(1) >= gpus
                options = {tuple(sorted(rest[: len(on) - int(gpus)]))} if enough else set()
            for after in options:
                changed = (free - cpus, after, room - memory)
                if search((*state[:i], changed, *state[i + 1 :]), left[1:]):
                    return True
        return False

    return search(state, list(shares))


def shares_of(plan):
    return [plan.options(slot) for slot in range(plan.actors)]


def some_nodes(rng, cpus, memory):
    """One or two, with CPUs below ``cpus``, up to two GPUs, and at least ``memory``."""
    return [
        Node(
            float(rng.integers(0, cpus)),
            float(rng.integers(0, 3)),
            memory=int(rng.integers(memory, 9)),
        )
        for _ in range(rng.integers(1, 3))
    ]


def test_equal_shares_get_every_actor_that_can_fit():
    rng = np.random.default_rng(0)
    found = Counter()
    for _ in range(150):
        nodes = some_nodes(rng, cpus=4, memory=1)
        gpus = rng.choice([0, 0, 0.3, 0.5, 0.6, 1, 2])
        share = Share(float(rng.choice([0.5, 0.7, 1, 2])), float(gpus))
        memory = int(rng.integers(1, 5))
        most = next(n for n in range(7) if n == 6 or not all_fit(nodes, [share] * (n + 1), memory))
        found[most] += 1
        if most == 0:
            with pytest.raises(ConfigError, match="does not fit, 0 do"):
                plan_placement(nodes, share, memory, 6)
        else:
            plan = plan_placement(nodes, share, memory, 6)
            assert (plan.actors, sum(plan.per_node)) == (most, most)
    assert len(found) == 7, f"every number of actors occurs: {found}"


def test_different_shares_are_packed_so_that_they_fit_and_nobody_is_left_out():
    rng = np.random.default_rng(1)
    made = Counter()
    for _ in range(200):
        nodes = some_nodes(rng, cpus=6, memory=2)
        kinds = [(1, 0.5), (1, 0.3), (0.5, 0.6), (2, 1), (1, 0.25), (0.5, 0)]
        asked = [Share(*map(float, kinds[i])) for i in rng.integers(0, len(kinds), 5)]
        try:
            plan = plan_placement(nodes, Share(), 1, 5, own=dict(enumerate(asked)))
        except ConfigError:
            made["refused"] += 1
            continue
        made["shared" if plan.shared else "own"] += 1
        assert all_fit(nodes, shares_of(plan), 1)
        for client, share in enumerate(asked):
            slots = plan.slots_for(client)
            assert slots
            assert {plan.options(slot) for slot in slots} == {share}
            assert plan.home(client) in (None, *slots)
        homes = [plan.home(client) for client in range(5)]
        if not plan.shared:
            assert sorted(homes) == list(range(5))
    assert min(made.values()) > 10, made


def test_shares_that_divide_each_other_are_refused_only_where_no_packing_exists():
    rng = np.random.default_rng(2)
    made = Counter()
    for _ in range(200):
        nodes = [Node(100, float(rng.integers(0, 3))) for _ in range(rng.integers(1, 4))]
        asked = [
            Share(1.0, float(g)) for g in rng.choice([0.25, 0.5, 1, 2], 6, p=[0.5, 0.3, 0.1, 0.1])
        ]
        fits = all_fit(nodes, asked)
        made[fits] += 1
        try:
            plan = plan_placement(nodes, Share(), 0, 6, "per-client", dict(enumerate(asked)))
        except ConfigError:
            assert not fits
        else:
            assert fits
            assert Counter(shares_of(plan)) == Counter(asked)
    assert min(made.values()) > 30


def test_every_class_has_its_slots_and_the_larger_share_comes_first():
    plan = plan_placement([Node(64, 2)], SMALL, 0, 20, own={3: BIG, 11: BIG})
    assert [(g.share, tuple(g.clients)) for g in plan.groups] == [
        (BIG, (3, 11)),
        (SMALL, tuple(c for c in range(20) if c not in (3, 11))),
    ]
    assert shares_of(plan)[:2] == [BIG, SMALL]
    assert Counter(shares_of(plan)) == {BIG: 1, SMALL: 4}
    assert list(plan.slots_for(3)) == list(plan.slots_for(11)) == [0]
    assert list(plan.slots_for(0)) == [1, 2, 3, 4]
    assert (plan.home(3), plan.home(0), plan.actors, plan.shared) == (None, None, 5, True)
    assert plan.describe() == (
        "5 actors shared by 20 clients: 1 of 1 CPU and 0.6 GPU for 2 clients, "
        "4 of 1 CPU and 0.3 GPU for 18 clients"
    )
    few = plan_placement([Node(64, 2)], SMALL, 0, 20, 2, {3: BIG, 11: BIG})
    assert shares_of(few) == [BIG, SMALL]


def test_a_class_with_an_actor_for_each_client_gives_each_a_home():
    plan = plan_placement([Node(8)], Share(1.0), 0, 40, own={7: Share(2.0), 9: Share(2.0)})
    assert (plan.home(7), plan.home(9), plan.home(0)) == (None, None, None)
    assert Counter(shares_of(plan)) == {Share(2.0): 1, Share(1.0): 6}
    plan = plan_placement([Node(8)], Share(1.0), 0, 6, own={5: Share(2.0), 1: Share(2.0)})
    assert [plan.home(client) for client in range(6)] == [2, 0, 3, 4, 5, 1]
    assert plan.options(0) == Share(2.0)


def test_shares_that_are_named_but_equal_are_one_class():
    plan = plan_placement([Node(8)], Share(1.0), 0, 4, own={2: Share(1.0)})
    assert plan == plan_placement([Node(8)], Share(1.0), 0, 4)


def test_a_client_without_a_gpu_leaves_the_gpu_nodes_alone():
    nodes = [Node(4, 2, "gpu"), Node(2, 0, "cpu")]
    own = dict.fromkeys(range(10), Share(1.0))
    plan = plan_placement(nodes, Share(1.0, 0.5), 0, 20, own=own)
    assert Counter(shares_of(plan)) == {Share(1.0, 0.5): 3, Share(1.0): 3}
    assert plan.per_node == (4, 2)


def test_a_fraction_goes_to_the_fullest_gpu_as_with_ray():
    halves = [Demand(Share(1.0, gpus), 1) for gpus in (0.5, 0.6, 0.4, 0.5)]
    assert len(pack(GPU2, halves, 0, 4)) == 4
    worse = [Demand(Share(1.0, gpus), 1) for gpus in (0.4, 0.4, 0.6, 0.6)]
    assert [place.demand for place in pack(GPU2, worse, 0, 4)] == [0, 1, 2]


REFUSED = [
    ([Node(2)], Share(0.25), {0: Share(2.0)}, "auto",
     "2 actors for 1 client of 2 CPU, 5 clients of 0.25 CPU do not fit, 1 do",
     "with cpus 1 for the 1 client of 2 CPU they would"),
    ([Node(64, 1)], Share(1.0, 0.5), {0: Share(1.0, 0.6)}, "auto",
     "2 actors for 1 client of 1 CPU and 0.6 GPU, 5 clients of 1 CPU and 0.5 GPU",
     "with gpus 0.5 for the 1 client of 1 CPU and 0.6 GPU they would"),
    ([Node(64, 2)], Share(1.0, 0.25), {0: Share(1.0, 1.0)}, "per-client",
     "--actors per-client: 6 actors for 1 client of 1 CPU and 1 GPU, 5 clients",
     "with gpus 0.5 for the 1 client of 1 CPU and 1 GPU they would"),
    ([Node(64, 0)], Share(1.0), {0: Share(1.0, 1.0)}, "auto", "do not fit, 0 do",
     "with gpus 0 for the 1 client of 1 CPU and 1 GPU they would"),
    ([Node(8)], Share(1.0), {0: Share(2.0), 1: Share(4.0)}, 2, "--actors 2: clients ask for 3",
     "(4 CPU, 2 CPU, 1 CPU), so 3 is the least"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "share", "own", "actors", "said", "advised"), REFUSED)
def test_a_refusal_names_the_class(nodes, share, own, actors, said, advised):
    with pytest.raises(ConfigError) as error:
        plan_placement(nodes, share, 0, 6, actors, own)
    message = str(error.value)
    assert said in message
    assert message.endswith(advised)
    assert "\n" not in message
    found = re.search(r"with (cpus|gpus) (\S+) for", message)
    if found:
        cpus, gpus = own[0].cpus, own[0].gpus
        amount = float(found[2])
        better = Share(amount, gpus) if found[1] == "cpus" else Share(cpus, amount)
        plan_placement(nodes, share, 0, 6, actors, {0: better})


def test_memory_bounds_the_number_of_actors():
    nodes = [Node(16, memory=3 * GIB), Node(2, memory=8 * GIB), Node(16, memory=GIB // 2)]
    plan = plan_placement(nodes, Share(1.0), GIB, 50)
    assert (plan.per_node, plan.memory) == ((3, 2, 0), GIB)
    assert plan_placement([Node(16)], Share(1.0), GIB, 50).actors == 16, "memory is not known"


@pytest.mark.parametrize("actors", ["per-client", 8])
def test_more_actors_than_the_memory_holds_are_refused(actors):
    nodes = [Node(16, 0, "here", memory=3 * GIB)]
    with pytest.raises(ConfigError) as error:
        plan_placement(nodes, Share(1.0), GIB, 8, actors)
    assert str(error.value) == (
        f"--actors {actors}: 8 actors of 1 CPU do not fit, 3 do (here: 16 CPUs, 0 GPUs, 3.0 GiB); "
        "there is memory for 3 of 1.00 GiB, and for 8 with --set engine.memory_per_client=0.37"
    )
    assert plan_placement(nodes, Share(1.0), int(0.37 * GIB), 8, actors).actors == 8
    with pytest.raises(ConfigError, match=r"with --set engine\.memory_per_client=0\.37$"):
        plan_placement(nodes, Share(1.0), int(0.38 * GIB), 8, actors)


def test_not_even_one_actor_fits_the_memory():
    with pytest.raises(ConfigError, match=r"does not fit.*memory for 0 of 2\.00 GiB, and for 1 wi"):
        plan_placement([Node(16, memory=GIB)], Share(1.0), 2 * GIB, 8)
    with pytest.raises(ConfigError, match=r"there is memory for 0 of 2\.00 GiB$"):
        plan_placement([Node(16, memory=1000)], Share(1.0), 2 * GIB, 8)


def test_cores_and_memory_are_named_together():
    with pytest.raises(ConfigError) as error:
        plan_placement([Node(2, memory=2 * GIB)], Share(1.0), GIB, 4, "per-client")
    advised = "--cpus-per-client 0.5 would; there is memory for 2 of 1.00 GiB, and for 4 with"
    assert advised in str(error.value)
    assert plan_placement([Node(2, memory=2 * GIB)], Share(0.5), GIB // 2, 4, "per-client")


def table(tmp_path, *rows, header="client_id,cpus,gpus"):
    path = tmp_path / "shares.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_client_resources_are_read(tmp_path):
    path = table(tmp_path, "3,2,0", "0, 0.5 ,0.25", "4,1,2")
    assert read_shares(path, 5) == {3: Share(2, 0), 0: Share(0.5, 0.25), 4: Share(1, 2)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("5,1,0", "row 3: client_id 5, the 5 clients are 0 to 4"),
        ("-1,1,0", "row 3: client_id -1, the 5 clients are 0 to 4"),
        ("0,1,0", "row 3: client_id 0 is given twice"),
        ("x,1,0", "row 3: client_id 'x' is not a whole number"),
        ("1.5,1,0", "row 3: client_id '1.5' is not a whole number"),
        ("1,one,0", "row 3: cpus 'one' is not a number"),
        ("1,1,", "row 3: gpus '' is not a number"),
        ("1,0,0", "row 3: cpus 0: must be 0.0001 or more"),
        ("1,-2,0", "row 3: cpus -2: must be 0.0001 or more"),
        ("1,nan,0", "row 3: cpus nan: must be 0.0001 or more"),
        ("1,1.5,0", "row 3: cpus 1.5: above 1 it must be whole, such as 1 or 2"),
        ("1,1,-0.5", "row 3: gpus -0.5: must be 0.0001 or more, or 0"),
        ("1,1,inf", "row 3: gpus inf: must be"),
        ("1,1,2.5", "row 3: gpus 2.5: above 1 it must be whole, such as 2 or 3"),
        ("1,1", "row 3: 2 values, the header has 3"),
    ],
)
def test_a_damaged_table_is_refused_with_file_and_row(tmp_path, row, said):
    path = table(tmp_path, "0,1,0", row)
    with pytest.raises(DataError) as error:
        read_shares(path, 5)
    assert str(error.value).startswith(f"{path}, {said}")


def test_a_table_without_a_column_or_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="needed are the columns client_id, cpus, gpus"):
        read_shares(table(tmp_path, "0,1", header="client_id,cpus"), 5)
    with pytest.raises(DataError, match="there is no such file"):
        read_shares(tmp_path / "none.csv", 5)


def test_the_plan_of_a_configuration(tmp_path):
    file = str(table(tmp_path, "3,2,0"))
    nodes = [Node(8, memory=100 * GIB)]
    plan = plan_for(EngineConfig(client_resources=file), nodes, 6)
    assert (plan.options(0), plan.home(3), plan.home(0)) == (Share(2.0), 0, 1)
    assert 0.4 * GIB < plan.memory < 0.5 * GIB
    larger = plan_for(EngineConfig(), nodes, 6, model_bytes=GIB)
    assert larger.memory == 4 * GIB + plan.memory
    assert plan_for(EngineConfig(memory_per_client=50), nodes, 6, GIB).actors == 2


def test_clients_with_and_without_a_gpu_are_two_kinds_of_device(tmp_path):
    nodes = [Node(8, 1, accelerator="H200")]
    file = str(table(tmp_path, "3,2,0"))
    with pytest.raises(ConfigError, match=r"shares\.csv: some clients have a GPU and others none"):
        plan_for(EngineConfig(client_resources=file), nodes, 6)
    mixed = plan_for(EngineConfig(client_resources=file, allow_mixed_devices=True), nodes, 6)
    assert {mixed.options(s).gpus for s in range(mixed.actors)} == {0.5, 0.0}
    everyone = str(table(tmp_path, *(f"{i},1,0" for i in range(6))))
    assert plan_for(EngineConfig(client_resources=everyone), nodes, 6).gpus_per_client == 0


def test_a_machine_as_ray_describes_it():
    resources = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H200": 1.0, "memory": 5e9, "node:x": 1.0}
    assert node_of(resources, "x") == Node(8.0, 2.0, "x", "H200", 5e9)
    assert node_of({}, "head") == Node(0.0, 0.0, "head", "", math.inf)


def test_this_machine(monkeypatch):
    assert GIB // 8 < available_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr("fedsim.engine.ray.cluster.available_memory", lambda: 10.0 * GIB)
    assert local_node().memory == pytest.approx(7 * GIB), "Ray's object store takes 30 %"
    assert local_node().cpus == len(os.sched_getaffinity(0))


def test_a_message_lists_a_few_machines_and_classes():
    with pytest.raises(ConfigError) as error:
        plan_placement([Node(1, 0, f"n{i}") for i in range(9)], Share(2.0), 0, 3)
    message = str(error.value)
    assert "n3: 1 CPUs, 0 GPUs, and 5 more); --cpus-per-client 1 would" in message
    own = {i: Share((i + 1) / 10) for i in range(7)}
    described = plan_placement([Node(8)], Share(1.0), 0, 8, own=own).describe()
    assert described.endswith("1 of 0.5 CPU for 1 client, and 4 more")


@pytest.mark.ray
def test_ray_places_a_plan_of_several_classes_without_a_pending_actor(monkeypatch):
    class Idle:
        def ping(self):
            return True

    own = {0: Share(0.5, 0.6), 1: Share(0.5, 0.6), 2: Share(0.5, 0.4), 3: Share(1.0, 1.0)}
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        options = {"include_dashboard": False, "log_to_driver": False}
        ray.init(address="local", num_cpus=6, num_gpus=3, **options)
        try:
            [node] = machines()
            plan = plan_placement([node], Share(0.5, 0.3), 0, 12, own=own)
            assert Counter(shares_of(plan)).keys() == {*own.values(), Share(0.5, 0.3)}
            actors = [
                ray.remote(Idle).options(num_cpus=s.cpus, num_gpus=s.gpus).remote()
                for s in shares_of(plan)
            ]
            up = [actor.ping.remote() for actor in actors]
            ready, pending = ray.wait(up, num_returns=len(up), timeout=60)
            assert (len(ready), pending) == (plan.actors, [])
        finally:
            ray.shutdown()
    assert 1e9 < node.memory < 1e13
