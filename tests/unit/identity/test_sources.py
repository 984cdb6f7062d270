"""The digests of users' source files: which files count, and what of them."""

from __future__ import annotations

import hashlib
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from fedsim.core.errors import ConfigError
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


def test_fedsim_beside_a_module_is_not_the_users(folder: Path) -> None:
    written(folder, near="import fedsim.api\nfrom fedsim_analysis import x\n")
    written(folder, fedsim__api="", fedsim_analysis="")
    assert list(sha256_of_files("near")) == ["near.py"]


def test_a_namespace_package_lies_in_several_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder / "one", shared_space__a="")
    written(folder / "two", shared_space__b="import shared_space.c\n", shared_space__c="")
    for place in ("one", "two"):
        monkeypatch.syspath_prepend(folder / place)
    assert list(sha256_of_files("shared_space.b")) == ["shared_space/b.py", "shared_space/c.py"]


@pytest.mark.parametrize(
    "text",
    [
        b"def f(:\n",
        b"\xff\xfe\x00",
        b"x = '" + b"\0" + b"'",
        b"# -*- coding: no-such -*-\nimport steps\n",
        b"(" * 5000,
        b"x = '\\d'\nimport beside_odd\n",
    ],
)
def test_a_text_that_is_no_python_has_a_digest_of_its_own(folder: Path, text: bytes) -> None:
    written(folder, uses_odd="import odd_text\n", beside_odd="")
    (folder / "odd_text.py").write_bytes(text)
    assert {"odd_text.py", "uses_odd.py"} <= set(sha256_of_files("uses_odd"))


def test_links_count_by_what_they_lead_to(folder: Path) -> None:
    written(folder, linking="import linked, endless, dangling\n", original="a = 1\n")
    (folder / "linked.py").symlink_to("original.py")
    (folder / "endless.py").symlink_to("endless.py")
    (folder / "dangling.py").symlink_to("nowhere.py")
    (folder / "a_folder.py").mkdir()
    found = sha256_of_files("linking")
    assert list(found) == ["linked.py", "linking.py"]
    assert found["linked.py"] == hashlib.sha256(b"a = 1\n").hexdigest()


def test_a_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, closed="")

    def refused(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(ConfigError, match=r"closed\.py: cannot be read \(Permission denied\)"):
        sha256_of_files("closed")


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
