"""Blocks of tasks: cut by version, named, and updates of pooled samples shared out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim.core.types import ClientUpdate, RoundContext
from fedsim.engine.blocks import (
    Stacking,
    clients_of,
    in_calls,
    num_calls,
    shared_out,
    tasks_per_call,
)
from fedsim.testing.rounds import config
from fedsim.training.assemble import prepare
from tests.algorithms.training import worker
from tests.tasks import models, tasks

OLD = RoundContext(round=1, num_rounds=5, num_clients=8, lr=0.1, seed=0)
NEW = replace(OLD, round=2)


def update(client, delta=None):
    delta = np.full(2, client, np.float32) if delta is None else delta
    return ClientUpdate(client_id=client, num_samples=99, num_steps=4, delta=delta)


def test_the_tasks_with_the_most_steps_come_first_and_then_the_smallest_clients():
    own = tasks([4, 0, 2, 1, 3], NEW)
    made = Stacking(2, 10, False).blocks(zip(own, [1, 3, 3, 5, 1], strict=True))
    assert [clients_of(block) for block in made] == [(1, 0), (2, 3), (4,)]
    assert sorted(sum(made, ()), key=own.index) == own


def test_a_block_has_tasks_of_one_version():
    spec = prepare(config("fedavg", "mlp", engine={"client_batch": 3})).spec
    mixed = [*tasks([7, 1, 5, 4], NEW), *tasks([0, 6, 3, 2], OLD)]
    made = spec.blocks(mixed)
    assert [{task.version for task in block} for block in made] == [{1}, {1}, {2}, {2}]
    assert [len(block) for block in made] == [3, 1, 3, 1]
    assert spec.blocks(mixed[::-1]) == made
    assert spec.blocks([]) == []
    older = [block for block in made if block[0].version == 1]
    assert older == spec.blocks(tasks([0, 2, 3, 6], OLD)), "they are cut as if alone"


MB = 1 << 20


@pytest.mark.parametrize(
    ("tasks", "size", "actors", "calls"),
    [
        (50, 6.5, 1, 3),  # 19 tasks of 6.5 MiB make 128 MiB
        (50, 6.5, 4, 4),
        (50, 6.5, 2, 4),  # 38 in the first two calls: one more for each actor
        (5, 6.5, 2, 2),
        (10, 97.6, 2, 10),  # one alone is most of a call
        (8, 300, 1, 8),
        (1000, 0.01, 3, 3),
        (1, 0.01, 3, 3),
    ],
)
def test_calls_carry_so_many_bytes_and_actors_get_equally_many(tasks, size, actors, calls):
    found = num_calls(tasks, int(size * MB), actors)
    assert found == calls
    assert -(-tasks // found) <= tasks_per_call(int(size * MB))


def test_blocks_share_a_call_in_order_and_stay_whole():
    sizes = [1, 2, 3, 7, 1, 1]
    blocks = [tuple(tasks(range(n), NEW)) for n in sizes]
    cut = [[len(block) for block in call] for call in in_calls(blocks, 4)]
    assert cut == [[1, 2], [3], [7], [1, 1]]
    assert [[len(b) for b in call] for call in in_calls(blocks, 1)] == [[n] for n in sizes]
    assert list(in_calls([], 4)) == []


def test_the_update_of_pooled_samples_is_that_of_each_owner():
    work = [*tasks([1], NEW, owners=(1, 5)), *tasks([3, 0], NEW)]
    found = shared_out([update(1), update(3)], work, range(10, 16))
    assert [u.client_id for u in found] == [1, 3, 5]
    assert [u.num_samples for u in found] == [11, 99, 15]
    assert found[0].delta is found[2].delta
    assert [u.num_steps for u in found] == [4, 4, 4]
    assert shared_out([], work, []) == []


@pytest.mark.parametrize("clients", [(0, 1), (1, 0)])
def test_tasks_of_two_versions_start_from_their_own(clients):
    w = worker("fedavg", "mlp")
    start = w.flat.vector()
    sent = models(OLD, start) | models(NEW, start * 2)
    both = [*tasks(clients[:1], OLD), *tasks(clients[1:], NEW)]
    reports, deltas = w.run([(task,) for task in both], sent, {})
    assert [r.version for r in reports] == [1, 2]
    for task, delta in zip(both, deltas, strict=True):
        _, (own,) = w.run([(task,)], {task.version: sent[task.version]}, {})
        assert delta.tobytes() == own.tobytes()
