"""Compressors and error feedback: by hand, against float64, and their laws."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

import fedsim
from fedsim.compressors.base import Compression, Compressor, entries
from fedsim.compressors.power_sgd import PowerSGD, orthonormal
from fedsim.compressors.qsgd import QSGD
from fedsim.compressors.random_k import RandomK
from fedsim.compressors.sign import ScaledSign
from fedsim.compressors.top_k import TopK
from fedsim.config.compress import CompressConfig
from fedsim.config.run import RunConfig
from fedsim.core.rng import generator
from fedsim.core.settings import InvalidSetting
from fedsim.core.types import ClientTask, Layout, RoundContext, Slot
from fedsim.testing.rounds import config, results, small
from fedsim.testing.rounds import rounds as run_rounds
from fedsim.training.assemble import algorithm_of, prepare
from tests.stopping import Stop, Stopper

SIZES = (6, 1, 5)
"""Of three tensors."""
D = sum(SIZES)
TENSORS = [slice(0, 6), slice(6, 7), slice(7, 12)]


def draw(i=0):
    return generator(0, "test", i)


def vector(i=0, d=D):
    return np.random.default_rng(i).normal(size=d).astype(np.float32)


def slot(name, start, stop, role="param"):
    return Slot(name=name, shape=(stop - start,), start=start, stop=stop, role=role)


LAYOUT = Layout(
    (slot("a", 0, 6), slot("head", 6, 7), slot("b", 7, 12), slot("mean", 12, 14, "stat"))
)


def task(client=0, round=0):
    ctx = RoundContext(round=round, num_rounds=9, num_clients=3, lr=0.1, seed=5)
    return ClientTask(client=client, ctx=ctx)


def transform(name, personal=lambda slot: False, **given):
    if name in ("top_k", "random_k") and "fraction" not in given:
        given["fraction"] = 0.25
    compress = {"name": name, **given}
    if "k" in given:
        del compress["fraction"]
    compressor = CompressConfig(**compress).make(Compressor, (), {})
    return Compression(compressor=compressor, personal=personal)


def test_the_largest_entries_by_hand():
    """|x| = 3 2 2 1 2 0: two of them are 3 and the first 2; 6 entries have indices of 3 bits."""
    x = np.array([-3, 2, -2, 1, 2, 0], np.float32)
    sent = TopK(0.5, k=2)(x, [slice(0, 6)], draw())
    assert sent.vector.tolist() == [-3, 2, 0, 0, 0, 0]
    assert sent.bytes == 2 * 4 + 1, "2 values and 2 indices of 3 bits"
    assert TopK(0.5)(x, [], draw()).vector.tolist() == [-3, 2, -2, 0, 0, 0], "3 of 6"


@pytest.mark.parametrize(("d", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_an_index_has_as_many_bits_as_tell_all_apart(d, bits):
    assert TopK(1, k=1)(vector(d=d), [], draw()).bits == bits == int(np.ceil(np.log2(d)))


def test_how_many_entries_are_sent():
    assert entries(0.1, None, 99) == 9
    assert entries(0.07, None, 100) == 7, "0.07 * 100 is a little more than 7"
    assert entries(0.29, None, 100) == 29, "and 0.29 * 100 a little less than 29"
    assert entries(0.001, None, 99) == 1
    assert entries(0.5, 3, 99) == 3


@pytest.mark.parametrize("compressor", [TopK(1.0), RandomK(1.0), RandomK(1.0, unbiased=False)])
def test_all_entries_are_the_update_itself_at_its_size(compressor):
    sent = compressor(vector(), TENSORS, draw())
    assert sent.vector.tobytes() == vector().tobytes()
    assert sent.bytes == 4 * D


@pytest.mark.parametrize("k", [1, 5, 11])
@pytest.mark.parametrize("scale", [1e-20, 1, 1e15])
def test_top_k_contracts_and_no_other_k_entries_are_nearer(k, scale):
    x = vector(k) * np.float32(scale)
    sent = TopK(1, k=k)(x, TENSORS, draw()).vector
    wide, error = x.astype(np.float64), x.astype(np.float64) - sent
    assert np.count_nonzero(sent) == k
    assert error @ error <= (1 - k / D) * (wide @ wide)
    assert error @ error == pytest.approx(np.sort(wide**2)[: D - k].sum(), rel=1e-12)


def test_random_entries_by_hand():
    chosen = draw().choice(D, 4, replace=False)
    x, sent = vector(), RandomK(0.5, k=4)(vector(), TENSORS, draw())
    assert sent.vector[chosen].tolist() == (3 * x[chosen]).tolist(), "d / k = 3"
    assert np.count_nonzero(sent.vector) == 4
    assert sent.bytes == 16, "values alone"
    plain = RandomK(0.5, k=4, unbiased=False)(x, TENSORS, draw()).vector
    assert plain[chosen].tolist() == x[chosen].tolist()


def chi_squared(observed, expected):
    """Pearson's statistic."""
    return ((observed - expected) ** 2 / expected).sum()


def test_random_k_draws_every_subset_equally_often():
    """6 choose 2 = 15 subsets; chi-squared with 14 degrees of freedom is below 36.1 with 99.9 %.

    So each entry is drawn with probability k/d, and d/k times what is drawn is unbiased.
    """
    x, n = np.ones(6, np.float32), 3000
    counts: dict[bytes, int] = {}
    for i in range(n):
        key = RandomK(1, k=2)(x, [], draw(i)).vector.tobytes()
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == comb(6, 2)
    assert chi_squared(np.array(list(counts.values())), n / 15) < 36.1
    mean = np.mean([np.frombuffer(k, np.float32) * c for k, c in counts.items()], axis=0) * 15 / n
    assert np.allclose(mean, x, atol=0.1)


def test_rounding_to_levels_by_hand():
    """(3, -4, 0) has norm 5. With 5 levels 3 and 4 are levels; with 2 they lie between two."""
    x = np.array([3, -4, 0], np.float32)
    sent = QSGD(5)(x, [slice(0, 3)], draw())
    assert sent.vector.tolist() == [3, -4, 0]
    assert sent.bytes == 4 + 2, "a norm, and three of 11 levels in 4 bits each"
    low, high = draw().random(3)[:2]
    wanted = [5.0 if low < 0.2 else 2.5, -5.0 if high < 0.6 else -2.5, 0]  # a = 1.2 and 1.6
    assert QSGD(2)(x, [slice(0, 3)], draw()).vector.tolist() == wanted
    both = np.concatenate([x, 10 * x])
    parts = QSGD(5)(both, [slice(0, 3), slice(3, 6)], draw())
    assert parts.vector.tolist() == both.tolist(), "a norm of each tensor"
    assert parts.bytes == 2 * 4 + 3


@pytest.mark.parametrize("s", [1, 3, 127, 128])
def test_a_level_has_as_many_bits_as_tell_all_apart(s):
    assert QSGD(s)(vector(), TENSORS, draw()).bits == D * int(np.ceil(np.log2(2 * s + 1)))


def oracle_qsgd(v, s, chance):
    """Entry by entry in float64."""
    norm = sum(float(entry) ** 2 for entry in v) ** 0.5
    out = []
    for entry, u in zip(v, chance, strict=True):
        a = abs(float(entry)) * s / norm
        level = int(a) + (u < a - int(a))
        out.append(norm * (1 if entry > 0 else -1) * level / s)
    return out


@pytest.mark.parametrize("s", [1, 4, 127])
@pytest.mark.parametrize("scale", [1e-20, 1, 1e10])
def test_rounding_to_levels_against_float64(s, scale):
    x = vector(s) * np.float32(scale)
    chance = draw().random(D)
    wanted = [entry for t in TENSORS for entry in oracle_qsgd(x[t], s, chance[t])]
    found = QSGD(s)(x, TENSORS, draw()).vector
    assert np.allclose(found, wanted, rtol=3e-7, atol=0), "values are float32"


def test_rounding_to_levels_is_unbiased_and_has_its_variance():
    """How often an entry goes up is binomial: chi-squared, 12 degrees of freedom, 99.9 %: 32.9."""
    x, s, n = vector(7), 2, 2000
    tensors = [slice(0, D)]
    found = np.array([QSGD(s)(x, tensors, draw(i)).vector for i in range(n)], np.float64)
    norm = np.linalg.norm(x.astype(np.float64))
    a = np.abs(x) * s / norm
    up = np.rint(np.abs(found) * s / norm) - np.floor(a)
    assert set(np.unique(up)) == {0, 1}
    p = a - np.floor(a)
    assert ((up.sum(axis=0) - n * p) ** 2 / (n * p * (1 - p))).sum() < 32.9
    error = ((found - x) ** 2).sum(axis=1).mean()
    assert error == pytest.approx((norm / s) ** 2 * (p * (1 - p)).sum(), rel=0.05)
    assert error <= min(D / s**2, D**0.5 / s) * norm**2


@pytest.mark.parametrize("compressor", [QSGD(3), ScaledSign()])
def test_zeros_and_single_entries(compressor):
    """Not NaN, and the one entry of a tensor is its norm, and its mean magnitude."""
    x = np.zeros(D, np.float32)
    assert not compressor(x, TENSORS, draw()).vector.any()
    x[6] = np.float32(-0.1)
    assert compressor(x, TENSORS, draw()).vector[6] == pytest.approx(-0.1, rel=3e-7)
    assert not np.delete(compressor(x, TENSORS, draw()).vector, 6).any()


def test_signs_by_hand():
    """|3| + |-1| + |0| + |-4| = 8, a quarter of it is 2; zero counts as positive."""
    x = np.array([3, -1, 0, -4], np.float32)
    sent = ScaledSign()(x, [slice(0, 4)], draw())
    assert sent.vector.tolist() == [2, -2, 2, -2]
    assert sent.bytes == 4 + 1
    both = ScaledSign()(x, [slice(0, 1), slice(1, 4)], draw())
    assert both.vector.tolist() == pytest.approx([3, -5 / 3, 5 / 3, -5 / 3])
    assert both.bytes == 8 + 1


@pytest.mark.parametrize("i", range(4))
def test_signs_contract(i):
    x = vector(i)
    error = 0.0
    sent = ScaledSign()(x, TENSORS, draw()).vector
    for t in TENSORS:
        v = x[t].astype(np.float64)
        error += v @ v - np.abs(v).sum() ** 2 / len(v)
    assert ((x.astype(np.float64) - sent) ** 2).sum() == pytest.approx(error, rel=1e-5)


def low_rank(matrix, rank, memory=None, seed=0):
    compressor = PowerSGD(rank, [matrix.shape], memory)
    flat = np.ascontiguousarray(matrix, np.float32).ravel()
    message = compressor(flat, [slice(0, flat.size)], draw(seed))
    return message.vector.reshape(matrix.shape), message


def floats(shape, rank):
    """The numbers in a message of one tensor."""
    n, size = (shape[0] if shape else 1), int(np.prod(shape))
    return min(size, rank * (n + size // n)) if len(shape) > 1 else size


def test_a_matrix_of_low_rank_by_hand():
    """M = 2 e1 e1^T + e2 e2^T, Q = e1: P = e1, Q = 2 e1, C(M) = 2 e1 e1^T; 3 + 4 numbers."""
    matrix = np.zeros((3, 4))
    matrix[0, 0], matrix[1, 1] = 2, 1
    sent, message = low_rank(matrix, 1, np.array([1, 0, 0, 0], np.float32))
    assert sent.tolist() == np.diag([2.0, 0, 0, 0])[:3].tolist()
    assert message.bytes == 4 * (3 + 4)
    assert message.memory.tolist() == [2, 0, 0, 0]


def test_columns_are_orthonormal_and_dependent_ones_zero():
    p = np.random.default_rng(0).normal(size=(40, 5))
    p[:, 3] = 2 * p[:, 0] - p[:, 1]
    p[:, 4] = p[:, 0] + 1e-7 * p[:, 4]  # nearly the same
    q = orthonormal(p)
    np.testing.assert_allclose(q.T @ q, np.diag([1, 1, 1, 0, 1]), atol=1e-14)


@pytest.mark.parametrize("scale", [1e-15, 1, 1e15])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_low_rank_against_float64(rank, scale):
    """P P^T M with P from a QR decomposition, over three messages with a warm start."""
    matrix = (scale * np.random.default_rng(rank).normal(size=(20, 30))).astype(np.float32)
    exact, memory = matrix.astype(np.float64), None
    q = draw().standard_normal((30, rank))
    for i in range(3):
        p, _ = np.linalg.qr(exact @ q)
        q = exact.T @ p
        sent, message = low_rank(matrix, rank, memory, i)
        memory = message.memory
        np.testing.assert_allclose(sent, p @ q.T, atol=3e-6 * scale)
        assert np.linalg.norm(exact - sent) <= np.linalg.norm(exact) * (1 + 1e-6)


@pytest.mark.parametrize("shape", [(7,), (2, 3), (4, 1), ()])
def test_vectors_and_small_matrices_are_sent_as_they_are(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    sent, message = low_rank(values, 2)
    assert sent.tobytes() == values.tobytes()
    assert (message.bytes, message.memory) == (4 * values.size, None)


def test_directions_that_an_update_lacks_are_drawn_anew():
    """After an update of 0 the next one still has rank 2."""
    nothing, message = low_rank(np.zeros((20, 30)), 2)
    assert not nothing.any()
    matrix = np.random.default_rng(3).normal(size=(20, 30))
    assert np.linalg.matrix_rank(low_rank(matrix, 2, message.memory, 1)[0]) == 2


def test_kernels_are_matrices_of_their_first_dimension():
    kernel = np.random.default_rng(4).normal(size=(8, 3, 3, 3))
    sent, message = low_rank(kernel, 1)
    assert np.linalg.matrix_rank(sent.reshape(8, 27)) == 1
    assert message.bytes == 4 * (8 + 27)


def test_error_feedback_by_hand():
    """k = 1 of 2: (3, 2) sends 3 and keeps 2; (1, 1) is (1, 3) with that, and sends 3."""
    layout = Layout((slot("a", 0, 2),))
    c = transform("top_k", k=1)
    first = c(np.array([3, 2], np.float32), {}, task(), layout)
    assert first.delta.tolist() == [3, 0]
    assert first.state["residual"].tolist() == [0, 2]
    second = c(np.array([1, 1], np.float32), first.state, task(round=1), layout)
    assert second.delta.tolist() == [0, 3]
    assert second.state["residual"].tolist() == [1, 0]
    assert second.wire_bytes == 4 + 1


FEEDBACK = ["top_k", "random_k", "sign"]


@pytest.mark.parametrize("name", FEEDBACK)
def test_error_feedback_telescopes(name):
    """What was sent is all updates without the last residual."""
    c, state, deltas, sent = transform(name, error_feedback="ef14"), {}, [], []
    for t in range(20):
        deltas.append(vector(t, 14))
        coded = c(deltas[-1], state, task(round=t), LAYOUT)
        state = coded.state
        sent.append(coded.delta)
    wanted = np.sum(deltas, axis=0, dtype=np.float64)
    wanted[:D] -= state["residual"]
    assert np.abs(state["residual"]).max() > 0
    assert np.allclose(np.sum(sent, axis=0, dtype=np.float64), wanted, rtol=0, atol=1e-4)


def oracle_top_k(deltas, k):
    """EF14 in float64, entry by entry."""
    e, sent = np.zeros(len(deltas[0])), []
    for delta in deltas:
        p = e + delta
        order = sorted(range(len(p)), key=lambda i: (-abs(p[i]), i))[:k]
        sent.append([p[i] if i in order else 0.0 for i in range(len(p))])
        e = p - sent[-1]
    return np.array(sent), e


def test_error_feedback_against_float64():
    """With multiples of 1/64, which float32 adds without rounding."""
    rng = np.random.default_rng(1)
    deltas = [np.round(rng.normal(size=D) * 64) / 64 for _ in range(8)]
    layout, c, state, sent = Layout(LAYOUT.slots[:3]), transform("top_k", k=3), {}, []
    for t, delta in enumerate(deltas):
        coded = c(delta.astype(np.float32), state, task(round=t), layout)
        state = coded.state
        sent.append(coded.delta)
    wanted, residual = oracle_top_k(deltas, 3)
    assert np.abs(np.array(sent) - wanted).max() <= 1e-9
    assert np.abs(state["residual"] - residual).max() <= 1e-9


def test_ef21_by_hand():
    """k = 1: of (3, 2) the server gets (3, 0), of the same again the difference (0, 2)."""
    layout, delta = Layout((slot("a", 0, 2),)), np.array([3, 2], np.float32)
    c = transform("top_k", k=1, error_feedback="ef21")
    first = c(delta, {}, task(), layout)
    assert first.delta.tolist() == first.state["h"].tolist() == [3, 0]
    second = c(delta, first.state, task(round=1), layout)
    assert second.delta.tolist() == second.state["h"].tolist() == [3, 2]
    third = c(np.array([1, 1], np.float32), second.state, task(round=2), layout)
    assert third.delta.tolist() == [1, 2], "the difference (-2, -1) sends -2"
    assert first.wire_bytes == second.wire_bytes == third.wire_bytes == 5


@pytest.mark.parametrize("name", ["top_k", "random_k"])
def test_statistics_are_sent_as_they_are_and_personal_slots_not_at_all(name):
    delta = vector(1, 14)
    delta[6] = 0
    c = transform(name, lambda slot: slot.name == "head", fraction=1.0)
    coded = c(delta, {}, task(), LAYOUT)
    assert coded.delta.tobytes() == delta.tobytes()
    assert coded.wire_bytes == 4 * (11 + 2)
    c = transform(name, lambda slot: slot.name in ("head", "mean"), k=2, error_feedback="ef14")
    coded = c(delta, {}, task(), LAYOUT)
    assert coded.delta[12:].tobytes() == delta[12:].tobytes()
    assert np.count_nonzero(coded.delta[:12]) == 2
    assert len(coded.state["residual"]) == 11
    assert coded.wire_bytes == 2 * 4 + (name == "top_k"), "2 indices of 4 bits"


def test_random_entries_are_those_of_seed_round_and_client():
    c, delta = transform("random_k"), vector(2, 14)
    one = c(delta, {}, task(), LAYOUT).delta.tobytes()
    assert one == c(delta, {}, task(), LAYOUT).delta.tobytes()
    for other in (task(client=1), task(round=1)):
        assert one != c(delta, {}, other, LAYOUT).delta.tobytes()
    chosen = generator(5, "compress", 0, 0).choice(D, 3, replace=False)
    assert set(np.flatnonzero(c(delta, {}, task(), LAYOUT).delta[:D])) == set(chosen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fraction": 0.5}, "compress.fraction: 0.5 given; give compress.name too"),
        ({"k": 3}, "compress.k: 3 given; give compress.name too"),
        ({"levels": 3}, "compress.levels: 3 given; give compress.name too"),
        (
            {"name": "qsgd", "error_feedback": "ef14"},
            "compress.error_feedback: 'ef14' given; qsgd has none; only power_sgd, ",
        ),
        ({"name": "qsgd", "k": 3}, "compress.k: 3 given; qsgd has none; only random_k, top_k"),
        (
            {"name": "top_k", "k": 3, "fraction": 0.5},
            "compress.fraction: 0.5 given beside compress.k",
        ),
        ({"name": "top_k", "levels": 3}, "compress.levels: 3 given; top_k has none; only qsgd"),
        ({"name": "qsgd", "levels": 0}, "compress.levels: "),
        ({"name": "topk"}, "compress.name: "),
        ({"name": "top_k", "fraction": 0}, "compress.fraction: "),
        ({"name": "top_k", "fraction": 1.5}, "compress.fraction: "),
        ({"name": "top_k", "k": 0}, "compress.k: "),
        ({"name": "top_k", "error_feedback": "ef"}, "compress.error_feedback: "),
        ({"name": "top_k", "ratio": 0.1}, "compress.ratio: unknown key 'compress.ratio'"),
    ],
)
def test_bad_settings_are_refused_by_their_key(given, message):
    with pytest.raises(InvalidSetting) as error:
        RunConfig(compress=given)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_compression_follows_the_transforms_of_the_method():
    given = config("tests.seams:sign_flip", "mlp", compress={"name": "random_k", "k": 9})
    _, last = algorithm_of(given).transforms
    assert isinstance(last, Compression)
    assert last.compressor.operator == RandomK(0.1, 9)


@pytest.mark.integration
@pytest.mark.parametrize(
    "compress",
    [
        {"name": "qsgd"},
        {"name": "sign"},
        {"name": "top_k", "error_feedback": "ef21"},
        {"name": "power_sgd", "rank": 3},
    ],
    ids=str,
)
def test_a_round_with_every_compressor(compress):
    """With BatchNorm; the bytes of two tensors and of statistics are counted beside it."""
    given = small("fedavg", "cnn", compress=compress, train={"rounds": 2})
    setup = prepare(given)
    d, tensors = setup.num_sent, sum(s.role == "param" for s in setup.layout.slots)
    k, statistics = d // 10, 4 * (setup.layout.size - d)
    sent = {
        "qsgd": 4 * tensors + d,
        "sign": 4 * tensors + -(-d // 8),
        "top_k": 4 * k + -(-k * (d - 1).bit_length() // 8),
        "power_sgd": 4 * sum(floats(s.shape, 3) for s in setup.layout.slots if s.role == "param"),
    }[compress["name"]]
    for one in run_rounds(given):
        assert one.row["uplink_bytes"] == 4 * (sent + statistics)
        assert setup.roster.update_bytes == sent + statistics, "is known before"
        assert np.isfinite(one.after.params).all()


@pytest.mark.integration
@pytest.mark.parametrize("client_batch", [1, 2])
def test_a_compressed_run_resumes_to_the_same_bytes_and_counts_its_own(tmp_path, client_batch):
    given = config(
        "scaffold",
        "mlp",
        train={"rounds": 4, "momentum": 0.0},
        engine={"client_batch": client_batch, "checkpoint_every": 1},
        compress={"name": "top_k", "fraction": 0.01},
    )
    whole = fedsim.run(given, tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        fedsim.run(given, tmp_path / "cut", [Stopper(2)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)
    d = prepare(given).layout.num_params
    k = d // 100
    sent = 4 * k + -(-k * int(np.ceil(np.log2(d))) // 8)
    assert whole.read("rounds").uplink_bytes.tolist() == [2 * (sent + 4 * d)] * 4
    assert whole.summary["compress.fraction"] == 0.01
