"""Streams of random numbers: derived, independent, and never global."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch

from fedsim.core.rng import (
    TorchStreams,
    generator,
    seed_for,
    seed_torch,
    torch_generator,
    torch_scope,
)


def test_seeds_are_the_same_for_ever():
    # Regression guard: published results hang on these numbers.
    assert seed_for(0, "cohort", 0) == 2718463854836173511
    assert seed_for(1, "client", 2, 3) == 2196680627907554971


def test_the_same_key_gives_the_same_bits():
    np.testing.assert_array_equal(
        generator(3, "cohort", 1).random(100), generator(3, "cohort", 1).random(100)
    )
    a, b = (torch.randn(100, generator=torch_generator(3, "x", 1)) for _ in range(2))
    assert torch.equal(a, b)


def test_streams_are_independent():
    draws = np.stack([generator(0, s, k).normal(size=20_000) for s in "ab" for k in (0, 1)])
    # 6 correlations of 20000 pairs have a standard deviation of 0.007 each
    correlations = np.corrcoef(draws)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.035


def test_scope_seeds_the_global_generator_and_restores_it():
    before = torch.random.get_rng_state()
    with torch_scope(5):
        first = torch.rand(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    with torch_scope(5, torch.device("cpu")):
        assert torch.equal(torch.rand(4), first)
    with torch_scope(6):
        assert not torch.equal(torch.rand(4), first)


def test_scope_restores_after_an_error_and_when_nested():
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError), torch_scope(5):
        torch.rand(4) @ torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch_scope(1):
        a = torch.rand(1)
        with torch_scope(2):
            torch.rand(7)
        b = torch.rand(1)
    with torch_scope(1):
        assert torch.equal(torch.rand(2), torch.cat([a, b]))


def test_seeding_anew_inside_a_scope_is_a_scope_of_that_seed():
    before = torch.random.get_rng_state()
    with torch_scope(5):
        expected = torch.rand(4)
    with torch_scope(6):
        torch.rand(9)
        seed_torch(5)
        assert torch.equal(torch.rand(4), expected)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_threads_take_turns():
    with torch_scope(5):
        expected = torch.rand(4)
    inside, drawn = threading.Event(), threading.Event()

    def other():
        with torch_scope(6):
            inside.set()
            drawn.wait(10)

    thread = threading.Thread(target=other)
    with torch_scope(5):
        first = torch.rand(2)
        thread.start()
        inside.wait(0.1)  # in vain: the other scope begins when this one has ended
        both = torch.cat([first, torch.rand(2)])
        drawn.set()
    thread.join()
    assert torch.equal(both, expected)


def everywhere():
    return float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002


def test_scope_seeds_and_restores_python_and_numpy():
    before = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    drawn = []
    for _ in range(2):
        with torch_scope(5):
            drawn.append(everywhere())
            seed_torch(5)
            drawn.append(everywhere())
    assert len(set(drawn)) == 1
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_clients_that_take_turns_draw_as_alone():
    with torch_scope(0):
        alone = []
        for client in (3, 4):
            seed_torch(client)
            alone.append([everywhere(), everywhere()])
        streams, turns = TorchStreams(lambda client: client), {3: [], 4: []}
        for client in (3, 4, 4, 3):
            with streams.of(client, torch_only=False):
                turns[client].append(everywhere())
    assert list(turns.values()) == alone


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_scope_seeds_and_restores_the_generator_of_a_gpu():
    device = torch.device("cuda")
    before = torch.cuda.get_rng_state()
    with torch_scope(5, device):
        first = torch.rand(4, device=device)
        seed_torch(5, device)
        assert torch.equal(torch.rand(4, device=device), first)
    assert torch.equal(torch.cuda.get_rng_state(), before)
