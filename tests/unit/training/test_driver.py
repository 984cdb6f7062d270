"""The training loop: runs, resumption, checkpoints; preprocessing."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file

import fedsim
from fedsim import models
from fedsim.algorithms.base import Algorithm
from fedsim.cli import main
from fedsim.client import LocalRule, Uplink
from fedsim.config import experiments
from fedsim.config.resolve import load_config, resolve, with_normalization
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DivergedError
from fedsim.core.normalization import Normalization
from fedsim.core.types import Dataset, Layout, Pipeline, RoundContext
from fedsim.engine.base import SCORES
from fedsim.engine.serial import SerialExecutor
from fedsim.engine.worker import Worker
from fedsim.metrics.scores import mean_scores
from fedsim.models import libraries
from fedsim.models.vision import SplitModel
from fedsim.schedules.base import draw_cohort, lr_at
from fedsim.server.base import RuleState, ServerStep
from fedsim.server.cohort import Cohort
from fedsim.server.device_columns import DeviceColumns
from fedsim.storage.checkpoint import ServerState
from fedsim.training import assemble, final_models
from fedsim.training import round as rounds
from fedsim.training.assemble import prepare
from fedsim.training.round import _moved, run_round
from fedsim.training.rows import RoundLog
from tests.decomposing import digits, named_tensors
from tests.tasks import run

TABLES = ("rounds", "clients", "classes", "confusion", "models", "partition", "split")


def tiny(folder, val_fraction=0.0):
    """160 grey 8x8 images, class k about 60 k + 40 bright: 100 train, 60 test."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=160)
    x = rng.integers(0, 80, size=(160, 1, 8, 8)) + 60 * y[:, None, None, None]
    held = int(100 * val_fraction)
    return Dataset(
        name="tiny",
        x=x.astype(np.uint8),
        y=y,
        class_names=("dark", "grey", "bright"),
        train=np.arange(held, 100),
        val=np.arange(held),
        test=np.arange(100, 160),
        pipeline=Pipeline(size=8, mean=(0.5,), std=(0.5,)),
    )


def hospitals(folder):
    """The same images from four places, two of them with names that look like nothing."""
    names = ("north", "NA", "None", "south")
    return replace(tiny(folder), site=np.arange(160) % 4, site_names=names)


@dataclass(frozen=True)
class Diverges(LocalRule):
    """In one round some clients return something that is not finite."""

    what: str
    round: int
    clients: tuple[int, ...]

    def _now(self, env):
        return env.ctx.round == self.round and env.client_id in self.clients

    def loss(self, env, s, x, y):
        objective, ce = super().loss(env, s, x, y)
        bad = self._now(env) and self.what == "loss"
        return objective, ce * float("nan") if bad else ce

    def adjust_grads(self, env, s):
        if self._now(env) and self.what == "update":
            env.params[-1].grad[0] = float("inf")
        if self._now(env) and self.what == "error":
            raise ValueError("on purpose")

    def finish(self, env, s):
        value = np.array([1.0, np.nan if self._now(env) else 2.0])
        return {
            "upload": Uplink({"prototypes": value}),
            "state": Uplink(state={"memory": value}),
        }.get(self.what, Uplink())


def diverging(what: str = "loss", round: int = 1, clients: str = "") -> Algorithm:
    return Algorithm(local=Diverges(what, round, tuple(map(int, clients.split()))))


def driver_config(algorithm="fedavg", **changes):
    """8 clients of the tiny data set, cohorts of 4, 3 rounds, one process."""
    sections = {
        "data": {"name": f"{__name__}:tiny", "num_clients": 8, "alpha": 1.0},
        "model": {"name": "mlp"},
        "train": {"rounds": 3, "sample_rate": 0.5, "batch_size": 8, "lr": 0.05},
        "evaluation": {"batch_size": 32},
        "engine": {"kind": "serial"},
    }
    for key, value in changes.items():
        sections[key] = sections[key] | value if key in sections else value
    return RunConfig(algorithm=algorithm, **sections)


def failing(what, clients, round=1, policy="drop", **changes):
    name = f"{__name__}:diverging"
    options = {"what": what, "round": round, "clients": " ".join(map(str, clients))}
    return driver_config(name, engine={"on_client_failure": policy}, **changes, **{name: options})


def cohort_of(settings, round):
    t = settings.train
    ctx = RoundContext(
        round=round,
        num_rounds=t.rounds,
        num_clients=settings.data.num_clients,
        lr=t.lr,
        seed=settings.seed,
    )
    return draw_cohort(ctx, int(t.sample_rate * settings.data.num_clients))


def contents(store):
    files = [f"{table}.csv" for table in TABLES] + ["model.safetensors"]
    files += ["evaluations.csv"] if (store.path / "evaluations.csv").exists() else []
    return {name: (store.path / name).read_bytes() for name in files}


def context(round=0, rounds=10, clients=20, seed=0, lr=0.1):
    return RoundContext(round=round, num_rounds=rounds, num_clients=clients, lr=lr, seed=seed)


@pytest.mark.integration
@pytest.mark.slow
def test_every_method_of_a_seed_has_the_same_cohorts_on_digits(tmp_path):
    cohorts = {}
    for method in ("fedavg", "fedpac", "fedld"):
        settings = RunConfig(
            algorithm=method, seed=4, data={"num_clients": 10}, model={"name": "mlp"},
            train={"rounds": 3, "sample_rate": 0.3}, engine={"kind": "serial"},
        )  # fmt: skip
        store = fedsim.run(settings, tmp_path / method)
        rows = store.read("clients")
        cohorts[method] = rows[["round", "client_id", "num_samples"]].to_numpy().tolist()
        assert store.read("rounds")["cohort_size"].tolist() == [3, 3, 3]
    assert cohorts["fedavg"] == cohorts["fedpac"] == cohorts["fedld"]
    for t in range(3):
        drawn = [client for round, client, _ in cohorts["fedavg"] if round == t + 1]
        assert drawn == draw_cohort(context(t, clients=10, seed=4), 3)


# learning rates
@pytest.mark.integration
def test_schedules_by_hand(tmp_path):
    train = {"rounds": 4, "lr": 0.2}
    constant = driver_config(train=train)
    assert [lr_at(constant, t) for t in range(4)] == [0.2] * 4
    # 0.1 (1 + cos(pi t / 4)): 1, 0.7071, 0, -0.7071
    cosine = driver_config(train=train | {"lr_schedule": "cosine"})
    expected = [0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5)]
    assert [lr_at(cosine, t) for t in range(4)] == pytest.approx(expected)
    # lr min(1, E t / 5)
    warm = driver_config(train=train | {"lr_schedule": "warmup_round", "rounds": 7})
    assert [lr_at(warm, t) for t in range(7)] == pytest.approx(
        [0.0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.2]
    )
    three = driver_config(train=train | {"lr_schedule": "warmup_round", "local_epochs": 3})
    assert [lr_at(three, t) for t in range(4)] == pytest.approx([0.0, 0.12, 0.2, 0.2])


# a round
@pytest.mark.integration
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_round_of_fedavg_by_hand(model):
    setup = prepare(driver_config(model={"name": model}))
    worker = Worker(setup.spec, torch.device("cpu"))
    ctx = RoundContext(round=0, num_rounds=3, num_clients=8, lr=0.05, seed=0)
    clients = draw_cohort(ctx, 4)
    reports, deltas = run(worker, clients, ctx, setup.initial)
    n = np.array([len(setup.partition.train[c]) for c in clients], dtype=np.float64)
    p = n / n.sum()
    step = p @ deltas.astype(np.float64)
    executor, log = SerialExecutor(setup.spec), RoundLog(1)
    before = setup.initial.copy()
    after = run_round(setup, executor, ServerState(params=setup.initial), ctx, log)
    executor.close()
    np.testing.assert_array_equal(setup.initial, before)
    np.testing.assert_allclose(after.params, setup.initial + step, rtol=1e-5, atol=1e-6)
    assert (after.params.dtype, dict(after.clients)) == (np.float32, {})

    trained = deltas[:, : setup.layout.num_params].astype(np.float64)
    (row,) = log.tables["rounds"]
    losses = np.array([r.train_loss for r in reports])
    pairs = (trained @ trained.T)[np.triu_indices(4, 1)]
    assert row["train_loss"] == pytest.approx(p @ losses)
    assert row["update_norm"] == pytest.approx(np.linalg.norm(p @ trained), rel=1e-6)
    assert row["conflict_ratio"] == np.mean(pairs < 0)
    assert (row["round"], row["cohort_size"], row["dropped"]) == (1, 4, 0)
    rows = log.tables["clients"]
    assert [r["client_id"] for r in rows] == clients
    assert [r["status"] for r in rows] == ["ok"] * 4
    assert [r["num_samples"] for r in rows] == n.tolist()
    assert [r["num_steps"] for r in rows] == [r.num_steps for r in reports]
    assert [r["train_loss"] for r in rows] == losses.tolist()
    np.testing.assert_allclose(
        [r["update_norm"] for r in rows], np.linalg.norm(trained, axis=1), rtol=1e-9
    )
    scores = worker.evaluate(after.params, {}, "test", SCORES)
    assert row["test_accuracy"] == scores.accuracy
    assert row["test_loss"] == scores.loss
    assert "errors" not in log.tables


@pytest.mark.integration
def test_states_belong_to_clients_and_survive_rounds_without_them():
    setup = prepare(driver_config("fedbn", model={"name": "cnn"}, train={"sample_rate": 0.25}))
    executor, state = SerialExecutor(setup.spec), ServerState(params=setup.initial)
    seen, survived = {}, 0
    for t in range(4):
        ctx = RoundContext(round=t, num_rounds=4, num_clients=8, lr=0.05, seed=0)
        before = dict(state.clients)
        state = run_round(setup, executor, state, ctx, RoundLog(t + 1))
        cohort = draw_cohort(ctx, 2)
        for client, kept in before.items():
            if client not in cohort:
                assert state.clients[client] is kept
                survived += 1
        seen |= {c: state.clients[c] for c in cohort}
    executor.close()
    assert set(state.clients) == set(seen)
    assert survived > 0
    personal = [s for s in setup.layout.slots if s.batchnorm]
    assert personal
    for slot in personal:
        np.testing.assert_array_equal(state.params[slot.where], setup.initial[slot.where])


@pytest.mark.integration
def test_norms_leave_out_statistics_and_personal_slots():
    setup = prepare(driver_config("fedbn", model={"name": "cnn"}))
    executor, log = SerialExecutor(setup.spec), RoundLog(1)
    state = ServerState(params=setup.initial)
    after = run_round(
        setup,
        executor,
        state,
        RoundContext(round=0, num_rounds=3, num_clients=8, lr=0.05, seed=0),
        log,
    )
    executor.close()
    shared = np.concatenate(
        [
            after.params[s.where] - setup.initial[s.where]
            for s in setup.layout.slots
            if s.role == "param" and not s.batchnorm
        ]
    )
    (row,) = log.tables["rounds"]
    assert row["update_norm"] == pytest.approx(np.linalg.norm(shared.astype(float)), rel=1e-4)


# diverged clients
@pytest.mark.integration
@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("loss", "the training loss"),
        ("update", "tensor head.bias"),
        ("upload", "tensor upload prototypes"),
        ("state", "tensor own memory"),
    ],
)
def test_divergence_names_round_client_and_tensor(tmp_path, what, named):
    client = cohort_of(driver_config(), 1)[2]
    # one batch, so that the loss is still finite where the update is not
    one_step = failing(what, [client], policy="raise", train={"batch_size": 100})
    with pytest.raises(DivergedError) as error:
        fedsim.run(one_step, tmp_path / "run")
    text = str(error.value)
    assert text.startswith(f"round 2, client {client}: {named} is NaN or infinite")
    assert "on_client_failure=drop" in text
    assert "\n" not in text
    assert error.value.exit_status == 1
    # what was finished before is on disk
    assert (tmp_path / "run" / "rounds.csv").read_text().count("\n") == 2
    assert not (tmp_path / "run" / "summary.csv").exists()


@pytest.mark.integration
@pytest.mark.parametrize("what", ["loss", "update", "upload", "state"])
def test_a_dropped_client_leaves_the_round(tmp_path, what):
    client = cohort_of(driver_config(), 1)[1]
    settings = failing(what, [client])
    store = fedsim.run(settings, tmp_path / "run")
    rounds, clients = store.read("rounds"), store.read("clients")
    assert rounds["cohort_size"].tolist() == [4, 4, 4]
    assert rounds["dropped"].tolist() == [0, 1, 0]
    row = clients[(clients["round"] == 2) & (clients["client_id"] == client)].iloc[0]
    part = store.read("partition")
    assert (row["status"], row["num_steps"]) == ("dropped", 0)
    assert row["num_samples"] == part[part["client_id"] == client]["train_samples"].sum()
    assert row[["train_loss", "update_norm"]].isna().all()
    good = clients[(clients["round"] == 2) & (clients["status"] == "ok")]
    assert len(good) == 3
    mean = np.average(good["train_loss"], weights=good["num_samples"])
    assert rounds["train_loss"][1] == pytest.approx(mean)
    (error,) = store.read("errors").to_dict("records")
    assert (error["round"], error["client_id"], error["attempt"]) == (2, client, 1)
    assert f"round 2, client {client}:" in error["error"]
    assert clients["client_id"].tolist() == [c for t in range(3) for c in cohort_of(settings, t)]


@pytest.mark.integration
@pytest.mark.parametrize("what", ["loss", "update"])
def test_if_all_are_dropped_the_model_is_kept(tmp_path, what):
    settings = failing(what, range(8), round=0, train={"rounds": 1})
    store = fedsim.run(settings, tmp_path / "run")
    setup = prepare(settings)
    initial = named_tensors(setup.initial, setup.layout)
    for name, tensor in load_file(store.path / "model.safetensors").items():
        np.testing.assert_array_equal(tensor, initial[name])
    (row,) = store.read("rounds").to_dict("records")
    assert (row["cohort_size"], row["dropped"]) == (4, 4)
    assert all(np.isnan(row[c]) for c in ("train_loss", "conflict_ratio", "update_norm"))
    scores = Worker(setup.spec, torch.device("cpu")).evaluate(setup.initial, {}, "test", SCORES)
    assert row["test_accuracy"] == scores.accuracy
    clients = store.read("clients")
    assert clients["status"].tolist() == ["dropped"] * 4
    assert len(store.read("errors")) == 4


# evaluation
@pytest.mark.integration
@pytest.mark.slow
def test_evaluation_every_so_many_rounds_and_after_the_last(tmp_path):
    settings = driver_config(train={"rounds": 5}, evaluation={"every": 2})
    store = fedsim.run(settings, tmp_path / "run")
    rounds = store.read("rounds")
    assert rounds["round"].tolist() == [1, 2, 3, 4, 5]
    tested = [2, 4, 5]
    for column in ("test_loss", "test_accuracy", "test_balanced_accuracy", "test_macro_f1"):
        assert rounds[rounds[column].notna()]["round"].tolist() == tested
    assert rounds[["val_loss", "val_accuracy"]].isna().all(axis=None)
    assert rounds[["train_loss", "update_norm"]].notna().all(axis=None)
    assert sorted(set(store.read("classes")["round"])) == tested
    evaluated = store.read("timings").query("phase == 'evaluate'")
    assert evaluated["round"].tolist() == tested
    every = fedsim.run(driver_config(train={"rounds": 5}), tmp_path / "every").read("rounds")
    pd.testing.assert_frame_equal(
        every[every["round"].isin(tested)], rounds[rounds["round"].isin(tested)]
    )


@pytest.mark.integration
def test_a_validation_part_fills_its_columns_and_chooses_the_best(tmp_path):
    store = fedsim.run(
        driver_config(data={"val_fraction": 0.2}, train={"rounds": 6}), tmp_path / "run"
    )
    rounds, summary = store.read("rounds"), store.read("summary").iloc[0]
    assert rounds[["val_loss", "val_accuracy"]].notna().all(axis=None)
    assert summary["best_by"] == "val"
    best = rounds["val_accuracy"].idxmax()
    assert summary["best_round"] == rounds["round"][best]
    assert summary["best_test_accuracy"] == rounds["test_accuracy"][best]
    assert store.read("partition")["train_samples"].sum() == 80
    setup = prepare(driver_config(data={"val_fraction": 0.2}, train={"rounds": 6}))
    np.testing.assert_array_equal(setup.dataset.val, np.arange(20))


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedbn", "fedpac"])
@pytest.mark.parametrize("mode", ["all_clients", "cohort_before", "cohort_after"])
def test_whose_models_count_for_personalised_methods(method, mode):
    settings = driver_config(
        method, model={"name": "cnn"}, evaluation={"personal": mode}, data={"val_fraction": 0.2}
    )
    setup = prepare(settings)
    worker = Worker(setup.spec, torch.device("cpu"))
    executor, state = SerialExecutor(setup.spec), ServerState(params=setup.initial)
    for t in range(2):
        ctx, log, before = (
            RoundContext(round=t, num_rounds=3, num_clients=8, lr=0.05, seed=0),
            RoundLog(t + 1),
            state,
        )
        state = run_round(setup, executor, before, ctx, log)
        cohort = draw_cohort(ctx, 4)
        sent = before.params, before.downlink, before.clients
        reports, deltas = run(worker, cohort, ctx, *sent)
        own = {
            "all_clients": {c: (state.params, state.clients.get(c, {})) for c in range(8)},
            "cohort_before": {c: (before.params, before.clients.get(c, {})) for c in cohort},
            "cohort_after": {
                r.client_id: (before.params + d, r.state)
                for r, d in zip(reports, deltas, strict=True)
            },
        }[mode]
        (row,) = log.tables["rounds"]
        for part in ("val", "test"):
            scores = {c: worker.evaluate(*model, part, SCORES) for c, model in own.items()}
            mean = mean_scores(list(scores.values()))
            assert row[f"{part}_accuracy"] == mean.accuracy
            assert row[f"{part}_loss"] == mean.loss
            written = {
                e["client_id"]: (e["accuracy"], e["loss"], e["num_samples"])
                for e in log.tables["evaluations"]
                if e["split"] == part
            }
            assert written == {c: (s.accuracy, s.loss, s.num_samples) for c, s in scores.items()}
        assert row["test_macro_f1"] == mean.macro_f1
        assert [c["recall"] for c in log.tables["classes"]] == [c.recall for c in mean.classes]
    executor.close()


# the run directory
@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedpac", "fedld", "fedgh_released"])
def test_a_run_and_its_config_file_repeat_it_byte_for_byte(tmp_path, method):
    model = "cnn" if method in ("fedbn", "fedpac") else "mlp"
    settings = driver_config(method, model={"name": model}, seed=3)
    first = fedsim.run(settings, tmp_path / "first")
    assert contents(fedsim.run(settings, tmp_path / "second")) == contents(first)
    written = load_config(file=first.path / "config.yaml")
    third = fedsim.run(written, tmp_path / "third")
    assert contents(third) == contents(first)
    assert (third.path / "config.yaml").read_bytes() == (first.path / "config.yaml").read_bytes()
    differ = ["run_id", "total_seconds"]
    pd.testing.assert_frame_equal(
        *(store.read("summary").drop(columns=differ) for store in (first, third))
    )


@pytest.mark.integration
def test_files_of_a_run(tmp_path):
    store = fedsim.run(driver_config(), tmp_path / "run")
    assert {p.name for p in store.path.iterdir()} == {
        *("config.yaml", "env.json", "model.safetensors"),
        *("summary.csv", "timings.csv"),
        *(f"{table}.csv" for table in TABLES),
        *(".lock", "checkpoints"),
    }
    environment = json.loads((store.path / "env.json").read_text())
    assert (environment["engine"], environment["server_device"]) == ("serial", "cpu")
    assert environment["device"] == {
        "name": "cpu",
        "precision": "float32",
        "deterministic": True,
        "nondeterministic": [],
        "uncaptured": {},
    }
    timings = store.read("timings")
    phases = ["broadcast", "train", "aggregate", "evaluate", "total"]
    for _, rows in timings[timings["phase"] != "checkpoint"].groupby("round"):
        assert rows["phase"].tolist() == phases
        seconds = dict(zip(rows["phase"], rows["seconds"], strict=True))
        assert seconds["total"] >= sum(seconds[p] for p in phases[:-1])
    assert (timings["seconds"] >= 0).all()
    size = prepare(driver_config()).initial.nbytes
    assert timings.query("phase == 'broadcast'")["bytes"].tolist() == [size] * 3
    assert timings.query("phase == 'train'")["bytes"].tolist() == [4 * size] * 3
    checkpoints = timings[timings["phase"] == "checkpoint"]
    assert (
        checkpoints["round"].iloc[-1] == 3
    )  # one that would have to wait for the disk is left out
    assert set(checkpoints["bytes"]) == {size}
    partition = store.read("partition")
    assert partition["train_samples"].sum() == 100
    assert (partition["test_samples"] == 0).all()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "nowhere:load"}}, "nowhere"),
        ({"model": {"name": "nowhere:build"}}, "nowhere"),
        ({"data": {"name": f"{__name__}:hospitals", "num_clients": 5}}, "4 clients"),
    ],
)
def test_what_cannot_start_writes_nothing(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        fedsim.run(driver_config(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def frozen_backbone(num_classes, in_channels, image_size):
    """A user's model whose extractor is not trained."""
    features = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(in_channels * image_size**2, 5)
    )
    return SplitModel(features.requires_grad_(False), torch.nn.Linear(5, num_classes))


@pytest.mark.integration
@pytest.mark.slow
def test_what_a_model_freezes_stays_frozen(tmp_path):
    settings = driver_config(model={"name": f"{__name__}:frozen_backbone"})
    initial = named_tensors(prepare(settings).initial, prepare(settings).layout)
    final = load_file(fedsim.run(settings, tmp_path / "run").path / "model.safetensors")
    same = {name for name in initial if np.array_equal(initial[name], final[name])}
    assert same == {"features.1.weight", "features.1.bias"}


@pytest.mark.integration
def test_a_step_that_a_rule_keeps_is_not_overwritten():
    params, step = np.array([1.0, 2.0], np.float32), np.array([0.5, 0.5], np.float32)
    nobody = Cohort.empty(Layout(()), params)
    state = RuleState(optimizers=({"m": step[:1]},))
    kept = _moved(params, ServerStep(step=step, sent=nobody, state=state), [])
    assert kept.tolist() == [1.5, 2.5]
    assert step.tolist() == [0.5, 0.5]
    alone = _moved(params, ServerStep(step=step, sent=nobody), [])
    assert alone is step, "no memory for a third vector"
    assert alone.tolist() == [1.5, 2.5]
    assert params.tolist() == [1.0, 2.0]


def run_on(out, server, monkeypatch, device=None):
    monkeypatch.setattr(assemble, "server_device", lambda engine: device)
    config = RunConfig(
        algorithm="fedavg",
        server=server,
        data={"num_clients": 6},
        train={"rounds": 2, "sample_rate": 1.0, "batch_size": 30},
        engine={"kind": "serial"},
    )
    store = fedsim.run(config, out)
    return load_file(store.path / "model.safetensors"), store.read("clients")


@pytest.mark.integration
@pytest.mark.parametrize("server", ["fedavg", "fedld", "fedgh", "nnm,krum", "trimmed_mean"])
def test_a_server_on_a_device_is_the_same_up_to_rounding(server, tmp_path, monkeypatch):
    made = []
    on = DeviceColumns.on
    monkeypatch.setattr(rounds.DeviceColumns, "on", lambda *given: made.append(given) or on(*given))
    model, clients = run_on(tmp_path / "here", server, monkeypatch)
    assert not made
    other, others = run_on(tmp_path / "there", server, monkeypatch, torch.device("cpu"))
    assert len(made) == 2, "a matrix for each round"
    for name, tensor in model.items():
        # a step is rounded once to float32 on either side
        np.testing.assert_allclose(other[name], tensor, rtol=0, atol=2e-6)
    np.testing.assert_allclose(others["update_norm"], clients["update_norm"], rtol=1e-5)


NAME = "torchvision:mobilenet_v3_small"
IMAGENET = "0.485,0.456,0.406/0.229,0.224,0.225"


def preprocessing_config(data=None, **model):
    return RunConfig(
        algorithm="fedavg",
        data={"name": "digits"} | (data or {}),
        model={"name": NAME, "pretrained": True} | model,
        train={"rounds": 1, "sample_rate": 1, "batch_size": 32},
        engine={"kind": "serial"},
    )


@pytest.mark.parametrize("text", ["0.5/0.25", IMAGENET, f"{IMAGENET}/224"])
def test_the_text_says_what_it_is(text):
    known = Normalization.parse(text)
    assert str(known) == text
    assert RunConfig(data={"normalization": text}).data.normalization == text


@pytest.mark.slow
def test_grey_images_get_the_means_over_the_channels():
    grey = digits(None)
    given = Normalization.parse("0.1,0.2,0.6/0.2,0.2,0.5/16").applied(grey).pipeline
    assert (given.mean, given.std, given.size) == (pytest.approx((0.3,)), pytest.approx((0.3,)), 16)
    colour = replace(grey, x=np.repeat(grey.x, 3, 1))
    assert Normalization.parse("0.5/0.25").applied(colour).pipeline.std == (0.25,) * 3
    with pytest.raises(ValueError, match="2 channels, and the images have 3"):
        Normalization.parse("1,2/1,1").applied(colour)


@pytest.mark.parametrize(
    ("data", "model", "wanted"),
    [
        ({}, {}, f"{IMAGENET}/224"),
        ({"image_size": 32}, {}, IMAGENET),
        ({"normalization": "dataset"}, {}, "dataset"),
        ({"normalization": "0.5/0.5"}, {}, "0.5/0.5"),
        ({}, {"pretrained": False}, "dataset"),
        ({}, {"weights": "file.pt"}, "dataset"),
        ({}, {"name": "resnet18"}, "dataset"),
    ],
)
def test_it_is_that_of_the_pretraining_unless_something_else_is_said(data, model, wanted):
    resolved = with_normalization(preprocessing_config(data, **model))
    assert resolved.data.normalization == wanted
    assert with_normalization(resolved) == resolved


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_says_it_and_its_models_take_images_so(tmp_path, monkeypatch):
    def published(spec):
        return models.build(spec.without_weights, 1).features.state_dict()

    monkeypatch.setattr(libraries, "pretrained", published)
    monkeypatch.chdir(tmp_path)
    sets = {"data.image_size": 32, "model.pretrained": "true", "data.num_clients": 3}
    sets |= {"data.test_fraction": 0.95, "train.batch_size": 32}
    args = ["run", "-a", "fedavg", "--model", NAME, "--rounds", "1", "--engine", "serial"]
    args += [f"--set={key}={value}" for key, value in sets.items()]
    done = CliRunner().invoke(main, [*args, "--out", "r"])
    assert done.exit_code == 0, done.output
    line = "images of 32 x 32 pixels, mean 0.449, standard deviation 0.226"
    assert line in done.output
    written = resolve(experiments.read(tmp_path / "r" / "config.yaml").settings)
    assert written.data.normalization == IMAGENET
    known = final_models.Description.read(tmp_path / "r")
    assert (known.mean, known.std) == (pytest.approx((0.449,)), pytest.approx((0.226,)))
    Image.fromarray(np.zeros((32, 32), np.uint8)).save("black.png")
    done = CliRunner().invoke(main, ["predict", "r", "--images", "black.png", "--out", "p.csv"])
    assert done.exit_code == 0, done.output
    with torch.no_grad():
        logits = fedsim.load_model("r")(torch.full((1, 1, 32, 32), -0.449 / 0.226))
    wanted = logits.softmax(1).numpy()[0]
    np.testing.assert_allclose(pd.read_csv("p.csv").iloc[0, 2:].astype(float), wanted, atol=1e-5)
    assert CliRunner().invoke(main, ["predict", "r", "--out", "own.csv"]).exit_code == 0
