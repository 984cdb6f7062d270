"""Studies: what each method searches, what is chosen, and the file of the comparison."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

import fedsim
from fedsim.cli import main
from fedsim.config import experiments
from fedsim.config.resolve import from_flags
from fedsim.core.errors import ConfigError, StoreError
from fedsim.studies import execute, sweep
from fedsim.studies import plan as plans
from fedsim.studies.plan import Plan
from fedsim.studies.tune import Tuning
from fedsim.training.events import Event, Job
from tests.planted import Killed, Planted

FILE = """
data: {val_fraction: 0.1}
train: {rounds: 4}
methods:
  Mean: {algorithm: fedavg}
  Prox: {algorithm: fedprox}
  Plain: {algorithm: fedsam, train.lr: 0.5}
partitions:
  skewed: {data.alpha: 0.1}
  mixed: {data.alpha: 10}
search:
  Mean: {train.lr: 'loguniform(0.001, 1)'}
  Prox: {train.lr: 'loguniform(0.001, 1)', fedprox.mu: 'choice(0.1, 1)'}
trials: 5
pruner: none
"""
SHARED = FILE.partition("  Mean: {train")[0].replace(", train.lr: 0.5", "") + (
    "  train.lr: loguniform(0.001, 1)\n  fedprox.mu: choice(0.1, 1)\ntrials: 2\npruner: none\n"
)


def plan_of(text: str = FILE, *sets: str) -> Plan:
    return plans.make(
        experiments.parse(text, "study.yaml"), from_flags({}, sets), source="study.yaml"
    )


class Shown:
    """A display that remembers the names of runs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def happened(self, slot: int, job: Job, event: Event) -> None:
        self.names.append(job.name)

    def stopping(self) -> None:
        raise AssertionError("nobody asked to stop")


def tuned(out: Path, plan: Plan, drivers: Planted) -> Shown:
    """All searches of a study, or what is left of them, and the files that follow."""
    tunings, shown = searches_in(plan, out), Shown()
    execute.tune(tunings, drivers, shown)
    plans.write_chosen(plan, plans.best_trials(plan, tunings), out)
    return shown


def searches_in(plan: Plan, out: Path) -> list[Tuning]:
    return [
        Tuning(search, at) for (_, search), at in zip(plan.searches, plan.folders(out), strict=True)
    ]


def compared(out: Path) -> list[sweep.SweepRun]:
    return sweep.expand(sweep.load(str(out / "comparison.yaml")), {})


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_each_method_searches_its_keys_with_the_same_number_of_trials() -> None:
    plan = plan_of()
    assert [cell.title for cell in plan.cells] == [
        f"{method} on {part}"
        for part in ("skewed", "mixed")
        for method in ("Mean", "Prox", "Plain")
    ]
    assert [(cell.method, list(p.proposer.space), p.count) for cell, p in plan.searches[:2]] == [
        ("Mean", ["train.lr"], 5), ("Prox", ["train.lr", "fedprox.mu"], 5),
    ]  # fmt: skip
    assert plan.untuned == ["Plain"]
    assert (plan.tuning_runs, plan.seeds) == (20, [1, 2, 3])
    assert len(plan.configs) == 38  # one for each run, for the estimate


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_candidates_differ_by_partition_and_not_by_method(sampler: str) -> None:
    """A rate that one list lacks is not lacking everywhere, and no method has better luck."""
    text = f"{SHARED}sampler: {sampler}\npartitions: [20, 21, 22]\n".replace(
        "partitions:\n  skewed: {data.alpha: 0.1}\n  mixed: {data.alpha: 10}\n", ""
    )
    rates: dict[str, set[tuple[object, ...]]] = {}
    for cell, search in plan_of(text).searches:
        proposals = [search.proposer.propose(number, []) for number in range(search.count)]
        rates.setdefault(cell.partition, set()).add(tuple(p.params["train.lr"] for p in proposals))
    assert [len(lists) for lists in rates.values()] == [1, 1, 1]
    assert len(set().union(*rates.values())) == 3


def test_a_key_of_a_method_is_searched_for_the_methods_that_use_it() -> None:
    plan = plan_of(SHARED)
    assert [list(search.proposer.space) for _, search in plan.searches[:3]] == [
        ["train.lr"], ["train.lr", "fedprox.mu"], ["train.lr"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"study.yaml:\d+ \(fednova.\w+\) has no effect.*nothing"):
        plan_of(SHARED.replace("fedprox.mu", "fednova.weights"))


def test_the_study_of_the_repository_is_valid() -> None:
    file = Path(__file__).resolve().parents[3] / "launch" / "study_small.yaml"
    plan = plans.make(experiments.read(file), {})
    assert (plan.untuned, plan.file.baseline) == ([], "FedAvg")
    assert (plan.tuning_runs, len(plan.configs)) == (36, 54)


def test_a_flag_takes_the_place_of_a_searched_key() -> None:
    plan = plan_of(FILE, "train.lr=0.1", "fedprox.mu=1")
    assert (plan.searches, plan.untuned) == ([], ["Mean", "Prox", "Plain"])


@pytest.mark.slow
def test_what_is_chosen_and_compared(tmp_path: Path) -> None:
    plan = plan_of()
    shown = tuned(tmp_path, plan, Planted(2))
    assert "Prox+mixed/trial-0004/seed=0" in shown.names
    chosen = rows(tmp_path / "chosen.csv")
    assert [(row["method"], row["partition"], row["trials"]) for row in chosen] == [
        (cell.method, cell.partition, "0" if cell.plan is None else "5") for cell in plan.cells
    ]
    tried = rows(tmp_path / "tuning/Mean+skewed/trials.csv")
    best = max(tried, key=lambda row: float(row["value"]))
    assert {key: chosen[0][key] for key in ("trial", "train.lr", "value")} == {
        key: best[key] for key in ("trial", "train.lr", "value")
    }
    assert (chosen[0]["fedprox.mu"], chosen[2]["value"], chosen[2]["train.lr"]) == ("", "", "")
    runs = compared(tmp_path)
    assert [run.name for run in runs[:3]] == [f"method=Mean+skewed,seed={s}" for s in (1, 2, 3)]
    assert {run.config.label for run in runs} == {"Mean", "Prox", "Plain"}
    assert runs[0].config.train.lr == float(best["train.lr"])
    assert (runs[0].config.data.alpha, runs[-1].config.data.alpha) == (0.1, 10)
    assert runs[-1].config.train.lr == 0.5
    assert plans.grouping(tmp_path) == (["label", "alpha"], "seed")


def test_the_comparison_is_an_ordinary_file_of_a_sweep(tmp_path: Path) -> None:
    plan = plan_of(FILE, "train.lr=0.2")
    tuned(tmp_path, plan, Planted())
    text = (tmp_path / "comparison.yaml").read_text()
    assert text.startswith("# study.yaml: each method with the settings that were chosen in ")
    assert "train.lr: 0.2\n" in text  # the flag wins over the method's own
    assert {run.config.train.lr for run in compared(tmp_path)} == {0.2}


@pytest.mark.slow
def test_a_study_that_is_killed_ends_with_the_same_files(tmp_path: Path) -> None:
    tuned(tmp_path / "whole", plan_of(), Planted(2))
    for kill_after in (3, 25, 40):
        with pytest.raises(Killed):
            tuned(tmp_path / "killed", plan_of(), Planted(2, order=7, kill_after=kill_after))
    again = Planted(2)
    tuned(tmp_path / "killed", plan_of(), again)
    assert len(again.submitted) < plan_of().tuning_runs
    first, second = ((tmp_path / name / "chosen.csv").read_bytes() for name in ("whole", "killed"))
    assert first == second
    nothing = Planted(2)
    tuned(tmp_path / "killed", plan_of(), nothing)
    assert nothing.submitted == []


def test_partitions_by_seed_are_the_unit(tmp_path: Path) -> None:
    text = FILE.replace("  skewed: {data.alpha: 0.1}\n  mixed: {data.alpha: 10}\n", "  [4, 7]\n")
    plan = plan_of(text)
    assert [cell.name for cell in plan.cells][::3] == ["Mean+split-4", "Mean+split-7"]
    tuned(tmp_path, plan, Planted())
    assert {run.config.data.seed for run in compared(tmp_path)} == {4, 7}
    assert plans.grouping(tmp_path) == (["label"], "partition")


def test_one_partition_needs_no_name(tmp_path: Path) -> None:
    text = FILE.partition("partitions:")[0] + FILE[FILE.index("search:") :]
    plan = plan_of(text + "grid: {seed: [3, 8]}\nseeds: 2\n")
    assert [cell.name for cell in plan.cells] == ["Mean", "Prox", "Plain"]
    assert (plan.tuning_runs, plan.seeds) == (20, [9, 10])
    tuned(tmp_path, plan, Planted())
    assert plans.grouping(tmp_path) == (["label"], "seed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "seeds: [0, 5]\n", r"\(seeds\): 0 is a training seed of the tuning.*such as 1, 2"),
        (FILE.replace("Prox: {alg", "Prox: {seed: 1, alg"), r"study.yaml:6 \(seed\): the training"),
        (FILE + "grid: {train.lr: [1, 2]}\n", r"grid.train.lr: of a grid.* the seeds alone"),
        (FILE.replace("val_fraction: 0.1", "val_fraction: 0"), "no validation part"),
        (FILE.replace("Prox:", "Mea_n:").replace("Mean:", "Mea n:"), "the same directory"),
        (FILE.replace("Mean: {train.lr: 'loguniform(0.001, 1)'", "Mean: {data.alpha: 'choice(1)'"),
         r"study.yaml:12 \(data.alpha\): data.alpha is not searched: trials are"),
        (
            FILE.replace("data.alpha: 10}", "algorithm: fedavg}"),
            r"study.yaml:5 \(algorithm\): also given at study.yaml:10 \(algorithm\), for the same "
            "runs of Mean",
        ),
        (
            FILE.replace("Mean: {train.lr", "Plain: {train.lr"),
            r"study.yaml:12 \(train.lr\): also given at study.yaml:7 \(train.lr\)",
        ),
        (
            FILE.replace("data.alpha: 10}", "train.lr: 1}"),
            r"study.yaml:12 \(train.lr\): also given at study.yaml:10 \(train.lr\)",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(text)


# the command, with real runs, and results in Python

SMALL = """
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 2, sample_rate: 0.5, batch_size: 100}
engine: {kind: serial, checkpoint_every: 0}
"""
STUDY = (
    SMALL
    + """
methods:
  Mean: {algorithm: fedavg}
  Local: {algorithm: local}
partitions:
  skewed: {data.alpha: 0.1}
  mixed: {data.alpha: 10}
search:
  Mean: {train.lr: 'choice(0.01, 0.3)'}
sampler: grid
trials: 2
seeds: [5, 6]
baseline: Mean
"""
)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def without_report(patch: pytest.MonkeyPatch) -> None:
    """Writes no report, whose figures take most of the time of a study this small."""
    patch.setattr(execute, "report", lambda plan, out: out / "no report")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished study of a tuned and an untuned method on two partitions."""
    root = tmp_path_factory.mktemp("study")
    (root / "small.yaml").write_text(STUDY)
    command = ("study", root / "small.yaml", "--out", root / "out", "--parallel", 1)
    with pytest.MonkeyPatch.context() as patch:
        without_report(patch)
        return root / "out", call(*command)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)


@pytest.mark.integration
def test_a_study_from_the_command_line(studied: tuple[Path, Result]) -> None:
    out, done = studied
    assert done.exit_code == 0, done.output
    assert "not tuned, nothing to search: Local\n" in done.output
    assert "4 runs of trials, then 8 to compare, one at a time in this process" in done.output
    assert "Mean on skewed: [2/2] trial 1: train.lr=0.3: val_accuracy" in done.output
    assert "[12/12] method=Local+mixed,seed=6" in done.output
    assert f"wrote {out}/no report" in done.output
    head, *rows = done.output.partition("seeds on one partition)\n")[2].splitlines()[:5]
    assert re.split(" {2,}", head)[:3] == ["method", "partition", "n"]
    assert [re.split(" {2,}", row)[:3] for row in rows] == [
        [method, partition, "2"]
        for partition in ("skewed", "mixed")
        for method in ("Mean", "Local")
    ]
    assert {path.name for path in out.iterdir()} - {".lock", "report"} == {
        "chosen.csv", "comparison.yaml", "runs", "tuning",
    }  # fmt: skip
    summary = pd.read_csv(out / "runs/summary.csv")
    assert list(summary["label"]) == ["Mean"] * 2 + ["Local"] * 2 + ["Mean"] * 2 + ["Local"] * 2
    assert set(summary["seed"]) == {5, 6}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_finished_study_does_nothing_again(studied: tuple[Path, Result]) -> None:
    out, _ = studied
    before = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")}
    done = call("study", out.parent / "small.yaml", "--out", out, "--parallel", 1)
    assert done.exit_code == 0, done.output
    assert {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")} == before
    changed = call("study", out.parent / "small.yaml", "--out", out, "--rounds", 3)
    assert changed.exit_code == 2
    assert "was begun with train.rounds 2, not 3" in changed.stderr


@pytest.mark.integration
def test_dry_run_counts_trials_and_runs(studied: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = studied
    done = call("study", out.parent / "small.yaml", "--out", tmp_path / "new", "--dry-run")
    counts, _, estimate = done.output.partition("\n\n")
    assert counts == (
        "not tuned, nothing to search: Local\n"
        "Mean on skewed: 2 trials over train.lr\n"
        "Mean on mixed: 2 trials over train.lr\n"
        "tuning: 4 trials, 4 runs\n"
        "comparison: 8 runs, 4 rows with training seeds 5, 6"
    )
    assert "12 runs" in estimate
    assert not (tmp_path / "new").exists()


@pytest.mark.integration
@pytest.mark.slow
def test_results_of_a_study_in_python(studied: tuple[Path, Result]) -> None:
    out, _ = studied
    store = fedsim.StudyStore(out)
    assert repr(store) == f"StudyStore({str(out)!r}: 8 runs, 8 finished, Mean Local)"
    assert "<td style='text-align:left'>Mean Local</td>" in store._repr_html_()
    assert store.finished
    assert [run.summary["label"] for run in store.runs][:3] == ["Mean", "Mean", "Local"]
    assert list(store.chosen["method"]) == ["Mean", "Local", "Mean", "Local"]
    table = store.table(baseline="Mean")
    assert len(table) == 4
    one = store.summary.query("label == 'Mean' and alpha == 10")["final_test_accuracy"]
    assert np.isclose(table["mean"], one.mean(), rtol=1e-12).sum() == 1
    curves = store.curves()
    assert list(curves) == ["label", "round", "mean", "low", "high", "n"]
    last = curves[(curves["round"] == 2) & (curves["label"] == "Mean, alpha=10")]
    assert last["mean"].tolist() == pytest.approx([one.mean()])
    with pytest.raises(StoreError, match=r"summary\.csv does not exist"):
        _ = fedsim.SweepStore(out / "tuning").summary


@pytest.mark.integration
@pytest.mark.slow
def test_a_sweep_of_a_dictionary(tmp_path: Path) -> None:
    content = yaml.safe_load(SMALL) | {"grid": {"algorithm": ["fedavg", "fedprox"]}}
    store = fedsim.sweep(content, tmp_path, overrides={"train.rounds": 1}, parallel=1)
    assert [run.summary["rounds"] for run in store.runs] == [1, 1]
    assert list(store.summary["algorithm"]) == ["fedavg", "fedprox"]
    assert len(store.table()) == 2
    again = fedsim.sweep(content, tmp_path, overrides={"train.rounds": 1}, parallel=1)
    assert repr(again) == f"SweepStore({str(tmp_path)!r}: 2 runs, 2 finished, fedavg fedprox)"
    with pytest.raises(ConfigError, match="out: a sweep that is no file needs a directory"):
        fedsim.sweep(content)
    with pytest.raises(ConfigError, match="values must be texts, numbers, lists or mappings"):
        fedsim.sweep({"seed": object()}, tmp_path)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_methods_tuned_for_each_seed_of_the_partition_are_compared_over_them(
    studied: tuple[Path, Result],
) -> None:
    out = studied[0].parent / "splits"
    text = STUDY.replace("\n  skewed: {data.alpha: 0.1}\n  mixed: {data.alpha: 10}", " [0, 1]")
    (out.parent / "splits.yaml").write_text(text.replace("[5, 6]", "1"))
    done = call("study", out.parent / "splits.yaml", "--out", out, "--parallel", 1, "--rounds", 1)
    assert done.exit_code == 0, done.output
    table = fedsim.StudyStore(out).table(baseline="Mean")
    assert list(table["n"]) == [2, 2]


# ---- sites left out


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """24 patients of three hospitals; the name of one has a comma."""
    sites = ('"ward, 2"', "lund", "va")
    lines = [f"{row / 7},{row % 2},{sites[row % 3]}" for row in range(24)]
    file = tmp_path / "patients.csv"
    file.write_text("\n".join(["age,target,site", *lines, ""]))
    return file


GRID = "grid:\n  algorithm: [local, fedavg]\n  data.partition: [by_site, leave_one_site_out]\n"


def test_a_grid_has_a_run_for_each_site_without_it(table: Path) -> None:
    runs = plan_of(GRID, f"data.name=csv:{table}").grid
    ours = [run for run in runs if run.config.algorithm == "fedavg"]
    assert [run.config.data.heldout_clients for run in ours] == [0, "lund", "va", '"ward, 2"']
    assert {run.config.data.partition for run in runs} == {"by_site"}
    assert {run.config.label for run in runs} == {None}, "in tables they have their method's name"
    assert ours[2].name == "algorithm=fedavg,data.partition=without_va"
    assert ours[2].title == "algorithm=fedavg, data.partition=without va"
    assert len(plan_of(GRID, f"data.name=csv:{table}", "data.partition=by_site").grid) == 2


def test_the_partitions_of_a_study_can_leave_sites_out(table: Path) -> None:
    text = (
        "methods:\n  Mean: {algorithm: fedavg}\npartitions:\n  all: {data.partition: by_site}\n"
        "  sites: {data.partition: leave_one_site_out}\nseeds: 1\n"
    )
    cells = plan_of(text, f"data.name=csv:{table}").cells
    assert [cell.partition for cell in cells] == [
        "all", "sites without lund", "sites without va", "sites without ward, 2",
    ]  # fmt: skip
    assert cells[2].examples[0].data.heldout_clients == "va"


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            [],
            "study.yaml:3 (grid.data.partition): the sites to leave out cannot be read: data.part",
        ),
        (["data.heldout_clients=va"], "--set data.heldout_clients: leave_one_site_out holds each"),
        (["data.partition=leave_one_site_out"], "stands for several runs, in the grid of a sweep"),
    ],
)
def test_what_cannot_be_left_out(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan_of(GRID, *sets)
