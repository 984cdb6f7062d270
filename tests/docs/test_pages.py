"""The pages: commands, links and code are as they say."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from pathlib import Path
from urllib.parse import unquote

import click
import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.cli import main
from fedsim.cli.report import AnalysisCommand, analysis
from fedsim.config import presets
from fedsim.config.experiments import COLUMNS_KEY
from fedsim.config.sections import fields
from fedsim.data import catalogue
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[2]


# commands


PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("launch/*.md"), *ROOT.glob("docs/**/*.md"))
    if "site" not in path.parts
)
FENCE = re.compile(r"^ *```(?:bash|console|sh)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, tuple[str, ...]]]:
    """Every line ``fedsim COMMAND ...`` of the pages' blocks, with the page's name.

    Those that a page shows with their error message are left out.
    """
    found = []
    for page in PAGES:
        for block in FENCE.findall(page.read_text()):
            lines = block.replace("\\\n", " ").splitlines()
            for line, answer in zip(lines, [*lines[1:], ""], strict=True):
                line = re.split(r"\s#|\|\||&&|; ", line.strip().removeprefix("$ "))[0].rstrip()
                line = (
                    line.removesuffix("'") if line.count("'") % 2 else line
                )  # ends a ray exec '...'
                words = shlex.split(line) if re.match(r"(\.venv/bin/)?fedsim \w", line) else []
                if words and not answer.startswith("error:"):
                    found.append((str(page.relative_to(ROOT)), tuple(words[1:])))
    return found


COMMANDS = commands()


def parsed(words: tuple[str, ...]) -> click.Context:
    """The context of a command line; a click.UsageError where an option does not exist."""
    group = click.Context(main, info_name="fedsim")
    command = main.get_command(group, words[0])
    assert command is not None, f"fedsim {words[0]}: no such command"
    if isinstance(command, AnalysisCommand):
        command = analysis("cli").main.commands[words[0]]
    ctx = click.Context(command, info_name=words[0], parent=group)
    command.make_parser(ctx).parse_args(list(words[1:]))
    return ctx


def known_key(key: str) -> bool:
    """Whether ``--set KEY=...`` names a key, or an option of a method or data set."""
    section = key.rpartition(".")[0]
    if ":" in section:
        return True
    options = {
        f"{name}.{option}" for name in algorithms.names() for option in algorithms.parameters(name)
    }
    return (
        key in fields()
        or key in options
        or section in {COLUMNS_KEY, *(i.name for i in catalogue())}
    )


@pytest.mark.parametrize(
    ("page", "words"),
    COMMANDS,
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else value,
)
def test_a_command_of_a_page_is_one(page, words):
    parsed(words)
    for flag, value in itertools.pairwise(words):
        if flag == "--set":
            assert known_key(value.partition("=")[0]), value
        if flag in ("-a", "--algorithm") and ":" not in value and "$" not in value:
            assert value in algorithms.names()
        if flag == "--preset":
            assert value in presets.names()
    if words[0] == "sweep" and not words[1].endswith(".yaml") and not words[1].isupper():
        assert words[1] in presets.names()


# links


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


# readme


PAGE = (ROOT / "README.md").read_text()


def test_it_has_at_most_120_lines():
    assert len(PAGE.splitlines()) <= 120


def test_the_two_commands_are_as_ever():
    install = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert f"```bash\n{install} . && .venv/bin/fedsim run\n```" in PAGE
    assert f"```bash\n{install} '.[test]' && .venv/bin/python -m pytest\n```" in PAGE


def test_the_python_example_says_what_the_api_has():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    settings = re.search(r"RunConfig\((.*?)\)\)", code[1])
    assert settings is not None
    config = eval(f"fedsim.RunConfig({settings[1]})", {"fedsim": fedsim})
    assert config.train.rounds == 20
    last = code[1].strip().splitlines()[-1]
    scope: dict[str, object] = {"fedsim": fedsim}
    exec(last, scope)
    # (1, 0) and (-1, 1) become (0.5, 0.5) and (0, 1), with weights 3/4 and 1/4
    np.testing.assert_allclose(scope["step"], [0.375, 0.625])
