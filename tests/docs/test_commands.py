"""The commands on every page exist as they are written, options, presets and keys included."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import click
import pytest

from fedsim import algorithms
from fedsim.cli import main
from fedsim.cli.report import AnalysisCommand, analysis
from fedsim.config import presets
from fedsim.config.experiments import COLUMNS_KEY
from fedsim.config.sections import fields
from fedsim.data import catalogue

ROOT = Path(__file__).resolve().parents[2]
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


def test_an_option_that_does_not_exist_is_found():
    with pytest.raises(click.UsageError, match="--augment"):
        parsed(("run", "--augment", "flip"))


def test_the_pages_have_commands():
    assert len(COMMANDS) > 60
