"""How many predictions may be others by the losses, and how far numbers may be apart."""

import pytest

from fedsim.audit.rounding import Rounding
from fedsim.core.rows import ClassRow, RoundRow
from fedsim.training.rows import RoundLog

N = 1600
VALUES = {"round": 1, "lr": 0.1, "cohort_size": 4, "dropped": 0, "train_loss": 0.5}
VALUES |= {"test_loss": 0.5, "test_accuracy": 0.8, "test_balanced_accuracy": 0.8}


def rounding(**recorded):
    """That of a round with N test samples in two classes, one of 400."""
    log = RoundLog(1)
    log.add(RoundRow(**VALUES))
    cells = {key: repr(value) for key, value in {**VALUES, **recorded}.items()}
    (row,) = log.tables["rounds"]
    of = Rounding(log, cells, {"val": [], "test": [400, 1200]})
    return lambda column: of.of("rounds", column, cells, row)


@pytest.mark.parametrize(
    ("loss", "flips"), [(0.5, 0), (0.5 + 1e-9, 1), (0.501, 7), (0.505, 16), (9.0, 16)]
)
def test_predictions_follow_from_the_losses(loss, flips):
    """One, and four a sample and unit of loss; never more than 1 % of the samples."""
    most, flip = rounding(test_loss=loss)("test_accuracy")
    assert flip == 1 / N
    assert most == pytest.approx(flips / N, abs=1e-8)
    most, flip = rounding(test_loss=loss)("test_balanced_accuracy")
    assert most == pytest.approx(flips / 800, abs=1e-8)  # two classes, the least of 400


@pytest.mark.parametrize(
    ("column", "most"),
    [("round", 0), ("cohort_size", 0), ("lr", 1e-10), ("train_loss", 0.01), ("val_loss", 0)],
)
def test_numbers_are_relative_to_their_size(column, most):
    assert rounding()(column)[0] == pytest.approx(most, abs=2e-9)


def test_a_class_has_as_many_predictions_as_may_move():
    log = RoundLog(1)
    log.add(RoundRow(**VALUES))
    log.add(row := ClassRow(round=1, label=0, support=400, recall=0.5, precision=0.5, auc=0.5))
    cells = {key: repr(value) for key, value in {**VALUES, "test_loss": 0.5 * (1 + 1e-4)}.items()}
    of = Rounding(log, cells, {"val": [], "test": [400, 1200]})
    most, flip = of.of("classes", "recall", {}, row)
    assert (most, flip) == (pytest.approx(4 / 400, abs=1e-8), 1 / 400)
