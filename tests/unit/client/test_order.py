"""Batches that carry on over rounds: orders, places, blocks, and PyTorch's DataLoaders."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fedsim.client.order import STEPS, carried_batches, order, steps_before, with_steps
from fedsim.client.plan import BatchPlan, num_steps
from fedsim.client.trainer import train_local
from fedsim.core.types import ClientTask, ClientUpdate, RoundContext, Training
from fedsim.testing.rounds import rounds, small

from .test_trainer import Net, Spy, make_env

SIZES = (23, 9, 3, 12)
"""Training samples of the clients; passes of 5, 2, 1 and 3 batches of 5."""


def env(client=0, done=0, steps=4, size=5, shuffle="fedsim", seed=1, norm=False):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        model = Net(norm)
    training = Training(batch_size=size, local_steps=steps, shuffle=shuffle)
    made = make_env(SIZES[client], model, training, client_id=client, done=done, sizes=SIZES)
    return replace(made, ctx=replace(made.ctx, seed=seed))


def taken(number, samples=None, **given):
    made = env(**given)
    used = len(made.x) if samples is None else samples
    return [batch.tolist() for batch in islice(carried_batches(made, used), number)]


def test_a_pass_uses_every_sample_once_and_the_next_one_another_order():
    for client, n in enumerate(SIZES):
        batches = -(-n // 5)
        both = taken(2 * batches, client=client)
        one, two = ([*chain(*part)] for part in (both[:batches], both[batches:]))
        assert sorted(one) == sorted(two) == list(range(n))
        assert n == 3 or one != two
        assert [len(batch) for batch in both[:batches]] == [5] * (batches - 1) + [
            n - 5 * (batches - 1)
        ]


@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
@pytest.mark.parametrize("client", range(4))
def test_rounds_carry_on_where_the_last_one_ended(client, shuffle):
    whole = taken(24, client=client, shuffle=shuffle)
    rounds = [taken(4, client=client, done=4 * t, shuffle=shuffle) for t in range(6)]
    assert [*chain(*rounds)] == whole


def test_orders_depend_on_seed_client_and_pass_alone():
    same = replace(env(), ctx=RoundContext(round=7, num_rounds=9, num_clients=4, lr=1.0, seed=1))
    assert order(same, 2).tolist() == order(env(), 2).tolist()
    others = [order(env(seed=2), 2), order(env(), 3)]
    assert all(o.tolist() != order(env(), 2).tolist() for o in others)
    twins = [replace(env(), client_id=c) for c in (0, 1)]
    assert order(twins[0], 0).tolist() != order(twins[1], 0).tolist()


@pytest.mark.parametrize("steps", [1, 3, 4, 11])
@pytest.mark.parametrize("seed", [0, 42])
def test_the_batches_of_dataloaders_in_one_process(steps, seed):
    # Iterators are made, the generator is seeded, then the clients take turns, as in FLamby.
    with torch.random.fork_rng():
        loaders = [DataLoader(torch.arange(n), batch_size=5, shuffle=True) for n in SIZES]
        iterators = [iter(loader) for loader in loaders]
        torch.random.manual_seed(seed)
        expected = [[] for _ in SIZES]
        for _ in range(5):
            for c in range(len(SIZES)):
                for _ in range(steps):
                    batch = next(iterators[c], None)
                    if batch is None:
                        iterators[c] = iter(loaders[c])
                        batch = next(iterators[c])
                    expected[c].append(batch.tolist())
    for c in range(len(SIZES)):
        given = {"client": c, "steps": steps, "shuffle": "dataloader", "seed": seed}
        assert taken(5 * steps, **given) == expected[c]


@pytest.mark.parametrize("done", [0, 3, 50])
def test_training_makes_so_many_steps_on_these_batches(done):
    made, spy = env(done=done), Spy()
    update = train_local(spy, made)
    assert update.num_steps == made.steps == 4
    expected = [made.y[batch].tolist() for batch in taken(4, done=done)]
    assert [y.tolist() for _, y in spy.batches] == expected
    short = train_local(Spy(), replace(env(done=done), max_steps=2))
    assert short.num_steps == 2


def test_batchnorm_skips_a_single_sample_at_the_end_of_each_pass():
    made, spy = env(client=0, size=11, steps=6, norm=True), Spy()  # 23 = 11 + 11 + 1
    train_local(spy, made)
    assert [len(y) for _, y in spy.batches] == [11] * 6
    used = taken(6, samples=22, client=0, size=11)
    assert [y.tolist() for _, y in spy.batches] == [made.y[batch].tolist() for batch in used]


@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
def test_a_block_has_the_batches_that_its_clients_have_alone(shuffle):
    places = (0, 7, 2, 4)
    envs = [env(c, done, 6, shuffle=shuffle) for c, done in enumerate(places)]
    plan = BatchPlan(envs, 5)
    assert plan.steps == [6] * 4
    assert [num_steps(n, envs[0].training, False) for n in SIZES] == [6] * 4
    first = np.cumsum((0, *SIZES))
    for c, done in enumerate(places):
        for t, batch in enumerate(taken(6, client=c, done=done, steps=6, shuffle=shuffle)):
            count = plan.counts[c, t]
            assert (plan.numbers[c, t, :count] - first[c]).tolist() == batch
            assert plan.weights[c, t].tolist() == pytest.approx(
                [1 / count] * count + [0] * (5 - count)
            )


def test_the_place_is_kept_with_the_client():
    ctx = RoundContext(round=5, num_rounds=9, num_clients=4, lr=1.0, seed=1)
    training, task = Training(local_steps=4), ClientTask(client=2, ctx=ctx)
    update = ClientUpdate(client_id=2, num_samples=3, num_steps=4, state={"own": np.ones(1)})
    assert steps_before(task, training, {}) == 0
    kept = with_steps(update, task, training, {STEPS: np.array([7])}).state
    assert kept[STEPS].tolist() == [11]
    assert kept["own"].tolist() == [1]
    assert steps_before(task, training, kept) == 11
    pooled = replace(task, owners=(0, 1, 2))
    assert steps_before(pooled, training, {}) == 20
    assert with_steps(update, pooled, training, {}) is update
    assert with_steps(update, task, Training(), {}) is update
    assert steps_before(task, Training(), {STEPS: np.array([7])}) == 0


ROUNDS = {"rounds": 4, "sample_rate": 0.5, "local_steps": 3, "batch_size": 8}


@pytest.mark.integration
@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
def test_rounds_from_a_checkpoint_are_those_of_a_whole_run(shuffle):
    train = ROUNDS | {"shuffle": shuffle, "sample_rate": 1.0}
    whole = rounds(small("fednova", "mlp", train=train))
    rest = rounds(small("fednova", "mlp", train=train), start=whole[1].after, first=2)
    np.testing.assert_array_equal(rest[-1].after.params, whole[-1].after.params)
    steps = {c: int(kept[STEPS][0]) for c, kept in whole[-1].after.clients.items()}
    assert set(steps.values()) == {12}


@pytest.mark.integration
def test_stacked_clients_have_the_same_batches():
    alone, block = (
        rounds(small("fedprox", "mlp", train=ROUNDS, engine={"kind": "serial", "client_batch": k}))
        for k in (1, 4)
    )
    for one, many in zip(alone, block, strict=True):
        np.testing.assert_allclose(many.after.params, one.after.params, rtol=1e-3, atol=1e-5)


@pytest.mark.integration
def test_a_client_with_less_time_goes_on_where_it_stopped():
    clock = {"work": 0.5, "samples_per_second": 100}
    made = rounds(small("fedavg", "mlp", train=ROUNDS | {"sample_rate": 1.0}, clock=clock))
    steps = {int(kept[STEPS][0]) for kept in made[-1].after.clients.values()}
    assert steps == {8}  # 2 of 3 steps in each of four rounds
