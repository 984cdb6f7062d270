"""New kinds of work as their users write them (tests/seams.py, the tutorials' method).

Their bytes on Ray, with tasks done early and with killed actors: tests/engine/test_executor.py.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import fedsim
from fedsim.algorithms.base import one_each
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import RoundContext
from fedsim.schedules.base import Roster
from fedsim.systems.clock import Clock
from fedsim.systems.distributions import parse
from fedsim.testing.rounds import config, results
from fedsim.training.assemble import prepare
from tests.seams import Buffered
from tests.stopping import Stop, Stopper

pytestmark = pytest.mark.integration


FLIPPED = "tests.seams:sign_flip"
CLOCK = {"samples_per_second": "lognormal(100, 0.8)", "upload_mb_s": "1", "availability": 0.8}
BUFFERED = {
    "train": {"schedule": "tests.seams:buffered", "rounds": 6, "lr_schedule": "cosine"},
    "clock": CLOCK,
}


def ran(tmp_path, method="fedavg", **sections):
    """The results of a small run."""
    sections.setdefault("train", {"rounds": 2})
    return fedsim.run(config(method, **sections), tmp_path, progress=False)


def tensors(store):
    """The final model."""
    return load_file(store.path / "model.safetensors")


def test_a_transform_that_changes_nothing_is_the_method_itself(tmp_path):
    changed = ran(tmp_path / "changed", FLIPPED, **{FLIPPED: {"share": 0.0}})
    plain = ran(tmp_path / "plain")
    assert all(np.array_equal(a, tensors(plain)[k]) for k, a in tensors(changed).items())
    rounds = [s.read("rounds").drop(columns="uplink_bytes") for s in (changed, plain)]
    pd.testing.assert_frame_equal(*rounds)


def test_the_clients_with_the_highest_losses_train(tmp_path):
    store = ran(
        tmp_path / "run",
        train={"rounds": 1, "sample_rate": 0.25, "schedule": "tests.seams:power_of_choice"},
        evaluation={"clients_every": 1},
    )
    uniform = ran(tmp_path / "uniform", train={"rounds": 1, "sample_rate": 0.25})
    rounds = [one.read("rounds").iloc[0] for one in (store, uniform)]
    model = rounds[1].downlink_bytes // 2
    assert rounds[0].downlink_bytes - rounds[1].downlink_bytes == 2 * model
    assert rounds[0].uplink_bytes - rounds[1].uplink_bytes == 4 * 4
    assert rounds[0].cohort_size == 2


def roster(clients=12, **options):
    """Clients of a hundred samples, of unequal speeds."""
    speeds = {"samples_per_second": parse("lognormal(100, 0.8)")}
    return Roster(
        sizes=[100] * clients,
        cohort_size=4,
        held_out=(),
        clock=replace(Clock(seed=3, distributions=speeds), **options),
        assign=one_each,
        lr=lambda round: 0.1 / (1 + round),
    )


def test_a_plan_ahead_is_what_the_later_rounds_plan():
    schedule, state, told = Buffered(3, 6), {}, {}
    for t in range(8):
        ctx = RoundContext(round=t, num_rounds=8, num_clients=12, lr=0.1 / (1 + t), seed=5)
        plan = schedule.plan(roster(), state, ctx, lambda tasks: [])
        for later, tasks in enumerate(plan.ahead, start=t + 1):
            told.setdefault(later, []).append((t, tasks))
        for at, tasks in told.get(t, []):
            assert tasks == tuple(task for task in plan.tasks if task.version <= at)
        state = plan.state
    assert any(tasks for each in told.values() for _, tasks in each)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "client_batch"), [("fedavg", 1), ("fedavg", 3), ("scaffold", 1)]
)
def test_a_buffered_run_resumes_to_the_same_bytes(tmp_path, method, client_batch):
    sections = BUFFERED | {"engine": {"client_batch": client_batch, "checkpoint_every": 1}}
    sections["train"] = sections["train"] | {"momentum": 0.0}
    whole = fedsim.run(config(method, **sections), tmp_path / "whole", progress=False)
    for after in (1, 2, 4):
        out = tmp_path / f"cut{after}"
        with pytest.raises(Stop):
            fedsim.run(config(method, **sections), out, [Stopper(after)], progress=False)
        assert results(fedsim.resume(out, progress=False)) == results(whole)
    rounds = whole.read("rounds")
    assert (rounds.cohort_size == 3).all()
    assert (rounds.simulated_seconds >= 0).all()


@pytest.mark.slow
def test_models_of_earlier_rounds_are_written_once_and_pruned(tmp_path):
    sections = BUFFERED | {"engine": {"checkpoint_every": 1, "keep_checkpoints": 1}}
    store = fedsim.run(config("fedavg", **sections), tmp_path / "run", progress=False)
    files = {path.name for path in (store.path / "checkpoints").glob("version-*")}
    assert 0 < len(files) < 6


def test_what_a_stale_update_cannot_go_with_is_refused():
    for method, other in (("fediir", "before training"), ("centralized", "pooled")):
        sections = {"train": BUFFERED["train"]}
        with pytest.raises(ConfigError, match=f"asynchronous schedule cannot .*{other}"):
            prepare(config(method, **sections))


PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "own-method.md"


def recipe() -> str:
    """The Python block of the tutorial."""
    return PAGE.read_text().split('```python title="my_method.py"\n', 1)[1].split("```", 1)[0]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The recipe as a module outside the package."""
    (tmp_path / "toy_method.py").write_text(recipe())
    monkeypatch.syspath_prepend(tmp_path)
    yield "toy_method:build"
    sys.modules.pop("toy_method", None)


def toy_config(algorithm: str, **sections: object) -> RunConfig:
    return RunConfig(
        algorithm=algorithm,
        data={"num_clients": 5},
        train={"rounds": 2, "sample_rate": 1.0},
        engine={"kind": "serial"},
        **sections,
    )


@pytest.mark.slow
def test_the_recipe_runs_and_its_hyperparameter_reaches_the_csv(toy, tmp_path):
    store = fedsim.run(toy_config(toy, **{toy: {"strength": 0.5}}), tmp_path / "out")
    summary = store.read("summary")
    assert summary[f"{toy}.strength"].tolist() == [0.5]
    assert len(store.read("rounds")) == 2


def test_at_strength_zero_the_recipe_is_fedavg(toy, tmp_path):
    ours = fedsim.run(toy_config(toy, **{toy: {"strength": 0.0}}), tmp_path / "toy")
    fedavg = fedsim.run(toy_config("fedavg"), tmp_path / "fedavg")
    assert (ours.path / "rounds.csv").read_bytes() == (fedavg.path / "rounds.csv").read_bytes()
