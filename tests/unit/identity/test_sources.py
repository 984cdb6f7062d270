"""The digests of users' source files: which files count, and what of them."""

from __future__ import annotations

import hashlib
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from fedsim.identity.sources import sha256_of_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def written(folder: Path, **files: str) -> None:
    """Python files by module name; ``__`` in a name is a dot."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_module_and_what_it_imports_beside_it(folder: Path) -> None:
    written(
        folder,
        rule="import numpy\nfrom steps import size\ndef f():\n    import late.here as there\n",
        steps="import json, more_steps\n",
        more_steps="import rule\n",  # a circle
        late__here="from . import beside\nfrom .below.deep import name\n",
        late__beside="",
        late__below__deep="",
        not_imported="",
    )
    (folder / "late" / "__init__.py").write_text("import of_package\n")
    written(folder, of_package="")
    assert list(sha256_of_files("rule")) == [
        *("late/__init__.py", "late/below/deep.py", "late/beside.py", "late/here.py"),
        *("more_steps.py", "of_package.py", "rule.py", "steps.py"),
    ]
    assert sha256_of_files("steps") == sha256_of_files("rule")
    assert list(sha256_of_files("late.beside")) == [
        *("late/__init__.py", "late/beside.py", "of_package.py"),
    ]


def test_a_digest_is_that_of_the_text_whatever_the_line_ends(folder: Path) -> None:
    written(folder, lines="a = 1\nb = 2\n")
    digest = hashlib.sha256(b"a = 1\nb = 2\n").hexdigest()
    assert sha256_of_files("lines") == {"lines.py": digest}
    (folder / "lines.py").write_bytes(b"a = 1\r\nb = 2\r\n")
    assert sha256_of_files("lines") == {"lines.py": digest}
    (folder / "lines.py").write_bytes(b"a = 1\nb = 3\n")
    assert sha256_of_files("lines")["lines.py"] != digest


def test_names_are_relative_so_that_they_are_the_same_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for place in ("here", "there"):
        written(folder / place, moved="import also_moved\n", also_moved="")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder / place)
            found.append(sha256_of_files("moved"))
    assert found[0] == found[1]
    assert list(found[0]) == ["also_moved.py", "moved.py"]


@pytest.mark.parametrize("name", ["json", "numpy.linalg", "sys", "fedsim.api", "not_there", "a..b"])
def test_what_is_installed_or_nowhere_has_none(name: str) -> None:
    assert sha256_of_files(name) == {}


def test_the_module_that_python_has_imported_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder / "first", twin="a = 1\n")
    monkeypatch.syspath_prepend(folder / "first")
    __import__("twin")
    written(folder / "second", twin="a = 2\n")
    monkeypatch.syspath_prepend(folder / "second")
    assert sha256_of_files("twin") == {"twin.py": hashlib.sha256(b"a = 1\n").hexdigest()}
    del sys.modules["twin"]
    assert sha256_of_files("twin") == {"twin.py": hashlib.sha256(b"a = 2\n").hexdigest()}


def test_a_module_that_an_import_hook_finds_counts_before_it_is_imported(tmp_path, monkeypatch):
    """As of an editable installation, whose folder is not on sys.path."""
    file = tmp_path / "found_by_a_hook.py"
    file.write_text("x = 1\n")

    class Hook:
        """Finds that module and no other."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_from_file_location(name, file) if name == file.stem else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook])
    assert [*sha256_of_files("found_by_a_hook")] == ["found_by_a_hook.py"]
    assert "found_by_a_hook" not in sys.modules
