"""Philox4x64-10: published vectors, a plain version, and the same words in every form."""

import importlib.util
import os
import subprocess
import sys
from textwrap import dedent

import pytest
import torch

from fedsim.core import philox
from tests.commands import clean_environment

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
        from tests.unit.core.test_philox import CALL, KEYS, STEP, expected

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
