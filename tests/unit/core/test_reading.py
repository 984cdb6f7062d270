"""Files and texts that somebody else wrote."""

from __future__ import annotations

import ast
import os
import socket
from pathlib import Path

import pytest

from fedsim.core.errors import DataError
from fedsim.core.reading import MOST_LEVELS, check_tree, parse_json, read_bytes, read_text, regular

ROOT = Path(__file__).resolve().parents[3]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        for read in (regular, read_bytes, read_text):
            with pytest.raises(OSError, match="a pipe, not a regular file"):
                read(path)


def test_neither_are_sockets_and_devices(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with pytest.raises(OSError, match="a socket, not"):
            regular(path)
    with pytest.raises(OSError, match="a device, not"):
        regular(Path("/dev/zero"))


def test_files_and_what_is_missing_pass(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"a\r\nb\rc\n")
    assert regular(file) == file
    assert regular(tmp_path) == tmp_path
    assert regular(tmp_path / "no") == tmp_path / "no"
    assert read_text(file) == file.read_text() == "a\nb\nc\n"
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "no")
    with pytest.raises(OSError, match="7 bytes, at most 6 are read"):
        read_bytes(file, 6)


def test_a_file_beyond_memory_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(OSError, match="1,099,511,627,776 bytes, at most"):
        read_bytes(file)


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_json_has_so_many_levels_and_no_more(opening: str) -> None:
    closing = {"[": "]"}.get(opening, "}")
    deepest = opening * MOST_LEVELS + "1" + closing * MOST_LEVELS
    assert parse_json(deepest)
    for text in (opening + deepest + closing, opening * 200_000, f"[{'[' * 900 + ']' * 900}]"):
        with pytest.raises(ValueError, match=f"more than {MOST_LEVELS} levels"):
            parse_json(text)


def test_json_is_parsed_in_one_place() -> None:
    """Exceptions: LEAF's files, which are data and large, and a file of the package itself."""
    users = set()
    for path in [*ROOT.glob("fedsim/**/*.py"), *ROOT.glob("analysis/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.load", "json.loads"):
                users.add(path.name)
    assert users == {"reading.py", "leaf.py", "runs.py"}


def test_a_folder_of_somebody_elses_is_looked_at_first(tmp_path: Path) -> None:
    inside, beside = tmp_path / "run", tmp_path / "beside"
    (inside / "checkpoints").mkdir(parents=True)
    beside.touch()
    (inside / "table").touch()
    (inside / "checkpoints/same").symlink_to("../table")
    (inside / "circle").symlink_to("circle")
    check_tree(inside)
    for name, make, words in (
        ("pipe", os.mkfifo, "a pipe, not a regular file"),
        ("link", lambda path: path.symlink_to(beside), "a link that leads out of"),
        ("folder", lambda path: path.symlink_to(tmp_path), "a link that leads out of"),
        ("zero", lambda path: path.symlink_to("/dev/zero"), "a link that leads out of"),
        ("huge", lambda path: (path.touch(), os.truncate(path, 2**40)), "bytes, at most"),
    ):
        path = inside / "checkpoints" / name
        make(path)
        with pytest.raises(DataError, match=f"checkpoints/{name}: .*{words}"):
            check_tree(inside)
        path.unlink()
    inside.joinpath(*["a"] * 40).mkdir(parents=True)
    with pytest.raises(DataError, match="folders in each other"):
        check_tree(inside)
