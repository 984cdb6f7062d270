"""Files that are written beside and moved: folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedsim.core import files
from fedsim.core.errors import StoreError


def write(folder: Path, *names: str) -> None:
    with files.replacing_folder(folder) as unfinished:
        (unfinished / "tables").mkdir()
        for name in names:
            (unfinished / name).write_text("new")


@pytest.mark.parametrize("there", ["", "a", "a/b", "a/b/tables"])
def test_a_folder_is_whole_or_as_before(there: str, tmp_path: Path) -> None:
    folder, old = tmp_path / "a/b", tmp_path / there / "old"
    old.parent.mkdir(parents=True, exist_ok=True)
    old.touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"a/b: cannot be written \(.+\)"):
        write(folder, "page", "missing/table")
    assert sorted(tmp_path.rglob("*")) == before
    write(folder, "page", "tables/one")
    made = {folder, folder / "page", folder / "tables", folder / "tables/one", folder.parent}
    assert set(tmp_path.rglob("*")) == made | set(before)


def test_what_cannot_be_moved_leaves_no_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "page").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"a: cannot be written \(.+\)"):
        write(tmp_path / "a", "page")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "page"]


def test_one_hash_of_texts_bytes_arrays_and_files(tmp_path):
    path, array = tmp_path / "x", np.arange(6, dtype=np.int16).reshape(2, 3)
    path.write_bytes(b"name" + array.T.tobytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert files.sha256_of("name", array.T) == files.sha256_of(path.read_bytes()) == digest
    assert files.sha256(path) == digest
    assert files.sha256(path, 4) == files.sha256_of("name")
