"""Random configurations have one set of bytes, whatever does the work."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
import yaml
from click.testing import CliRunner

from benchmarks import draws, same_bytes, ways
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from tests.commands import ROOT, temporary_sandbox


def test_what_is_drawn_follows_from_the_seed(tmp_path):
    first, again, other, next_one = (
        draws.draw(*given, tmp_path) for given in ((7, 1, 0), (7, 1, 0), (8, 1, 0), (7, 2, 0))
    )
    assert first == again
    assert other != first != next_one
    methods = {draws.draw(7, number, 0, tmp_path)["algorithm"] for number in range(40)}
    assert len(methods) > 25, "forty configurations meet all methods"


def test_what_is_drawn_is_often_a_configuration(tmp_path):
    usable = 0
    for number in range(10):
        with suppress(ConfigError):
            RunConfig(**draws.draw(3, number, 0, tmp_path))
            usable += 1
    assert usable > 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, None),
        (lambda run: (run / "model.safetensors").write_bytes(b"b"), "model.safetensors: differs"),
        (lambda run: (run / "rounds.csv").write_text("round\n1\n3\n"), "rounds.csv:3: differs"),
        (lambda run: (run / "errors.csv").write_text("attempt\n1\n"), None),
        (
            lambda run: (run / "errors.csv").write_text("attempt\n0\n"),
            "errors.csv: is there in addition",
        ),
        (lambda run: (run / "rounds.csv").unlink(), "rounds.csv: is missing"),
        (lambda run: (run / "timings.csv").touch(), None),
        (lambda run: (run / "summary.csv").write_text("run_id,a\ny,1\n"), None),
        (lambda run: (run / "summary.csv").write_text("run_id,a\ny,2\n"), "summary.csv: differs"),
    ],
)
def test_a_difference_is_named(change, said, tmp_path):
    runs = tmp_path / "one", tmp_path / "other"
    for run in runs:
        run.mkdir()
        (run / "rounds.csv").write_text("round\n1\n2\n")
        (run / "model.safetensors").write_bytes(b"a")
        (run / "summary.csv").write_text("run_id,a\nx,1\n")
    if change:
        change(runs[1])
    assert ways.difference(*map(ways.contents, runs)) == said


def test_a_problem_is_shown_with_its_configuration(tmp_path):
    settings = draws.draw(1, 1, 0, tmp_path)
    one = ways.Drawn(1, settings, tmp_path, 0, ["ray with 2: rounds.csv:2: differs"], "SIGALRM")
    text = ways.described(one)
    assert "# ray with 2: rounds.csv:2: differs\n" in text
    assert yaml.safe_load(text) == settings


@pytest.mark.parametrize("given", [[], ["."], [".", ".", "--random", "1"]])
def test_checkouts_and_random_runs_are_two_things(given):
    done = CliRunner().invoke(same_bytes.main, given)
    assert done.exit_code == 2
    assert "give either BEFORE and AFTER, or --random N" in done.stderr


@pytest.mark.slow
def test_two_random_configurations_have_one_set_of_bytes_in_five_ways():
    with temporary_sandbox() as sandbox:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.same_bytes", "--random", "2", "--seed", "2"],
            cwd=ROOT,
            env=sandbox.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "each in five ways, 2 killed in a round; 0 with differences" in done.stdout
        assert sandbox.left() == {}
