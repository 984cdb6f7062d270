"""``fedsim partition``: own test parts, feature shift and the picture."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedsim.cli import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSIM_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def partition(*args: str) -> Result:
    return CliRunner().invoke(main, ["partition", *args])


@pytest.mark.integration
def test_the_picture_is_drawn_and_not_drawn_over(tmp_path: Path) -> None:
    args = ["--clients", "12", "--feature-shift", "noise", "--plot", "p.png"]
    done = partition(*args)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "picture: p.png"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    again = partition(*args)
    assert (again.exit_code, again.stderr) == (2, "error: --plot p.png: is already there\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--plot", "p.jpg"], "--plot p.jpg: the name must end in .png, .pdf, .svg"),
        (["--plot", "no/p.png"], "--plot no/p.png: there is no directory no"),
        (["--feature-shift", "bluur"], "--feature-shift: 'bluur' given; must be 'none', 'blur'"),
        (["--feature-shift", "colour"], "digits has 1"),
        (["--feature-strength", "0"], "--feature-strength: '0' given; must be greater than 0"),
        (["--correlation", "2"], "--correlation: '2' given; must be less than or equal to 1"),
        (["--set", "data.shift_test=dirty"], "data.shift_test: 'dirty' given; must be 'mixed'"),
        (["--set", "data.client_test_fraction=1"], "data.client_test_fraction: '1' given"),
        (
            ["--set", "data.client_test_fraction=0.98"],
            "(76: data.min_samples 2 and the clients' own held-out parts)",
        ),
        (["-d", "shortcut", "--data-dir", "x"], "shortcut is generated, it takes no folder"),
    ],
)
def test_bad_values_are_refused_in_one_line(args: list[str], message: str) -> None:
    done = partition(*args)
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert message in done.stderr


def test_own_test_samples_are_in_the_table(tmp_path: Path) -> None:
    args = ["-d", "shortcut", "--clients", "10", "--set", "data.client_test_fraction=0.1"]
    done = partition(*args, "--out", "p")
    assert done.exit_code == 0, done.output
    head = "shortcut, by_site: 540 training samples of 2 classes on 10 clients"
    assert done.stdout.splitlines()[0] == head
    rows = list(csv.DictReader((tmp_path / "p" / "partition.csv").open()))
    assert {row["name"] for row in rows} >= {"colour_0", "ring_1", "text_2"}
    for client in range(10):
        own = [row for row in rows if row["client_id"] == str(client)]
        assert sum(int(row["test_samples"]) for row in own) == 6


def test_sites_of_generated_data_are_as_many_as_clients(tmp_path: Path) -> None:
    args = ["-d", "shortcut", "--clients", "11", "--set", "shortcut.samples_per_client=10"]
    assert partition(*args, "--out", "p").exit_code == 0
    split = ["--partition", "files", "--set", "data.partition_file=p/split.csv"]
    assert partition(*args, *split).exit_code == 0
    # with another number of sites the images would be others
    refused = partition("-d", "shortcut", *args[4:], *split)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "data.num_clients 50: partition 'files' of shortcut has 11 clients" in refused.stderr
