"""Philox4x32-10: published vectors, a plain version, and the same words in every form."""

import importlib.util
import os
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest
import torch

from fedsim.core import philox
from tests.commands import clean_environment

ONES = 0xFFFFFFFF
PUBLISHED = [  # kat_vectors of Random123: counter, key, words
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
KEYS = torch.tensor([[0, 0], [ONES, ONES], [0xA4093822, 0x299F31D0], [1, 2**31]])
STEP, CALL = torch.tensor(7), 3


def numbers(text):
    return [int(word, 16) for word in text.split()]


def plain(counter, key):
    """Figure 2 of the paper: ten rounds, the key raised between them."""
    (x0, x1, x2, x3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x2, 2**32)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [x0, x1, x2, x3]


def expected(n):
    """(A, n) the word of each element, as philox.below says it."""
    step = int(STEP)
    each = [
        [w for i in range(-(-n // 4)) for w in plain((i, CALL, step, 0), key)][:n]
        for key in KEYS.tolist()
    ]
    return torch.tensor(each)


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_published_vectors(counter, key, words):
    counter, key, words = map(numbers, (counter, key, words))
    assert plain(counter, key) == words
    here = philox.schedule(np.array([key]), philox.ROUNDS)
    arrays = tuple(np.array([[c]]) for c in counter)
    assert [w.item() for w in philox.words(arrays, here, philox.ARRAYS)] == words
    tensors = tuple(torch.tensor([[c]]) for c in counter)
    there = philox.schedule(torch.tensor([key]), torch.from_numpy(philox.ROUNDS))
    assert [w.item() for w in philox.words(tensors, there)] == words


@pytest.mark.parametrize("n", [1, 4, 7, 402])
def test_both_forms_are_the_plain_one(n):
    words = expected(n)
    for bound in (0, 1, *words[:, : min(n, 9)].flatten().tolist(), 2**32):
        wanted = words < bound
        assert torch.equal(philox.below(KEYS, STEP, CALL, n, bound), wanted)
        assert torch.equal(philox.in_torch(KEYS, STEP, CALL, n, bound), wanted)


def test_parts_of_a_long_draw_join():
    n = 4 * philox.CHUNK + 9  # the four clients take turns of a quarter of a chunk
    got = philox.below(KEYS, STEP, CALL, n, 3 << 30)
    assert torch.equal(got, philox.in_torch(KEYS, STEP, CALL, n, 3 << 30))
    assert got.float().mean() == pytest.approx(0.75, abs=6 * (0.1875 / got.numel()) ** 0.5)
    for client in range(4):
        alone = philox.below(KEYS[client : client + 1], STEP, CALL, n, 3 << 30)
        assert torch.equal(alone[0], got[client])


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

        for n in (1, 7, 1100):  # a program has 1,024 elements
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
            assert torch.equal(philox.in_torch(*device, CALL, n, bound).cpu(), wanted)
