"""Products and sums of updates in tensors of a device, here the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.server import device_columns
from fedsim.server.columns import LocalColumns, MixedColumns, ScaledColumns, symmetric
from fedsim.server.device_columns import DeviceColumns

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Several blocks in short vectors."""
    monkeypatch.setattr(device_columns, "WIDTH", 64)


def draw(m, d):
    return tuple(np.random.default_rng([m, d]).normal(size=(m, d)).astype(np.float32))


def on_device(rows):
    return DeviceColumns.on(CPU, rows)


RANGES = [
    [slice(0, 300)],
    [slice(0, 64), slice(64, 65), slice(65, 300)],
    [slice(7, 7), slice(10, 200)],
]


@pytest.mark.parametrize("m", [1, 2, 13])
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("wrapped", ["plain", "scaled", "mixed"])
def test_as_on_the_cpu(m, ranges, wrapped):
    rows = draw(m, 300)
    wrap = {
        "plain": lambda columns: columns,
        "scaled": lambda columns: ScaledColumns(columns, np.linspace(0.5, 2, m)),
        "mixed": lambda columns: MixedColumns(columns, np.tri(m) / m, 100),
    }[wrapped]
    ours, theirs = wrap(on_device(rows)), wrap(LocalColumns(rows))
    vector = draw(1, 300)[0]
    for beside in (None, vector):
        pairs = zip(ours.products(ranges, beside), theirs.products(ranges, beside), strict=True)
        for got, wanted in pairs:
            np.testing.assert_allclose(symmetric(got), symmetric(wanted), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(got[:, -1], wanted[:, -1], rtol=1e-12, atol=1e-12)
    for where in ranges:
        np.testing.assert_allclose(ours.squares(where), theirs.squares(where), rtol=1e-12)
    weights = [np.random.default_rng(i).normal(size=m) for i, _ in enumerate(ranges)]
    out, wanted = np.full(300, np.nan, np.float32), np.full(300, np.nan, np.float32)
    ours.combine(weights, ranges, out)
    theirs.combine(weights, ranges, wanted)
    np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=1e-6)  # one rounding to float32
    assert np.array_equal(np.isnan(out), np.isnan(wanted)), "what is in no range stays"
    ours.map(lambda x: np.median(x, axis=0), slice(5, 250), out)
    theirs.map(lambda x: np.median(x, axis=0), slice(5, 250), wanted)
    assert np.array_equal(out[5:250], wanted[5:250])


def test_by_hand():
    # <(1,2,2), (0,3,4)> = 14; squared lengths 9 and 25; 2 (1,2,2) - (0,3,4) = (2,1,0)
    columns = on_device(np.array([[1, 2, 2], [0, 3, 4]], np.float32))
    whole = slice(0, 3)
    [products] = columns.products([whole], np.array([1, 1, 0], np.float32))
    assert products.tolist() == [[9, 14, 3], [14, 25, 3]]
    assert columns.squares(whole).tolist() == [9, 25]
    out = np.empty(3, np.float32)
    columns.combine([np.array([2.0, -1.0])], [whole], out)
    assert out.tolist() == [2, 1, 0]


def test_the_same_bits_again_and_sums_that_cancel():
    rows = draw(5, 300)
    big = tuple(row * np.float32(1e15) for row in rows)
    ours = on_device((*rows, *big, *(-row for row in big)))
    ranges = [slice(0, 300)]
    first, again = (ours.products(ranges)[0] for _ in range(2))
    assert first.tobytes() == again.tobytes()
    out = np.empty(300, np.float32)
    ours.combine([np.ones(15)], ranges, out)
    np.testing.assert_allclose(out, np.sum(rows, axis=0, dtype=np.float64), atol=2.0)


def test_the_rows_are_those_of_this_process():
    rows = draw(3, 10)
    columns = on_device(rows)
    assert all(a is b for a, b in zip(columns.rows, rows, strict=True))
    assert columns.dtype == np.float32
