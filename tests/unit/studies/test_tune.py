"""Searches: which trials are proposed, when they are stopped, and what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedsim.config import experiments, search
from fedsim.config.resolve import from_flags, load_config
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.storage import trials
from fedsim.storage.trials import best
from fedsim.studies import execute, sweep, tune
from fedsim.studies import search as searches
from fedsim.training import resume
from fedsim.training.events import Event, Failed, Job
from tests.planted import Killed, Planted, Work, planted

FILE = """
data: {val_fraction: 0.1}
train: {rounds: 8}
search:
  train.lr: loguniform(0.0001, 10)
"""
SEEDS = FILE + "grid: {seed: [3, 4]}\n"


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


def test_the_order_of_the_searched_keys_is_part_of_a_search(tmp_path: Path) -> None:
    keys = "  train.lr: choice(0.1, 0.2)", "  train.momentum: choice(0.0, 0.5)"
    head = "data: {val_fraction: 0.1}\nsearch:\n"
    searched(tmp_path, plan_of(head + "\n".join(keys)), Planted(), 1)
    with pytest.raises(ConfigError, match=r"begun with search .*, not .*train.momentum"):
        tune.Tuning(plan_of(head + "\n".join(reversed(keys))), tmp_path)


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


def test_a_grid_without_end_is_counted_and_not_made() -> None:
    text = FILE.replace(
        "train.lr: loguniform(0.0001, 10)", "train.local_epochs: int(1, 1000000000)"
    )
    assert plan_of(text, sampler="grid", trials=3).count == 3
    with pytest.raises(ConfigError, match=r"trials: 1,000,000,000 trials of 1 run"):
        plan_of(text, sampler="grid")


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
        (SEEDS, [], {}, r"begun with seeds \[0\], not \[3, 4\]"),
    ],
)
def test_another_search_in_the_same_directory_is_refused(
    tmp_path: Path, text: str, sets: list[str], given: dict[str, str], wanted: str
) -> None:
    searched(tmp_path, plan_of(), Planted(), 1)
    with pytest.raises(ConfigError, match=wanted):
        tune.Tuning(plan_of(text, *sets, **given), tmp_path)


def test_placement_may_change_when_a_search_goes_on(tmp_path: Path) -> None:
    searched(tmp_path, plan_of(FILE, "engine.kind=serial"), Planted(), 1)
    assert len(searched(tmp_path, plan_of(FILE, "engine.actors=2"), Planted(), 2).ended) == 2


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("seed: int(0, 3)", "seeds are not searched"),
        ("engine.actors: int(1, 3)", "changes no result"),
        ("data.seed: int(0, 3)", "decides which data"),
        ("mine:blobs.classes: int(2, 5)", "decides which data"),
        ("evaluation.every: int(1, 3)", "decides how models are scored"),
        ("train.rounds: int(1, 3)", "decides how much privacy"),
    ],
)
def test_keys_that_make_no_sense(line: str, wanted: str) -> None:
    head = "data: {val_fraction: 0.1, name: 'mine:blobs'}\n"
    head += "dp: {level: user, clip: 1}\n"
    with pytest.raises(ConfigError, match=rf"search.yaml:4 .*{wanted}"):
        plan_of(f"{head}search:\n  {line}\n")
    key, _, form = line.partition(": ")
    with pytest.raises(ConfigError, match=rf"--search {key}: .*{wanted}"):
        plan_of(f"{head}search: {{train.lr: 'uniform(0, 1)'}}\n", searched=(f"{key}={form}",))


@pytest.mark.parametrize(
    ("dp", "key"),
    [
        ("user", "dp.clip"),
        ("user", "train.batch_size"),
        ("example", "dp.clip"),
        ("", "train.rounds"),
    ],
)
def test_what_says_how_models_are_trained_is_searched(dp: str, key: str) -> None:
    text = f"data: {{val_fraction: 0.1, augment: none}}\nsearch: {{{key}: 'choice(1, 2)'}}\n"
    level = (f"dp.level={dp}", "dp.clip=1") if dp else ()
    settings = {**experiments.parse(text, "s.yaml").settings, **from_flags({}, level)}
    searches.check_searched(experiments.parse(text, "s.yaml").search, settings)


def test_of_a_grid_only_seeds() -> None:
    text = FILE + "grid: {algorithm: [fedavg, fedprox], seed: [1, 2]}\n"
    with pytest.raises(
        ConfigError, match=r"grid.algorithm: of a grid, fedsim tune takes the seeds"
    ):
        plan_of(text)
    assert plan_of(text, "algorithm=fedprox").seeds == (1, 2)
    assert plan_of(text, "algorithm=fedprox", "seed=7").seeds == (7,)
    assert plan_of(FILE, "seed=7").seeds == (7,)
