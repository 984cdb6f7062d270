"""Files and texts that somebody else wrote."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from fedsim.core.errors import DataError
from fedsim.core.reading import check_tree, parse_json

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_json_that_is_too_deep_is_a_value_error(opening: str) -> None:
    assert parse_json("[[1]]") == [[1]]
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(opening * 200_000)


def test_json_is_parsed_in_one_place() -> None:
    """The exception: LEAF's files, which are data and large."""
    users = set()
    for path in [*ROOT.glob("fedsim/**/*.py"), *ROOT.glob("analysis/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.load", "json.loads"):
                users.add(path.name)
    assert users == {"reading.py", "leaf.py"}


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
