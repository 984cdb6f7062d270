"""Sweeps: the runs of a grid, what is done again, the tables, and what the command says."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from analysis.files import read_grid
from fedsim.cli import main
from fedsim.cli.sweep import show_aggregate
from fedsim.config import experiments
from fedsim.config.resolve import from_flags, resolve, to_yaml
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError, DivergedError
from fedsim.display.board import OneByOne
from fedsim.identity import resume
from fedsim.storage import directories
from fedsim.storage.run_dir import check_free
from fedsim.studies import capacity, sweep
from fedsim.studies.parallel import Drivers, Here
from fedsim.training import driver

LAUNCH = Path(__file__).resolve().parents[3] / "launch"
CLUSTERS = ("cluster_name", "apiVersion")
"""Keys of files for Ray's launcher and Kubernetes, which lie beside the experiments."""
EXPERIMENTS = [
    p
    for p in sorted(LAUNCH.glob("*.yaml"))
    # no cluster, no study
    if not {*CLUSTERS, "methods"} & set(next(iter(yaml.safe_load_all(p.read_text()))))
]
GRID = "train: {rounds: 2}\ngrid:\n  algorithm: [fedavg, fedprox]\n  seed: [0, 1, 2]\n"


MANY = ("seed", "data.seed", "train.rounds")
Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The messages that were logged so far."""
    caplog.set_level(logging.INFO, "fedsim")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "fedsim"]


def runs_of(text: str, *sets: str) -> list[sweep.SweepRun]:
    return sweep.expand(experiments.parse(text, "grid.yaml"), from_flags({}, sets))


def fake_run(config: RunConfig, folder: Path) -> None:
    """Leaves what a finished run leaves; accuracies are made of method and seed."""
    folder.mkdir(parents=True)
    values = yaml.safe_load(to_yaml(config))
    values["model"]["name"] = "cnn"  # a run fills in what the configuration leaves open
    values["data"]["partition"] = config.data.partition or "dirichlet"
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    accuracy = {"fedavg": 0.5, "fedprox": 0.6}[config.algorithm] + config.seed / 100
    row = {
        "run_id": folder.name, "algorithm": config.algorithm, "dataset": "digits", "alpha": 0.5,
        "seed": config.seed, "final_test_accuracy": accuracy, "best_test_accuracy": accuracy + 0.1,
        "last10_test_accuracy": accuracy - 0.1, "final_test_auc": accuracy + 0.2,
        "client_accuracy_worst": 0.25, "collapsed": config.algorithm == "fedavg",
    }  # fmt: skip
    own = config.hyperparameters[config.algorithm]
    row |= {f"{config.algorithm}.{key}": value for key, value in own.items()}
    pd.DataFrame([row]).to_csv(folder / "summary.csv", index=False)


def run_all(
    runs: list[sweep.SweepRun], out: Path, start: Callable[[RunConfig, Path], None]
) -> tuple[pd.DataFrame, list[str]]:
    """A sweep in this process, with ``start`` in place of every run."""

    def run(config: RunConfig, folder: Path, *_: object, **__: object) -> None:
        start(config, folder)

    follower = OneByOne([run.name for run in runs])
    with mock.patch.object(driver, "run", run):
        return sweep.run_all(runs, sweep.missing(runs, out), out, Here(), follower)


def test_names_say_what_varies_in_grid_order() -> None:
    runs = runs_of(GRID)
    assert [r.name for r in runs] == [
        f"algorithm={a},seed={s}" for a in ("fedavg", "fedprox") for s in (0, 1, 2)
    ]
    assert {r.group for r in runs} == {"algorithm=fedavg", "algorithm=fedprox"}
    assert all(r.config.train.rounds == 2 for r in runs)


def test_rows_of_settings_that_go_together() -> None:
    text = "grid:\n  m:\n  - a: {algorithm: fedavg}\n  - b/c: {algorithm: fedld, margin: none}\n"
    first, second = runs_of(text)
    assert (first.name, second.name) == ("m=a", "m=b_c")
    assert (second.config.algorithm, second.config.margin) == ("fedld", "none")


def test_a_flag_replaces_the_axis_of_its_key() -> None:
    assert [r.name for r in runs_of(GRID, "seed=7")] == ["algorithm=fedavg", "algorithm=fedprox"]
    assert {r.config.seed for r in runs_of(GRID, "seed=7")} == {7}
    assert all(r.config.train.rounds == 9 for r in runs_of(GRID, "train.rounds=9"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("grid:\n  algorithm: [fedavg, fedldd]\n", "grid.yaml:2 (grid.algorithm): unknown"),
        ("grid:\n  train.lrr: [1]\n", "grid.yaml:2 (grid.train.lrr): unknown key"),
        ("grid:\n  m:\n  - a: {train.lr: -1}\n", "grid.yaml:3 (train.lr): -1 given"),
        ("grid:\n  m:\n  - a/b: {seed: 1}\n  - a_b: {seed: 2}\n", "the same name m=a_b"),
        ("grid:\n  m:\n  - a: {seed: 1}\n", "--set seed: the grid's axis m sets seed"),
        (
            "grid:\n" + "".join(f"  {k}: {list(range(1, 101))}\n" for k in MANY),
            "1,000,000 runs; a sweep has at most 10,000",
        ),
    ],
)
def test_every_run_is_checked_before_the_first_starts(text: str, wanted: str) -> None:
    flags = ("seed=7",) if "--set" in wanted else ()
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        runs_of(text, *flags)


@pytest.mark.parametrize(
    ("text", "sets", "warned"),
    [
        ("grid: {algorithm: [fedavg, fedprox]}\nfedprox: {mu: 1}\n", [], []),
        (
            "grid: {algorithm: [fedavg, fedbn]}\nfedprox: {mu: 1}\n",
            [],
            ["grid.yaml:2 (fedprox.mu)"],
        ),
        ("algorithm: fedavg\ngrid: {fedprox.mu: [1, 2]}\n", [], ["grid.yaml:2 (grid.fedprox.mu)"]),
        ("algorithm: fedavg\nserver: fedgh\n", ["fedgh.order=random"], []),
    ],
)
def test_hyperparameters_that_no_run_uses_are_warned_of(
    text: str, sets: list[str], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    runs_of(text, *sets)
    assert [m.partition(" has no effect")[0] for m in caplog.messages] == warned


def test_files_may_start_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: table3_small\ntrain: {rounds: 3}\n")
    runs = sweep.expand(sweep.load(str(path)), {})
    assert len(runs) == 18
    assert {(r.config.train.rounds, r.config.data.num_clients) for r in runs} == {(3, 50)}


def test_finished_runs_are_skipped_and_tables_written(tmp_path: Path, lines: Lines) -> None:
    runs, started = runs_of(GRID), []

    def start(config: RunConfig, folder: Path) -> None:
        started.append(folder.name)
        fake_run(config, folder)

    table, failed = run_all(runs, tmp_path, start)
    assert failed == []
    assert started == [r.name for r in runs]
    run_all(runs, tmp_path, start)
    assert len(started) == 6
    assert lines()[-1] == "[6/6] algorithm=fedprox,seed=2: finished before"

    summary = pd.read_csv(tmp_path / "summary.csv")
    assert list(summary["run"]) == [r.name for r in runs]
    assert summary.loc[summary["algorithm"] == "fedprox", "fedprox.mu"].tolist() == [0.1] * 3
    assert summary.loc[summary["algorithm"] == "fedavg", "fedprox.mu"].isna().all()

    assert list(table["configuration"]) == ["algorithm=fedavg", "algorithm=fedprox"]
    row = pd.read_csv(tmp_path / "aggregate.csv").iloc[0]
    # 0.50, 0.51, 0.52: mean 0.51, std 0.01, t(0.975, 2) = 4.302653: 4.302653 * 0.01 / sqrt(3)
    assert row["n"] == 3
    assert row["final_test_accuracy_mean"] == pytest.approx(0.51, abs=1e-12)
    assert row["final_test_accuracy_std"] == pytest.approx(0.01, abs=1e-12)
    assert row["final_test_accuracy_ci95"] == pytest.approx(0.024841377, abs=1e-8)
    assert row["best_test_accuracy_mean"] == pytest.approx(0.61, abs=1e-12)
    assert row["last10_test_accuracy_mean"] == pytest.approx(0.41, abs=1e-12)
    assert row["final_test_auc_mean"] == pytest.approx(0.71, abs=1e-12)
    assert row[["client_accuracy_worst_mean", "client_accuracy_worst_ci95"]].tolist() == [0.25, 0]
    assert pd.isna(row["final_test_macro_f1_mean"])
    assert table["collapsed"].tolist() == [3, 0]
    assert list(table)[4] == "n"
    assert table["label"].tolist() == summary["label"].unique().tolist() == ["fedavg", "fedprox"]
    assert list(table)[-1] == list(summary)[-1] == "label"
    assert [name.removesuffix("_mean") for name in list(table)[5:-1:3]] == [
        *(
            f"{when}_test_{metric}"
            for metric in ("accuracy", "balanced_accuracy", "macro_f1", "auc")
            for when in ("final", "best", "last10")
        ),
        *("client_accuracy_std", "client_accuracy_p10", "client_accuracy_worst", "collapsed"),
    ]


def test_what_another_process_finishes_meanwhile_is_not_done_again(
    tmp_path: Path, lines: Lines
) -> None:
    runs, started = runs_of(GRID), []

    def start(config: RunConfig, folder: Path) -> None:
        started.append(folder.name)
        fake_run(config, folder)
        if folder.name == runs[0].name:  # a second sweep in the same folder, from its other end
            fake_run(runs[-1].config, tmp_path / runs[-1].name)

    run_all(runs, tmp_path, start)
    assert started == [r.name for r in runs[:-1]]
    assert lines()[-1] == "[6/6] algorithm=fedprox,seed=2: finished before"
    assert not list(tmp_path.glob("*interrupted*"))


def written(clients: int = 50, partition: str = "dirichlet", **sections: object) -> object:
    """The config.yaml of a finished run."""
    config = RunConfig(**sections)  # type: ignore[arg-type]
    model = config.model.name or "cnn"
    return yaml.safe_load(
        to_yaml(config.resolved(num_clients=clients, partition=partition, model=model))
    )


def test_placement_does_not_make_another_run() -> None:
    placed = RunConfig(engine={"actors": 8, "kind": "serial", "cpus_per_client": 0.5})
    assert resume.difference(placed, written()) is None
    rounded = resume.difference(RunConfig(engine={"precision": "tf32"}), written())
    assert rounded == "engine.precision ('float32', wanted 'tf32')"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("data.num_clients=12", "data.num_clients (12, wanted 50)"),
        ("data.partition=iid", "data.partition ('iid', wanted 'dirichlet')"),
        ("engine.gpus_per_client=0.5", "engine.gpus_per_client (0.5, wanted None)"),
    ],
)
def test_what_is_no_longer_given_makes_another_run(flags: str, wanted: str) -> None:
    before = resolve(from_flags({}, [flags]))
    kind = before.data.partition or "dirichlet"
    found = written(before.data.num_clients, kind, **dict(before))
    assert resume.difference(before, found) is None
    assert resume.difference(RunConfig(), found) == wanted


@pytest.mark.parametrize(
    ("data", "clients", "partition", "wanted"),
    [
        ({"name": "retina"}, 5, "files", None),
        ({"name": "retina"}, 20, "iid", "data.partition ('iid', wanted 'files')"),
        ({"name": "npz"}, 7, "by_site", None),
        ({"name": "npz"}, 10, "dirichlet", "data.num_clients (10, wanted 50)"),
        ({"partition_file": "split.csv"}, 4, "files", None),
    ],
)
def test_what_only_the_files_know_is_taken_from_the_finished_run(
    data: dict[str, str], clients: int, partition: str, wanted: str | None
) -> None:
    counted = {"num_clients": clients} if partition in ("iid", "dirichlet") else {}
    found = written(clients, partition, data={**data, **counted})
    assert resume.difference(RunConfig(data=data), found) == wanted  # type: ignore[arg-type]


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, lines: Lines) -> None:
    runs = runs_of(GRID)

    def start(config: RunConfig, folder: Path) -> None:
        if config.algorithm == "fedprox" and config.seed == 1:
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text("seed: 1")
            raise DivergedError("round 2,\nclient 3: the loss is NaN")
        fake_run(config, folder)

    table, failed = run_all(runs, tmp_path, start)
    assert failed == ["algorithm=fedprox,seed=1"]
    told = "[5/6] algorithm=fedprox,seed=1: failed: round 2, client 3: the loss is NaN"
    assert lines()[-2:] == [told, "[6/6] algorithm=fedprox,seed=2"]
    assert table["n"].tolist() == [3, 2]
    # 0.60 and 0.62
    assert table["final_test_accuracy_mean"].tolist() == pytest.approx([0.51, 0.61])
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 5
    table, failed = run_all(runs, tmp_path, fake_run)
    assert (table["n"].tolist(), failed) == ([3, 3], [])
    assert (tmp_path / "algorithm=fedprox,seed=1.interrupted-1").is_dir()


def test_ctrl_c_stops_a_sweep(tmp_path: Path) -> None:
    def start(_: RunConfig, __: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(runs_of(GRID), tmp_path, start)


@pytest.mark.parametrize(
    ("extra", "kept"), [(None, 0), ("rounds.csv", 1), ("checkpoints/clients", 1), ("note.txt", 1)]
)
def test_a_run_without_a_finished_round_is_not_archived(
    extra: str | None, kept: int, tmp_path: Path
) -> None:
    folder = tmp_path / "seed=0"
    (folder / "checkpoints").mkdir(parents=True)
    for name in (*resume.BEFORE_ROUNDS, files.LOCK_FILE, *([extra] if extra else [])):
        (folder / name).touch()
    resume.archive(folder)
    assert len(list(tmp_path.glob("*.interrupted-*"))) == kept
    check_free(folder)  # a run can begin there


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_the_experiment_files_of_the_repository_are_valid(path: Path) -> None:
    loaded = sweep.load(str(path))
    assert loaded.about
    assert sweep.expand(loaded, {})


@pytest.mark.parametrize("below", ["", "a/b/c"])
def test_nothing_begins_in_a_run_directory(below: str, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "grid.yaml"
    fake_run(RunConfig(algorithm="fedavg"), run)
    (run / "env.json").write_text("{}")
    file.write_text("engine: {kind: serial}\n" + GRID)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = CliRunner().invoke(main, ["sweep", str(file), "--out", str(run / below)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"lies inside the run directory {run}" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("first", ["seed=0", "algorithm=fedavg"])
def test_a_sweep_goes_on_in_its_directory_with_another_grid(first: str, tmp_path: Path) -> None:
    run_all(runs_of(GRID, first), tmp_path, fake_run)  # the axis leaves the runs' names
    table, failed = run_all(runs_of(GRID), tmp_path, fake_run)
    assert (table["n"].tolist(), failed) == ([3, 3], [])


def test_the_final_table_says_what_it_shows_and_who_collapsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, _ = run_all(runs_of(GRID), tmp_path, fake_run)
    capsys.readouterr()
    show_aggregate(table, 100)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "test accuracy in percent: mean +- half-width of its 95 % interval (t distribution over n "
        "seeds on one partition)"
    )
    rows = [re.split(" {2,}", line) for line in lines[1:4]]
    assert rows == [
        ["configuration", "n", "final %", "best %", "last10 %", "collapsed"],
        ["algorithm=fedavg", "3", *(f"{a}.00 +- 2.48" for a in (51, 61, 41)), "3 of 3"],
        ["algorithm=fedprox", "3", *(f"{a}.00 +- 2.48" for a in (61, 71, 51)), "-"],
    ]
    assert lines[4].startswith("collapsed: runs whose final balanced accuracy is at most that of")
    again = table.assign(collapsed=0, final_test_balanced_accuracy_mean=[0.25, math.nan])
    again["best_test_accuracy_mean"] = 0.5
    show_aggregate(again, 2, {"algorithm=fedavg": {"configuration": "Mine (a/b)"}})
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(" {2,}", line)[-1] for line in lines[1:4]] == [
        "final balanced %",
        "25.00",
        "-",
    ]
    assert "last2 %" in lines[1]
    assert lines[2].startswith("Mine (a/b)  ")
    assert lines[4].startswith("best: in the round that is best on the validation part")


METHODS = (
    "  method:\n  - Mine: {algorithm: fedprox, fedprox.mu: 0.5}\n  - FedAvg: {algorithm: fedavg}\n"
)


@pytest.mark.parametrize(
    ("grid", "labels"),
    [
        (METHODS, ["Mine", "FedAvg"]),
        (METHODS + "  seed: [0, 1]\n  data.alpha: [0.1]\n", ["Mine", "Mine", "FedAvg", "FedAvg"]),
        ("  algorithm: [fedavg, fedprox]\n", [None, None]),
        ("  algorithm: [fedavg, Mine: {algorithm: fedprox}]\n", [None, "Mine"]),
        (
            "  algorithm: [fedavg]\n  server: [null, fedgh]\n  step: [large: {train.lr: 1.0}]\n",
            ["fedavg, large", "fedavg, server=fedgh, large"],
        ),
        (METHODS + "  part: [IID: {data.alpha: 100.0}]\n", ["Mine", "FedAvg"]),
        ("  part: [one: {data.alpha: 1.0, fedavg.weights: uniform}]\n", ["one"]),
        ("  how: [sync: {}, FedBuff: {clock.mode: async, train.rounds: 9}]\n", ["sync", "FedBuff"]),
        (
            "  algorithm: [fedavg]\n  how: [sync: {}, FedBuff: {clock.mode: async}]\n",
            ["fedavg, sync", "fedavg, FedBuff"],
        ),
        ("  method:\n  - Mine: {algorithm: fedavg, label: Ours}\n", ["Ours"]),
    ],
)
def test_named_rows_of_methods_are_the_labels(grid: str, labels: list[str | None]) -> None:
    clock = "clock: {samples_per_second: 9}\n" * ("clock.mode" in grid)
    runs = runs_of(f"algorithm: fedavg\n{clock}grid:\n{grid}")
    assert [run.config.label for run in runs] == labels


def test_a_label_decides_nothing(tmp_path: Path) -> None:
    (run,) = runs_of("algorithm: fedavg\nlabel: Mine\n")
    fake_run(run.config.model_copy(update={"label": None}), tmp_path / "run")
    assert sweep.missing([run], tmp_path) == []


# the command

SMALL = """
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
engine: {kind: serial}
train: {rounds: 1, sample_rate: 0.5, batch_size: 100}
"""
SEARCH = SMALL + "search:\n  train.lr: choice(0.01, 0.3)\n"
SWEEP = SMALL + "grid: {seed: [0, 1]}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)
    Path("search.yaml").write_text(SEARCH)


def fedsim(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_start_up_says_how_to_continue(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: str) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(sweep, "load", load)
    before = signal.getsignal(number)
    done = fedsim("sweep", "sweep.yaml")
    assert done.stderr == "interrupted; the same command continues\n"
    assert done.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert not Path("runs").exists()


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


@pytest.mark.usefixtures("here")
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


def test_the_names_of_rows_are_written_beside_the_runs(tmp_path: Path) -> None:
    grid = "grid:\n  attack:\n    - z / 2: {attack.name: alie}\n    - nobody: {attack.name: null}\n"
    runs = runs_of(GRID.replace("grid:\n", grid))
    directories.write_grid(tmp_path, {run.name: run.rows for run in runs})
    assert directories.read_grid(tmp_path) == [run.name for run in runs]
    read = read_grid(tmp_path)
    assert [rows["attack"] for _, rows in read.values()] == ["z / 2"] * 6 + ["nobody"] * 6
    assert [place for place, _ in read.values()] == list(range(12))
    (tmp_path / "sweep.json").write_text('{"runs": ["a"], "rows": 3}')
    assert read_grid(tmp_path) == {}


@pytest.mark.usefixtures("here")
def test_a_look_says_epsilon_and_which_attack_is_none() -> None:
    text = (
        SMALL
        + "dp: {level: user, clip: 1, delta: 0.01, accountant: rdp}\nfedavg: {weights: uniform}\n"
    )
    text = text.replace("algorithm: fedld", "algorithm: fedavg")
    text += (
        "grid:\n  privacy:\n    - tight: {dp.epsilon: 2}\n    - none: {dp.noise_multiplier: 0}\n"
    )
    Path("private.yaml").write_text(text)
    shown = fedsim("sweep", "private.yaml", "--dry-run", "--no-measure").stdout
    assert [line.split()[-1] for line in shown.splitlines() if "digits" in line] == [
        "2",
        "infinity",
    ]
    alie = ["attack.name=alie", "attack.clients=0", "train.sample_rate=1"]
    sets = [part for pair in alie for part in ("--set", pair)]
    done = fedsim("run", *sets, "-a", "fedavg", "--dry-run", "--no-measure")
    assert done.stderr.startswith("attack.name=alie is no attack in all rounds")


@pytest.mark.usefixtures("here")
def test_keys_of_a_search_have_no_effect_without_one() -> None:
    Path("sweep.yaml").write_text(SWEEP + "trials: 3\n")
    done = fedsim("sweep", "sweep.yaml", "--dry-run")
    wanted = "error: sweep.yaml:8 (trials): has no effect without 'search:'\n"
    assert (done.exit_code, done.stderr) == (2, wanted)
