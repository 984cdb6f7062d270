"""Tables that somebody else wrote: by the rules of CSV, whatever stands in a cell."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from fedsim import data
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.files import cache_dir
from fedsim.core.tables import SEPARATORS, read_table, records

BREAKS = {
    "line feed": "\n",
    "two lines": "\n\n",
    "U+2028": "\u2028",
    "U+2029": "\u2029",
    "next line": "\x85",
    "vertical tab": "\v",
    "form feed": "\f",
    "file separator": "\x1c",
}
"""What splits a line for Python's ``str.splitlines``; in a cell it is a character as any other."""
ENDS = ("\n", "\r\n", "\r")


def write(path: Path, rows: list[list[str]], separator: str = ",", end: str = "\n", bom: str = ""):
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(bom)
        whole = csv.QUOTE_ALL
        csv.writer(file, delimiter=separator, lineterminator=end, quoting=whole).writerows(rows)


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_cell_is_read_whole_and_rows_have_the_numbers_of_their_lines(
    what, end, separator, tmp_path: Path
):
    mark, file = BREAKS[what], tmp_path / "x.csv"
    cell = f'one{mark}, "two"; three{mark}four'
    write(file, [["a", f"b{mark}c"], ["1", cell], ["2", "x"]], separator, end, "\ufeff")
    with file.open("a", encoding="utf-8", newline="") as stream:
        stream.write(f"{end}  {end}3{separator} y{end}")  # blank lines, and no quotes
    rows = read_table(file, ("a",))
    assert [list(row.values.values()) for row in rows] == [["1", cell], ["2", "x"], ["3", "y"]]
    assert list(rows.columns) == ["a", f"b{mark}c"]
    header = 1 + mark.count("\n")
    first = header + 1 + 2 * mark.count("\n")
    wanted = [first, first + 1, first + 4]
    assert [row.where for row in rows] == [f"{file}, row {number}" for number in wanted]
    if separator == ",":
        assert [number for number, _ in records(file)] == [header, *wanted]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b\n1,"x\n2,y\n', "row 2: a quote is not closed"),
        ('a,b\n1,x\n\n2,"', "row 4: a quote is not closed"),
        ('a,"b\n1,x\n', "row 1: a quote is not closed"),
        ('a,b\n1,"' + "x\n" * 70_000, "row 2: a cell has more than 131,072 characters; is a quote"),
    ],
)
def test_a_quote_that_is_not_closed_is_refused(text, message, tmp_path: Path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "x.csv", ("a",))


@pytest.mark.parametrize("what", BREAKS)
def test_no_row_of_a_table_is_invented(what, tmp_path: Path):
    """A note of several lines, of which the second one looks like a row."""
    table = [["age", "target", "note"]]
    table += [
        [f"{age}.1", "yes" if age % 2 else "no", f"x, y{BREAKS[what]}1,no,z"] for age in range(60)
    ]
    write(tmp_path / "x.csv", table)
    read = data.load("csv", tmp_path / "x.csv", features="age", scaling="none")
    assert read.x.ravel().tolist() == pytest.approx([age + 0.1 for age in range(60)])
    assert read.y.tolist() == [age % 2 for age in range(60)]


@pytest.mark.skipif(os.name == "nt", reason="another rule for the home folder")
def test_a_user_without_a_home_has_to_name_the_cache(tmp_path: Path, monkeypatch):
    """As in a container that is started with ``--user 12345``."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("FEDSIM_CACHE", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_007)
    with pytest.raises(ConfigError, match=r"^FEDSIM_CACHE: not set, and this user has no home"):
        cache_dir()
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
