"""``manifest.json``: the SHA-256 of each file of a finished run, and what the run was made with.

It tells an accident, or a change by hand, at once. It proves nothing of somebody who writes it
anew: whether the results are those of the settings, ``fedsim verify`` finds by doing rounds again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.errors import StoreError, one_line
from fedsim.core.reading import parse_json, read_bytes

NAME = "manifest.json"
OTHERS = frozenset({NAME, files.LOCK_FILE})
"""Files of a run directory that the manifest leaves out, beside its folders: checkpoints have
checksums of their own."""


def digests(run: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The SHA-256 of each file of a run directory by name; nothing of its folders.

    Args:
        run: the directory.
        known: those of files that need not be read, there or not, by name.
    """
    found = dict(known or {})
    with files.reading(run):
        paths = [p for p in run.iterdir() if p.is_file() and p.name not in {*OTHERS, *found}]
    found |= {path.name: files.sha256(path) for path in paths}
    return dict(sorted(found.items()))


def read(run: Path) -> dict[str, Any] | None:
    """The manifest of a run; None where it has none.

    Raises:
        StoreError: it is damaged.
    """
    path = run / NAME
    if not path.is_file():
        return None
    try:
        known = parse_json(read_bytes(path))
        if not all(isinstance(d, str) for d in known["files"].values()):
            raise TypeError("a digest is no text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: damaged: {one_line(error)}") from error
    return dict(known)


def changed(run: Path, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The files that are not what the manifest says, and how they differ, by name.

    Files that the manifest does not name do not count: notes may lie beside the results.
    """
    here = digests(run)
    for name, digest in known.items():
        if name not in here:
            yield name, "is missing"
        elif here[name] != digest:
            yield name, "is not the file that manifest.json names"
