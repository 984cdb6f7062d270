"""train.patience: when a run ends before its last round, and that a resumed one does so too."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.identity import resume
from fedsim.testing.rounds import config
from fedsim.training.early_stopping import EarlyStopping
from tests.stopping import Stop, Stopper


def stops_after(patience: int | None, accuracies: list[float | None]) -> int | None:
    """The round, from 1, after which a run with these validation accuracies ends."""
    stopping = EarlyStopping(patience)
    for round, accuracy in enumerate(accuracies, start=1):
        stopping.add(round, accuracy)
        if stopping.due:
            return round
    return None


@pytest.mark.parametrize(
    ("patience", "accuracies", "wanted"),
    [
        (1, [0.5, 0.5], 2),  # as good is not better
        (2, [0.5, 0.4, 0.6, 0.5, 0.6, 0.7], 5),
        (3, [0.5, 0.4, 0.6, 0.5, 0.6, 0.7], None),
        (2, [None, 0.5, None, 0.4, None, 0.3, None], 6),  # evaluations count, not rounds
        (1, [0.0, 0.0], 2),
        (1, [None] * 9, None),
        (None, [0.5] * 9, None),
    ],
)
def test_evaluations_without_a_better_accuracy(patience, accuracies, wanted) -> None:
    assert stops_after(patience, accuracies) == wanted


def test_what_rounds_csv_says_counts_to_the_last_digit(tmp_path: Path) -> None:
    accuracies = [None, 111 / 145, None, 111 / 145 - 2**-53, 0.5, None, 111 / 145, 0.25]
    rounds = tmp_path / "rounds.csv"
    cells = ["" if a is None else repr(a) for a in accuracies]
    lines = [f"{round},0.1,{cell}" for round, cell in enumerate(cells, start=1)]
    rounds.write_text("\n".join(["round,lr,val_accuracy", *lines]) + "\n")
    stopping = EarlyStopping(4)
    stopping.read(rounds)
    assert (stopping.best, stopping.best_round, stopping.waited) == (111 / 145, 2, 4)
    assert stopping.due
    stopping.add(9, 111 / 145 + 2**-53)
    assert (stopping.best_round, stopping.due) == (9, False)


def still(**train: object) -> RunConfig:
    """A run whose model hardly moves: its validation accuracy stays what it is."""
    train = {"rounds": 12, "lr": 1e-12, "patience": 3} | train
    data = {"val_fraction": 0.1, "test_fraction": 0.5}
    return config("scaffold", "mlp", data=data, train=train | {"momentum": 0.0},
                  evaluation={"every": 2}, engine={"checkpoint_every": 1})  # fmt: skip


def contents(run: Path) -> dict[str, bytes]:
    names = {path.name for path in run.iterdir() if path.is_file()}
    names -= {"timings.csv", "env.json", "summary.csv", "config.yaml"}
    return {name: (run / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends after round 8: evaluations after rounds 2, 4, 6 and 8, none better."""
    return fedsim.run(still(), tmp_path_factory.mktemp("early") / "run").path


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_ends_in_order(ended: Path, tmp_path: Path) -> None:
    store = fedsim.RunStore(ended)
    assert store.read("rounds")["round"].tolist() == list(range(1, 9))
    assert (store.summary["rounds"], store.summary["best_round"]) == (8, 2)
    assert store.summary["train.patience"] == 3
    assert (ended / "model.safetensors").exists()
    assert fedsim.resume(ended).path == ended, "it is finished"
    assert resume.is_complete(still(), ended), "so that a sweep skips it"
    with pytest.raises(ConfigError, match=r"another train\.patience \(3, wanted 4\)"):
        resume.is_complete(still(patience=4), ended)
    through = fedsim.run(still(patience=None), tmp_path / "through")
    for table in ("rounds.csv", "clients.csv", "classes.csv", "confusion.csv"):
        begun, whole = ((path / table).read_bytes() for path in (ended, through.path))
        assert whole.startswith(begun)
    assert len(through.read("rounds")) == 12


@pytest.mark.integration
@pytest.mark.parametrize("after", [1, 4, 7, 8])
def test_a_resumed_run_ends_after_the_same_round(after: int, ended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stop):
        fedsim.run(still(), run, callbacks=[Stopper(after)])
    assert not (run / "summary.csv").exists()
    watcher = Stopper(0)
    fedsim.resume(run, callbacks=[watcher])
    assert watcher.rounds == list(range(after + 1, 9))
    assert contents(run) == contents(ended)


@pytest.mark.integration
def test_without_a_validation_part_it_is_refused(tmp_path: Path) -> None:
    flags = ["--engine", "serial", "--clients", "20", "--patience", "2", "--out"]
    done = CliRunner().invoke(main, ["run", *flags, str(tmp_path / "run")])
    assert done.exit_code == 2
    assert done.stderr == (
        "error: train.patience 2 given; data set digits has no validation part to measure "
        "accuracy on: set data.val_fraction too, as in 0.1\n"
    )
    assert not (tmp_path / "run").exists()
