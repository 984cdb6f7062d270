"""Tables that no honest run writes: found whatever rounds are drawn."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from fedsim.audit.rounding import Rounding
from fedsim.audit.tables import Comparison, Difference, Recorded, check_form
from fedsim.audit.verify import verify
from fedsim.core.rows import ClientRow, RoundRow
from fedsim.storage.checkpoint import decode_record, encode_record
from fedsim.training.rows import RoundLog
from tests.unit.audit.test_verify import (  # noqa: F401 - fixtures
    ROUNDS,
    drawing,
    forge,
    honest,
    rewrite,
    run,
)

pytestmark = pytest.mark.integration

N = 1600


def test_an_unfinished_table_may_end_anywhere(honest, tmp_path):  # noqa: F811
    """A run that was killed while it wrote: the last line, and rows of the round after."""
    part = shutil.copytree(honest, tmp_path / "part")
    (part / "summary.csv").unlink()
    for table in ("rounds", "models"):
        path = part / f"{table}.csv"
        path.write_bytes(path.read_bytes()[:-20])
    check_form(part, ROUNDS - 1, finished=False)
    rows = Recorded.read(part, "models", 1, ROUNDS).rows
    assert list(rows) == list(range(1, ROUNDS))


def test_a_checkpoint_that_says_it_is_of_a_later_round(run):  # noqa: F811
    """A drawn round would be before it, and nothing be done again."""
    rewrite(run / "rounds.csv", lambda rows: rows[5].__setitem__(1, "7.5"))
    forge(run)
    record = run / "checkpoints" / "round-000004.json"
    record.write_bytes(encode_record(decode_record(record.read_bytes()) | {"round": 99}))
    found = verify(run, rounds=1, seed=drawing(5))
    assert str(found.differences[0]).startswith("rounds.csv, line 6, round 5, column")


def dataset():
    """N test samples in two classes, one of 400."""
    labels = np.repeat([0, 1], [400, N - 400])
    return SimpleNamespace(y=labels, val=np.arange(0), test=np.arange(N))


def test_counts_are_the_same_on_every_processor():
    log = RoundLog(1)
    values = dict.fromkeys(ClientRow.columns()) | {"round": 1, "client_id": 100}
    log.add(ClientRow(**values | {"num_samples": 1001}))
    columns = ClientRow.columns()
    cells = {"round": "1", "client_id": "100", "num_samples": "1000"}
    rows = {1: [(2, [cells.get(column, "") for column in columns])]}
    tables = {"clients": Recorded(columns, rows)}
    with pytest.raises(Difference, match="column num_samples: 1000, not 1001"):
        Comparison(rounding=Rounding(dataset())).compare(tables, log)


VALUES = {"round": 1, "lr": 0.1, "cohort_size": 4, "dropped": 0, "train_loss": 0.5}
MOST = {
    "round": 0, "cohort_size": 0, "lr": 1e-10, "train_loss": 0.01, "val_loss": 0,
    "test_accuracy": 0.01, "test_balanced_accuracy": 3 * 16 / 800, "conflict_ratio": 0.01 + 1 / 6,
}  # fmt: skip


@pytest.mark.parametrize("column", MOST)
def test_how_far_numbers_of_a_round_may_be_apart(column):
    """Losses 2 % of their size; 1 % of the predictions; of classes by the smaller one."""
    scores = {"test_accuracy": 0.8, "test_balanced_accuracy": 0.8, "conflict_ratio": 0.5}
    row = RoundRow(**VALUES, **scores)
    assert Rounding(dataset()).most("rounds", column, row) == pytest.approx(MOST[column], abs=2e-9)


def test_how_far_models_may_be_apart():
    ones = np.ones(100, np.float32)
    assert Rounding.is_close(ones, ones + np.float32(1e-3))
    assert not Rounding.is_close(ones, ones + np.float32(2e-3))
    assert not Rounding.is_close(np.arange(3), np.arange(3) + 1)


def test_a_damaged_checkpoint_is_left_out(run):  # noqa: F811
    """The run is honest, and rounds begin at the checkpoint before."""
    (run / "checkpoints" / f"round-{ROUNDS:06d}.json").write_text("{")
    (run / "checkpoints" / "round-000004.json").write_text("{")
    found = verify(run, rounds=1, seed=drawing(5))
    assert found.verified
    assert found.executed == [(3, 5)]
