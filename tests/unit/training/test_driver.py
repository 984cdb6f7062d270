"""The driver: cohorts, schedules, diverged clients, evaluation, and the files of a run."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

import fedsim
from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalRule, Uplink
from fedsim.config.resolve import load_config
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DivergedError, WorkerError
from fedsim.core.types import Dataset, Pipeline, RoundContext
from fedsim.data import splits
from fedsim.engine.base import SCORES
from fedsim.engine.serial import SerialExecutor
from fedsim.engine.worker import Worker
from fedsim.metrics.scores import mean_scores
from fedsim.models.vision import SplitModel
from fedsim.schedules.base import draw_cohort, lr_at
from fedsim.server.base import RuleState, ServerStep
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.run_dir import csv_text
from fedsim.training import evaluate
from fedsim.training.log import RoundLog
from fedsim.training.round import _moved, run_round
from fedsim.training.setup import prepare
from tests.decomposing import named_tensors
from tests.tasks import run

pytestmark = pytest.mark.integration

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


def config(algorithm="fedavg", **changes):
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
    return config(name, engine={"on_client_failure": policy}, **changes, **{name: options})


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


# cohorts


def test_a_cohort_is_sorted_and_distinct():
    for t in range(50):
        drawn = draw_cohort(context(t), 7)
        assert drawn == sorted(set(drawn))
        assert len(drawn) == 7
        assert all(type(c) is int and 0 <= c < 20 for c in drawn)
    assert draw_cohort(context(), 20) == list(range(20))
    assert draw_cohort(context(clients=1), 1) == [0]


def test_cohorts_hang_on_seed_and_round_alone():
    first = draw_cohort(context(3), 7)
    assert draw_cohort(context(3, rounds=99, lr=7.0), 7) == first
    drawn = {tuple(draw_cohort(context(t, seed=s), 7)) for t in range(5) for s in range(5)}
    assert len(drawn) == 25


def test_every_client_is_drawn_equally_often():
    counts = np.zeros(20)
    for t in range(2000):
        counts[draw_cohort(context(t), 5)] += 1
    # 500 expected, standard deviation 19.4
    assert np.abs(counts - 500).max() < 80


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


def test_schedules_by_hand(tmp_path):
    train = {"rounds": 4, "lr": 0.2}
    constant = config(train=train)
    assert [lr_at(constant, t) for t in range(4)] == [0.2] * 4
    # 0.1 (1 + cos(pi t / 4)): 1, 0.7071, 0, -0.7071
    cosine = config(train=train | {"lr_schedule": "cosine"})
    expected = [0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5)]
    assert [lr_at(cosine, t) for t in range(4)] == pytest.approx(expected)
    # lr min(1, E t / 5)
    warm = config(train=train | {"lr_schedule": "warmup_round", "rounds": 7})
    assert [lr_at(warm, t) for t in range(7)] == pytest.approx(
        [0.0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.2]
    )
    three = config(train=train | {"lr_schedule": "warmup_round", "local_epochs": 3})
    assert [lr_at(three, t) for t in range(4)] == pytest.approx([0.0, 0.12, 0.2, 0.2])


def test_the_rate_is_written_down_and_used(tmp_path):
    train = {"lr": 0.2, "lr_schedule": "warmup_round", "weight_decay": 0.1}
    rounds = fedsim.run(config(train=train), tmp_path / "run").read("rounds")
    np.testing.assert_allclose(rounds["lr"], [0.0, 0.04, 0.08])
    assert rounds["update_norm"][0] == 0.0
    assert rounds["update_norm"][1] > 0


# a round


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_round_of_fedavg_by_hand(model):
    setup = prepare(config(model={"name": model}))
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


def test_one_client_has_no_conflicts_and_gives_its_whole_update(tmp_path):
    store = fedsim.run(config(train={"sample_rate": 0.125}), tmp_path / "run")
    rounds, clients = store.read("rounds"), store.read("clients")
    assert rounds["conflict_ratio"].isna().all()
    np.testing.assert_allclose(rounds["update_norm"], clients["update_norm"], rtol=1e-9)
    np.testing.assert_array_equal(rounds["train_loss"], clients["train_loss"])


def test_states_belong_to_clients_and_survive_rounds_without_them():
    setup = prepare(config("fedbn", model={"name": "cnn"}, train={"sample_rate": 0.25}))
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


def test_norms_leave_out_statistics_and_personal_slots():
    setup = prepare(config("fedbn", model={"name": "cnn"}))
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
    client = cohort_of(config(), 1)[2]
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


@pytest.mark.slow
@pytest.mark.parametrize(("model", "lr"), [("mlp", 1e6), ("mlp", 1e30), ("logistic", 1e25)])
def test_an_absurd_learning_rate_is_divergence_without_warnings(tmp_path, model, lr):
    # every warning is an error here
    settings = config(model={"name": model}, train={"lr": lr, "local_epochs": 20, "batch_size": 1})
    with pytest.raises(DivergedError, match=r"round [123], client \d: .* is NaN or infinite"):
        fedsim.run(settings, tmp_path / "run")


@pytest.mark.parametrize("what", ["loss", "update", "upload", "state"])
def test_a_dropped_client_leaves_the_round(tmp_path, what):
    client = cohort_of(config(), 1)[1]
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


def test_survivors_are_averaged_among_themselves():
    settings = failing("update", [cohort_of(config(), 0)[0]], round=0)
    setup, ctx = (
        prepare(settings),
        RoundContext(round=0, num_rounds=3, num_clients=8, lr=0.05, seed=0),
    )
    alive = cohort_of(settings, 0)[1:]
    worker = Worker(setup.spec, torch.device("cpu"))
    _, deltas = run(worker, alive, ctx, setup.initial)
    n = np.array([len(setup.partition.train[c]) for c in alive], dtype=np.float64)
    executor = SerialExecutor(setup.spec)
    after = run_round(setup, executor, ServerState(params=setup.initial), ctx, RoundLog(1))
    executor.close()
    expected = setup.initial + n / n.sum() @ deltas.astype(np.float64)
    np.testing.assert_allclose(after.params, expected, rtol=1e-5, atol=1e-6)


def test_a_dropped_client_keeps_the_state_it_had():
    first, second = cohort_of(config(), 0), cohort_of(config(), 1)
    client = next(c for c in second if c in first)
    setup = prepare(failing("state", [client]))
    executor, state = SerialExecutor(setup.spec), ServerState(params=setup.initial)
    for t in range(2):
        before = state
        state = run_round(
            setup,
            executor,
            state,
            RoundContext(round=t, num_rounds=3, num_clients=8, lr=0.05, seed=0),
            RoundLog(t + 1),
        )
    executor.close()
    assert state.clients[client] is before.clients[client]
    assert set(state.clients) == {*first, *second}


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


def test_a_client_that_raises_ends_the_run_with_its_name(tmp_path):
    threads = torch.get_num_threads()
    client = cohort_of(config(), 1)[0]
    settings = failing("error", [client], policy="raise", train={"threads": threads + 1})
    with pytest.raises(WorkerError, match=f"round 2, client {client}: ValueError: on purpose"):
        fedsim.run(settings, tmp_path / "run")
    assert torch.get_num_threads() == threads, "the executor was not closed"


# evaluation


@pytest.mark.slow
def test_evaluation_every_so_many_rounds_and_after_the_last(tmp_path):
    settings = config(train={"rounds": 5}, evaluation={"every": 2})
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
    every = fedsim.run(config(train={"rounds": 5}), tmp_path / "every").read("rounds")
    pd.testing.assert_frame_equal(
        every[every["round"].isin(tested)], rounds[rounds["round"].isin(tested)]
    )


@pytest.mark.slow
def test_recall_weighted_by_support_is_the_accuracy(tmp_path):
    for method in ("fedavg", "fedbn"):
        store = fedsim.run(config(method, model={"name": "cnn"}), tmp_path / method)
        classes = store.read("classes")
        assert classes["round"].unique().tolist() == [1, 2, 3]
        for t, rows in classes.groupby("round"):
            assert rows["label"].tolist() == [0, 1, 2]
            assert rows["support"].sum() == 60
            accuracy = store.read("rounds")["test_accuracy"][t - 1]
            assert np.average(rows["recall"], weights=rows["support"]) == pytest.approx(accuracy)


def test_a_validation_part_fills_its_columns_and_chooses_the_best(tmp_path):
    store = fedsim.run(config(data={"val_fraction": 0.2}, train={"rounds": 6}), tmp_path / "run")
    rounds, summary = store.read("rounds"), store.read("summary").iloc[0]
    assert rounds[["val_loss", "val_accuracy"]].notna().all(axis=None)
    assert summary["best_by"] == "val"
    best = rounds["val_accuracy"].idxmax()
    assert summary["best_round"] == rounds["round"][best]
    assert summary["best_test_accuracy"] == rounds["test_accuracy"][best]
    assert store.read("partition")["train_samples"].sum() == 80
    setup = prepare(config(data={"val_fraction": 0.2}, train={"rounds": 6}))
    np.testing.assert_array_equal(setup.dataset.val, np.arange(20))


@pytest.mark.parametrize("method", ["fedbn", "fedpac"])
@pytest.mark.parametrize("mode", ["all_clients", "cohort_before", "cohort_after"])
def test_whose_models_count_for_personalised_methods(method, mode):
    settings = config(
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


def test_methods_with_one_model_have_no_evaluations_of_clients(tmp_path):
    store = fedsim.run(config(evaluation={"personal": "cohort_after"}), tmp_path / "run")
    assert not (store.path / "evaluations.csv").exists()
    assert contents(store) == contents(fedsim.run(config(), tmp_path / "other"))


# the run directory


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedpac", "fedld", "fedgh_released"])
def test_a_run_and_its_config_file_repeat_it_byte_for_byte(tmp_path, method):
    model = "cnn" if method in ("fedbn", "fedpac") else "mlp"
    settings = config(method, model={"name": model}, seed=3)
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


def test_another_seed_is_another_run_on_the_same_partition(tmp_path):
    one = contents(fedsim.run(config(seed=0), tmp_path / "one"))
    two = contents(fedsim.run(config(seed=1), tmp_path / "two"))
    assert one["partition.csv"] == two["partition.csv"]
    assert one["clients.csv"] != two["clients.csv"]
    assert one["model.safetensors"] != two["model.safetensors"]


@pytest.mark.slow
def test_every_option_survives_the_config_file(tmp_path):
    settings = config(
        "fedprox", server="fedgh", margin="sigma_damp", margin_threshold=1.5, seed=5,
        fedprox={"mu": 0.25}, fedgh={"order": "ascending"}, train={"lr_schedule": "cosine"},
    )  # fmt: skip
    first = fedsim.run(settings, tmp_path / "first")
    again = fedsim.run(load_config(file=first.path / "config.yaml"), tmp_path / "again")
    assert contents(again) == contents(first)


@pytest.mark.slow
def test_a_run_by_site_can_be_repeated_from_its_config_file(tmp_path):
    # The sites fix the number of clients, whatever data.num_clients says by default.
    settings = RunConfig(
        algorithm="fedavg",
        data={"name": f"{__name__}:hospitals"},
        model={"name": "logistic"},
        train={"rounds": 2, "sample_rate": 0.5},
        engine={"kind": "serial"},
    )
    first = fedsim.run(settings, tmp_path / "first")
    names = first.read("partition").groupby("client_id")["name"].first().tolist()
    assert sorted(names) == ["NA", "None", "north", "south"]
    again = fedsim.run(load_config(file=first.path / "config.yaml"), tmp_path / "again")
    assert contents(again) == contents(first)


def test_files_of_a_run(tmp_path):
    store = fedsim.run(config(), tmp_path / "run")
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
    size = prepare(config()).initial.nbytes
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


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedpac", "fedld"])
def test_the_contract_of_the_run_directory(tmp_path, shared_data, method):
    path = shared_data.parent / "tools" / "check_contract.py"
    if not path.is_file():
        pytest.skip(f"needs {path}, which is not here")
    spec = importlib.util.spec_from_file_location("check_contract", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    store = fedsim.run(config(method, model={"name": "cnn"}), tmp_path / "plain")
    assert module.check(store.path, 3, 8, 4, False)[0] == []
    dropping = failing("loss", cohort_of(config(), 1)[:2], evaluation={"every": 2})
    store = fedsim.run(dropping, tmp_path / "dropping")
    assert module.check(store.path, 3, 8, 4, False)[0] == []


def test_what_is_not_empty_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not an empty directory"):
        fedsim.run(config(model={"name": "nowhere:build"}), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "nowhere:load"}}, "nowhere"),
        ({"model": {"name": "nowhere:build"}}, "nowhere"),
        ({"data": {"name": f"{__name__}:hospitals", "num_clients": 5}}, "4 clients"),
        (
            {"model": {"name": f"{__name__}:plain_model"}, "algorithm": "fedpac"},
            "features and head",
        ),
    ],
)
def test_what_cannot_start_writes_nothing(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        fedsim.run(config(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def plain_model(num_classes, in_channels, image_size):
    size = in_channels * image_size**2
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, num_classes))


def test_a_model_without_head_runs_with_methods_that_need_none(tmp_path):
    store = fedsim.run(config(model={"name": f"{__name__}:plain_model"}), tmp_path / "run")
    assert len(store.read("rounds")) == 3


def test_alpha_is_that_of_dirichlet_partitions_alone():
    assert prepare(config()).alpha == 1.0
    assert prepare(config(data={"partition": "iid"})).alpha is None


def test_the_round_log_times_and_tags():
    log = RoundLog(4)
    log.error(1, "lost", attempt=2)
    with log.timed("train") as size:
        size["bytes"] = 12
    (timing,) = log.tables["timings"]
    (error,) = log.tables["errors"]
    assert dict(error) == {"round": 4, "client_id": 1, "attempt": 2, "node": "", "error": "lost"}
    assert (timing["round"], timing["phase"], timing["bytes"]) == (4, "train", 12)
    assert timing["seconds"] >= 0


def test_the_same_state_with_other_parameters_is_another_model():
    settings = config("fedbn", model={"name": "cnn"})
    setup = prepare(settings)
    executor = SerialExecutor(setup.spec)
    other = setup.initial + np.float32(0.1)
    vectors = {0: setup.initial, 1: other, 2: setup.initial}
    models = {c: evaluate.Candidate(c, lambda v=v: (v, {})) for c, v in vectors.items()}
    scores = evaluate._scores(setup, executor, models)["test"].clients
    assert scores[0].loss != scores[1].loss
    assert scores[0].loss == scores[2].loss
    executor.close()


@pytest.mark.parametrize(
    ("partition", "options", "other"),
    [
        ("shards", {"shards_per_client": 1}, {"shards_per_client": 3}),
        ("dirichlet_per_client", {"prior": "uniform"}, {"prior": "frequencies"}),
        ("dirichlet_per_client", {"order": "round_robin"}, {"order": "sequential"}),
    ],
)
def test_options_of_a_partition_reach_it(partition, options, other):
    drawn = [prepare(config(data={"partition": partition, **o})) for o in (options, other)]
    first, second = (setup.partition.train for setup in drawn)
    assert any(
        not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.slow
def test_the_hash_of_a_weights_file_is_written_down(tmp_path):
    first = fedsim.run(config(model={"name": "cnn"}, train={"rounds": 1}), tmp_path / "first")
    weights = first.path / "model.safetensors"
    second = fedsim.run(
        config(model={"name": "cnn", "weights": str(weights)}, train={"rounds": 1}),
        tmp_path / "second",
    )
    known = json.loads((second.path / "env.json").read_text())
    assert known["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()


def frozen_backbone(num_classes, in_channels, image_size):
    """A user's model whose extractor is not trained."""
    features = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(in_channels * image_size**2, 5)
    )
    return SplitModel(features.requires_grad_(False), torch.nn.Linear(5, num_classes))


@pytest.mark.slow
def test_what_a_model_freezes_stays_frozen(tmp_path):
    settings = config(model={"name": f"{__name__}:frozen_backbone"})
    initial = named_tensors(prepare(settings).initial, prepare(settings).layout)
    final = load_file(fedsim.run(settings, tmp_path / "run").path / "model.safetensors")
    same = {name for name in initial if np.array_equal(initial[name], final[name])}
    assert same == {"features.1.weight", "features.1.bias"}


def test_a_csv_file_of_clients_means_the_partition_files(tmp_path):
    first = config(data={"name": "digits", "num_clients": 4})
    setup = prepare(first)
    file = tmp_path / "split.CSV"
    file.write_text(csv_text(splits.columns(setup.dataset, setup.partition)))
    given = {"name": "digits", "partition_file": str(file), "num_clients": 4}
    again = prepare(config(data=given))
    assert again.config.data.partition == "files"
    for a, b in zip(setup.partition.train, again.partition.train, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ConfigError, match=r"data\.partition_file .* goes with data\.partition"):
        prepare(config(data=given | {"partition": "iid"}))


def test_a_step_that_a_rule_keeps_is_not_overwritten():
    params, step = np.array([1.0, 2.0], np.float32), np.array([0.5, 0.5], np.float32)
    kept = _moved(params, ServerStep(step=step, state=RuleState(optimizers=({"m": step[:1]},))), [])
    assert kept.tolist() == [1.5, 2.5]
    assert step.tolist() == [0.5, 0.5]
    alone = _moved(params, ServerStep(step=step), [])
    assert alone is step, "no memory for a third vector"
    assert alone.tolist() == [1.5, 2.5]
    assert params.tolist() == [1.0, 2.0]
