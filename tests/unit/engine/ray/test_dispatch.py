"""What becomes of work that is lost, late or never begun, on stand-ins for Ray and its actors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import ray
from ray import exceptions
from ray.exceptions import ActorDiedError

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, ContractError, DivergedError, WorkerError
from fedsim.core.types import Owned, RoundContext
from fedsim.engine.base import SAMPLES, SCORES
from fedsim.engine.blocks import clients_of
from fedsim.engine.devices import Kind
from fedsim.engine.ray import dispatch, pool
from fedsim.engine.ray import executor as ray_executor
from fedsim.engine.ray.calls import EvaluationCall, TaskCall, balanced, deal
from fedsim.engine.ray.dispatch import INLINE, Dispatcher, ObjectCache, Work
from fedsim.engine.ray.executor import RayExecutor
from fedsim.engine.ray.faults import Fault, failure, fault_of, one_line
from fedsim.engine.ray.placement import Node, Share
from fedsim.engine.ray.pool import ActorPool
from fedsim.engine.ray.sharded import (
    MIN_COLUMNS,
    Aggregator,
    Aggregators,
    Sharded,
    allowed_shards,
    plan_shards,
)
from fedsim.server.columns import LocalColumns
from fedsim.server.linalg import SHARD, Piece
from tests.tasks import tasks

CTX = RoundContext(round=0, num_rounds=5, num_clients=8, lr=0.1, seed=0)

LOST = Fault(error="its process died", lost=True)

BROKEN = Fault(error="ValueError: on purpose", lost=False, alive=True)


@dataclass
class Ray:
    """Ray's calls, for refs that are keys of ``values``; a value that is an error is raised."""

    values: dict = field(default_factory=dict)
    now: float = 1000.0
    killed: list = field(default_factory=list)

    def wait(self, refs, num_returns=1, timeout=None):
        ready = [ref for ref in refs if ref in self.values][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref):
        if isinstance(self.values[ref], Exception):
            raise self.values[ref]
        return self.values[ref]

    def available_resources(self):
        return {"CPU": 2.0, "memory": 1e9}

    def kill(self, actor):
        self.killed.append(actor)

    def monotonic(self):
        return self.now


@pytest.fixture
def fake(monkeypatch):
    """Ray and the clock of the modules under test."""
    stand_in = Ray()
    for module in (dispatch, pool):
        monkeypatch.setattr(module, "ray", stand_in)
        monkeypatch.setattr(module, "time", stand_in)
    return stand_in


class Remote:
    """A method of an actor; its refs are ``actor.method.number``."""

    def __init__(self, name):
        self.name, self.calls = name, 0

    def remote(self, *_):
        self.calls += 1
        return f"{self.name}.{self.calls}"


class Actor:
    def __init__(self, name):
        self.name = name
        self.build, self.progress = Remote(f"{name}.build"), Remote(f"{name}.progress")

    def __repr__(self):
        return self.name


class Actors:
    """Stands in for a session: its actors are a0, a1, ..."""

    def __init__(self):
        self.made, self.ended = [], []
        self.share = Share(1.0, 0.5)

    def acquire(self):
        self.made.append(Actor(f"a{len(self.made)}"))
        return self.made[-1]

    def check(self):
        """Nothing to check without a placement group."""

    def end(self, actors):
        self.ended += map(str, actors)


def a_pool(fake, slots=2, up=True, max_retries=1):
    actors = Actors()
    made = ActorPool(actors, max_retries=max_retries, allow_mixed=False)
    made.start(range(slots), "spec")
    if up:
        for ref, slot in list(made.starting.items()):
            fake.values[ref] = Kind("cpu"), f"node{slot}"
            made.came_up(ref)
    return made, actors


def dispatcher(fake, **engine):
    made, actors = a_pool(fake)
    return (
        Dispatcher(made, EngineConfig(**engine), wanted=lambda *_: {}, spec=lambda: "spec"),
        made,
        actors,
    )


def train(*clients, attempt=1):
    """A call for some clients, of which those in a tuple are a block."""
    return TaskCall(
        blocks=tuple(tuple(tasks((c,) if isinstance(c, int) else c, CTX)) for c in clients),
        models={},
        states={},
        sizes=[10] * 8,
        attempt=attempt,
    )


def evaluation(attempt=1):
    task = ((None, {}), "test", SCORES, (0, 4))
    return EvaluationCall(position=0, tasks=(task,), attempt=attempt)


def working(made, call, slot=0, at=1000.0):
    """The work of an actor that was given a call."""
    return Work(
        call=call, slot=slot, actor=made.take(slot), refs=[f"work{slot}"], begun=at, heard=at
    )


def rows(made):
    return [(i.client_id, i.attempt, i.node, i.error) for i in made.incidents]


# Work that fails


def test_lost_work_is_done_again_and_its_actor_is_replaced(fake):
    ours, made, actors = dispatcher(fake, max_retries=2)
    [again] = ours._failed(working(made, train(3)), LOST, "round 1")
    assert (again.clients, again.attempt) == ((3,), 2)
    assert rows(made) == [(3, 1, "node0", "its process died")]
    assert (actors.ended, made.slots) == (["a0"], {1})


def test_a_lost_call_of_several_clients_is_cut_up_and_each_has_used_an_attempt(fake):
    ours, made, _ = dispatcher(fake, max_retries=0)
    again = ours._failed(working(made, train(1, 4)), LOST, "round 1")
    assert [(call.clients, call.attempt) for call in again] == [((1,), 2), ((4,), 2)]
    assert [row[0] for row in rows(made)] == [1, 4]


def test_a_block_is_retried_and_dropped_as_a_whole(fake):
    ours, made, _ = dispatcher(fake, max_retries=1, on_client_failure="drop")
    again = ours._failed(working(made, train((5, 1), 4)), LOST, "round 1")
    assert [(call.clients, len(call.blocks), call.attempt) for call in again] == [
        ((5, 1), 1, 2),
        ((4,), 1, 2),
    ]
    assert [row[:2] for row in rows(made)] == [(5, 1), (1, 1), (4, 1)]
    assert ours._failed(working(made, again[0], 1), BROKEN, "round 1") == []
    assert [row[:2] for row in rows(made)[3:]] == [(5, 2), (1, 2)]


def test_after_the_last_retry_the_run_ends_with_client_and_cause(fake):
    ours, made, _ = dispatcher(fake, max_retries=2)
    assert ours._failed(working(made, train((5, 1), attempt=2)), LOST, "round 1")
    with pytest.raises(WorkerError) as error:
        ours._failed(working(made, train((5, 1), attempt=3), 1), LOST, "round 1")
    assert str(error.value) == "round 1, clients 5, 1 lost 3 times, the last time: its process died"
    assert rows(made)[-1][:2] == (1, 3)


@pytest.mark.parametrize("fault", [LOST, BROKEN], ids=["lost", "broken"])
def test_a_client_is_dropped_where_that_is_the_policy(fault, fake):
    ours, made, actors = dispatcher(fake, max_retries=0, on_client_failure="drop")
    assert ours._failed(working(made, train(3)), fault, "round 1") == []
    assert rows(made) == [(3, 1, "node0", fault.error)]
    assert actors.ended == ([] if fault.alive else ["a0"])
    assert (0 in made.idle) == fault.alive


def test_an_evaluation_is_never_dropped(fake):
    ours, made, _ = dispatcher(fake, max_retries=0, on_client_failure="drop")
    with pytest.raises(WorkerError, match=r"^evaluation on the test part lost 1 times.*died$"):
        ours._failed(working(made, evaluation()), LOST, "")
    assert rows(made) == [(None, 1, "node0", "its process died")]


def test_with_drop_a_failing_client_takes_no_other_with_it(fake):
    ours, made, _ = dispatcher(fake, on_client_failure="drop")
    again = ours._failed(working(made, train(1, 4)), BROKEN, "round 1")
    assert [(call.clients, call.attempt) for call in again] == [((1,), 1), ((4,), 1)]
    assert rows(made) == [], "who it was is not known yet"


def test_what_fedsim_itself_refuses_ends_the_run_as_it_is(fake):
    ours, made, _ = dispatcher(fake, on_client_failure="drop")
    refused = ConfigError("model.name: no such layer")
    fault = Fault(error=str(refused), lost=False, alive=True, raised=refused)
    with pytest.raises(ConfigError, match=r"^model\.name: no such layer$"):
        ours._failed(working(made, train(3)), fault, "round 1")


def test_a_lost_object_is_sent_anew(fake):
    ours, made, _ = dispatcher(fake)
    sent = {0: ("value", "ref")}
    ours.sent._objects = dict(sent)
    ours._failed(working(made, train(3)), LOST, "round 1")
    assert ours.sent._objects == sent
    gone = Fault(error="an object was lost", lost=True, objects=True, alive=True)
    ours._failed(working(made, train(3), 1), gone, "round 1")
    assert ours.sent._objects == {}


def test_the_models_that_tasks_need_and_the_last_other_one_stay_objects(monkeypatch):
    """A round's evaluations use the model that the next round begins with."""
    puts = []
    monkeypatch.setattr(dispatch, "put", lambda value: puts.append(value) or len(puts))
    sent = ObjectCache()
    small, *large = [np.zeros(n, np.float32) for n in (8, *[INLINE] * 5)]
    assert sent(small) is small
    assert sent({"a": small}) == {"a": small}
    sent.keep(large[:2])
    assert [sent(value) for value in (*large, *large)] == [1, 2, 3, 4, 5] * 2
    sent.trim()
    assert [sent(value) for value in (large[0], large[1], large[4])] == [1, 2, 5]
    assert sent(large[2]) == 6
    sent.keep([large[2]])
    assert [sent(value) for value in (large[2], large[0])] == [6, 7]
    sent.forget()
    assert sent(large[2]) == 8


# Work that is done early


class Told(TaskCall):
    """A call whose result is there as soon as it is handed out, in its client's ref."""

    def begin(self, actor, send):
        return [f"client {self.clients[0]}"]

    def fetch(self, refs):
        return dispatch.ray.get(refs[0])


def told(client, **given):
    known = train(client, **given)
    return Told(**{name: getattr(known, name) for name in known.__dataclass_fields__})


def test_idle_actors_do_tasks_of_later_rounds_which_are_taken_then(fake):
    ours, made, _ = dispatcher(fake)
    now, later = told(1), told(5)
    ours.prefetch(later)
    fake.values |= {"client 5": "early", "client 1": "now"}
    assert list(ours.run([now], "round 1")) == [(now, "now")]
    assert len(made.idle) + len(ours._running) == 2
    assert ours.early(later.blocks[0]) is later
    assert ours.early(later.blocks[0]) is None, "it is taken once"
    assert list(ours.run([later], "round 2")) == [(later, "early")]
    assert made.idle == {0, 1}


@pytest.mark.parametrize("error", [ActorDiedError(), ValueError("on purpose")])
def test_what_fails_early_is_forgotten_and_done_again_in_its_round(fake, error, monkeypatch):
    fault = LOST if isinstance(error, ActorDiedError) else BROKEN
    monkeypatch.setattr(dispatch, "RayError", type(error))
    monkeypatch.setattr(dispatch, "fault_of", lambda _: fault)
    ours, made, _ = dispatcher(fake)
    now, later = told(1), told(5)
    ours.prefetch(later)
    fake.values["client 5"] = error
    calls = ours.run([now], "round 1")
    monkeypatch.setattr(
        fake,
        "wait",
        lambda refs, **_: (fake.values.setdefault("client 1", "now"), ([*refs][-1:], []))[1],
    )
    assert list(calls) == [(now, "now")]
    assert ours.early(later.blocks[0]) is None
    lost = [(5, 1, "node1", "its process died")]  # an error belongs to its round
    assert rows(made) == (lost if fault is LOST else [])


# Work that is late


def overdue(ours, fake, work, at):
    fake.now, ours._running = at, {"w": work}
    return [(late.slot, fault.error) for late, fault in ours._overdue()]


def test_an_actor_that_does_not_answer_is_given_up(fake):
    ours, made, _ = dispatcher(fake, client_timeout=30)
    work = working(made, train(3))
    assert overdue(ours, fake, work, 1010) == []
    assert overdue(ours, fake, work, 1040) == [], "30 s after the question is the limit"
    said = "its process has not answered for 31 s"
    assert overdue(ours, fake, work, 1041) == [(0, said)]


def test_an_actor_that_answers_has_as_long_as_a_client_may_take(fake):
    ours, made, _ = dispatcher(fake, client_timeout=30)
    work = working(made, train(3, 4))
    for at, seconds in ((1010, 10.0), (1030, 30.0), (1050, 5.0)):
        assert overdue(ours, fake, work, at) == []
        fake.values[work.question] = (train(3).blocks[0], seconds)
        assert overdue(ours, fake, work, at) == []
        assert (work.question, work.heard) == (None, at)
    assert overdue(ours, fake, work, 1090) == []
    fake.values[work.question] = (train(4).blocks[0], 30.5)
    said = "no result after 30 s, which is beyond the client timeout"
    assert overdue(ours, fake, work, 1090) == [(0, said)]


def test_an_actor_at_rest_or_gone_is_not_late(fake):
    ours, made, _ = dispatcher(fake, client_timeout=30)
    work = working(made, train(3))
    for at, answer in ((1100, None), (1200, ActorDiedError())):
        assert overdue(ours, fake, work, at) == []
        fake.values[work.question] = answer
        assert overdue(ours, fake, work, at) == []
        assert work.question is None


def test_before_anything_is_known_training_may_take_any_time_but_not_silence(fake):
    ours, made, _ = dispatcher(fake)
    work = working(made, train(3))
    assert overdue(ours, fake, work, 1010) == []
    fake.values[work.question] = (train(3).blocks[0], 86400.0)
    assert overdue(ours, fake, work, 1010) == []
    assert overdue(ours, fake, work, 1020) == []
    assert overdue(ours, fake, work, 1080) == []
    assert overdue(ours, fake, work, 1081) == [(0, "its process has not answered for 61 s")]


def test_work_may_take_ten_times_the_slowest_of_its_size_so_far(fake):
    ours, made, _ = dispatcher(fake)
    assert ours._limit(train(3)) == math.inf
    for clients, began in (((3,), 998.0), ((1, 4), 960.0), ((5,), 999.0)):
        work = working(made, train(*clients), at=began)
        ours._learn(work)
        made.done(0)
    assert ours._limit(train(1, 2, 3, 4)) == 10 * 40 * 2.0, "samples, and seconds for one of them"
    assert ours._limit(train(*range(8)), train(3).blocks[0]) == 200.0
    assert ours._limit(evaluation()) == math.inf
    ours._paces["train"] = 0.1
    assert ours._limit(train(3)) == 60.0, "never below a minute"


# Actors that do not come up


def test_a_pool_waits_for_actors_that_have_no_place_and_then_says_what_they_ask_for(fake):
    made, _ = a_pool(fake, up=False)
    fake.now += pool.START_TIMEOUT
    made.check()
    fake.now += 0.1
    with pytest.raises(WorkerError) as error:
        made.check()
    assert str(error.value) == (
        "no client actor came up in 600 s; an actor asks for 1 CPU and 0.5 GPU, "
        "free are 2 CPU and 0 GPU"
    )


def test_a_slot_whose_actor_dies_again_and_again_is_given_up(fake):
    made, actors = a_pool(fake, slots=1, up=False, max_retries=1)
    for attempt in (1, 2):
        [ref] = made.starting
        fake.values[ref] = ActorDiedError()
        made.came_up(ref)
        assert made.incidents[-1].attempt == attempt
        made.start([0], "spec")
    assert (len(actors.made), made.starting) == (2, {})
    with pytest.raises(WorkerError, match=r"^no client actor comes up: its process died"):
        made.check()
    made.reset_failures()
    made.start([0], "spec")
    assert len(actors.made) == 3


# Machines that come and go


class Session(Actors):
    """A session on machines that a test changes."""

    def __init__(self, now):
        super().__init__()
        self.now = now

    def machines(self):
        return list(self.now.nodes)

    def prepare(self, share):
        self.share = share

    def release(self, resting, others):
        pass


@pytest.fixture
def executor(fake, monkeypatch):
    """A function of the machines and settings that gives an executor, and changes its machines."""
    now = SimpleNamespace(nodes=[])
    monkeypatch.setattr(Aggregators, "close", lambda self: None)
    monkeypatch.setattr(ray_executor, "alive_nodes", lambda: ["0"])
    monkeypatch.setattr(ray_executor, "time", fake)

    def made(*nodes, clients=8, **engine):
        now.nodes = nodes
        split = SimpleNamespace(train=[[0]] * clients)
        spec = SimpleNamespace(partition=split, frozen_bytes=0)
        return RayExecutor(spec, EngineConfig(**engine), 4000, session=Session(now))

    def replan(executor, *nodes, after=ray_executor.REPLAN_INTERVAL):
        now.nodes = nodes
        fake.now += after
        executor._replan()
        return executor._plan

    made.replan = replan
    return made


def test_a_node_that_joins_or_leaves_changes_the_number_of_actors(executor):
    ours = executor(Node(2), clients=8)
    assert ours._plan.actors == 2
    assert executor.replan(ours, Node(2), Node(3)).actors == 5
    assert executor.replan(ours, Node(3)).actors == 3


@pytest.mark.parametrize(
    ("before", "after", "gpus", "actors"),
    [
        ((Node(4),), (Node(4), Node(8, 2)), 0.0, 8),
        ((Node(4, 1),), (Node(4, 1), Node(8, 2)), 1.0, 3),
        ((Node(4, 1), Node(4)), (Node(4), Node(4)), 1.0, 1),
    ],
    ids=["a GPU joins CPUs", "more GPUs", "the only GPU leaves"],
)
def test_machines_never_change_what_an_actor_holds(before, after, gpus, actors, executor):
    ours = executor(*before)
    assert ours._plan.share.gpus == gpus
    plan = executor.replan(ours, *after)
    assert ours._session.share == plan.share == Share(1.0, gpus)
    assert plan.actors == actors


def test_where_nothing_is_left_that_fits_the_plan_stays_until_something_is(executor):
    ours = executor(Node(2, 1))
    before = ours._plan
    assert executor.replan(ours) is before
    assert executor.replan(ours, Node(8)) is before
    assert executor.replan(ours, Node(8, 2)).actors == 2


def test_slots_that_were_given_up_get_another_chance_where_the_machines_changed(executor):
    ours = executor(Node(2))
    ours._pool._failures[0] = 4
    executor.replan(ours, Node(2))
    assert ours._pool._failures[0] == 4
    executor.replan(ours, Node(2), Node(2))
    assert ours._pool._failures[0] == 0


def dealt(sizes, most):
    """The groups of blocks of those clients; of each block the clients."""
    ctx = RoundContext(round=0, num_rounds=5, num_clients=8, lr=0.1, seed=0)
    groups = balanced({tuple(tasks(block, ctx)): size for block, size in sizes.items()}, most)
    return [tuple(map(clients_of, group)) for group in groups]


def test_groups_are_balanced_and_name_every_client_once():
    sizes = {(0,): 10, (1, 7): 9, (2,): 1, (3,): 8, (4,): 2}
    found = dealt(sizes, 2)
    assert sorted(sum(found, ())) == sorted(sizes)
    assert {sum(sizes[block] for block in group) for group in found} == {13, 17}
    assert dealt({(3,): 1}, 5) == [((3,),)]
    longest_first = dealt({(0,): 1, (1,): 5, (2,): 5}, 3)
    assert longest_first == [((1,),), ((2,),), ((0,),)], "alone, the longest first"


@pytest.mark.parametrize("seed", range(10))
def test_every_batch_of_every_job_is_done_once_and_in_order(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, size=int(rng.integers(1, 9))).tolist()
    parts = int(rng.integers(1, 20))
    dealt = deal(sizes, parts)
    assert 1 <= len(dealt) <= parts
    done = [
        (job, batch) for own in dealt for job, (start, stop) in own for batch in range(start, stop)
    ]
    assert done == [(job, batch) for job, size in enumerate(sizes) for batch in range(size)]
    assert all(start < stop for own in dealt for _, (start, stop) in own)
    loads = [sum(stop - start for _, (start, stop) in own) for own in dealt]
    assert max(loads) - min(loads) <= 1


def test_shares_by_hand():
    assert deal([4], 1) == [[(0, (0, 4))]]
    assert deal([3, 3], 2) == [[(0, (0, 3))], [(1, (0, 3))]]
    # 7 batches: the first worker has 3, the second 4
    assert deal([5, 2], 2) == [[(0, (0, 3))], [(0, (3, 5)), (1, (0, 2))]]
    assert deal([1, 1], 5) == [[(0, (0, 1))], [(1, (0, 1))]], "nobody gets nothing to do"


class Recorder:
    """Takes down what it is told."""

    def __init__(self):
        self.evaluate, self.told = self, []

    def remote(self, tasks, *params):
        self.told.append((tasks, params))
        return "answer"


def test_a_call_sends_each_vector_once():
    vectors = [np.zeros(2), np.ones(2)]
    own = {"personal": np.full(1, 7.0)}
    part = Owned("train", (0, 1))
    jobs = (
        ((vectors[0], {}), part, (0, 2)),
        ((vectors[1], {}), part, (0, 2)),
        ((vectors[0], own), "test", (1, 3)),
    )
    asked = tuple((m, p, SAMPLES, b) for m, p, b in jobs)
    sent, actor = [], Recorder()

    def send(value):
        sent.append(value)
        return f"object {len(sent)}"

    call = EvaluationCall(position=0, tasks=asked)
    assert call.begin(actor, send) == ["answer"]
    assert [id(value) for value in sent] == [id(v) for v in vectors]
    ((tasks, params),) = actor.told
    assert params == ("object 1", "object 2")
    assert tasks == [
        (0, {}, part, SAMPLES, (0, 2)),
        (1, {}, part, SAMPLES, (0, 2)),
        (0, own, "test", SAMPLES, (1, 3)),
    ]
    assert call.size() == 6.0
    assert str(call) == "evaluation on the clients' own train and the test part"


def test_the_number_of_ranges():
    assert len(plan_shards(25_000_000, 3, 1)) == 3
    assert plan_shards(25_000_000, 1, 8) == ()


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_ranges_are_whole_shards_and_cover_everything(nodes):
    for size in (
        1,
        MIN_COLUMNS,
        2 * MIN_COLUMNS - 1,
        2 * MIN_COLUMNS,
        3_300_000,
        9 * MIN_COLUMNS + 1,
    ):
        ranges = plan_shards(size, "auto", nodes)
        assert len(ranges) == (
            min(nodes, size // MIN_COLUMNS) if min(nodes, size // MIN_COLUMNS) > 1 else 0
        )
        if ranges:
            assert (ranges[0].start, ranges[-1].stop) == (0, size)
            assert all(a.stop == b.start for a, b in pairwise(ranges))
            assert all(r.start % SHARD == 0 and r.stop > r.start for r in ranges)


def test_an_aggregator_in_this_process_takes_its_rows_from_shared_parts():
    rows = np.random.default_rng(0).standard_normal((3, 1000), dtype=np.float32)
    one, two = rows[:2], rows[2:]
    (expected,) = LocalColumns(tuple(rows)).products([slice(0, 1000)])
    got = Aggregator().ask("products", [Piece(0, 0, 1000)], None, [0, 1, 0], one, one, two)
    np.testing.assert_array_equal(got[0], expected)


def test_whole_updates_are_not_to_be_had():
    with pytest.raises(ContractError, match=r"engine\.aggregation_shards=1"):
        Sharded(aggregators=Aggregators(()), held={}, again=list, max_retries=0).rows  # noqa: B018


def test_updates_that_are_needed_whole_stay_with_the_driver():
    assert allowed_shards("auto", whole="a") == allowed_shards(1, whole="a") == 1
    assert allowed_shards(4, whole=None) == 4
    assert allowed_shards("auto", whole=None) == "auto"
    with pytest.raises(ConfigError) as refused:
        RayExecutor(
            None, EngineConfig(aggregation_shards=2), 0, whole="evaluation.personal=cohort_after"
        )
    assert "engine.aggregation_shards=2" in str(refused.value)
    assert "evaluation.personal=cohort_after" in str(refused.value)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("error", "lost", "words"),
    [
        (exceptions.ActorDiedError(), True, "its process died"),
        (exceptions.WorkerCrashedError("gone"), True, "its process died"),
        (exceptions.OutOfMemoryError("gone"), True, "its work was lost (OutOfMemoryError: "),
        (exceptions.RaySystemError("client", "what"), True, "its work was lost"),
        (exceptions.ObjectLostError("ab" * 14, None, ""), True, "its work was lost (ObjectLost"),
        (exceptions.RuntimeEnvSetupError("gone"), False, "RuntimeEnvSetupError: "),
        (exceptions.AuthenticationError("gone"), False, "AuthenticationError: "),
        (
            exceptions.ActorDiedError(
                exceptions.RayTaskError("__init__", "trace", ImportError("no"), actor_id="ab")
            ),
            False,
            "a client actor cannot be created",
        ),
    ],
)
def test_what_is_done_again_and_what_ends_the_run(error, lost, words):
    fault = fault_of(error)
    assert (fault.lost, fault.final, fault.alive, fault.raised) == (lost, not lost, False, None)
    assert fault.error.startswith(words)


def test_an_exception_in_a_client_is_final_and_keeps_its_words():
    fault = fault_of(exceptions.RayTaskError("train", "traceback", ValueError("bad")))
    assert (fault.error, fault.lost, fault.alive) == ("ValueError: bad", False, True)
    error = failure("round 2, client 3", fault)
    assert isinstance(error, WorkerError)
    assert str(error) == "round 2, client 3: ValueError: bad"


def test_what_fedsim_raised_in_a_client_passes_as_it_is():
    raised = DivergedError("round 1, client 2: ...")
    fault = fault_of(exceptions.RayTaskError("train", "traceback", raised))
    assert failure("round 1, client 2", fault) is raised


def test_a_lost_argument_is_sent_anew_to_the_same_actor():
    cause = exceptions.ObjectLostError("ab" * 14, None, "")
    fault = fault_of(exceptions.RayTaskError("train", "traceback", cause))
    assert (fault.lost, fault.alive, fault.objects) == (True, True, True)


def test_long_texts_become_one_short_line():
    text = one_line(ValueError("a\n" * 1000))
    assert "\n" not in text
    assert len(text) < 450
    assert text.endswith("...")
