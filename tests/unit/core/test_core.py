"""Files, tables, names and texts: what every package uses."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedsim import algorithms, data
from fedsim.algorithms.catalogue import METHODS
from fedsim.attacks import ATTACKS
from fedsim.compressors import COMPRESSORS
from fedsim.core import files
from fedsim.core.background import Background
from fedsim.core.errors import ConfigError, DataError, StoreError
from fedsim.core.machine import kind_of, other_kind
from fedsim.core.settings import defaults
from fedsim.core.tables import SEPARATORS, read_table, records
from fedsim.core.terminal import echo, printable
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[3]


# files


def test_a_folder_is_written_beside_and_moved(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "page").mkdir(parents=True)
    (folder / "old").touch()
    for name, moved in (("missing/one", False), ("page", False), ("tables/one", True)):
        with suppress(StoreError), files.replacing_folder(folder) as unfinished:
            (unfinished / "tables").mkdir()
            (unfinished / name).write_text("new")
        assert (folder / "tables/one").exists() == moved, name
    assert {path.name for path in folder.rglob("*")} == {"page", "old", "tables", "one"}


def test_one_hash_of_texts_bytes_arrays_and_files(tmp_path):
    path, array = tmp_path / "x", np.arange(6, dtype=np.int16).reshape(2, 3)
    path.write_bytes(b"name" + array.T.tobytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert files.sha256_of("name", array.T) == files.sha256_of(path.read_bytes()) == digest
    assert files.sha256(path) == digest
    assert files.sha256(path, 4) == files.sha256_of("name")


# tables


BREAKS = {"two lines": "\n\n", "U+2028": "\u2028", "next line": "\x85", "form feed": "\f"}
"""What splits a line for Python's ``str.splitlines``; in a cell it is a character as any other."""
ENDS = ("\n", "\r\n", "\r")


def write_csv(
    path: Path, rows: list[list[str]], separator: str = ",", end: str = "\n", bom: str = ""
):
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
    write_csv(file, [["a", f"b{mark}c"], ["1", cell], ["2", "x"]], separator, end, "\ufeff")
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
        ('a,b\n1,"x" y\n', "row 2: a quote is not closed"),
        ('a,"b\n1,x\n', 'the header is a,"b, needed are the columns a'),
        ('a,b\n1,"' + "x\n" * 70_000, "row 2: a quote is not closed .*131072"),
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
    write_csv(tmp_path / "x.csv", table)
    read = data.load("csv", tmp_path / "x.csv", features="age", scaling="none")
    assert read.x.ravel().tolist() == pytest.approx([age + 0.1 for age in range(60)])
    assert read.y.tolist() == [age % 2 for age in range(60)]


# terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        (
            "caf\u00e9 \u533b\u9662 \U0001f600 $\\frac{$",
            "caf\u00e9 \u533b\u9662 \U0001f600 $\\frac{$",
        ),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("s\u202egnp.exe", "s\\u202egnp.exe"),
        ("\udcc3", "\\udcc3"),
        ("a\u00a0b", "a\\xa0b"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_lines_are_printed_as_lines(capsys):
    echo("a\nb\x1b[0m", nl=False)
    echo("c\x07", err=True)
    assert capsys.readouterr() == ("a\nb\\x1b[0m", "c\\x07\n")


# background


def full() -> None:
    raise StoreError("x: cannot be written (No space left on device)")


def test_one_thing_at_a_time_and_in_order() -> None:
    done, gate = list[int](), threading.Event()

    def first() -> None:
        assert gate.wait(30)
        done.append(0)

    with Background("test") as background:
        background.begin(first)
        assert background.busy
        assert not done  # nobody waited for it
        gate.set()
        for number in range(1, 20):
            background.begin(partial(done.append, number))
            assert done[:number] == list(range(number))
        background.wait()
        assert not background.busy
        background.wait()
    assert done == list(range(20))


def test_leaving_waits_for_what_is_being_done() -> None:
    done = list[str]()
    before = threading.active_count()
    with Background("test") as background:
        background.begin(lambda: (time.sleep(0.05), done.append("late"))[1])
    assert done == ["late"]
    assert threading.active_count() == before


def test_an_error_comes_once_with_the_next_thing_or_the_end_of_waiting() -> None:
    done = list[int]()
    with Background("test") as background:
        background.begin(full)
        with pytest.raises(StoreError, match="No space left"):
            background.begin(partial(done.append, 1))
        assert not done  # what was to follow it is not begun
        background.begin(full)
        with pytest.raises(StoreError, match="No space left"):
            background.wait()
        background.begin(partial(done.append, 2))
        background.wait()
    assert done == [2]


# machine


H200 = {"name": "NVIDIA H200", "multiprocessors": 132, "precision": "tf32"}
OTHERS = {"deterministic": True, "nondeterministic": ["put_"], "uncaptured": {}}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (
            {"device": H200 | OTHERS, "server_device": "NVIDIA H200"},
            {"server": "NVIDIA H200"} | H200,
        ),
        ({"device": {}, "server_device": "cpu"}, {"server": "cpu"}),
        ({"device": H200 | {"server": "NVIDIA H200"}}, {"server": "NVIDIA H200"} | H200),
        ({"device": "NVIDIA A100"}, {"name": "NVIDIA A100", "server": "cpu"}),
        ({"device": ""}, {"server": "cpu"}),
        ({}, {"server": "cpu"}),
    ],
    ids=["env.json", "no actor yet", "checkpoint", "a name", "no round", "empty"],
)
def test_what_is_known(part, kind):
    assert kind_of(part) == kind
    assert kind_of({"device": kind}) == kind


def test_in_what_two_differ():
    now = kind_of({"device": H200, "server_device": "NVIDIA H200"})
    assert other_kind(now, now) == other_kind({}, now) == other_kind(now, {}) == ""
    assert other_kind({"name": "NVIDIA H200"}, now) == ""
    before = now | {"multiprocessors": 114, "server": "cpu"}
    assert other_kind(before, now) == (
        "multiprocessors 132 instead of 114; server's device NVIDIA H200 instead of cpu"
    )


# registry


@pytest.mark.parametrize("registry", [METHODS, ATTACKS, COMPRESSORS], ids=lambda r: r.kind)
def test_defaults_are_those_of_the_signature(registry):
    for name in registry.names():
        assert registry.defaults(name) == defaults(registry.parameters(name)), name


# imports


HEAVY = {"torch", "torchvision", "ray", "pandas", "scipy", "sklearn", "matplotlib"}


def imported(*args: str, when: str = "") -> set[str]:
    """The modules that a process has imported at the end of ``fedsim ARGS``, or at ``when``."""
    code = (
        "import json, sys\nfrom fedsim.cli import main\n"
        "def show(*_): print('imported', json.dumps(sorted(sys.modules)))\n"
        f"{when or 'import atexit; atexit.register(show)'}\n"
        f"main({list(args)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("imported ")]
    assert lines, done.stderr
    return set(json.loads(lines[0].removeprefix("imported ")))


@pytest.mark.parametrize(
    ("args", "more"),
    [
        (["--help"], {"pydantic", "yaml"}),
        (["run", "--help"], set()),
        *((["list", kind], set()) for kind in ("datasets", "models", "presets")),
        (["run", "--alpha", "-1"], set()),
        (["runs", "no_such_folder"], {"pydantic"}),
    ],
)
def test_nothing_heavy_is_imported(args: list[str], more: set[str]) -> None:
    assert not imported(*args) & (HEAVY | more)


FIRST_ROUND = """
import fedsim.storage.run_dir as stored
append = stored.RunWriter.append
def first(self, table, rows):
    append(self, table, rows)
    if table == "rounds":
        show()
stored.RunWriter.append = first
"""


@pytest.mark.slow
@pytest.mark.integration
def test_the_first_round_of_the_serial_engine_imports_little(tmp_path: Path) -> None:
    args = ["run", "--engine", "serial", "--rounds", "1", "--out", str(tmp_path / "run")]
    found = imported(*args, when=FIRST_ROUND)
    unused = {"torch._dynamo", "torch._inductor", "torch.onnx", "triton", "sympy"}
    assert not found & (HEAVY - {"torch"} | unused)


def test_a_file_beside_the_methods_is_one_only_if_it_defines_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "fedmine": "from nowhere import nothing\n\ndef build(rate: float = 1.0): ...\n",
        "_helpers": "raise SystemExit('not imported to be found')\n",
        "base2": "class Base:\n    def build(self): ...\n",
        "drafts": '"""As in::\n\n    def build(): ...\n"""\nbuild = None\n',
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    before = algorithms.names()
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    assert set(algorithms.names()) - set(before) == {"fedmine"}
    with pytest.raises(ConfigError, match="unknown algorithm 'base2'"):
        algorithms.load("base2")
