"""Text on its way to a terminal: what is escaped, and what stays."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path

import pytest

from fedsim.core.errors import ConfigError
from fedsim.core.terminal import check_text, echo, is_text, printable, tell

ROOT = Path(__file__).resolve().parents[3]
CONTROLS = [*map(chr, range(32)), *map(chr, range(127, 160))]
DIRECTIONS = [
    "\u061c",
    "\u200e",
    "\u200f",
    *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        (
            "caf\u00e9 \u533b\u9662 \U0001f600 $\\frac{$",
            "caf\u00e9 \u533b\u9662 \U0001f600 $\\frac{$",
        ),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("s\u202egnp.exe", "s\\u202egnp.exe"),
        ("\udcc3", "\\udcc3"),
        ("a\u00a0b", "a\\xa0b"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize("kept", ["", "\n\t"])
def test_no_control_character_and_no_direction_is_left(kept):
    found = printable("".join([*CONTROLS, *DIRECTIONS]), keep=kept)
    assert {c for c in found if not c.isprintable()} == set(kept)


def test_lines_are_printed_as_lines(capsys):
    echo("a\nb\x1b[0m", nl=False)
    echo("c\x07", err=True)
    assert capsys.readouterr() == ("a\nb\\x1b[0m", "c\\x07\n")


def test_what_a_stream_cannot_write_is_escaped():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    echo("caf\u00e9 \udcc3", file=stream)
    stream.flush()
    assert stream.buffer.getvalue() == b"caf\\xe9 \\udcc3\n"


def test_names_that_are_no_text_are_refused():
    assert is_text("\u00e9")
    assert not is_text("\udce9")
    check_text("\u00e9\x1b", "--out")
    with pytest.raises(ConfigError, match=r"--out 'r\\udce9': is no UTF-8"):
        check_text("r\udce9", "--out")


def test_what_nobody_reads_is_no_failure() -> None:
    """As after ``| head``: the reading end of the pipe is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1)
    tell("a line", file=stream)
    with pytest.raises(BrokenPipeError):
        echo("a line", file=stream)
    with suppress(BrokenPipeError):
        stream.close()
