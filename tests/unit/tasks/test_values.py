"""Regression, several labels and survival: losses and measures against scikit-learn and lifelines.

Outputs are float64, so that both sides differ by rounding alone: sums of n <= 60 terms of size 1 to
100 are equal to 1e-12.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from fedsim import tasks
from fedsim.core.task import TargetError
from fedsim.metrics.samples import Kept, joined
from tests.oracles import survival as oracle

CASES = range(200)
EXACT = {"rel": 1e-12, "abs": 1e-12}


def values_of(name, outputs, y, **options):
    """The loss and the measures of all samples."""
    kept = Kept(tasks.find(name, options), outputs, y)
    return {"loss": kept.loss(), **kept.values()}


def numbers(case):
    """Outputs and targets (n, w): one sample, one number or several, equal targets."""
    draw = np.random.default_rng(case)
    n, w = int(draw.integers(1, 60)), int(draw.integers(1, 4))
    y = draw.integers(0, 3 if case % 4 == 0 else 100, (n, w)).astype(np.float32)
    if case % 10 == 0:
        y[:, 0] = 1
    return draw.normal(50, 30, (n, w)), y[:, 0] if w == 1 and case % 2 else y


def test_regression_is_scikit_learns():
    for case in CASES:
        check_regression(*numbers(case))


def check_regression(outputs, y):
    flat = y.reshape(len(y), -1)
    found = values_of("regression", outputs, y)
    squared = sklearn_metrics.mean_squared_error(flat, outputs)
    assert found["loss"] == pytest.approx(squared, **EXACT)
    assert found["rmse"] == pytest.approx(squared**0.5, **EXACT)
    assert found["mae"] == pytest.approx(
        sklearn_metrics.mean_absolute_error(flat, outputs), **EXACT
    )
    if (np.ptp(flat, axis=0) == 0).any():  # of which no R2 is defined
        assert found["r2"] is None
    else:
        # 1 - a / b with a up to 1e4 b
        assert found["r2"] == pytest.approx(
            sklearn_metrics.r2_score(flat, outputs), rel=1e-10, abs=1e-12
        )
    absolute = values_of("regression", outputs, y, loss="mae")
    assert absolute["loss"] == pytest.approx(found["mae"], **EXACT)
    theirs = torch.nn.HuberLoss(delta=20.0)(torch.tensor(outputs), torch.tensor(flat).double())
    huber = values_of("regression", outputs, y, loss="huber", delta=20.0)
    assert huber["loss"] == pytest.approx(theirs.item(), **EXACT)


def label_sets(case):
    """Outputs and labels (n, L): one sample, labels that all or none have, equal outputs."""
    draw = np.random.default_rng(case)
    n, count = int(draw.integers(1, 60)), int(draw.integers(1, 6))
    y = (draw.random((n, count)) < draw.choice([0.1, 0.5])).astype(np.float32)
    y[:, 0] = case % 2 if case % 5 == 0 else y[:, 0]
    outputs = draw.normal(0, 3, (n, count))
    return outputs.round() if case % 3 == 0 else outputs, y


def test_multilabel_is_scikit_learns():
    for case in CASES:
        check_multilabel(*label_sets(case))


def check_multilabel(outputs, y):
    kept = Kept(tasks.find("multilabel"), outputs, y)
    chances = 1 / (1 + np.exp(-outputs))
    labels = range(y.shape[1])
    each = [sklearn_metrics.log_loss(y[:, k], chances[:, k], labels=[0, 1]) for k in labels]
    # where a chance is near 1, log(chance) has lost digits: the relative error is 1e-16 / (1 - p)
    assert kept.loss() == pytest.approx(np.mean(each), rel=1e-9)
    both = [k for k in labels if np.ptp(y[:, k])]
    aucs = {k: sklearn_metrics.roc_auc_score(y[:, k], outputs[:, k]) for k in both}
    mean = np.mean(list(aucs.values())) if aucs else None
    assert kept.values()["auc"] == (mean if mean is None else pytest.approx(mean, **EXACT))
    columns = kept.of_classes()
    assert columns["auc"] == [pytest.approx(aucs[k]) if k in aucs else None for k in labels]
    precision, recall, f1, support = sklearn_metrics.precision_recall_fscore_support(
        y, outputs > 0, labels=[1] if len(labels) == 1 else None, zero_division=0
    )
    assert columns["support"] == support.tolist()
    assert columns["precision"] == pytest.approx(precision, **EXACT)
    seen = [k for k in labels if support[k]]
    for name, theirs in (("recall", recall), ("f1", f1)):
        expected = [pytest.approx(theirs[k], **EXACT) if k in seen else None for k in labels]
        assert columns[name] == expected
    macro = kept.values()["macro_f1"]
    assert macro == (pytest.approx(f1[seen].mean(), **EXACT) if seen else None)


def lives(case):
    """Scores and (n, 2) times and events: one sample, all censored, none, ties of both kinds."""
    draw = np.random.default_rng(case)
    n = int(draw.integers(1, 40))
    time = draw.integers(0 if case % 7 == 0 else 1, 6 if case % 2 else 1000, n)
    event = draw.random(n) < {0: 0.0, 1: 1.0}.get(case % 10, 0.5)
    scores = draw.normal(0, 200 if case % 5 == 0 else 2, (n, 1))
    scores = scores.round() if case % 3 == 0 else scores
    return scores, np.column_stack([time, event]).astype(np.float32)


@pytest.mark.parametrize("ties", ["efron", "breslow", "order"])
def test_cox_is_the_equation(ties):
    task = tasks.find("survival", {"ties": ties})
    for case in CASES:
        scores, y = lives(case)
        found = task.loss(torch.tensor(scores), torch.tensor(y))
        assert found.shape == (len(y),)
        assert not found[y[:, 1] == 0].any()
        theirs = oracle.cox(scores[:, 0].tolist(), *y.T.tolist(), ties)
        # a score of 600 leaves 1e-13 of a term of its own size, Efron's logarithm as much
        assert found.mean().item() == pytest.approx(theirs, rel=1e-11, abs=1e-10)
        c_index = values_of("survival", scores, y)["c_index"]
        assert c_index == oracle.concordance(scores[:, 0].tolist(), *y.T.tolist())


def test_cox_is_that_of_lifelines():
    """Efron's likelihood with its gradient, and the C-index with ties."""
    coxph = pytest.importorskip(
        "lifelines.fitters.coxph_fitter", reason="lifelines asks for pandas below 3: --no-deps"
    )
    from lifelines.utils import concordance_index

    efron = coxph.SemiParametricPHFitter._get_efron_values_single
    task = tasks.find("survival")
    for case in (case for case in CASES if case % 5):  # exp(200) is too much for lifelines
        scores, y = lives(case)
        order = np.argsort(y[:, 0], kind="stable")
        frame = pd.DataFrame({"score": scores[order, 0], "time": y[order, 0], "event": y[order, 1]})
        columns = frame[["score"]], frame["time"], frame["event"], frame["time"] * 0 + 1
        _, gradient, likelihood = efron(None, *columns, None, np.ones(1))
        slope = torch.ones(1, dtype=torch.float64, requires_grad=True)
        total = task.loss(torch.tensor(scores) * slope, torch.tensor(y)).sum()
        total.backward()
        assert total.item() == pytest.approx(-likelihood, rel=1e-11, abs=1e-11)
        assert slope.grad.item() == pytest.approx(-gradient.item(), rel=1e-9, abs=1e-9)
        c_index = values_of("survival", scores, y)["c_index"]
        if c_index is not None:
            assert c_index == concordance_index(y[:, 0], -scores[:, 0], y[:, 1])


def test_cox_by_hand():
    """Three samples with score log 1, log 2 and log 3: the second and third have the event at 5."""
    scores = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64).log()
    y = torch.tensor([[9.0, 0], [5, 1], [5, 1]])
    expected = {"breslow": (6, 6), "efron": (6, 6 - 5 / 2), "order": (3, 6)}
    for ties, (second, third) in expected.items():
        found = tasks.find("survival", {"ties": ties}).loss(scores, y)
        by_hand = [0.0, np.log(second / 2), np.log(third / 3)]
        np.testing.assert_allclose(found, by_hand, rtol=1e-14)


MAKERS = {"regression": numbers, "multilabel": label_sets, "survival": lives}


@pytest.mark.parametrize("name", MAKERS)
def test_clients_together_are_all_samples_at_once(name):
    """Joined parts give what all samples do; sums of additive measures add up over parts."""
    for case in range(0, 200, 7):
        outputs, y = MAKERS[name](case)
        task = tasks.find(name)
        whole = Kept(task, outputs, y)
        parts = [whole.at(i) for i in np.array_split(np.arange(len(y)), 3) if len(i)]
        pooled = joined(parts)
        assert pooled.values() == whole.values()
        assert pooled.loss() == whole.loss()
        for measure in (m for m in task.measures if not m.whole):
            total = sum(part.totals(measure) for part in parts)
            np.testing.assert_allclose(total, whole.totals(measure), rtol=1e-12)
        if task.additive:
            each = sum(len(part) * part.loss() for part in parts) / len(y)
            assert each == pytest.approx(whole.loss(), **EXACT)


BAD = {
    "regression": [
        (np.zeros(3), "float64"),
        (np.zeros((3, 1, 1), np.float32), "(N, w)"),
        (np.array([0, np.nan], np.float32), "not finite"),
    ],
    "multilabel": [
        (np.zeros(3, np.float32), "(N, L)"),
        (np.zeros((3, 2)), "float64"),
        (np.array([[0, 1], [0, np.nan]], np.float32), "label 1 is missing (NaN)"),
        (np.array([[0, 1], [0, 2]], np.float32), "label 1 is 2; every label is 0 or 1"),
    ],
    "survival": [
        (np.zeros((3, 3), np.float32), "(N, 2)"),
        (np.array([[1, 1], [-2, 1]], np.float32), "time is -2"),
        (np.array([[1, 1], [np.inf, 1]], np.float32), "time is inf"),
        (np.array([[1, 1], [1, 0.5]], np.float32), "event is 0.5; it is 0 or 1"),
    ],
}


@pytest.mark.parametrize(
    ("name", "y", "why"), [(name, *case) for name, cases in BAD.items() for case in cases]
)
def test_targets_of_another_task_are_refused(name, y, why):
    with pytest.raises(TargetError) as caught:
        tasks.find(name).check(y)
    assert why in str(caught.value)
