"""Where samples, models and deltas lie on a device whose memory is apart; here that of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.core.types import GIB
from fedsim.engine.transfer import KEPT, Samples, Staged, Vectors, room, to_host

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("total", "share", "most"),
    [(80 * GIB, 1.0, 20 * GIB), (80 * GIB, 0.5, 10 * GIB), (80 * GIB, 2.0, 20 * GIB), (7, 1.0, 1)],
)
def test_a_quarter_of_the_share_of_a_gpu(total, share, most):
    assert room(total, share) == most


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
@pytest.mark.parametrize("most", [None, 0, 1 << 20])
def test_samples_are_those_of_the_index_wherever_they_are(dtype, most):
    x = torch.arange(60).reshape(20, 3).to(dtype)
    y = torch.arange(20)
    samples = Samples(x, y, CPU, most)
    for index in ([3, 0, 3], [19], list(range(20)), [], [7, 6]):
        picked = torch.tensor(index, dtype=torch.int64)
        for got in (samples(picked), (samples.inputs(picked), samples.labels(picked))):
            for mine, whole in zip(got, (x, y), strict=True):
                assert mine.dtype == whole.dtype
                assert torch.equal(mine, whole[picked])


def test_samples_are_resident_where_they_fit_to_the_byte():
    x, y = torch.zeros(10, 3, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64)
    meta = torch.device("meta")  # holds no values, but says where a tensor is
    assert Samples(x, y, meta, 110).x.device == meta
    assert Samples(x, y, CPU, 109).x is x
    assert Samples(x, y, CPU, None).x is x, "on the CPU nothing is copied"


def test_a_batch_does_not_change_when_the_buffer_takes_the_next():
    x = torch.arange(12.0).reshape(6, 2)
    staged = Staged(x, CPU)
    first = staged(torch.tensor([5, 4]))
    staged(torch.tensor([0, 1]))
    assert torch.equal(first, x[[5, 4]])


def test_a_vector_is_copied_once_while_it_is_the_same():
    vectors = Vectors(CPU, apart=True)
    one, other = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    copy = vectors(one)
    assert copy.tolist() == [0, 1, 2]
    assert copy.data_ptr() != one.ctypes.data
    assert vectors(other).tolist() == [1, 1, 1]
    assert vectors(one) is copy
    assert vectors(one.copy()) is not copy, "another array, even of one version"
    for i in range(KEPT):
        vectors(np.full(3, i, np.float32))
    assert vectors(one) is not copy, "the oldest is let go of"


def test_shared_memory_is_known_again_only_where_nobody_can_write():
    vectors = Vectors(CPU, apart=True)
    memory = np.arange(4, dtype=np.float32)
    fixed = memory.tobytes()

    def again():
        return np.frombuffer(fixed, np.float32)  # as Ray does for each call

    assert vectors(again()) is vectors(again())
    assert vectors(again()[:2]) is not vectors(again())
    assert vectors(memory[:]) is not vectors(memory[:])


def test_without_other_memory_nothing_is_copied():
    vector = np.arange(3, dtype=np.float32)
    assert Vectors(CPU, apart=False)(vector).data_ptr() == vector.ctypes.data
    rows = torch.from_numpy(vector).view(1, 3)
    assert to_host(rows).ctypes.data == vector.ctypes.data
