"""What the Gram matrix says of a round's updates: diversity, spectrum and cosines."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import fedsim
from fedsim.server.gram import cosines, gradient_diversity, shares, spectrum
from tests.decomposing import config, rounds

# (3, 0) and (0, 4): squared lengths 9 and 16, orthogonal
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
    settings = config(
        "fedavg",
        train={"sample_rate": 0.75},
        evaluation=NEVER | {"cosines": True},
    )
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


@pytest.mark.integration
def test_without_cosines_there_are_no_such_tables(tmp_path):
    store = fedsim.run(config(evaluation=NEVER), tmp_path / "run")
    names = {path.stem for path in store.path.glob("*.csv")}
    assert not names & {"cosines", "spectrum", "decomposition", "loss_matrix"}
    assert not (store.path / "loss_matrix.npz").exists()
    assert store.read("rounds")["gradient_diversity"].between(1, 100).all()


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
