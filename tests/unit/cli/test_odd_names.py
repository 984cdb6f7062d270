"""Names that are more than letters: mathematics, control characters, directions of writing."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedsim.cli import main

pytestmark = pytest.mark.integration

MATHS = ("$\\frac{$", "b$x$", "$", "$$", "\\$ 5 $", "a_b^c")
COMMANDS = ("\x1b[31mred", "\x9b31m", "\x1b]0;title\x07", "gnp\u202e.exe", "\x7f", "\x1bc\x08")
RUN = "run\x1b]0;title\x07"
"""The name of a run's directory."""
SERIAL = ("--engine", "serial", "--rounds", "1", "--model", "cnn", "--sample-rate", "1")


def write_images(folder: Path, names: tuple[str, ...]) -> None:
    """Each name is that of a class and of a site."""
    folder.mkdir()
    draw, rows = np.random.default_rng(0), [("filename", "label", "site", "split")]
    for i, name in enumerate(names * 4):
        pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        site = names[(i + i // len(names)) % len(names)]
        rows.append((f"{i}.png", name, site, "test" if i >= 3 * len(names) else "train"))
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def fedsim(*args: str | Path) -> Result:
    result = CliRunner().invoke(main, list(map(str, args)), color=True)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of each kind of names, and a run on both."""
    folder = tmp_path_factory.mktemp("names")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSIM_CACHE", str(folder / "cache"))
        for data, names in (("commands", COMMANDS), ("both", MATHS + COMMANDS)):
            write_images(folder / data, names)
        given = ("-d", "folder", "--data-dir", "both", "--set", "data.image_size=8")
        fedsim("run", *given, *SERIAL, "--evaluate-clients-every", "1", "--out", RUN)
    return folder


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FEDSIM_CACHE", str(place / "cache"))


def check_seen(text: str) -> None:
    """Nothing of it would be acted on by a terminal."""
    assert {c for c in text if not c.isprintable()} <= {"\n"}


@pytest.mark.parametrize(
    "args",
    [
        ("partition", "-d", "folder", "--data-dir", "commands", "--set", "data.image_size=8"),
        ("show", RUN),
        ("runs", "."),
        ("show", RUN, RUN),
        ("table", RUN, "--by", "run_id"),
        ("predict", RUN, "--out", "p\x1b[1m.csv"),
        ("resume", RUN),
    ],
    ids=lambda args: args[0],
)
def test_no_command_prints_what_a_terminal_acts_on(args, place):
    check_seen(fedsim(*args).output)


def test_a_wide_terminal_shows_the_same_escapes(place, monkeypatch, capsys):
    from fedsim.display import tables

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    tables.show([{"name\x1b[1m": "[red]\x1b]0;x\x07[/red]", "n": "1"}], title="\x1b[31m[b]t")
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)  # rich's own bold headings
    check_seen(shown)
    assert "[red]\\x1b]0;x\\x07[/red]" in shown
    assert "\\x1b[31m[b]t" in shown


def test_files_keep_the_names(place):
    """They are for programs: CSV and JSON know what to do with every character."""
    with (place / RUN / "partition.csv").open(newline="", encoding="utf-8") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {*MATHS, *COMMANDS}
    assert json.loads((place / RUN / "env.json").read_text())["classes"] == sorted(MATHS + COMMANDS)
    with (place / RUN / "summary.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["run_id"] == RUN
