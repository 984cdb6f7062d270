"""Every tutorial, block by block, as a reader would follow it in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import clean_environment
from tests.sampling import marked_beside

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
LONG = ROOT / "docs" / "tutorials" / "attack-and-defend.md"
"""Two sweeps: minutes."""
FENCE = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = {"fedsim": "fedsim", "python": ""}


class Block(NamedTuple):
    """A block of a page: a file where it has a title, else commands or code to run."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


@pytest.fixture
def environment(tmp_path):
    """An empty folder of work, and ``fedsim`` and ``python`` of this checkout on the path."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("fedsim", "-m fedsim"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "launch").symlink_to(ROOT / "launch")
    return clean_environment(
        PATH=f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        FEDSIM_CACHE=str(tmp_path / "cache"),
        MPLBACKEND="agg",
    )


@pytest.mark.parametrize(
    "page",
    marked_beside({*PAGES} - {LONG}, PAGES, pytest.mark.nightly),
    ids=lambda page: page.stem,
)
def test_the_blocks_of_a_tutorial_run_in_order(page, tmp_path, environment):
    ran = 0
    for block in blocks(page):
        if block.title:
            (tmp_path / "work" / block.title).write_text(block.text)
        elif block.language in ("bash", "python"):
            shell = ["bash", "-euo", "pipefail"] if block.language == "bash" else [sys.executable]
            done = subprocess.run(
                [*shell, "-c", block.text],
                cwd=tmp_path / "work",
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 2


@pytest.mark.quick
def test_there_are_ten_tutorials():
    assert len(PAGES) == 10
