"""What ``fedsim sweep`` and ``fedsim tune`` say and refuse before the first run begins."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedsim.cli import main
from fedsim.config.resolve import from_flags, resolve
from fedsim.core.errors import ConfigError
from fedsim.studies import capacity, sweep
from fedsim.studies.parallel import Drivers, Here

SMALL = """
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
engine: {kind: serial}
train: {rounds: 1, sample_rate: 0.5, batch_size: 100}
"""
SEARCH = SMALL + "search:\n  train.lr: choice(0.01, 0.3)\n"
SWEEP = SMALL + "grid: {seed: [0, 1]}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)
    Path("search.yaml").write_text(SEARCH)


def fedsim(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_the_help_says_which_engine_is_the_default(command: str) -> None:
    text = " ".join(fedsim(command, "--help").output.split())
    assert (
        "process (serial). [default: serial where the machine has no GPU and the runs fill it"
        in text
    )
    assert "[default: ray]" not in text
    assert "[default: ray]" in " ".join(fedsim("run", "--help").output.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_a_signal_during_start_up_says_how_to_continue(
    command: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: str) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(sweep, "load", load)
    before = signal.getsignal(number)
    done = fedsim(command, f"{'sweep' if command == 'sweep' else 'search'}.yaml")
    assert (done.stderr, done.exit_code) == (
        "interrupted; the same command continues\n",
        128 + number,
    )
    assert signal.getsignal(number) is before
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (
            ("--search", "fedprox.mu=uniform(0, 1)"),
            "--search fedprox.mu has no effect: the method used is fedavg; nothing to search",
        ),
        (
            ("--search", "train.rounds=int(1, 3)"),
            "--search train.rounds: a pruner compares trials round by round, with the same number "
            "of rounds in all; give --pruner none to search over train.rounds",
        ),
    ],
)
def test_searches_without_a_meaning_are_refused(flags: tuple[str, ...], wanted: str) -> None:
    done = fedsim("tune", "search.yaml", *flags)
    assert (done.exit_code, done.stderr) == (2, f"error: {wanted}\n")


def test_the_number_of_rounds_is_searched_without_a_pruner(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> Drivers:
        raise ConfigError("the search would begin")

    monkeypatch.setattr(capacity, "make_drivers", stop)
    done = fedsim("tune", "search.yaml", "--search", "train.rounds=int(1, 3)", "--pruner", "none")
    assert done.stderr == "error: the search would begin\n"


@pytest.mark.parametrize(
    ("drivers", "count", "wanted"),
    [
        (Here(), 1, "6 runs, in this process (serial engine)"),
        (Here(), 6, "6 runs, one at a time in this process (serial engine)"),
        (Here(session=object()), 6, "6 runs, one at a time (serial engine)"),
    ],
)
def test_how_many_runs_at_once_is_said(drivers: Drivers, count: int, wanted: str) -> None:
    configs = [resolve(from_flags({}, ["engine.kind=serial"]))] * count
    assert capacity.introduction("6 runs", drivers, configs) == wanted


@pytest.mark.slow
@pytest.mark.integration
def test_the_first_line_of_a_sweep_and_of_one_that_continues() -> None:
    first = fedsim("sweep", "sweep.yaml", "--parallel", "1")
    assert first.stdout.startswith("2 runs, one at a time in this process (serial engine)\n[1/2] ")
    assert "best by val. %" in first.stdout
    assert "last1" not in first.stdout, "that of one round is the final accuracy"
    Path("runs/sweep-sweep/seed=1/summary.csv").unlink()
    again = fedsim("sweep", "sweep.yaml", "--parallel", "1")
    assert again.stdout.splitlines()[1] == "1 of 2 runs left, in this process (serial engine)"
    nothing = fedsim("sweep", "sweep.yaml", "--parallel", "1")
    assert "left" not in nothing.stdout
    assert nothing.exit_code == 0


@pytest.mark.slow
@pytest.mark.integration
def test_a_search_says_that_its_trials_are_done() -> None:
    tune = ("tune", "search.yaml", "--pruner", "none", "--parallel", "1", "--trials")
    first = fedsim(*tune, "2")
    assert first.stdout.startswith("2 runs of trials, one at a time in this process (serial ")
    again = fedsim(*tune, "1")
    assert again.stdout.startswith("2 trials done already\n")
    assert again.exit_code == 0
    more = fedsim(*tune, "3")
    assert more.stdout.startswith("1 run of trials, in this process (serial engine)\n")


def test_the_file_says_what_is_done_whatever_the_name_of_the_command() -> None:
    study = SMALL + "methods: {A: {algorithm: fedavg}}\nsearch: {train.lr: 'choice(0.1, 1)'}\n"
    Path("study.yaml").write_text(study)
    look = ("--dry-run", "--no-measure")
    assert "tuning: 25 trials, 25 runs\n\n" in fedsim("sweep", "search.yaml", *look).stdout
    assert "comparison: 3 runs" in fedsim("sweep", "study.yaml", *look).stdout
    for command, file, wanted in (
        ("tune", "sweep.yaml", "there is nothing to search: give a section 'search:'"),
        ("tune", "study.yaml", "is the file of a study, see 'fedsim study --help'"),
        ("study", "sweep.yaml", "a study needs 'methods:'"),
    ):
        done = fedsim(command, file, *look)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert wanted in done.stderr


def test_keys_of_a_search_have_no_effect_without_one() -> None:
    Path("sweep.yaml").write_text(SWEEP + "trials: 3\n")
    done = fedsim("sweep", "sweep.yaml", "--dry-run")
    wanted = "error: sweep.yaml:8 (trials): has no effect without 'search:'\n"
    assert (done.exit_code, done.stderr) == (2, wanted)
