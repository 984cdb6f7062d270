"""Searches: which trials are proposed, when they are stopped, what is written and confirmed."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from fedsim.cli import main
from fedsim.cli.searches import confirmed
from fedsim.config import experiments, search
from fedsim.config.resolve import from_flags, load_config, resolve
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.core.measures import Measures
from fedsim.core.rows import RoundRow
from fedsim.identity import resume
from fedsim.storage import status, trials
from fedsim.storage.trials import Trial, best
from fedsim.studies import capacity, execute, sweep, tune
from fedsim.studies import search as searches
from fedsim.training.events import Done, Event, Failed, Job, RoundEnded, Stopped
from tests.planted import Killed, Planted, Work, planted

FILE = """
data: {val_fraction: 0.1}
train: {rounds: 8}
search:
  train.lr: loguniform(0.0001, 10)
"""
SEEDS = FILE + "grid: {seed: [3, 4]}\n"
LAST = "  train.momentum: uniform(0, 0.9)\n"


def plan_of(
    text: str = FILE, *sets: str, searched: tuple[str, ...] = (), **options: str | int
) -> searches.SearchPlan:
    loaded = experiments.parse(text, "search.yaml")
    space = {**loaded.search, **search.from_flags(searched)}
    loaded = replace(loaded, search=space, **{"pruner": "none", **options})  # type: ignore[arg-type]
    return searches.make_plan(loaded, from_flags({}, sets))


class Unseen:
    """A display of nothing."""

    def happened(self, slot: int, job: Job, event: Event) -> None:
        pass

    def stopping(self) -> None:
        pass


def searched(
    out: Path, plan: searches.SearchPlan, drivers: Planted, count: int = 12
) -> tune.Tuning:
    """A whole search, or that which is left of it."""
    tuning = tune.Tuning(replace(plan, count=count), out)
    execute.tune([tuning], drivers, Unseen())
    return tuning


def table(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "trials.csv")


def test_the_table_and_the_best_configuration(tmp_path: Path) -> None:
    plan = plan_of(SEEDS)
    found = searched(tmp_path, plan, Planted())
    read = table(tmp_path)
    assert list(read) == ["trial", "state", "value", "train.lr", "run"]
    assert list(read["trial"]) == list(range(12))
    assert list(read["run"]) == [f"trial-{n:04d}" for n in range(12)]
    assert {p.name for p in (tmp_path / "trial-0003").iterdir()} == {"seed=3", "seed=4"}
    lr = float(read.loc[5, "train.lr"])
    configs = [
        load_config(overrides=from_flags({}, [f"train.lr={lr!r}", f"seed={s}"])) for s in (3, 4)
    ]
    assert read.loc[5, "value"] == pytest.approx(sum(planted(c, 8) for c in configs) / 2, rel=1e-15)
    leader = best(found.ended, "val_accuracy")[0]
    assert leader.value == read["value"].max()
    config = load_config(file=tmp_path / "best.yaml")
    assert (config.train.lr, config.seed) == (leader.params["train.lr"], 3)
    assert config.engine.kind == "ray"  # not what the search chose to go by
    assert resume.decisive(config) == resume.decisive(plan.config(leader.params, 3))
    (run,) = sweep.expand(sweep.load(str(tmp_path / "best.yaml")), {})
    assert resume.decisive(run.config) == resume.decisive(config)


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["none", "median", "asha"])
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_that_is_killed_ends_with_the_same_table(
    tmp_path: Path, sampler: str, pruner: str
) -> None:
    plan = plan_of(SEEDS, sampler=sampler, pruner=pruner)
    searched(tmp_path / "whole", plan, Planted(), 16)
    for kill_after in (0, 7, 30, 3, 60):
        with pytest.raises(Killed):
            searched(tmp_path / "killed", plan, Planted(kill_after=kill_after), 16)
    searched(tmp_path / "killed", plan, Planted(), 16)
    for name in ("trials.csv", "trials.jsonl", "best.yaml", "study.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    states = set(table(tmp_path / "whole")["state"])
    assert states == ({"complete"} if pruner == "none" else {"complete", "pruned"})


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["none", "median", "asha"])
def test_the_table_does_not_depend_on_which_run_is_faster(tmp_path: Path, pruner: str) -> None:
    plan = plan_of(SEEDS, pruner=pruner)
    for order in (None, 1, 2):
        drivers = Planted(count=3, order=order)
        searched(tmp_path / str(order), plan, drivers, 16)
    for name in ("trials.csv", "best.yaml"):
        texts = {(tmp_path / str(order) / name).read_bytes() for order in (None, 1, 2)}
        assert len(texts) == 1


def test_a_pruned_trial_has_the_value_at_which_it_was_stopped(tmp_path: Path) -> None:
    plan = plan_of(SEEDS, pruner="asha")
    drivers = Planted(count=2)
    found = searched(tmp_path, plan, drivers, 9)
    pruned = [trial for trial in found.ended if trial.state == "pruned"]
    assert pruned
    for trial in pruned:
        last = max(trial.reports)
        assert last < 8
        mean = sum(planted(plan.config(trial.params, s), last) for s in (3, 4)) / 2
        assert trial.value == pytest.approx(mean, rel=1e-15)
        lines = [(tmp_path / trial.folder / f"seed={s}/rounds.csv").read_text() for s in (3, 4)]
        assert all(last <= text.count("\n") - 1 < 8 for text in lines)


def test_a_run_that_fails_makes_its_trial_fail_and_the_search_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def diverges(config: RunConfig, round: int) -> float:
        if config.train.lr > 0.05 and config.seed == 3 and round == 2:
            raise ArithmeticError("loss is nan")
        return planted(config, round)

    drivers = Planted(value=diverges)
    found = searched(tmp_path, plan_of(SEEDS), drivers, 10)
    read = table(tmp_path)
    failed = read[read["state"] == "failed"]
    assert len(failed) in range(1, 10)
    assert (failed["train.lr"] > 0.05).all()
    assert failed["value"].isna().all()
    assert len(found.ended) == 10
    name = f"trial-{failed['trial'].iloc[0]:04d}"
    assert f"{name}/seed=3" in drivers.submitted
    assert f"{name}/seed=4" not in drivers.submitted
    assert found.ended[failed["trial"].iloc[0]].error == "round 2: loss is nan"


def test_settings_that_no_run_can_use_end_the_search(tmp_path: Path) -> None:
    class Refusing(Planted):
        def step(self, work: object) -> Failed:  # type: ignore[override]
            return Failed("data.dir: there is no such folder", exit_status=2, lasting=True)

    with pytest.raises(ConfigError, match="no such folder"):
        searched(tmp_path, plan_of(), Refusing())
    assert trials.read(tmp_path) == []


def test_a_failure_that_is_not_the_trials_ends_the_search_which_goes_on(tmp_path: Path) -> None:
    class FullDisk(Planted):
        def step(self, work: Work) -> Event:
            full = work.job.name.startswith("trial-0002") and work.round == 3
            return Failed("no space left") if full else super().step(work)

    with pytest.raises(FedsimError, match="trial-0002/seed=0: no space left; the same") as raised:
        searched(tmp_path / "full", plan_of(), FullDisk(), 4)
    assert raised.value.exit_status == 1
    assert [trial.number for trial in trials.read(tmp_path / "full")] == [0, 1]
    searched(tmp_path / "full", plan_of(), Planted(), 4)
    searched(tmp_path / "whole", plan_of(), Planted(), 4)
    for name in ("trials.csv", "best.yaml"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_best_on_fresh_seeds_stays_until_there_are_more_trials(tmp_path: Path) -> None:
    searched(tmp_path, plan_of(), Planted(), 3)
    (tmp_path / searches.CONFIRMED).write_text("trial\n0\n")
    (tmp_path / searches.BEST).write_text("# trial 0\n")
    searched(tmp_path, plan_of(), Planted(), 3)
    assert (tmp_path / searches.BEST).read_text() == "# trial 0\n"
    searched(tmp_path, plan_of(), Planted(), 4)
    assert (tmp_path / searches.BEST).read_text().startswith("# trial ")
    assert load_config(file=tmp_path / "best.yaml").train.rounds == 8


def test_a_trial_of_which_a_run_was_stopped_has_not_ended(tmp_path: Path) -> None:
    """Whatever its other runs do while the search is told to end."""
    tuning = tune.Tuning(replace(plan_of(SEEDS), count=1), tmp_path)
    tuning.begin(Planted(count=2))
    jobs = [tuning.next_job(), tuning.next_job()]
    row = {"round": 1, "val_accuracy": 0.5}
    for event, slots in ((RoundEnded(row, 1.0), (0, 1)), (Stopped(), (0,)), (Done({}), (1,))):
        for slot in slots:
            tuning.happened(slot, jobs[slot], event)
    assert (tuning.trials, tuning.next_job()) == ({}, None)


def test_values_that_do_not_go_together_are_a_failed_trial(tmp_path: Path) -> None:
    text = """
data: {val_fraction: 0.1}
train: {rounds: 2}
search:
  train.local_epochs: choice(1, 2)
  train.local_steps: choice(null, 5)
"""
    found = searched(tmp_path, plan_of(text, sampler="grid"), Planted(), 4)
    assert [t.state for t in found.ended] == ["complete", "complete", "complete", "failed"]
    assert "give one of them" in str(found.ended[3].error)


def test_the_combinations_of_a_grid_are_those_of_loops() -> None:
    text = FILE.replace("loguniform(0.0001, 10)", "choice(0.3, 0.1)")
    text += "  train.local_epochs: int(2, 4)\n"
    proposer = plan_of(text, sampler="grid").proposer
    points = [proposer.propose(number, []).params for number in range(proposer.size or 0)]
    assert [tuple(point.values()) for point in points] == [
        (lr, epochs) for lr in (0.3, 0.1) for epochs in (2, 3, 4)
    ]


@pytest.mark.slow
def test_more_trials_continue_a_search_and_fewer_change_nothing(tmp_path: Path) -> None:
    plan = plan_of()
    searched(tmp_path / "a", plan, Planted(), 14)
    searched(tmp_path / "b", plan, Planted(), 6)
    searched(tmp_path / "b", plan, Planted(), 14)
    searched(tmp_path / "b", plan, Planted(kill_after=0), 3)
    assert (tmp_path / "a/trials.csv").read_bytes() == (tmp_path / "b/trials.csv").read_bytes()


@pytest.mark.parametrize(
    ("text", "sets", "given", "wanted"),
    [
        (FILE, ["train.rounds=9"], {}, r"begun with train.rounds 8, not 9"),
        (FILE, [], {"by": "val_loss"}, r"begun with by val_accuracy, not val_loss"),
        (FILE, [], {"sampler": "random"}, r"begun with sampler tpe, not random"),
        (
            FILE.replace("10)", "1)"),
            [],
            {},
            r"begun with search {'train.lr': 'loguniform\(0.0001, 10",
        ),
        (FILE + LAST, [], {}, r"begun with search .*, not .*train.momentum"),
        (SEEDS, [], {}, r"begun with seeds \[0\], not \[3, 4\]"),
    ],
)
def test_another_search_in_the_same_directory_is_refused(
    tmp_path: Path, text: str, sets: list[str], given: dict[str, str], wanted: str
) -> None:
    searched(tmp_path, plan_of(), Planted(), 1)
    with pytest.raises(ConfigError, match=wanted):
        tune.Tuning(plan_of(text, *sets, **given), tmp_path)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("seed: int(0, 3)", "seeds are not searched"),
        ("engine.actors: int(1, 3)", "changes no result"),
        ("data.seed: int(0, 3)", "data.seed is not searched"),
        ("mine:blobs.classes: int(2, 5)", "mine:blobs.classes is not searched"),
        ("evaluation.every: int(1, 3)", "evaluation.every is not searched"),
        ("train.rounds: int(1, 3)", "train.rounds is not searched"),
        ("fedprox.mu: uniform(0, 1)", "has no effect: the method used is fedavg"),
    ],
)
def test_keys_that_make_no_sense(line: str, wanted: str) -> None:
    head = "data: {val_fraction: 0.1, name: 'mine:blobs'}\nalgorithm: fedavg\n"
    head += "" if "effect" in wanted else "dp: {level: user, clip: 1}\n"
    head = head.replace(", name: 'mine:blobs'", "") if "effect" in wanted else head
    with pytest.raises(ConfigError, match=rf"search.yaml:\d .*{wanted}"):
        plan_of(f"{head}search:\n  {line}\n")


def test_of_a_grid_only_seeds() -> None:
    text = FILE + "grid: {algorithm: [fedavg, fedprox], seed: [1, 2]}\n"
    with pytest.raises(
        ConfigError, match=r"grid.algorithm: of a grid, fedsim tune takes the seeds"
    ):
        plan_of(text)
    assert plan_of(text, "algorithm=fedprox").seeds == (1, 2)
    assert plan_of(text, "algorithm=fedprox", "seed=7").seeds == (7,)
    assert plan_of(FILE, "seed=7").seeds == (7,)


# the best trials on fresh seeds: one with a run that failed has no value

BY = "val_accuracy"


def trial(number: int, value: float) -> Trial:
    params = {"train.lr": 0.1 * (number + 1)}
    return Trial(number=number, params=params, state="complete", value=value)


def confirmed_plan(by: str) -> Any:
    """What confirmation asks of a plan."""
    return SimpleNamespace(
        seeds=(0,), proposer=SimpleNamespace(by=by, measures=Measures()), settings={}, overrides={},
        config=lambda params, seed: resolve({}),
    )  # fmt: skip


def write(
    out: Path, leaders: list[Trial], values: dict[int, tuple[float | None, ...]],
    monkeypatch: pytest.MonkeyPatch, by: str = BY,
) -> pd.DataFrame:  # fmt: skip
    """Confirms trials whose runs on the fresh seeds 1, 2 and 3 have these values; None failed."""
    last, failed, rows = {}, [], []
    for number, of in values.items():
        there = [value for value in of if value is not None]
        for seed, value in enumerate(of, start=1):
            name = f"trial={number},seed={seed}"
            if value is None:
                failed.append(name)
            else:
                last[out / tune.FOLDER / name] = value
        if there:
            rows.append(
                {"configuration": f"trial={number}", "algorithm": "fedavg", "n": len(there)}
                | {"final_test_accuracy_mean": 0.5, "runs": len(there)}
            )
    shown = {path: [{by: str(value)}] for path, value in last.items()}
    monkeypatch.setattr(status, "rounds", shown.__getitem__)
    table, seeds = pd.DataFrame(rows), [1, 2, 3]
    return tune.write_confirmed(confirmed_plan(by), out, leaders, seeds, failed, table)


def first_line(out: Path) -> str:
    """The comment of best.yaml, which holds a whole configuration."""
    text = (out / "best.yaml").read_text()
    assert yaml.safe_load(text)["algorithm"]
    return text.splitlines()[0]


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_one_survivor_of_three_is_not_the_best(
    bad: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = [trial(4, 0.9), trial(2, 0.8)]
    values = {4: (bad, 0.99, bad), 2: (0.5, 0.75, 0.625)}
    found = write(tmp_path, leaders, values, monkeypatch)
    assert found["trial"].tolist() == [2, 4]
    assert found["n"].tolist() == [3, 1 if bad is None else 3]
    assert found["failed"].tolist() == [0, 2]
    assert first_line(tmp_path) == "# trial 2: val_accuracy 0.625, mean over 3 fresh training seeds"
    read = pd.read_csv(tmp_path / "confirm.csv")
    assert list(read)[-1] == "failed"
    assert read[f"{BY}_mean"].tolist() == [0.625, pytest.approx(math.nan, nan_ok=True)]
    assert read["final_test_accuracy_mean"].isna().tolist() == [False, True]
    assert [row["n"] for row in confirmed(tmp_path)] == found["n"].tolist()


# the command, with real runs

SMALL = """
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 2, sample_rate: 0.5, batch_size: 100}
"""
SEARCH = SMALL + "search:\n  train.lr: choice(0.01, 0.3, 1.0e+30)\n  train.momentum: choice(0.5)\n"


def fedsim(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished search in which a learning rate diverges."""
    root = tmp_path_factory.mktemp("tune")
    (root / "search.yaml").write_text(SEARCH + "grid: {seed: [3, 4]}\n")
    done = fedsim(
        *("tune", root / "search.yaml", "--sampler", "grid", "--parallel", 1, "--engine", "serial"),
        *("--confirm", 1, "--out", root / "out"),
    )
    return root / "out", done


@pytest.mark.integration
def test_a_search_from_the_command_line(finished: tuple[Path, Result]) -> None:
    out, done = finished
    assert done.exit_code == 0, done.output
    read = pd.read_csv(out / "trials.csv")
    assert list(read) == ["trial", "state", "value", "train.lr", "train.momentum", "run"]
    assert list(read["state"]) == ["complete", "complete", "failed"]
    for trial, value in zip(read["run"][:2], read["value"], strict=False):
        runs = [pd.read_csv(out / trial / f"seed={seed}/rounds.csv") for seed in (3, 4)]
        assert value == pytest.approx(sum(r["val_accuracy"].iloc[-1] for r in runs) / 2, rel=1e-15)
    assert "3 trials: 2 complete, 1 failed" in done.output
    assert "best trial 1: val_accuracy" in done.output
    assert "test acc" not in done.output.partition("on fresh training seeds")[0]
    assert "NaN" in done.output or "inf" in done.output or "not finite" in done.output


@pytest.mark.integration
def test_confirmed_on_seeds_that_the_search_has_not_seen(finished: tuple[Path, Result]) -> None:
    out, done = finished
    (row,) = pd.read_csv(out / "confirm.csv").to_dict("records")
    assert (row["trial"], row["n"]) == (1, 3)
    seeds = (5, 6, 7)
    last = [pd.read_csv(out / f"confirm/trial=1,seed={seed}/rounds.csv").iloc[-1] for seed in seeds]
    values = pd.Series([r["val_accuracy"] for r in last])
    assert row["val_accuracy_mean"] == pytest.approx(values.mean(), rel=1e-12)
    half = 4.302652729911275 * values.std() / 3**0.5  # t quantile of two degrees of freedom
    assert row["val_accuracy_ci95"] == pytest.approx(half, rel=1e-9)
    tested = pd.Series([r["test_accuracy"] for r in last])
    assert row["final_test_accuracy_mean"] == pytest.approx(tested.mean(), rel=1e-12)
    assert "best.yaml has trial 1" in done.output
    first = (out / "best.yaml").read_text().splitlines()[0]
    assert (
        first == f"# trial 1: val_accuracy {row['val_accuracy_mean']!r}, mean over 3 fresh "
        "training seeds"
    )


@pytest.mark.integration
def test_the_best_configuration_runs(finished: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = finished
    done = fedsim("run", "-c", out / "best.yaml", "--engine", "serial", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    for name in ("rounds.csv", "clients.csv"):
        again = (tmp_path / "run" / name).read_bytes()
        assert again == (out / "trial-0001/seed=3" / name).read_bytes()
    done = fedsim("sweep", out / "best.yaml", "--dry-run", "--no-measure")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("run\n")


@pytest.mark.integration
def test_the_same_command_does_nothing_more(finished: tuple[Path, Result]) -> None:
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")}
    read = (out / "trials.csv").read_bytes()
    with mock.patch.object(capacity, "make_drivers", wraps=capacity.make_drivers) as make_drivers:
        done = fedsim(
            *("tune", out.parent / "search.yaml", "--sampler", "grid", "--parallel", 1),
            *("--engine", "serial", "--out", out, "--confirm", 1),
        )
    assert done.exit_code == 0, done.output
    assert {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")} == before
    assert (out / "trials.csv").read_bytes() == read
    assert make_drivers.call_args.args[0] == []


CANARY = """
from dataclasses import replace

import numpy as np

from fedsim import data


def plain(folder, *, val_fraction=0.2):
    return data.load("digits", val_fraction=val_fraction)


def other(folder, *, val_fraction=0.2):
    found = plain(folder, val_fraction=val_fraction)
    y = found.y.copy()
    y[found.test] = (y[found.test] + 1) % 10
    assert not np.array_equal(y, found.y)
    return replace(found, y=y)
"""


@pytest.mark.slow
@pytest.mark.integration
def test_other_test_labels_change_no_byte_of_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "canary_labels.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("search.yaml").write_text(SMALL + "search:\n  train.lr: loguniform(0.01, 1)\n")
    for name in ("plain", "other"):
        done = fedsim(
            *("tune", "search.yaml", "-d", f"canary_labels:{name}", "--trials", 3),
            *("--parallel", 1, "--engine", "serial", "--pruner", "asha", "--out", name),
        )
        assert done.exit_code == 0, done.output
    for file in ("trials.csv", "trials.jsonl"):
        assert Path("plain", file).read_bytes() == Path("other", file).read_bytes()
    runs = [pd.read_csv(f"{name}/trial-0000/seed=0/rounds.csv") for name in ("plain", "other")]
    assert not runs[0]["test_accuracy"].equals(runs[1]["test_accuracy"])


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = fedsim("tune", tmp_path / "search.yaml", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert done.output.endswith("pip install 'fedsim-ray[tune]'\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "arguments", "wanted"),
    [
        (SMALL, (), "there is nothing to search: give a section 'search:'"),
        (SEARCH, ("--set", "data.val_fraction=0"), "set data.val_fraction, such as 0.1"),
        (SEARCH, ("--search", "train.rounds=int(1, 3)"), "a pruner compares trials round by round"),
        (SEARCH, ("--search", "train.lr=uniform(2, 1)"), "--search train.lr: 'uniform(2, 1)'"),
        (SEARCH, ("--sampler", "grid", "--search", "train.lr=uniform(1, 2)"), "--sampler grid"),
        (
            SMALL + "search:\n  train.rounds: int(1, 1000000000)\n",
            ("--sampler", "grid", "--pruner", "none", "--set", "data.val_fraction=0.2"),
            "trials: 1,000,000,000 trials of 1 run; a search has at most 10,000 runs",
        ),
    ],
)
def test_what_cannot_be_searched(
    tmp_path: Path, text: str, arguments: tuple[object, ...], wanted: str
) -> None:
    (tmp_path / "search.yaml").write_text(text)
    done = fedsim("tune", tmp_path / "search.yaml", "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2, done.output
    assert wanted in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.integration
def test_no_trial_is_complete(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(SMALL + "search:\n  train.lr: choice(1.0e+30, 1.0e+31)\n")
    done = fedsim(
        *("tune", tmp_path / "search.yaml", "--trials", 2, "--out", tmp_path / "out"),
        *("--parallel", 1, "--engine", "serial"),
    )
    assert done.exit_code == 1
    assert "no trial is complete (2 failed): " in done.output


def test_trials_are_judged_by_columns_of_rounds_csv() -> None:
    assert {f"val_{name}" for name in Measures().scores} < set(RoundRow.columns())
    assert importlib.import_module("fedsim.cli.sweep").MOST_RUNS == experiments.MOST_RUNS
