"""Every relative link of a tracked page leads to a tracked file and an anchor, as on GitHub."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)|!\[[^\]]*\]\(([^()\s]+)\)")
CODE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def tracked() -> list[str]:
    """The files of the checkout that git knows."""
    command = ["git", "ls-files", "-z"]
    found = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True)
    if found.returncode:
        pytest.skip("no git checkout")
    names = found.stdout.decode().rstrip("\0").split("\0")
    return [name for name in names if (ROOT / name).exists()]


def anchors(text: str) -> set[str]:
    """What a link may name of a page: its headings as GitHub spells them, and anchors in HTML."""
    found: set[str] = set(re.findall(r"<[^>]*\b(?:id|name)=[\"']([^\"']+)", text))
    bare = re.sub(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", bare, re.MULTILINE):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        count = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in found)
        found.add(f"{slug}-{count}" if count else slug)
    return found


def broken(page: str, text: str, files: set[str]) -> list[str]:
    """The links of a page that lead nowhere in a plain checkout."""
    wrong = []
    for link in filter(None, (a or b for a, b in LINK.findall(CODE.sub("", text)))):
        path, _, anchor = unquote(link).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = ((ROOT / page).parent / path).resolve()
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else "elsewhere"
        if not path:
            there = anchor in anchors(text)
        elif anchor and name.endswith(".md") and name in files:
            there = anchor in anchors(target.read_text(encoding="utf-8"))
        else:
            there = name in files or any(each.startswith(f"{name}/") for each in files)
        if not there:
            wrong.append(link)
    return wrong


def test_every_link_leads_to_a_tracked_file_and_anchor():
    files = set(tracked())
    pages = [name for name in files if name.endswith(".md")]
    assert len(pages) > 50
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages}
    assert {p: wrong for p, text in texts.items() if (wrong := broken(p, text, files))} == {}


def test_no_page_is_a_bare_include():
    """On GitHub it would be one line that nobody can follow."""
    pages = [name for name in tracked() if name.endswith(".md")]
    assert [name for name in pages if "--8<--" in (ROOT / name).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](GRAM.md) [b](../README.md) ![c](shortcut.png) [d](how-to) [e](#f)\n# F\n", []),
        ("[a](reference/config.md)", ["reference/config.md"]),
        ("[a](GRAM.md#nowhere)", ["GRAM.md#nowhere"]),
        ("[`a`](#b) ![c](d.png)", ["#b", "d.png"]),
        ("`[a](b.md)`\n```text\n[a](b.md)\n```\n[a](https://b.c/d.md) [a](../../x)", ["../../x"]),
        ("[a](#b--c) [a](#b-c)\n## `b` & c\n", ["#b-c"]),
    ],
)
def test_a_broken_link_is_found(text, wrong):
    assert broken("docs/page.md", text, set(tracked())) == wrong
