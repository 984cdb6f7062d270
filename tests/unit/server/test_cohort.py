"""The cohort's two passes over the updates: Gram matrix and weighted sum."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import threadpoolctl

from fedsim.core.errors import ContractError
from fedsim.core.types import ClientUpdate, Layout, Slot
from fedsim.server import linalg as module
from fedsim.server.cohort import Cohort, gram
from fedsim.server.columns import LocalColumns
from fedsim.server.linalg import cut, single_threaded_blas


def layout(size, stats=0):
    return Layout(
        (Slot(name="w", shape=(size - stats,), start=0, stop=size - stats), *_stat(size, stats))
    )


def _stat(size, stats):
    return (
        (Slot(name="s", shape=(stats,), start=size - stats, stop=size, role="stat"),)
        if stats
        else ()
    )


def updates(rows, ids=None, samples=None):
    ids = range(len(rows)) if ids is None else ids
    samples = [10 * (i + 1) for i in range(len(rows))] if samples is None else samples
    return [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=row)
        for i, n, row in zip(ids, samples, rows, strict=True)
    ]


def draw(m, d, dtype=np.float32, scale=1.0):
    return (scale * np.random.default_rng([m, d]).normal(size=(m, d))).astype(dtype)


def exact_gram(g):
    """Rational arithmetic, rounded once."""
    rows = [[Fraction(float(v)) for v in row] for row in g]
    return np.array(
        [[float(sum(a * b for a, b in zip(r, s, strict=True))) for s in rows] for r in rows]
    )


def assert_gram(got, g, tolerance=1e-13):
    g = np.asarray(g, dtype=np.float64)
    norms = np.linalg.norm(g, axis=1)
    assert np.all(np.abs(got - g @ g.T) <= tolerance * np.outer(norms, norms))


def combine(rows, coefficients, where, out):
    LocalColumns(tuple(rows)).combine([coefficients], [where], out)


@pytest.fixture
def small(monkeypatch):
    """Boundaries at 1024 (block), 4096 (shard), 64 (factor)."""
    monkeypatch.setattr(module, "SHARD", 4096)
    monkeypatch.setattr(module, "BLOCK", 1024)
    monkeypatch.setattr(module, "NARROW", 1024)
    monkeypatch.setattr(module, "SPAN", 64)


def test_by_hand():
    # <(1,2,2), (0,3,4)> = 14; squared lengths 9 and 25; over the last two columns 8, 25, 14.
    c = Cohort.of(updates([np.array([1.0, 2, 2]), np.array([0.0, 3, 4])]), layout(3))
    np.testing.assert_array_equal(c.gram(slice(0, 3)), [[9, 14], [14, 25]])
    np.testing.assert_array_equal(c.gram(slice(1, 3)), [[8, 14], [14, 25]])
    out = np.full(3, np.nan)
    c.combine(np.array([2.0, -1.0]), slice(0, 3), out)
    np.testing.assert_array_equal(out, [2.0, 1.0, 0.0])
    np.testing.assert_array_equal(
        c.grams_with(np.array([1.0, 1, 0]), [slice(0, 3)])[0][1], [3.0, 3.0]
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 5, 50])
@pytest.mark.parametrize("d", [1, 1023, 1024, 1025, 4096, 4097, 3 * 4096 + 1025])
def test_gram_across_every_boundary(small, m, d, dtype):
    g = draw(m, d, dtype)
    k = gram(list(g), slice(0, d))
    assert (k.shape, k.dtype) == ((m, m), np.float64)
    np.testing.assert_array_equal(k, k.T)
    assert_gram(k, g)


def test_gram_at_the_real_boundaries():
    d = module.SHARD + module.BLOCK // 3 + 7
    g = draw(3, d)
    assert_gram(gram(list(g), slice(0, d)), g)
    assert_gram(gram(list(g), slice(5, d - 3)), g[:, 5:-3])
    out = np.empty(d, np.float32)
    combine(list(g), np.array([0.5, -2.0, 1.0]), slice(0, d), out)
    expected = np.array([0.5, -2.0, 1.0]) @ g.astype(np.float64)
    np.testing.assert_array_equal(out, expected.astype(np.float32))


def test_arrival_order_changes_no_bit(small):
    d, ids = 3 * 4096 + 77, [7, 3, 11, 0, 5]
    sent = updates(list(draw(5, d)), ids)
    c = np.array([0.3, -0.7, 1.1, 0.2, 0.9])
    results = set()
    for order in np.random.default_rng(0).permuted([range(5)] * 6, axis=1):
        cohort = Cohort.of([sent[i] for i in order], layout(d))
        assert [u.client_id for u in cohort.updates] == [0, 3, 5, 7, 11]
        np.testing.assert_array_equal(cohort.num_samples, [40, 20, 50, 10, 30])
        out = np.empty(d, np.float32)
        cohort.combine(c, slice(0, d), out)
        results.add((cohort.gram(slice(0, d)).tobytes(), out.tobytes()))
    assert len(results) == 1


def test_shards_are_added_in_the_order_of_the_columns(small):
    # values of very different size, so that another order gives other bits
    d = 6 * 4096
    g = draw(3, d, np.float64) * np.repeat([1e-7, 1.0, 1e7, 1e-3, 3.0, 1e5], 4096)
    total = np.zeros((3, 3))
    for start in range(0, d, 4096):
        total += gram(list(g), slice(start, start + 4096))
    assert gram(list(g), slice(0, d)).tobytes() == total.tobytes()
    backwards = np.zeros((3, 3))
    for start in reversed(range(0, d, 4096)):
        backwards += gram(list(g), slice(start, start + 4096))
    assert backwards.tobytes() != total.tobytes()


@pytest.mark.parametrize("m", [4, 30])
def test_threads_and_order_of_arrival_change_no_bit(small, monkeypatch, m):
    d = 9 * 4096 + 77
    sent, c = updates(list(draw(m, d))), np.random.default_rng(m).normal(size=m)
    vector, ranges = draw(1, d)[0], [slice(0, 5 * 4096 + 9), slice(5 * 4096 + 9, d)]
    results = set()
    for threads in (1, 2, 4):
        with ThreadPoolExecutor(threads) as pool:
            monkeypatch.setattr(module, "pool", lambda pool=pool: pool)
            monkeypatch.setattr(module, "cores", lambda threads=threads: threads)
            order = np.random.default_rng(threads).permutation(m)
            cohort = Cohort.of([sent[i] for i in order], layout(d))
            products = cohort.columns.products(ranges, vector)
            step = cohort.step([c, -c], ranges)
            results.add((*(p.tobytes() for p in products), step.tobytes()))
    assert len(results) == 1


def test_blas_has_one_thread_inside_and_its_own_number_after():
    def threads():
        return [
            p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"
        ]

    before = threads()
    with single_threaded_blas():
        assert set(threads()) <= {1}
    assert threads() == before


def test_squares_beyond_float32_do_not_overflow():
    rows = [np.array([1e30, 1e30], np.float32), np.array([1e30, -1e30], np.float32)]
    np.testing.assert_allclose(gram(rows, slice(0, 2)), [[2e60, 0], [0, 2e60]], rtol=1e-6)


def test_nearly_equal_updates_keep_their_difference():
    """Integers below 2^24: float64 sums 16 of their products without an error, in any order."""
    base = np.random.default_rng(5).integers(2**23, 2**24 - 32, size=16).astype(np.float32)
    g = np.stack([base, np.nextafter(base, np.float32(2**24)), base * np.float32(1 + 1e-6)])
    assert set((g[1] - base).tolist()) == {1.0}
    k = gram(list(g), slice(0, 16))
    np.testing.assert_array_equal(k, exact_gram(g))
    # |g_0 - g_1|^2 is about 1e-14 |g|^2: any float32 product would have lost it
    assert k[0, 0] - 2 * k[0, 1] + k[1, 1] == 16


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_combine_writes_its_range_alone(small, dtype):
    g, c = draw(3, 5000, dtype), np.array([1.5, -0.25, 0.5])
    out = np.full(5000, 7.0, dtype)
    combine(list(g), c, slice(123, 4321), out)
    expected = (c @ g.astype(np.float64)).astype(dtype)
    tolerance = 1e-15 if dtype == np.float64 else 0.0
    np.testing.assert_allclose(out[123:4321], expected[123:4321], rtol=0, atol=8 * tolerance)
    assert np.all(out[:123] == 7.0)
    assert np.all(out[4321:] == 7.0)


def test_rows_of_a_buffer_are_not_a_power_of_two_apart(monkeypatch):
    seen, original = [], module._blocks

    def blocks(rows, piece, buffer):
        seen.append(buffer.strides[0] // buffer.itemsize)
        return original(rows, piece, buffer)

    monkeypatch.setattr(module, "_blocks", blocks)
    gram(list(draw(5, 70_000)), slice(0, 70_000))
    assert seen
    assert all(columns % 512 == 8 for columns in seen)


def test_combine_sums_in_float64_and_rounds_once():
    # In float32 1e8 + 1 is 1e8, and the sum would be 0.
    rows = [np.array([v], np.float32) for v in (1e8, 1.0, -1e8)]
    out = np.empty(1, np.float32)
    combine(rows, np.ones(3), slice(0, 1), out)
    assert out[0] == 1.0


def test_empty_ranges():
    cohort = Cohort.of(updates(list(draw(3, 4))), layout(4))
    np.testing.assert_array_equal(cohort.gram(slice(4, 4)), np.zeros((3, 3)))
    np.testing.assert_array_equal(cohort.grams_with(np.ones(4), [slice(4, 4)])[0][1], np.zeros(3))
    out = np.full(4, 7.0, np.float32)
    cohort.combine(np.ones(3), slice(4, 4), out)
    np.testing.assert_array_equal(out, 7.0)


class Counting(LocalColumns):
    """Writes down the ranges of each pass."""

    def products(self, ranges, vector=None):
        PASSES.append([(w.start, w.stop) for w in ranges])
        return super().products(ranges, vector)


PASSES = []


def test_each_range_is_computed_once_and_several_in_one_pass():
    PASSES.clear()
    sent = updates(list(draw(2, 6)))
    cohort = Cohort.of(sent, layout(6), Counting(tuple(u.delta for u in sent)))
    whole, left, right = slice(0, 6), slice(0, 3), slice(3, 6)
    first = cohort.gram(whole)
    second = cohort.grams([left, whole, right, left])
    cohort.gram(right)
    assert PASSES == [[(0, 6)], [(0, 3), (3, 6)]]
    assert second[1] is first
    np.testing.assert_allclose(second[0] + second[2], first, rtol=1e-14)


def test_several_ranges_give_the_bits_of_one_by_one(small):
    rows, vector = tuple(draw(4, 9000)), draw(1, 9000)[0]
    ranges = [slice(0, 5000), slice(5000, 5000), slice(5000, 5001), slice(4000, 9000)]
    together = LocalColumns(rows).products(ranges, vector)
    for where, products in zip(ranges, together, strict=True):
        assert products.tobytes() == LocalColumns(rows).products([where], vector)[0].tobytes()
        without = LocalColumns(rows).products([where])[0]
        assert without[:, :-1].tobytes() == products[:, :-1].tobytes()
        assert not without[:, -1].any()
    ranges[3] = slice(5001, 9000)
    c = [np.array([1.0, -2.0, 0.5, i]) for i in range(4)]
    one, each = np.full(9000, 7.0, np.float32), np.full(9000, 7.0, np.float32)
    LocalColumns(rows).combine(c, ranges, one)
    for weights, where in zip(c, ranges, strict=True):
        LocalColumns(rows).combine([weights], [where], each)
    assert one.tobytes() == each.tobytes()


def test_pieces_end_at_fixed_columns(small):
    pieces = cut([slice(4000, 9000), slice(5, 5), slice(8192, 8193)])
    assert [tuple(p) for p in pieces] == [
        (0, 4000, 4096),
        (0, 4096, 8192),
        (0, 8192, 9000),
        (2, 8192, 8193),
    ]


def test_a_step_needs_coefficients_for_every_coordinate():
    cohort = Cohort.of(updates(list(draw(2, 6))), layout(6))
    with pytest.raises(ContractError, match="a step of 6 entries was given coefficients for 5"):
        cohort.step([np.ones(2), np.ones(2)], [slice(0, 2), slice(3, 6)])


@pytest.mark.parametrize("m", [26, 50, 77])
def test_several_tiles_of_rows(small, m):
    g, v = draw(m, 5003), draw(1, 5003)[0]
    cohort = Cohort.of(updates(list(g)), layout(5003))
    ((k, dots),) = cohort.grams_with(v, [slice(0, 5003)])
    assert_gram(k, g)
    np.testing.assert_array_equal(k, cohort.gram(slice(0, 5003)))
    np.testing.assert_allclose(dots, g.astype(np.float64) @ v, rtol=0, atol=1e-10)


def test_nothing_is_left_in_the_buffer_from_the_piece_before(small):
    # a block of NaN, then a shorter one: what fills up its factors must be 0
    rows = tuple(np.concatenate([np.full(4096, np.nan), np.ones(1025)]) for _ in range(3))
    first, second = LocalColumns(rows).products([slice(0, 4096), slice(4096, 5121)])
    assert np.isnan(first).any()
    np.testing.assert_array_equal(np.triu(second[:, :3]), np.triu(np.full((3, 3), 1025.0)))


def test_read_only_and_strided_rows_are_left_alone(small):
    matrix = draw(4, 3000)
    matrix.flags.writeable = False
    before = matrix.copy()
    rows = [matrix[0], matrix.T[:, 1], matrix[2:, :][0], matrix[3][::-1]]
    assert_gram(gram(rows, slice(0, 3000)), np.stack(rows))
    combine(rows, np.arange(4.0), slice(0, 3000), np.empty(3000, np.float32))
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize(
    ("rows", "ids", "message"),
    [
        ([], [], "at least one update"),
        ([np.ones(3), np.ones(3)], [4, 4], r"client id occurs twice.*\[4, 4\]"),
        ([np.ones(3), np.ones(2)], [1, 8], r"client 8: delta has shape \(2,\).*3 entries"),
        ([np.ones((1, 3))], [2], r"client 2: delta has shape \(1, 3\)"),
    ],
)
def test_unusable_cohorts_are_refused(rows, ids, message):
    with pytest.raises(ContractError, match=message):
        Cohort.of(updates(rows, ids), layout(3))
