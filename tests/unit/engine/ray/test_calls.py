"""How work is dealt out to actors, and what a call sends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import ray

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.types import Owned, RoundContext
from fedsim.engine.base import SAMPLES
from fedsim.engine.blocks import clients_of
from fedsim.engine.ray.calls import Evaluation, EvaluationCall, balanced, deal
from fedsim.engine.ray.executor import RayExecutor
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


@pytest.mark.parametrize("seed", range(30))
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


class Actor:
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
    asked = tuple(Evaluation(model=m, part=p, measure=SAMPLES, batches=b) for m, p, b in jobs)
    sent, actor = [], Actor()

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


def test_an_explicit_number_of_ranges_and_none_for_small_vectors():
    assert len(plan_shards(25_000_000, 3, 1)) == 3
    assert plan_shards(25_000_000, 1, 8) == ()
    assert plan_shards(2 * MIN_COLUMNS - 1, 8, 8) == ()


def test_an_aggregator_in_this_process_takes_its_rows_from_shared_parts():
    rows = np.random.default_rng(0).standard_normal((3, 1000), dtype=np.float32)
    one, two = rows[:2], rows[2:]
    (expected,) = LocalColumns(tuple(rows)).products([slice(0, 1000)])
    got = Aggregator().products([Piece(0, 0, 1000)], None, [0, 1, 0], one, one, two)
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
