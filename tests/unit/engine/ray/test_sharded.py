"""The ranges that updates are cut into, and what one aggregator does with its own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import ray

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, ContractError
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
