"""Code, data and env.json of runs that were damaged, edited or taken away after the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.harness import Case, fedsim, parts, tried, workplace
from tests.unit.identity.test_changed_code import METHOD
from tests.unit.identity.test_changed_data import images

pytestmark = pytest.mark.integration

GRID = """\
algorithm: "mine:build"
train: {rounds: 1, sample_rate: 1.0}
data: {name: folder, dir: A, num_clients: 2, partition: iid, val_fraction: 0.1, image_size: 8}
engine: {kind: serial}
grid: {seed: [0]}
"""
COMMANDS = ("resume unfinished", "sweep grid.yaml --out sweep", "predict sweep/seed=0 --out p.csv")
ENV = "env.json"
JUNK: tuple[Any, ...] = (
    *(None, 3, -1.5, True, "", "x", "0" * 63, "0" * 65, "G" * 64, "0" * 64, "\x1b[31m" + "0" * 59),
    *([], ["a"], {}, {"a": None}, {"": {}}, "\n", "\u202e" * 64, "\ud800" * 64, 10**400),
)
PLACES = (
    *(("code",), ("code", "method"), ("code", "method", "name"), ("code", "method", "files")),
    *(("code", "method", "files", "mine.py"), ("code", "model"), ("accepted_code",)),
    *(("accepted_code", "method"), ("data",), ("data", "samples"), ("data", "labels")),
    *(("data", "classes"), ("data", "dir"), ("code", "method", "files", "\x1b]0;x\x07.py")),
)
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a method, images, a finished sweep, and a copy of its run without the end."""
    with workplace(tmp_path_factory.mktemp("sources")) as work:
        (work / "mine.py").write_text(METHOD)
        (work / "scales.py").write_text("SCALE = 1.0\n")
        (work / "grid.yaml").write_text(GRID)
        images(work / "A", 20)
        result = fedsim("sweep", "grid.yaml", "--out", "sweep")
        assert result.exit_code == 0, result.output
        shutil.copytree(work / "sweep" / "seed=0", work / "unfinished")
        (work / "unfinished" / "summary.csv").unlink()
    return work


def tampered(place: tuple[str, ...], junk: object) -> Change:
    """Both runs' env.json say something else in one place."""

    def change(work: Path) -> None:
        for run in ("unfinished", "sweep/seed=0"):
            known = json.loads((work / run / ENV).read_bytes())
            inner = known
            for key in place[:-1]:
                inner = inner.setdefault(key, {})
            inner[place[-1]] = junk
            (work / run / ENV).write_text(json.dumps(known))

    return change


def with_text(name: str, text: str | bytes | None) -> Change:
    """A file has another content, or is gone."""

    def change(work: Path) -> None:
        if text is None:
            (work / name).unlink()
        else:
            (work / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return change


def folder_instead(name: str) -> Change:
    def change(work: Path) -> None:
        (work / name).unlink()
        (work / name).mkdir()

    return change


def link_instead(name: str, target: str) -> Change:
    def change(work: Path) -> None:
        (work / name).unlink()
        (work / name).symlink_to(target)

    return change


def table(numbers: Iterable[int], shift: int = 0) -> str:
    """A labels.csv of these images, whose labels are theirs or, with a shift of 1, the others."""
    rows = (f"{i}.png,{(i + shift) % 2}\n" for i in numbers)
    return "filename,label\n" + "".join(rows)


CODE: dict[str, tuple[Change, tuple[str, ...]]] = {
    "an edited file": (with_text("scales.py", "SCALE = 2.0\n"), ("scales.py (of", "--accept")),
    "a comment": (with_text("scales.py", "SCALE = 1.0  #\n"), ("scales.py (of", "--accept")),
    "a circle": (with_text("scales.py", "SCALE = 1.0\nimport mine\n"), ("scales.py (of",)),
    "a syntax error": (with_text("scales.py", "SCALE = = 1\n"), ("'mine' cannot be imported",)),
    "a NUL": (with_text("scales.py", b"SCALE = 1.0\n\0"), ("'mine' cannot be imported",)),
    "no UTF-8": (with_text("scales.py", b"SCALE = '\xff'\n"), ("'mine' cannot be imported",)),
    "an empty file": (with_text("scales.py", ""), ("'mine' cannot be imported",)),
    "a file that is gone": (with_text("scales.py", None), ("'mine' cannot be imported",)),
    "a module that is gone": (with_text("mine.py", None), ("'mine' cannot be imported",)),
    "no function": (with_text("mine.py", "x = 1\n"), ("mine has no function 'build'",)),
    "a folder": (folder_instead("scales.py"), ("'mine' cannot be imported",)),
    "a link to itself": (link_instead("scales.py", "scales.py"), ("'mine' cannot be imported",)),
    "a link to nowhere": (link_instead("scales.py", "x.py"), ("'mine' cannot be imported",)),
    "a large file": (with_text("scales.py", "SCALE = 1.0\n" * 200_000), ("scales.py (of",)),
    "a long line": (with_text("scales.py", "SCALE = 1.0 #" + "x" * 10**7), ("scales.py (of",)),
    "text that is never run": (
        with_text("scales.py", "SCALE = 1.0\ndef f():\n    import odd\n"),
        ("scales.py (of",),
    ),
    "other line ends and another number": (
        with_text("scales.py", b"SCALE = 2.0\r\n"),
        ("scales.py (of",),
    ),
    "a new file": (with_text("mine.py", METHOD + "import grid_of\n"), ()),
}
"""By what happened to the code: how, and what is said."""
DATA: dict[str, tuple[Change, tuple[str, ...]]] = {
    "an image of another": (lambda w: shutil.copy(w / "A/1.png", w / "A/3.png"), ("the samples",)),
    "an image that is cut": (with_text("A/3.png", b"\x89PNG\r\n\x1a\n"), ("3.png",)),
    "an empty image": (with_text("A/3.png", b""), ("3.png",)),
    "a text": (with_text("A/3.png", "no image"), ("3.png",)),
    "an image that is gone": (with_text("A/3.png", None), ("3.png",)),
    "a folder for an image": (folder_instead("A/3.png"), ("3.png",)),
    "a link for an image": (link_instead("A/3.png", "3.png"), ("3.png",)),
    "a link to another": (link_instead("A/3.png", "4.png"), ("the samples",)),
    "no table": (with_text("A/labels.csv", None), ("labels.csv",)),
    "an empty table": (with_text("A/labels.csv", ""), ("labels.csv",)),
    "a table with a NUL": (with_text("A/labels.csv", b"filename,label\n0.png,\0\n"), ("",)),
    "fewer samples": (
        with_text("A/labels.csv", table(range(12))),
        ("",),
    ),
    "the classes swapped": (with_text("A/classes.txt", "bright\ndark\n"), ("class",)),
    "another class": (with_text("A/classes.txt", "dark\nbright\nred\n"), ("class",)),
    "no classes": (with_text("A/classes.txt", None), ("class",)),
    "one class": (with_text("A/classes.txt", "dark\n"), ("",)),
    "labels swapped": (
        with_text("A/labels.csv", table(range(20), 1)),
        ("",),
    ),
    "another order": (
        with_text("A/labels.csv", table(range(19, -1, -1))),
        ("",),
    ),
}  # fmt: skip
"""The same for the data."""


COUNT = len(PLACES) * len(JUNK) + len(COMMANDS) * (len(CODE) + len(DATA))


def cases(done: Path) -> Iterator[tuple[str, Case]]:
    """All of them, for each command in turn."""
    copies: dict[str, Any] = {
        path.relative_to(done).as_posix(): path.read_bytes()
        for path in done.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    changes: list[tuple[str, Change, tuple[str, ...], int | tuple[int, ...]]] = []
    for place in PLACES:
        for junk in JUNK:
            changes.append((f"{'.'.join(place)}={junk!r:.20}", tampered(place, junk), (), (0, 2)))
    for kinds in (CODE, DATA):
        for name, (change, says) in kinds.items():
            changes += [(name, change, says, 2)] * len(COMMANDS)
    for number, (name, change, says, status) in enumerate(changes):
        command = COMMANDS[number % len(COMMANDS)]
        files = {**copies, "changed": lambda path, change=change: change(path.parent)}
        yield name, Case(f"{name}: {command}", command, says, status, files)


@pytest.mark.parametrize("number", parts(37))
def test_changed_sources(number: int, done: Path, tmp_path: Path) -> None:
    tried([case for _, case in cases(done)][number::37], tmp_path)
