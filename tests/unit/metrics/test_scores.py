"""Scores, the decomposition of the loss and Shapley values: by hand, against oracles, and laws."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from sklearn import metrics

import fedsim
from fedsim.core.errors import ContractError, DivergedError
from fedsim.metrics import shapley
from fedsim.metrics.decomposition import terms
from fedsim.metrics.scores import (
    ClassScore,
    GroupScore,
    SampleScores,
    Scores,
    auc,
    calibration_error,
    gini,
    group_score,
    mean_scores,
    per_sample,
    score,
)
from tests import decomposing
from tests.decomposing import SPREADS, TERMS


def labels_of(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def logits_of(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_three_classes_by_hand() -> None:
    # predictions 0, 1, 1, 2; labels 0, 1, 0, 1
    # class 0: support 2, hit 1, claimed 1 -> recall 1/2, precision 1, F1 = 2*1/(2+1) = 2/3
    # class 1: support 2, hit 1, claimed 2 -> recall 1/2, precision 1/2, F1 = 2*1/(2+2) = 1/2
    # class 2: support 0 -> recall None, precision 0/1 = 0; AUC None
    # AUC of class 0 by its probability, samples 0 and 2 positive: e^2/(e^2+2) above both 1/(e+2)
    # and 1/(e^3+2), 1/(e+2) ties and wins: (1 + 1 + 1/2 + 1)/4; of class 1, samples 1 and 3
    # positive: e/(e+2) wins and ties, 1/(e^3+2) loses twice (1/(e^2+2) is larger): (1 + 1/2)/4
    got = score(logits_of((2, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 3)), labels_of(0, 1, 0, 1))
    # losses: -log(e^2/(e^2+2)), -log(e/(e+2)), -log(1/(e+2)), -log(1/(e^3+2))
    e = math.e
    losses = [
        math.log(e**2 + 2) - 2, math.log(e + 2) - 1, math.log(e + 2), math.log(e**3 + 2),
    ]  # fmt: skip
    assert got.loss == pytest.approx(sum(losses) / 4, rel=1e-14)
    assert (got.num_samples, got.accuracy, got.balanced_accuracy) == (4, 0.5, 0.5)
    assert got.macro_f1 == pytest.approx((2 / 3 + 1 / 2) / 2, rel=1e-15)
    assert got.auc is None
    assert got.classes == (
        ClassScore(label=0, support=2, recall=0.5, precision=1.0, auc=0.875),
        ClassScore(label=1, support=2, recall=0.5, precision=0.5, auc=0.375),
        ClassScore(label=2, support=0, recall=None, precision=0.0),
    )  # fmt: skip
    assert got.confusion is not None
    assert got.confusion.tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 2, 1]]


def test_ties_go_to_the_lowest_class_and_count_half_in_the_auc() -> None:
    got = score(logits_of((0, 0), (0, 0)), labels_of(0, 1))
    assert got.accuracy == 0.5
    assert [c.recall for c in got.classes] == [1.0, 0.0]
    assert got.auc == 0.5
    # values 1 2 2 3, positive are the second 2 and the 3: pairs (2,1)=1 (2,2)=1/2 (3,1)=1 (3,2)=1
    values = np.array([1.0, 2.0, 2.0, 3.0])
    assert auc(values, np.array([False, False, True, True])) == 3.5 / 4


def test_binary_auc_is_that_of_class_one() -> None:
    # class 1's margin: -1, 1, 0, 2; positive 0 and 2; pairs won: (0,-1), (2,-1), (2,1) of 4
    got = score(logits_of((1, 0), (0, 1), (0, 0), (0, 2)), labels_of(0, 0, 1, 1))
    assert got.auc == 0.75


@pytest.mark.parametrize("num_classes", [2, 3, 7])
@pytest.mark.parametrize("coarse", [False, True])
def test_agrees_with_scikit_learn(num_classes: int, coarse: bool) -> None:
    rng = np.random.default_rng(num_classes)
    logits = rng.normal(size=(300, num_classes)).astype(np.float32) * 3
    logits = np.round(logits) if coarse else logits
    labels = rng.integers(num_classes, size=300)
    got = score(logits, labels)
    p = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    predicted = logits.argmax(axis=1)
    wanted_auc = np.mean(
        [metrics.roc_auc_score(labels == c, p[:, c]) for c in range(num_classes)]
        if num_classes > 2
        else metrics.roc_auc_score(labels, p[:, 1])
    )
    precision, recall, _, support = metrics.precision_recall_fscore_support(
        labels, predicted, labels=range(num_classes), zero_division=0.0
    )
    assert got.loss == pytest.approx(metrics.log_loss(labels, p), rel=1e-12)
    assert got.accuracy == pytest.approx(metrics.accuracy_score(labels, predicted), rel=1e-14)
    wanted = metrics.balanced_accuracy_score(labels, predicted)
    assert got.balanced_accuracy == pytest.approx(wanted, rel=1e-14)
    assert got.macro_f1 == pytest.approx(
        metrics.f1_score(labels, predicted, average="macro"), rel=1e-14
    )
    assert got.auc == pytest.approx(wanted_auc, rel=1e-13)
    assert [c.support for c in got.classes] == support.tolist()
    assert [c.recall for c in got.classes] == pytest.approx(recall.tolist(), rel=1e-14)
    assert [c.precision for c in got.classes] == pytest.approx(precision.tolist(), rel=1e-14)
    one_vs_rest = [metrics.roc_auc_score(labels == c, p[:, c]) for c in range(num_classes)]
    assert [c.auc for c in got.classes] == pytest.approx(one_vs_rest, rel=1e-12)
    assert dense(got, num_classes).tolist() == metrics.confusion_matrix(labels, predicted).tolist()


def dense(got: Scores, num_classes: int) -> np.ndarray:
    """The confusion as a matrix: row label, column prediction."""
    assert got.confusion is not None
    matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
    label, prediction, count = got.confusion.T
    matrix[label, prediction] = count
    assert len(got.confusion) == np.count_nonzero(matrix), "only pairs that occur, each once"
    return matrix


def test_confusions_of_several_models_are_summed() -> None:
    rng = np.random.default_rng(7)
    labels = rng.integers(5, size=60)
    models = [score(rng.normal(size=(60, 5)).astype(np.float32), labels) for _ in range(4)]
    got = mean_scores(models)
    assert dense(got, 5).tolist() == sum(dense(m, 5) for m in models).tolist()
    assert [c.auc for c in got.classes] == pytest.approx(
        np.mean([[c.auc for c in m.classes] for m in models], axis=0).tolist(), rel=1e-14
    )
    # means over models of recall: the summed hits by the summed support
    hits = np.diag(dense(got, 5)) / dense(got, 5).sum(axis=1)
    assert [c.recall for c in got.classes] == pytest.approx(hits.tolist(), rel=1e-14)


def test_loss_and_accuracies_do_not_depend_on_the_order_of_samples() -> None:
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(1000, 5)) * 10).astype(np.float32)
    labels = rng.integers(5, size=1000)
    order = rng.permutation(1000)
    assert score(logits, labels) == score(logits[order], labels[order])


def test_large_logits_do_not_overflow() -> None:
    got = score(logits_of((1e4, -1e4), (1e4, -1e4)), labels_of(0, 1))
    assert got.loss == 1e4
    assert score(logits_of((3e38, -3e38)), labels_of(0)).loss == 0.0


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((2, 3), np.float32), labels_of(0), r"\(2, 3\) and \(1,\)"),
        (np.zeros((0, 3), np.float32), labels_of(), r"N, C >= 1"),
        (np.zeros(3, np.float32), labels_of(0, 1, 2), r"\(3,\)"),
        (np.zeros((2, 3), np.float32), labels_of(0, 3), "labels 0..3 do not fit 3 logits"),
        (np.zeros((2, 3), np.float32), labels_of(-1, 0), "labels -1..0"),
    ],
)
def test_shapes_and_labels_that_do_not_fit(
    logits: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        score(logits, labels)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(DivergedError, match=r"1 of 3 evaluated samples .* first of sample 1"):
        score(logits_of((0, 0), (0, value), (0, 0)), labels_of(0, 1, 0))


def test_mean_over_models_by_hand() -> None:
    # model a predicts 0, 0 and b predicts 1, 1 for labels 0, 1: recalls (1, 0) and (0, 1),
    # precisions (1/2, 0) and (0, 1/2), F1 (2/3, 0) and (0, 2/3), losses log(1+1/e), +1 and swapped
    a = score(logits_of((1, 0), (1, 0)), labels_of(0, 1))
    b = score(logits_of((0, 1), (0, 3)), labels_of(0, 1))
    got = mean_scores([a, b])
    assert got.classes == (
        ClassScore(label=0, support=1, recall=0.5, precision=0.25, auc=0.75),
        ClassScore(label=1, support=1, recall=0.5, precision=0.25, auc=0.75),
    )
    assert got.confusion is not None
    assert got.confusion.tolist() == [[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
    assert (got.num_samples, got.accuracy, got.balanced_accuracy) == (2, 0.5, 0.5)
    assert got.macro_f1 == pytest.approx(1 / 3, rel=1e-15)
    # a: log(1+1/e), log(1+e); b: log(1+e), log(1+e^-3)
    losses = [
        math.log1p(1 / math.e),
        math.log1p(math.e),
        math.log1p(math.e),
        math.log1p(math.e**-3),
    ]
    assert got.loss == pytest.approx(sum(losses) / 4, rel=1e-14)
    # AUC: a's values tie, 1/2; b ranks the one positive above the one negative, 1
    assert got.auc == 0.75
    assert mean_scores([a, replace(b, auc=None)]).auc is None
    assert mean_scores([a]) == a


def drawn(seed: int, num_samples: int = 50, num_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels at random."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_samples, num_classes)) * 3).astype(np.float32)
    return logits, rng.integers(num_classes, size=num_samples)


def test_single_samples_by_hand() -> None:
    # losses: log(e^2 + 1) - 2, log(2) for a tie, log(e + 1); a tie goes to the lowest class
    got = per_sample(logits_of((2, 0), (0, 0), (1, 0)), labels_of(0, 0, 1))
    e = math.e
    assert got.loss.tolist() == pytest.approx(
        [math.log(e**2 + 1) - 2, math.log(2), math.log(e + 1)], rel=1e-14
    )
    assert got.correct.tolist() == [True, True, False]
    assert (got.loss.dtype, got.correct.dtype) == (np.float64, np.bool_)


def test_the_mean_loss_is_rounded_once() -> None:
    losses = np.array([1e16, 1.0, 1.0, 0.0])
    samples = SampleScores(losses, np.ones(4, np.bool_), np.ones(4, np.int64))
    assert group_score("", samples).loss == (1e16 + 2) / 4
    assert losses.sum() != 1e16 + 2


def test_groups_are_scored_as_if_they_were_alone() -> None:
    logits, labels = drawn(4)
    groups = {"b": np.array([3, 4, 49]), "a": np.arange(0, 50, 2), "one": np.array([7])}
    got = score(logits, labels, groups)
    assert [group.group for group in got.groups] == ["b", "a", "one"], "in the order given"
    for group in got.groups:
        alone = score(logits[groups[group.group]], labels[groups[group.group]])
        assert group == GroupScore(
            group=group.group,
            num_samples=alone.num_samples,
            loss=alone.loss,
            accuracy=alone.accuracy,
        )
    assert replace(got, groups=()) == score(logits, labels), "nothing else depends on groups"


def plain_calibration_error(confidence: list[float], right: list[bool]) -> float:
    error = 0.0
    for m in range(1, 16):
        own = [i for i, c in enumerate(confidence) if (m - 1) / 15 < c <= m / 15]
        if own:
            accuracy = sum(right[i] for i in own) / len(own)
            error += len(own) * abs(accuracy - sum(confidence[i] for i in own) / len(own))
    return error / len(confidence)


def test_calibration_error_by_hand_and_by_its_definition() -> None:
    # bins (14/15, 1]: 0.95, 0.95, one right; (8/15, 9/15]: 0.55, 0.60, one right
    confidence, right = np.array([0.95, 0.95, 0.55, 0.60]), np.array([True, False, True, False])
    assert calibration_error(confidence, right) == pytest.approx(0.2625, abs=1e-15)
    edges = np.arange(1, 16) / 15  # a value on an edge belongs to the bin below it
    for values in (edges, np.random.default_rng(0).random(500)):
        hits = np.random.default_rng(1).random(len(values)) < values
        expected = plain_calibration_error(values.tolist(), hits.tolist())
        assert calibration_error(values, hits) == pytest.approx(expected, abs=1e-12)


def test_gini_by_hand_and_by_its_definition() -> None:
    # |0.9 - 0.6| + |0.9 - 0.3| + |0.6 - 0.3|, twice, by 2 * 9 * 0.6
    assert gini(np.array([0.9, 0.3, 0.6])) == pytest.approx(2 / 9, abs=1e-15)
    assert gini(np.full(7, 0.3)) == pytest.approx(0, abs=1e-15)
    assert gini(np.zeros(3)) == 0
    x = np.random.default_rng(0).random(50)
    expected = np.abs(x[:, None] - x).sum() / (2 * 50**2 * x.mean())
    assert gini(x) == pytest.approx(expected, abs=1e-12)


# decomposition

# two clients of 1 and 3 samples: M[i][j] = L_j(w_i), and L_j(w)
MATRIX = [[0.2, 1.0], [0.9, 0.4]]
AFTER = [0.5, 0.6]
COUNTS = [1, 3]


def test_two_clients_by_hand():
    # local 0.2 / 4 + 3 * 0.4 / 4 = 0.35; Lq(w_0) = 0.8, Lq(w_1) = 0.525, so that their mean is
    # 0.59375 and shift 0.24375; Lq(w) = 0.5 / 4 + 3 * 0.6 / 4 = 0.575
    result = fedsim.decompose(MATRIX, AFTER, COUNTS)
    assert result == pytest.approx(
        {
            "local_loss": 0.35,
            "shift_loss": 0.24375,
            "aggregation_loss": -0.01875,
            "global_loss": 0.575,
        },
        abs=1e-12,
    )
    assert tuple(result) == TERMS


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


def losses_of(seed):
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
    arguments = losses_of(seed)
    got = fedsim.decompose(*arguments)
    exact = decomposing.terms(*arguments)
    scale = max(arguments[0].max(), arguments[1].max())
    for name in TERMS:
        assert got[name] == pytest.approx(exact[name], rel=1e-13, abs=1e-14 * scale), name
    total = got["local_loss"] + got["shift_loss"] + got["aggregation_loss"]
    assert total == pytest.approx(got["global_loss"], rel=1e-9)
    local, after, samples, owner_samples, owners = arguments
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
        ({"client_losses": [0.2, 1.0]}, r"client_losses \(m, K\).* got \(2,\), \(2,\)"),
        ({"client_losses": np.zeros((0, 2)), "num_samples": []}, "needed are client"),
        ({"global_losses": [0.5]}, r"global_losses \(K,\) or \(m, K\).* got \(2, 2\), \(1,\)"),
        ({"num_samples": [1, 2, 3]}, r"num_samples \(m,\).* got \(2, 2\), \(2,\), \(3,\)"),
        ({"owner_samples": [1]}, r"owner_samples \(K,\)"),
        ({"owners": [0]}, r"owners \(m,\)"),
        ({"owners": [0, 2]}, r"owners must be columns 0\.\.1, got \[0, 2\]"),
        ({"owners": [0.0, 1.0]}, r"owners must be columns 0\.\.1, got \[0\.0, 1\.0\]"),
        ({"num_samples": [0, 0]}, "some of num_samples, and of owner_samples, must be above 0"),
        ({"num_samples": [-1, 2]}, "num_samples and owner_samples counts"),
        ({"owner_samples": [3, np.inf]}, "num_samples and owner_samples counts"),
        ({"global_losses": [0.5, np.nan]}, "losses must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    values = {"client_losses": MATRIX, "global_losses": AFTER, "num_samples": COUNTS} | changes
    with pytest.raises(ContractError, match=message):
        fedsim.decompose(**values)


# Shapley values


def by_all_orders(values, m):
    """(m,) the mean gain over all m! orders, in fractions."""
    total = [Fraction(0)] * m
    for order in permutations(range(m)):
        joined = 0
        for player in order:
            after = joined | 1 << player
            total[player] += Fraction(values[after]) - Fraction(values[joined])
            joined = after
    return [each / math.factorial(m) for each in total]


def game(m, seed=0):
    """A game: a value for each of the 2^m coalitions, that of nobody not 0."""
    return np.random.default_rng([seed, m]).standard_normal(1 << m).tolist()


def test_the_glove_game_by_hand():
    # player 0 has a left glove, 1 and 2 a right one each; a pair is worth 1. Player 0 completes a
    # pair unless it comes first (2/3); 1 does only right after 0 as the second of all (1/6)
    values = [float(s & 1 and s & 6 != 0) for s in range(8)]
    np.testing.assert_allclose(shapley.exact(values), [2 / 3, 1 / 6, 1 / 6], rtol=1e-15)


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_exact_values_are_the_mean_over_all_orders(m):
    values = game(m)
    expected = [float(each) for each in by_all_orders(values, m)]
    np.testing.assert_allclose(shapley.exact(values), expected, rtol=1e-12, atol=1e-14)


def test_who_adds_nothing_gets_nothing_and_equal_ones_get_the_same():
    size = [bin(s & 0b0111).count("1") for s in range(16)]  # player 3 changes nothing
    result = shapley.exact([s**2 for s in size])
    np.testing.assert_allclose(result, [3, 3, 3, 0], atol=1e-14)


def test_an_estimate_and_its_error_by_hand():
    # values 0, 1, 3, 8 of {}, {0}, {1}, {0, 1}: in the order 0, 1 the gains are 1 and 7, in the
    # order 1, 0 they are 5 and 3. Means 3 and 5; deviations of 2 give a variance of 8 (n - 1 = 1)
    # and errors of sqrt(8 / 2) = 2
    estimates, errors = shapley.sampled([[0, 1], [1, 0]], [0.0, 1.0, 3.0, 8.0].__getitem__)
    np.testing.assert_allclose(estimates, [3, 5])
    np.testing.assert_allclose(errors, [2, 2])


def test_estimates_share_the_whole_whatever_the_orders():
    values = game(6)
    rng = np.random.default_rng(1)
    orders = [rng.permutation(6).tolist() for _ in range(5)]
    estimates, errors = shapley.sampled(orders, lambda s: values[s])
    assert estimates.sum() == pytest.approx(values[-1] - values[0], abs=1e-12)
    assert (errors > 0).all()
    assert np.isnan(shapley.sampled(orders[:1], lambda s: values[s])[1]).all()


def test_the_error_is_that_of_the_estimates():
    # the estimates of 400 draws of 20 orders spread as their errors say: the ratio of variances is
    # a chi-square of 399 degrees, far within a factor of 1.5 (7 standard deviations of 0.07)
    values = game(5, seed=3)
    rng = np.random.default_rng(2)
    made = [
        shapley.sampled([rng.permutation(5).tolist() for _ in range(20)], values.__getitem__)
        for _ in range(400)
    ]
    spread = np.var([estimates for estimates, _ in made], axis=0, ddof=1)
    stated = np.mean([np.square(errors) for _, errors in made], axis=0)
    assert (spread < 1.5 * stated).all()
    assert (stated < 1.5 * spread).all()
    away = np.mean([estimates for estimates, _ in made], axis=0) - shapley.exact(values)
    assert (np.abs(away) < 5 * np.sqrt(stated / 400)).all()
