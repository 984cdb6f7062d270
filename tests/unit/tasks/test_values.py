"""Regression, several labels and survival: losses and measures against scikit-learn and lifelines.

Outputs are float64, so that both sides differ by rounding alone: sums of n <= 60 terms of size 1 to
100 are equal to 1e-12.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from fedsim import tasks
from fedsim.core.task import TargetError
from fedsim.metrics.samples import Kept, joined

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


MAKERS = {"regression": numbers}


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
}


@pytest.mark.parametrize(
    ("name", "y", "why"), [(name, *case) for name, cases in BAD.items() for case in cases]
)
def test_targets_of_another_task_are_refused(name, y, why):
    with pytest.raises(TargetError) as caught:
        tasks.find(name).check(y)
    assert why in str(caught.value)
