"""Completion in shells: names, keys and values, without importing what they name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from fedsim import algorithms, data
from fedsim.cli import main
from fedsim.config import presets
from fedsim.config.sections import fields
from fedsim.data import partitions
from fedsim.models import NAMES

ROOT = Path(__file__).resolve().parents[3]


def completed(*args):
    """What a shell offers for the last argument."""
    found = ShellComplete(main, {}, "fedsim", "_FEDSIM_COMPLETE")
    return [item.value for item in found.get_completions(list(args[:-1]), args[-1])]


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (("run", "-a"), algorithms.names()),
        (("run", "--dataset"), [info.name for info in data.catalogue()]),
        (("run", "--model"), NAMES),
        (("run", "--partition"), partitions.NAMES),
        (("run", "--preset"), presets.names()),
        (("partition", "--preset"), presets.names()),
        (("sweep",), presets.names()),
        (("sweep", "x.yaml", "-a"), algorithms.names()),
    ],
)
def test_every_name_is_offered(args, wanted) -> None:
    assert sorted(completed(*args, "")) == sorted(wanted)
    assert not completed(*args, "no_such_") or args[-1] == "sweep"


def test_what_is_typed_limits_what_is_offered() -> None:
    assert completed("run", "-a", "fedp") == ["fedpac", "fedprox"]
    assert completed("run", "--server", "fedgh,fedad") == ["fedgh,fedadagrad", "fedgh,fedadam"]
    assert completed("run", "--decompose-split", "te") == ["test"]
    assert completed("sweep", "my_gr") == ["my_gr"], "a file"
    assert {"run", "runs", "resume", "show"} <= set(completed(""))
    assert completed("run", "--alg") == ["--algorithm"]


def test_keys_of_set_and_their_values() -> None:
    keys = completed("run", "--set", "")
    assert {f"{key}=" for key in fields()} <= set(keys)
    assert completed("run", "--set", "fedprox.m") == ["fedprox.mu="]
    assert completed("run", "--set", "synthetic.be") == ["synthetic.beta="]
    assert completed("run", "--set", "data.partition=by") == ["data.partition=by_site"]
    assert completed("run", "--set", "model.norm=") == ["model.norm=batch", "model.norm=group"]
    assert completed("run", "--set", "model.pretrained=t") == ["model.pretrained=true"]
    assert completed("run", "--set", "train.lr=") == []
    assert completed("run", "--set", "no.such=") == []


def test_directories_of_runs_are_completed_by_the_shell() -> None:
    shell = ShellComplete(main, {}, "fedsim", "_FEDSIM_COMPLETE")
    for args in (
        ["show"],
        ["show", "a"],
        ["predict"],
        ["predict", "a", "--data-dir"],
        ["runs"],
        ["resume"],
        ["run", "--data-dir"],
    ):
        assert [item.type for item in shell.get_completions(args, "ru")] == ["dir"]


@pytest.mark.slow
def test_a_shell_asks_without_importing_torch() -> None:
    code = "import sys, fedsim.cli as c\ntry: c.main()\nfinally: print('torch' in sys.modules)"
    for line, offered in (("fedsim run -d retinam", "retinamnist"), ("fedsim li", "list")):
        env = {"_FEDSIM_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "3"}
        env |= {"COMP_CWORD": str(len(line.split()) - 1)}
        program = "import sys; sys.argv[0] = 'fedsim'; " + code
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=env
        )
        assert done.stdout.splitlines() == [f"plain,{offered}", "False"], done.stderr
