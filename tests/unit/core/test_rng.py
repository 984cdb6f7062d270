"""Random numbers: derived streams that are never global, and the words of Philox."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import threading
from textwrap import dedent

import numpy as np
import pytest
import torch

from fedsim.core import philox
from fedsim.core.rng import (
    TorchStreams,
    generator,
    seed_for,
    seed_torch,
    torch_generator,
    torch_scope,
)
from tests.commands import clean_environment

# rng


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


# philox


PUBLISHED = [  # kat_vectors of Random123, philox4x64 10: counter, key, numbers
    ("0000000000000000 0000000000000000 0000000000000000 0000000000000000",
     "0000000000000000 0000000000000000",
     "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ("ffffffffffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff",
     "ffffffffffffffff ffffffffffffffff",
     "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    ("243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89",
     "452821e638d01377 be5466cf34e90c6c",
     "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"),
]  # fmt: skip
KEYS = torch.tensor([0, 1, 2**63 - 1, 0x13198A2E03707344])
STEP, CALL = torch.tensor(7), 3


def numbers(text):
    return [int(word, 16) for word in text.split()]


def plain(counter, key):
    """Figure 2 of the paper: ten rounds, the key raised between them."""
    (x0, x1, x2, x3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * x0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * x2, 2**64)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
    return [x0, x1, x2, x3]


def expected(n):
    """(A, n) the word of each element, as philox.words says it."""
    each = []
    for key in KEYS.tolist():
        drawn = [x for i in range(n // 8 + 1) for x in plain((i + 1, CALL, int(STEP), 0), (key, 0))]
        each.append([half for x in drawn for half in (x % 2**32, x >> 32)][:n])
    return torch.tensor(each)


@pytest.mark.parametrize(("counter", "key", "drawn"), PUBLISHED)
def test_published_vectors(counter, key, drawn):
    counter, key, drawn = map(numbers, (counter, key, drawn))
    assert plain(counter, key) == drawn


@pytest.mark.parametrize("n", [1, 4, 7, 402])
def test_words_are_those_of_the_plain_form(n):
    wanted = expected(n)
    for bound in (0, 1, *wanted[:, : min(n, 9)].flatten().tolist(), 2**32):
        assert torch.equal(philox.below(KEYS, STEP, CALL, n, bound), wanted < bound)


def test_a_client_draws_the_same_alone_and_beside_others():
    n = 50_000
    drawn = philox.below(KEYS, STEP, CALL, n, 3 << 30)
    assert drawn.float().mean() == pytest.approx(0.75, abs=6 * (0.1875 / drawn.numel()) ** 0.5)
    for client in range(4):
        alone = philox.below(KEYS[client : client + 1], STEP, CALL, n, 3 << 30)
        assert torch.equal(alone[0], drawn[client])


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)  # fmt: skip
@pytest.mark.slow
def test_the_kernel_draws_the_same_words():
    """In Triton's interpreter, which a variable of the environment chooses at import."""
    script = """
        import torch
        from fedsim.core import philox, philox_kernel
        from tests.unit.core.test_rng import CALL, KEYS, STEP, expected

        for n in (1, 7, 2100):  # a program has 2,048 elements
            words = expected(n)
            for bound in (0, *words[:, -2:].flatten().tolist(), 2**32):
                got = philox_kernel.below(KEYS, STEP, CALL, n, bound)
                assert got.dtype == torch.bool and torch.equal(got, words < bound), (n, bound)
        print("equal")
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)],
        env={**clean_environment(), "TRITON_INTERPRET": "1"},
        cwd=os.getcwd(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_words():
    for n in (1, 7, 100_001):
        for bound in (0, 12345, 3 << 30, 2**32):
            wanted = philox.below(KEYS, STEP, CALL, n, bound)
            device = KEYS.cuda(), STEP.cuda()
            assert torch.equal(philox.below(*device, CALL, n, bound).cpu(), wanted)
