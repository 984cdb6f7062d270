"""Cohorts, their columns, Gram rules and coalitions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch

import fedsim
from fedsim import algorithms
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server import device_columns
from fedsim.server import linalg as module
from fedsim.server.base import RuleState
from fedsim.server.coalitions import Coalitions
from fedsim.server.cohort import Cohort, gram
from fedsim.server.columns import LocalColumns, MixedColumns, ScaledColumns, symmetric
from fedsim.server.device_columns import DeviceColumns
from fedsim.server.gram import cosines, gradient_diversity, shares, spectrum
from tests.algorithms.cases import cohort
from tests.decomposing import config, rounds


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


def cohort_draw(m, d, dtype=np.float32, scale=1.0):
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


def test_cohort_by_hand():
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
    g = cohort_draw(m, d, dtype)
    k = gram(list(g), slice(0, d))
    assert (k.shape, k.dtype) == ((m, m), np.float64)
    np.testing.assert_array_equal(k, k.T)
    assert_gram(k, g)


def test_gram_at_the_real_boundaries():
    d = module.SHARD + module.BLOCK // 3 + 7
    g = cohort_draw(3, d)
    assert_gram(gram(list(g), slice(0, d)), g)
    assert_gram(gram(list(g), slice(5, d - 3)), g[:, 5:-3])
    out = np.empty(d, np.float32)
    combine(list(g), np.array([0.5, -2.0, 1.0]), slice(0, d), out)
    expected = np.array([0.5, -2.0, 1.0]) @ g.astype(np.float64)
    np.testing.assert_array_equal(out, expected.astype(np.float32))


def test_arrival_order_changes_no_bit(small):
    d, ids = 3 * 4096 + 77, [7, 3, 11, 0, 5]
    sent = updates(list(cohort_draw(5, d)), ids)
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
    g = cohort_draw(3, d, np.float64) * np.repeat([1e-7, 1.0, 1e7, 1e-3, 3.0, 1e5], 4096)
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
    sent, c = updates(list(cohort_draw(m, d))), np.random.default_rng(m).normal(size=m)
    vector, ranges = cohort_draw(1, d)[0], [slice(0, 5 * 4096 + 9), slice(5 * 4096 + 9, d)]
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
    g, c = cohort_draw(3, 5000, dtype), np.array([1.5, -0.25, 0.5])
    out = np.full(5000, 7.0, dtype)
    combine(list(g), c, slice(123, 4321), out)
    expected = (c @ g.astype(np.float64)).astype(dtype)
    tolerance = 1e-15 if dtype == np.float64 else 0.0
    np.testing.assert_allclose(out[123:4321], expected[123:4321], rtol=0, atol=8 * tolerance)
    assert np.all(out[:123] == 7.0)
    assert np.all(out[4321:] == 7.0)


def test_combine_sums_in_float64_and_rounds_once():
    # In float32 1e8 + 1 is 1e8, and the sum would be 0.
    rows = [np.array([v], np.float32) for v in (1e8, 1.0, -1e8)]
    out = np.empty(1, np.float32)
    combine(rows, np.ones(3), slice(0, 1), out)
    assert out[0] == 1.0


def test_empty_ranges():
    cohort = Cohort.of(updates(list(cohort_draw(3, 4))), layout(4))
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
    sent = updates(list(cohort_draw(2, 6)))
    cohort = Cohort.of(sent, layout(6), Counting(tuple(u.delta for u in sent)))
    whole, left, right = slice(0, 6), slice(0, 3), slice(3, 6)
    first = cohort.gram(whole)
    second = cohort.grams([left, whole, right, left])
    cohort.gram(right)
    assert PASSES == [[(0, 6)], [(0, 3), (3, 6)]]
    assert second[1] is first
    np.testing.assert_allclose(second[0] + second[2], first, rtol=1e-14)


def test_several_ranges_give_the_bits_of_one_by_one(small):
    rows, vector = tuple(cohort_draw(4, 9000)), cohort_draw(1, 9000)[0]
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


def test_a_step_needs_coefficients_for_every_coordinate():
    cohort = Cohort.of(updates(list(cohort_draw(2, 6))), layout(6))
    with pytest.raises(ContractError, match="a step of 6 entries was given coefficients for 5"):
        cohort.step([np.ones(2), np.ones(2)], [slice(0, 2), slice(3, 6)])


@pytest.mark.parametrize("m", [26, 50, 77])
def test_several_tiles_of_rows(small, m):
    g, v = cohort_draw(m, 5003), cohort_draw(1, 5003)[0]
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


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Several blocks in short vectors."""
    monkeypatch.setattr(device_columns, "WIDTH", 64)


def device_columns_draw(m, d):
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
    rows = device_columns_draw(m, 300)
    wrap = {
        "plain": lambda columns: columns,
        "scaled": lambda columns: ScaledColumns(columns, np.linspace(0.5, 2, m)),
        "mixed": lambda columns: MixedColumns(columns, np.tri(m) / m, 100),
    }[wrapped]
    ours, theirs = wrap(on_device(rows)), wrap(LocalColumns(rows))
    vector = device_columns_draw(1, 300)[0]
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


def test_device_columns_by_hand():
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
    rows = device_columns_draw(5, 300)
    big = tuple(row * np.float32(1e15) for row in rows)
    ours = on_device((*rows, *big, *(-row for row in big)))
    ranges = [slice(0, 300)]
    first, again = (ours.products(ranges)[0] for _ in range(2))
    assert first.tobytes() == again.tobytes()
    out = np.empty(300, np.float32)
    ours.combine([np.ones(15)], ranges, out)
    np.testing.assert_allclose(out, np.sum(rows, axis=0, dtype=np.float64), atol=2.0)


def test_the_rows_are_those_of_this_process():
    rows = device_columns_draw(3, 10)
    columns = on_device(rows)
    assert all(a is b for a, b in zip(columns.rows, rows, strict=True))
    assert columns.dtype == np.float32


APART = np.diag([9.0, 16.0])
# (1, 1) and (-1, 3): squared lengths 2 and 10, inner product 2
NEAR = np.array([[2.0, 2.0], [2.0, 10.0]])
EQUAL = np.full((2, 2), 5.0)
OPPOSITE = np.array([[1.0, -1.0], [-1.0, 1.0]])
NEVER = {"decompose_every": 0, "loss_matrix": False}


@pytest.mark.parametrize(
    ("gram", "p", "expected"),
    [
        (APART, (0.5, 0.5), 12.5 / 6.25),
        (APART, (0.25, 0.75), (9 / 4 + 12) / (9 / 16 + 9)),
        (NEAR, (0.5, 0.5), 6 / 4),
        (EQUAL, (0.2, 0.8), 1.0),
        (OPPOSITE, (0.75, 0.25), 1 / 0.25),
        (OPPOSITE, (0.5, 0.5), None),
        (np.zeros((3, 3)), (0.2, 0.3, 0.5), None),
        (np.array([[7.0]]), (1.0,), 1.0),
        (np.diag([4.0, 0.0]), (0.5, 0.5), 2.0),
    ],
)
def test_gradient_diversity_by_hand(gram, p, expected):
    got = gradient_diversity(gram, np.array(p))
    assert got == (expected if expected is None else pytest.approx(expected, rel=1e-14))


@pytest.mark.parametrize(
    ("gram", "expected"),
    [
        (APART, (16 / 25, 9 / 25)),
        (NEAR, ((6 + 20**0.5) / 12, (6 - 20**0.5) / 12)),
        (EQUAL, (1.0, 0.0)),
        (OPPOSITE, (1.0, 0.0)),
        (np.zeros((3, 3)), (0.0, 0.0, 0.0)),
        (np.array([[7.0]]), (1.0,)),
    ],
)
def test_the_spectrum_by_hand(gram, expected):
    np.testing.assert_allclose(spectrum(gram), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1.0, 1e150])
@pytest.mark.parametrize(("m", "d"), [(2, 9), (5, 3), (8, 40)])
def test_they_agree_with_numpy_on_the_updates_whatever_their_length(m, d, scale):
    rng = np.random.default_rng([m, d])
    g = rng.normal(size=(m, d))
    n = rng.integers(1, 30, size=m)
    p = n / n.sum()
    gram = scale**2 * (g @ g.T)
    mean = p @ g
    diversity = (p @ (g**2).sum(axis=1)) / (mean @ mean)
    assert diversity >= 1
    assert gradient_diversity(gram, shares(n, "samples")) == pytest.approx(diversity, rel=1e-12)
    squares = np.linalg.svd(g, compute_uv=False) ** 2
    expected = np.zeros(m)
    expected[: len(squares)] = squares / squares.sum()
    got = spectrum(gram)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-13)
    assert got.sum() == pytest.approx(1.0, rel=1e-14)
    assert (np.diff(got) <= 0).all()
    assert (got >= 0).all()
    unit = g / np.linalg.norm(g, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines(gram), unit @ unit.T, rtol=1e-12, atol=1e-14)


# the rows of a run
@pytest.mark.integration
def test_the_rows_are_those_of_the_updates():
    settings = config("fedavg", train={"sample_rate": 0.75}, evaluation=NEVER | {"cosines": True})
    for done in rounds(settings):
        updates = [
            (done.local[c] - done.before.params).astype(np.float64) for c in sorted(done.local)
        ]
        g = np.array(updates)  # a multilayer perceptron has no statistics: all are parameters
        clients = [row["client_id"] for row in done.tables["clients"]]
        assert clients == done.cohort
        n = np.array([row["num_samples"] for row in done.tables["clients"]])
        (row,) = done.tables["rounds"]
        mean = n / n.sum() @ g
        diversity = n / n.sum() @ (g**2).sum(axis=1) / (mean @ mean)
        assert row["gradient_diversity"] == pytest.approx(diversity, rel=1e-4)
        unit = g / np.linalg.norm(g, axis=1, keepdims=True)
        pairs = [(r["client_a"], r["client_b"]) for r in done.tables["cosines"]]
        assert pairs == list(combinations(done.cohort, 2))
        for r in done.tables["cosines"]:
            a, b = done.cohort.index(r["client_a"]), done.cohort.index(r["client_b"])
            assert r["cosine"] == pytest.approx(unit[a] @ unit[b], abs=1e-4)
        squares = np.linalg.svd(g, compute_uv=False) ** 2
        assert [r["axis"] for r in done.tables["spectrum"]] == [1, 2, 3, 4]
        shown = [r["share"] for r in done.tables["spectrum"]]
        np.testing.assert_allclose(shown, squares / squares.sum(), rtol=1e-3)
        assert row["top_axis_share"] == shown[0]


OF_PAIRS = ("conflict_ratio", "gradient_diversity", "top_axis_share")


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedld"])
@pytest.mark.parametrize(("conflicts", "due"), [("never", ()), (2, (2, 3)), (5, (3,))])
def test_statistics_of_pairs_are_computed_in_the_rounds_that_are_asked_for(method, conflicts, due):
    """Everything else stays as it is: norms up to the last bits, models to the last one."""
    found = {
        setting: list(
            rounds(config(method, train={"rounds": 3}, evaluation=NEVER | {"conflicts": setting}))
        )
        for setting in ("always", conflicts)
    }
    for number, (usual, seldom) in enumerate(zip(*found.values(), strict=True), start=1):
        assert usual.after.params.tobytes() == seldom.after.params.tobytes()
        (expected,), (row,) = usual.tables["rounds"], seldom.tables["rounds"]
        for name in OF_PAIRS:
            assert expected[name] is not None
            assert row[name] == (expected[name] if number in due else None)
        same = expected.keys() - {*OF_PAIRS}
        assert {name: row[name] for name in same} == {name: expected[name] for name in same}
        norms = [[r["update_norm"] for r in d.tables["clients"]] for d in (usual, seldom)]
        np.testing.assert_allclose(*norms, rtol=1e-13)
        assert min(norms[0]) > 0


@pytest.mark.integration
def test_a_cohort_of_one_client(tmp_path):
    settings = config(train={"sample_rate": 1 / 6}, evaluation=NEVER | {"cosines": True})
    store = fedsim.run(settings, tmp_path / "run")
    rows = store.read("rounds")
    assert rows["gradient_diversity"].tolist() == pytest.approx([1.0, 1.0], rel=1e-12)
    assert rows["top_axis_share"].tolist() == [1.0, 1.0]
    assert rows["conflict_ratio"].isna().all()
    assert not (store.path / "cosines.csv").exists(), "no pair, no row"
    assert store.read("spectrum")["share"].tolist() == [1.0, 1.0]


@pytest.mark.integration
def test_updates_that_are_zero():
    settings = config(train={"lr": 1e-30}, evaluation=NEVER | {"cosines": True})
    for done in rounds(settings):
        (row,) = done.tables["rounds"]
        assert row["gradient_diversity"] is None
        assert row["top_axis_share"] == 0.0
        assert [r["cosine"] for r in done.tables["cosines"]] == [0.0] * 3
        assert [r["share"] for r in done.tables["spectrum"]] == [0.0] * 3


def slots(*sizes):
    start, made = 0, []
    for name, shape, options in sizes:
        stop = start + int(np.prod(shape))
        made.append(Slot(name=name, shape=shape, start=start, stop=stop, **options))
        start = stop
    return Layout(tuple(made))


NORM = {"batchnorm": True}
LAYOUT = slots(
    ("l.weight", (3, 2), {}),
    ("n.weight", (3,), NORM),
    ("n.bias", (3,), NORM),
    ("h.weight", (2, 3), {"head": True}),
    ("h.bias", (2,), {"head": True}),
    ("n.running_mean", (3,), {"role": "stat", **NORM}),
)
"""A chain of two layers with BatchNorm, as every method can have it."""
M = 7
SAMPLES = (3, 1, 2, 5, 4, 2, 6)


def context(round=0):
    return RoundContext(round=round, num_rounds=3, num_clients=20, lr=0.1, seed=4)


def updates_of(seed=0, m=M):
    """(m, D) float64 updates with a common direction, so that some agree and some do not."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(LAYOUT.size) + 2 * rng.standard_normal((m, LAYOUT.size))


def sent(index=range(M), seed=0):
    """The cohort of some clients, with what the methods of the catalogue need beside updates."""
    rng = np.random.default_rng([seed, 1])
    params, reference = rng.standard_normal((2, LAYOUT.size))
    steps = rng.integers(1, 9, M)
    rows = updates_of(seed)
    updates = [
        ClientUpdate(
            client_id=10 + i,
            num_samples=SAMPLES[i],
            num_steps=int(steps[i]),
            delta=rows[i],
            staleness=i % 3,
            extras={"loss": np.array([1.0 + i]), "cluster": np.array([i % 2])},
        )
        for i in index
    ]
    return replace(Cohort.of(updates, LAYOUT, params=params), reference=reference)


def server_of(name, **hyperparameters):
    return replace(algorithms.load(name, hyperparameters).server, exchange=None)


def after_a_round(server):
    """The state that the second round starts from."""
    return server.step(RuleState(), sent(seed=9), context()).state


def sizes_of(server):
    """The sizes of coalitions that a rule can aggregate."""
    found = []
    for k in range(1, M + 1):
        try:
            server.check(k)
        except ConfigError:
            continue
        found.append(k)
    return found


def brute(server, state, coalition, ctx):
    return server.step(state, sent(coalition), ctx).step


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first", [True, False], ids=["first round", "second round"])
@pytest.mark.parametrize("name", algorithms.names())
def test_every_method_on_fewer_updates(name, first):
    server = server_of(name)
    state, ctx = (RuleState(), context()) if first else (after_a_round(server), context(1))
    made = Coalitions(server, state, sent(), ctx)
    params = slice(0, LAYOUT.num_params)
    whole = brute(server, state, range(M), ctx)[params]
    for size in {M, M - 1, 1} & set(sizes_of(server)):
        coalition = tuple(range(size))
        expected = brute(server, state, coalition, ctx)
        close(made.step(coalition), expected)
        step = expected[params]
        close(made.moved(coalition)[0], np.linalg.norm(step - whole))
        close(made.along(coalition), step @ whole / np.linalg.norm(whole))


def test_two_clients_by_hand():
    # FedAvg of (3, 0) and (0, 4) with 1 and 3 samples: (0.75, 3). Without the second the step is
    # (3, 0): it moves by (2.25, -3), which is 3.75, and makes 2.25 / |(0.75, 3)| along the step
    made = Coalitions(
        server_of("fedavg"), RuleState(), cohort([[3.0, 0.0], [0.0, 4.0]], [1, 3]), context()
    )
    distance, cosine = made.moved((0,))
    assert distance == pytest.approx(3.75, abs=1e-12)
    assert made.along((0,)) == pytest.approx(2.25 / np.hypot(0.75, 3), abs=1e-12)
    assert cosine == pytest.approx(0.75 / np.hypot(0.75, 3), abs=1e-12)
    distance, cosine = made.moved(())
    assert distance == pytest.approx(np.hypot(0.75, 3), abs=1e-12)
    assert made.along(()) == 0
    assert np.isnan(cosine)
    assert not made.step(()).any()


def test_updates_that_an_attack_has_mixed():
    # client 0 sends the mean of clients 1 and 2 in place of its own update
    mix = np.eye(M)
    mix[0] = [0, 0.5, 0.5, 0, 0, 0, 0]
    honest = sent()
    attacked = replace(
        honest, columns=MixedColumns(honest.columns, mix, LAYOUT.num_params), _grams={}
    )
    rows = updates_of()
    rows[0, : LAYOUT.num_params] = (rows[1] + rows[2])[: LAYOUT.num_params] / 2
    for name in ("fedgh", "trimmed_mean"):
        server = server_of(name)
        made = Coalitions(server, RuleState(), attacked, context())
        kept = (0, 2, 3, 4, 6)
        some = cohort(rows[list(kept)], [SAMPLES[i] for i in kept], LAYOUT)
        close(made.step(kept), server.step(RuleState(), some, context()).step)
