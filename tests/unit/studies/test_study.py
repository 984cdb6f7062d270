"""Studies: what each method searches, what is chosen, and the file of the comparison."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedsim.config import experiments
from fedsim.config.resolve import from_flags
from fedsim.core.errors import ConfigError
from fedsim.studies import execute, study, sweep
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
    study.write_chosen(plan, study.best_trials(plan, tunings), out)
    return shown


def searches_in(plan: Plan, out: Path) -> list[Tuning]:
    return [
        Tuning(search, at) for (_, search), at in zip(plan.searches, plan.folders(out), strict=True)
    ]


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
    assert (plan.tuning_runs, len(plan.compared_names), plan.seeds) == (20, 18, [1, 2, 3])
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


def test_a_baseline_may_be_written_in_another_case() -> None:
    assert plan_of(FILE + "baseline: MEAN\n").file.baseline == "Mean"


def test_the_study_of_the_repository_is_valid() -> None:
    file = Path(__file__).resolve().parents[3] / "launch" / "study_small.yaml"
    plan = plans.make(experiments.read(file), {})
    assert (plan.untuned, plan.file.baseline) == ([], "FedAvg")
    assert (plan.tuning_runs, len(plan.compared_names)) == (36, 18)


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
    runs = study.comparison_runs(plan, tmp_path)
    assert [run.name for run in runs[:3]] == [f"method=Mean+skewed,seed={s}" for s in (1, 2, 3)]
    assert {run.config.label for run in runs} == {"Mean", "Prox", "Plain"}
    assert runs[0].config.train.lr == float(best["train.lr"])
    assert (runs[0].config.data.alpha, runs[-1].config.data.alpha) == (0.1, 10)
    assert runs[-1].config.train.lr == 0.5
    assert plan.compared_names == [run.name for run in runs]
    assert study.grouping(tmp_path) == (["label", "alpha"], "seed")


def test_the_comparison_is_an_ordinary_file_of_a_sweep(tmp_path: Path) -> None:
    plan = plan_of(FILE, "train.lr=0.2")
    tuned(tmp_path, plan, Planted())
    text = (tmp_path / "comparison.yaml").read_text()
    assert text.startswith("# study.yaml: each method with the settings that were chosen in ")
    assert "train.lr: 0.2\n" in text  # the flag wins over the method's own
    runs = sweep.expand(sweep.load(str(tmp_path / "comparison.yaml")), {})
    assert {run.config.train.lr for run in runs} == {0.2}
    assert [run.name for run in runs] == [run.name for run in study.comparison_runs(plan, tmp_path)]


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
    assert {run.config.data.seed for run in study.comparison_runs(plan, tmp_path)} == {4, 7}
    assert study.grouping(tmp_path) == (["label"], "partition")


def test_one_partition_needs_no_name(tmp_path: Path) -> None:
    text = FILE.partition("partitions:")[0] + FILE[FILE.index("search:") :]
    plan = plan_of(text + "grid: {seed: [3, 8]}\nseeds: 2\n")
    assert [cell.name for cell in plan.cells] == ["Mean", "Prox", "Plain"]
    assert (plan.tuning_runs, plan.seeds) == (20, [9, 10])
    tuned(tmp_path, plan, Planted())
    assert study.grouping(tmp_path) == (["label"], "seed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "baseline: Maen\n", r"study.yaml:\d+ \(baseline\): 'Maen'.*did you mean 'Mean'"),
        (FILE + "by: accuracy\n", r"\(by\): 'accuracy' given; must be 'val_accuracy'"),
        (FILE + "sampler: tpee\n", r"\(sampler\): .*did you mean 'tpe'"),
        (FILE + "seeds: [0, 5]\n", r"\(seeds\): 0 is a training seed of the tuning.*such as 1, 2"),
        (FILE + "seeds: [5, 5]\n", r"\(seeds\): a seed is given twice"),
        (FILE + "seeds: many\n", r"\(seeds\): 'many' given; must be a valid integer"),
        (FILE.replace("trials: 5", "trials: 0"), r"\(trials\): 0 given; must be greater than"),
        (FILE.replace("Prox: {alg", "Prox: {seed: 1, alg"), r"study.yaml:6 \(seed\): the training"),
        (FILE.replace("Prox: {train.lr", "Prox: {trian.lr"), r"unknown key 'trian.lr'"),
        (FILE + "grid: {train.lr: [1, 2]}\n", r"grid.train.lr: of a grid.* the seeds alone"),
        (FILE + "partition: []\n", r"unknown key 'partition'"),
        (FILE.replace("val_fraction: 0.1", "val_fraction: 0"), "no validation part"),
        (FILE.replace("Prox:", "Mea_n:").replace("Mean:", "Mea n:"), "the same directory"),
        (FILE.replace("Plain:", "'':"), r"\(methods\): '' given; a name must have a letter"),
        (FILE.replace("Plain:", "mean:"), "the names 'Mean' and 'mean' are the same but for case"),
        (FILE.replace("Mean: {train.lr: 'loguniform(0.001, 1)'", "Mean: {data.alpha: 'choice(1)'"),
         r"study.yaml:12 \(data.alpha\): data.alpha is not searched: it decides which data"),
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
        (FILE.replace("alpha: 10", "alpha: 0.1"), "Mean on skewed and Mean on mixed have the same"),
        (FILE.replace("data.alpha: 0.1", "data.seed: 0").replace("data.alpha: 10", ""),
         "Mean on skewed and Mean on mixed have the same settings"),
        (FILE.replace("fedsam, train.lr: 0.5", "fedavg, train.momentum: 0.5")
         .replace("  Mean: {train.lr: 'loguniform(0.001, 1)'}\n", ""),
         "Mean on skewed and Plain on skewed have the same settings"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(text)


def test_other_files_in_the_directory_are_refused(tmp_path: Path) -> None:
    study.check_out(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds notes.txt, which is not of a study"):
        study.check_out(tmp_path)
