"""The files behind the tables of docs/RESULTS.md and docs/FEDERATIONS.md: docs/results.zip.

    python -m zipfile -e docs/results.zip sweeps    unpacks them into the folder sweeps

``protocol/`` has the tables that part 9 of docs/study/PROTOCOL.md describes, ``federations/`` those
of docs/FEDERATIONS.md. ``earlier/`` has the pages and scripts of the study before that protocol;
``study/`` and ``small/`` are the tables of the two pages, ``grids/`` and ``chosen.csv`` the runs of
the first. The scripts that make the pages read and write the archive by these functions. The same
texts give the same bytes: members are sorted and have one time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pandas as pd

ARCHIVE = Path(__file__).parent / "results.zip"


def names() -> list[str]:
    """The members, sorted."""
    with ZipFile(ARCHIVE) as archive:
        return sorted(archive.namelist())


def read(name: str) -> str:
    """The text of a member."""
    with ZipFile(ARCHIVE) as archive:
        return archive.read(name).decode("utf-8")


def table(name: str, **options: Any) -> pd.DataFrame:
    """A member that is a CSV file; ``options`` are those of ``pandas.read_csv``."""
    return pd.read_csv(io.StringIO(read(name)), **options)


def update(texts: Mapping[str, str]) -> None:
    """Adds members or replaces them, by their names."""
    members: dict[str, bytes] = {}
    if ARCHIVE.exists():
        with ZipFile(ARCHIVE) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    members |= {name: text.encode("utf-8") for name, text in texts.items()}
    written = ARCHIVE.with_suffix(".part")
    with ZipFile(written, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(members.items()):
            member = ZipInfo(name)  # of 1980
            member.compress_type, member.create_system = ZIP_DEFLATED, 3
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    os.replace(written, ARCHIVE)
