"""The three terms of the global loss: an example by hand, and against fractions."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.core.errors import ContractError
from fedsim.metrics.decomposition import terms
from tests import decomposing
from tests.decomposing import SPREADS, TERMS

# two clients of 1 and 3 samples: M[i][j] = L_j(w_i), and L_j(w)
MATRIX = [[0.2, 1.0], [0.9, 0.4]]
AFTER = [0.5, 0.6]
COUNTS = [1, 3]


def test_two_clients_by_hand():
    # local 0.2 / 4 + 3 * 0.4 / 4 = 0.35; Lq(w_0) = 0.8, Lq(w_1) = 0.525, so that their mean is
    # 0.59375 and shift 0.24375; Lq(w) = 0.5 / 4 + 3 * 0.6 / 4 = 0.575
    found = fedsim.decompose(MATRIX, AFTER, COUNTS)
    assert found == pytest.approx(
        {
            "local_loss": 0.35,
            "shift_loss": 0.24375,
            "aggregation_loss": -0.01875,
            "global_loss": 0.575,
        },
        abs=1e-12,
    )
    assert tuple(found) == TERMS


def test_the_spreads_by_hand():
    # shift: both differences are positive; aggregation: 0.25 * 0.225 + 0.75 * 0.05
    p = np.array([0.25, 0.75])
    got = terms(np.array(MATRIX), np.array([AFTER, AFTER]), p, p, np.arange(2))
    assert got["shift_spread"] == pytest.approx(0.24375, abs=1e-12)
    assert got["aggregation_spread"] == pytest.approx(0.09375, abs=1e-12)
    signed = np.array([[0.2, 0.1], [0.9, 0.4]])  # one of them is negative: they do not cancel
    got = terms(signed, np.array([AFTER, AFTER]), p, p, np.arange(2))
    assert got["shift_loss"] == pytest.approx(3 / 16 * (-0.1 + 0.5), abs=1e-12)
    assert got["shift_spread"] == pytest.approx(3 / 16 * (0.1 + 0.5), abs=1e-12)


def draw(seed):
    """Losses, counts with zeros among them, and owners in any order; every third personalised."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 7))
    k = m + int(rng.integers(0, 5))
    scale = 10.0 ** rng.integers(-6, 5)
    local = scale * rng.lognormal(sigma=2, size=(m, k))
    after = scale * rng.lognormal(sigma=2, size=(m, k) if seed % 3 == 0 else k)
    samples = rng.integers(0, 50, size=m)
    samples[rng.integers(m)] += 1
    owner_samples = rng.integers(0, 50, size=k)
    owner_samples[rng.integers(k)] += 1
    owners = rng.permutation(k)[:m] if seed % 2 else rng.integers(k, size=m)
    return local, after, samples, owner_samples, owners


@pytest.mark.parametrize("seed", range(40))
def test_any_losses_and_weights_agree_with_fractions_and_add_up(seed):
    given = draw(seed)
    got = fedsim.decompose(*given)
    exact = decomposing.terms(*given)
    scale = max(given[0].max(), given[1].max())
    for name in TERMS:
        assert got[name] == pytest.approx(exact[name], rel=1e-13, abs=1e-14 * scale), name
    total = got["local_loss"] + got["shift_loss"] + got["aggregation_loss"]
    assert total == pytest.approx(got["global_loss"], rel=1e-9)
    local, after, samples, owner_samples, owners = given
    p, q = samples / samples.sum(), owner_samples / owner_samples.sum()
    whole = terms(local, np.broadcast_to(after, local.shape), p, q, owners)
    for name in SPREADS:
        assert whole[name] == pytest.approx(exact[name], rel=1e-13), name


@pytest.mark.parametrize("seed", range(5))
def test_the_defaults_are_a_column_per_client_weighted_by_its_samples(seed):
    rng = np.random.default_rng(seed)
    local, after = rng.random((4, 4)), rng.random(4)
    n = rng.integers(1, 9, size=4)
    got = fedsim.decompose(local, after, n)
    assert got == fedsim.decompose(local, after, n, owner_samples=n, owners=range(4))
    order = rng.permutation(4)
    moved = fedsim.decompose(local[:, order], after[order], n, n[order], np.argsort(order))
    assert moved == pytest.approx(got, rel=1e-14), "the order of the columns is nothing"
    columns = np.argsort(order).astype(np.uint64)
    assert fedsim.decompose(local[:, order], after[order], n, owners=columns) == moved
    lists = fedsim.decompose(local.tolist(), after.tolist(), n.tolist())
    assert lists == got
    assert all(type(value) is float for value in got.values())


def test_one_client_has_no_shift_and_its_own_model_no_aggregation_loss():
    got = fedsim.decompose([[0.7]], [0.7], [5])
    assert (got["shift_loss"], got["aggregation_loss"]) == (0.0, 0.0)
    assert got["local_loss"] == got["global_loss"] == 0.7
    assert fedsim.decompose([[0.7]], [0.9], [5])["shift_loss"] == 0.0


def test_equal_data_everywhere_have_no_shift():
    local = np.repeat([[0.3], [0.8], [1.7]], 4, axis=1)
    got = fedsim.decompose(local, np.full(4, 0.6), [1, 2, 7], [3, 0, 1, 9])
    assert got["shift_loss"] == 0.0
    assert got["aggregation_loss"] == pytest.approx(0.6 - got["local_loss"], abs=1e-15)


def test_personalised_models_are_weighted_by_their_clients_samples():
    # client 0's model has loss 1 everywhere, client 1's loss 3
    got = fedsim.decompose(MATRIX, [[1.0, 1.0], [3.0, 3.0]], COUNTS)
    assert got["global_loss"] == pytest.approx(0.25 * 1 + 0.75 * 3, abs=1e-15)
    same = fedsim.decompose(MATRIX, [AFTER, AFTER], COUNTS)
    assert same == fedsim.decompose(MATRIX, AFTER, COUNTS)


def test_on_a_common_test_part_the_own_columns_carry_no_weight():
    rng = np.random.default_rng(1)
    own, common, after = rng.random((3, 3)), rng.random(3), 0.4
    n = np.array([2, 3, 5])
    p = n / 10
    got = fedsim.decompose(
        np.column_stack([own, common]), [9, 9, 9, after], n, [0, 0, 0, 80], [0, 1, 2]
    )
    local = p @ np.diag(own)
    assert got["local_loss"] == pytest.approx(local, rel=1e-14)
    assert got["shift_loss"] == pytest.approx(p @ common - local, rel=1e-13)
    assert got["aggregation_loss"] == pytest.approx(after - p @ common, rel=1e-13)
    assert got["global_loss"] == after


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client_losses": [0.2, 1.0]}, r"client_losses must be \(m, K\).* got \(2,\) and \(2,\)"),
        ({"client_losses": np.zeros((0, 2))}, r"got \(0, 2\) and \(2,\)"),
        ({"client_losses": np.zeros((2, 0)), "global_losses": []}, r"got \(2, 0\) and \(0,\)"),
        ({"client_losses": np.zeros((2, 2, 1))}, r"got \(2, 2, 1\)"),
        ({"global_losses": [0.5]}, r"global_losses \(K,\) or \(m, K\), got \(2, 2\) and \(1,\)"),
        ({"global_losses": [[0.5, 0.6]]}, r"got \(2, 2\) and \(1, 2\)"),
        ({"global_losses": 0.5}, r"got \(2, 2\) and \(\)"),
        ({"num_samples": [1, 2, 3]}, r"are \(2, 2\), so num_samples and owners must be \(2,\)"),
        ({"num_samples": 4}, r"got \(\), \(1,\) and \(\)"),
        ({"owner_samples": [1]}, r"owner_samples \(2,\); got \(2,\), \(2,\) and \(1,\)"),
        ({"owners": [0]}, r"got \(2,\), \(1,\) and \(2,\)"),
        ({"owners": [0, 2]}, r"owners must be columns 0\.\.1, got \[0, 2\]"),
        ({"owners": [-1, 0]}, r"owners must be columns 0\.\.1, got \[-1, 0\]"),
        ({"owners": [0.0, 1.0]}, r"owners must be columns 0\.\.1, got \[0\.0, 1\.0\]"),
        ({"owners": [False, True]}, r"owners must be columns 0\.\.1, got \[False, True\]"),
        (
            {"client_losses": [[1.0], [2.0]], "global_losses": [1.0], "owner_samples": [1]},
            r"owners must be columns 0\.\.0, got \[0, 1\]",
        ),
        ({"num_samples": [0, 0]}, r"num_samples must be counts, some of them above 0: \[0\.0"),
        ({"num_samples": [-1, 2]}, r"num_samples must be counts.*\[-1\.0, 2\.0\]"),
        ({"num_samples": [np.nan, 2]}, r"num_samples must be counts.*\[nan, 2\.0\]"),
        ({"num_samples": [np.inf, 2]}, r"num_samples must be counts.*\[inf, 2\.0\]"),
        ({"owner_samples": [0, 0]}, r"owner_samples must be counts, some of them above 0"),
        ({"owner_samples": [3, -1]}, r"owner_samples must be counts.*\[3\.0, -1\.0\]"),
        ({"client_losses": [[0.2, np.nan], [0.9, 0.4]]}, r"global_losses must be finite"),
        ({"global_losses": [0.5, np.inf]}, r"client_losses and global_losses must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    given = {"client_losses": MATRIX, "global_losses": AFTER, "num_samples": COUNTS} | changes
    with pytest.raises(ContractError, match=message) as error:
        fedsim.decompose(**given)
    assert "\n" not in str(error.value)
