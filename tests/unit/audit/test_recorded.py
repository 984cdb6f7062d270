"""Tables that no honest run writes: found whatever rounds are drawn."""

import shutil

import pytest

from fedsim.audit.recorded import Comparison, Difference, Recorded, check_form
from fedsim.audit.verify import verify
from fedsim.storage.checkpoint import decode_record, encode_record
from tests.unit.audit.test_verify import (  # noqa: F401 - fixtures
    ROUNDS,
    drawing,
    first,
    forge,
    honest,
    rewrite,
    run,
)

pytestmark = pytest.mark.integration

LAST = f"rounds.csv ends with round {ROUNDS}"


def twice(rows):
    """A second column test_accuracy before the true one: pandas takes the first."""
    at = rows[0].index("test_accuracy")
    for row in rows:
        row.insert(at, "test_accuracy" if row is rows[0] else "1.0")


def later(rows):
    rows.append(["99", *rows[-1][1:]])


def shuffled(rows):
    rows[-1], rows[-3] = rows[-3], rows[-1]


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("rounds", twice, "rounds.csv, line 1: round,"),
        ("rounds", shuffled, "rounds.csv, line 5: round 6 follows round 3"),
        ("rounds", lambda rows: rows.pop(3), "rounds.csv, line 4: round 4 follows round 2"),
        ("cosines", lambda rows: rows.append([]), "'' is no number of a round"),
        ("spectrum", later, f"round 99, but {LAST}"),
        ("clients", lambda rows: rows[-1].pop(), "fields, the header has"),
        ("clients", lambda rows: rows.append(["x"] * len(rows[0])), "'x' is no number of a round"),
        ("classes", lambda rows: rows[0].__setitem__(1, "site"), "classes.csv, line 1: round,site"),
        ("models", lambda rows: rows.pop(), "models.csv: ends with round 5, rounds.csv with"),
        ("models", lambda rows: rows.pop(2), "models.csv, line 3: round 3 follows round 1"),
    ],
)
def test_a_table_of_another_form(table, change, words, run):  # noqa: F811
    rewrite(run / f"{table}.csv", change)
    forge(run)
    assert words in first(run, rounds=1, seed=drawing(1))


@pytest.mark.parametrize("table", ["rounds", "clients"])
def test_a_last_line_without_end(table, run):  # noqa: F811
    """pandas reads it, so that the summary would follow from it."""
    path = run / f"{table}.csv"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    forge(run)
    assert first(run, rounds=1) == f"{table}.csv: its last line has no end"


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [row.insert(0, row[9]) for row in rows], "line 1: has a column twice"),
        (lambda rows: [row.append("won") for row in rows], "line 1: fedsim writes no column 'won'"),
        (lambda rows: rows.append(rows[-1]), "summary.csv: is not one row below a header"),
        (lambda rows: rows.pop(), "summary.csv: is not one row below a header"),
    ],
)
def test_a_summary_of_another_form(change, words, run):  # noqa: F811
    rewrite(run / "summary.csv", change)
    forge(run)
    assert words in first(run, rounds=1)


def test_a_checkpoint_that_says_it_is_of_a_later_round(run):  # noqa: F811
    """A drawn round would be before it, and nothing be done again."""
    rewrite(run / "rounds.csv", lambda rows: rows[5].__setitem__(1, "7.5"))
    forge(run)
    record = run / "checkpoints" / "round-000004.json"
    record.write_bytes(encode_record(decode_record(record.read_bytes()) | {"round": 99}))
    found = verify(run, rounds=1, seed=drawing(5))
    assert str(found.differences[0]).startswith("rounds.csv, line 6, round 5, column")


def test_counts_are_the_same_on_every_processor():
    from fedsim.core.rows import ClientRow
    from fedsim.training.rows import RoundLog

    log = RoundLog(1)
    values = dict.fromkeys(ClientRow.columns()) | {"round": 1, "client_id": 100}
    log.add(ClientRow(**values | {"num_samples": 1001}))
    columns = ClientRow.columns()
    cells = {"round": "1", "client_id": "100", "num_samples": "1000"}
    rows = {1: [(2, [cells.get(column, "") for column in columns])]}
    tables = {"clients": Recorded(columns, rows)}
    with pytest.raises(Difference, match="column num_samples: 1000, not 1001"):
        Comparison(others="another processor").compare(tables, log)


def test_a_partition_that_is_missing(run):  # noqa: F811
    (run / "partition.csv").unlink()
    forge(run)
    assert first(run, rounds=1) == "partition.csv: is missing"


def test_a_damaged_checkpoint_is_left_out(run):  # noqa: F811
    """The run is honest, and rounds begin at the checkpoint before."""
    (run / "checkpoints" / f"round-{ROUNDS:06d}.json").write_text("{")
    (run / "checkpoints" / "round-000004.json").write_text("{")
    found = verify(run, rounds=1, seed=drawing(5))
    assert found.verified
    assert found.executed == [(3, 5)]
