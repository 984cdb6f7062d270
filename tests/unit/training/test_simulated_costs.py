"""Bytes, simulated seconds, stragglers and absent clients in whole runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsim
from fedsim.algorithms.base import Algorithm, Probe
from fedsim.client import LocalRule, Uplink
from fedsim.config.resolve import load_config
from fedsim.config.run import RunConfig
from fedsim.server.base import Exchanged
from fedsim.training import driver
from fedsim.training.assemble import prepare
from tests.decomposing import named_tensors
from tests.stopping import Stopper

pytestmark = pytest.mark.integration

LOGISTIC = 64 * 10 + 10
"""Parameters of the logistic model on digits."""
SPEEDS = "client_id,samples_per_second,download_mb_s,upload_mb_s"


def config(algorithm="fedavg", **changes):
    """6 clients of digits, cohorts of 3, 3 rounds, one process."""
    sections = {
        "data": {"num_clients": 6},
        "model": {"name": "logistic"},
        "train": {"rounds": 3, "sample_rate": 0.5},
        "evaluation": {"every": 3},
        "engine": {"kind": "serial"},
    }
    for key, value in changes.items():
        sections[key] = sections.get(key, {}) | value if isinstance(value, dict) else value
    return RunConfig(algorithm=algorithm, **sections)


def run(path, *given, **changes):
    return fedsim.run(config(*given, **changes), path)


def contents(store):
    names = ("rounds", "clients", "classes", "partition", "errors")
    files = [store.path / f"{name}.csv" for name in names] + [store.path / "model.safetensors"]
    return {file.name: file.read_bytes() for file in files if file.exists()}


# bytes


def test_fedavg_sends_the_model_to_each_client_and_back(tmp_path):
    store = run(tmp_path / "run")
    table = store.read("rounds")
    assert table["downlink_bytes"].tolist() == [3 * 4 * LOGISTIC] * 3
    assert table["uplink_bytes"].tolist() == [3 * 4 * LOGISTIC] * 3
    assert table["simulated_seconds"].isna().all()
    assert store.read("clients")["simulated_seconds"].isna().all()
    (row,) = store.read("summary").to_dict("records")
    assert row["downlink_bytes"] == row["uplink_bytes"] == 9 * 4 * LOGISTIC
    assert math.isnan(row["simulated_seconds"])


@pytest.mark.slow
def test_fedbn_sends_less_and_fedpac_also_heads_and_prototypes(tmp_path):
    layout = prepare(config(model={"name": "cnn"})).layout
    norm = sum(s.stop - s.start for s in layout.slots if s.batchnorm)
    head = sum(s.stop - s.start for s in layout.slots if s.head)
    (weight,) = (s.shape for s in layout.slots if s.head and len(s.shape) == 2)
    assert norm > 0
    table = run(tmp_path / "bn", "fedbn", model={"name": "cnn"}).read("rounds")
    assert (table["downlink_bytes"] == 3 * 4 * (layout.size - norm)).all()
    assert (table["uplink_bytes"] == 3 * 4 * (layout.size - norm)).all()
    table = run(tmp_path / "pac", "fedpac", model={"name": "cnn"}).read("rounds")
    # up: prototypes and H (C, d), counts (C,) int64, V and the head beside the features
    uploads = 4 * (layout.size - head) + 4 * (2 * math.prod(weight) + 1 + head) + 8 * weight[0]
    assert (table["uplink_bytes"] == 3 * uploads).all()
    # down: features and a mixed head; prototypes (C, d) and which are known (C,) from round 2 on
    sent, known = 4 * layout.size, 4 * math.prod(weight) + weight[0]
    assert table["downlink_bytes"].tolist() == [3 * sent, 3 * (sent + known), 3 * (sent + known)]


@dataclass(frozen=True)
class Asked(LocalRule):
    """Uploads five numbers in a pass before training."""

    def phases(self, env):
        return ()

    def finish(self, env, s):
        return Uplink({"answer": np.zeros(5)})


@dataclass(frozen=True)
class Answer:
    """Sends seven numbers to everybody."""

    def __call__(self, cohort, state, ctx):
        return Exchanged(downlink={"mean": np.zeros(7, np.float32)})


def probing() -> Algorithm:
    return Algorithm(probe=Probe(Asked(), Answer()))


def test_a_pass_before_training_has_its_own_bytes(tmp_path):
    # a client's pace is known whatever it does before
    slow = {"samples_per_second": 100, "upload_mb_s": 1e-6, "work": 0.1}
    table = run(tmp_path / "run", f"{__name__}:probing", clock=slow).read("rounds")
    assert table["uplink_bytes"].tolist() == [3 * (4 * LOGISTIC + 4 * 5)] * 3
    assert table["downlink_bytes"].tolist() == [3 * (4 * LOGISTIC + 4 * 7)] * 3
    # 1 byte per second up
    plain = run(tmp_path / "plain", clock=slow).read("rounds")
    more = table["simulated_seconds"] - plain["simulated_seconds"]
    assert more.to_numpy() == pytest.approx(np.full(3, 20.0))


# seconds


def everybody(tmp_path, *pace, **changes):
    """Both of two clients in one round, at the given paces."""
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([SPEEDS, *pace]) + "\n")
    changes["clock"] = changes.get("clock", {}) | {"trace": str(trace)}
    train = {"rounds": 1, "sample_rate": 1.0, "batch_size": 100, "local_epochs": 2}
    return run(
        tmp_path / "run", data={"num_clients": 2, "partition": "iid"}, train=train, **changes
    )


def test_the_seconds_of_a_round_by_hand(tmp_path):
    store = everybody(tmp_path, "0,100,0.0013,0.0026", "1,200,0.001,0.002")
    clients = store.read("clients")
    n = clients["num_samples"].to_numpy()
    # 2600 bytes each way: 2 s + 1 s, and 2.6 s + 1.3 s; two epochs between
    seconds = [2 + 2 * n[0] / 100 + 1, 2.6 + 2 * n[1] / 200 + 1.3]
    assert clients["simulated_seconds"].to_numpy() == pytest.approx(np.array(seconds))
    (row,) = store.read("rounds").to_dict("records")
    assert row["simulated_seconds"] == pytest.approx(max(seconds))
    assert store.read("summary")["simulated_seconds"][0] == row["simulated_seconds"]
    assert not (store.path / "errors.csv").exists()


def test_a_client_that_is_late_is_left_out_at_the_deadline(tmp_path):
    late = {"deadline": 20}
    store = everybody(tmp_path, "0,1,1,1", "1,1000,1,1", clock=late)
    clients, (row,) = store.read("clients"), store.read("rounds").to_dict("records")
    assert clients["status"].tolist() == ["dropped", "ok"]
    assert clients["num_steps"].tolist() == [0, 2 * math.ceil(clients["num_samples"][1] / 100)]
    assert (row["cohort_size"], row["dropped"], row["simulated_seconds"]) == (2, 1, 20)
    # it was sent the model, which it trained in vain
    assert (row["downlink_bytes"], row["uplink_bytes"]) == (8 * LOGISTIC, 4 * LOGISTIC)
    (error,) = store.read("errors").to_dict("records")
    assert (error["client_id"], error["attempt"]) == (0, 0)
    assert error["error"].startswith("late: needs ")


def test_a_client_that_is_late_does_the_steps_that_fit(tmp_path):
    # 100 samples a step at 10 per second: one step in 20 s less the milliseconds on the way
    partial = {"deadline": 20, "late": "partial"}
    store = everybody(tmp_path, "0,10,1,1", "1,1000,1,1", clock=partial)
    clients, (row,) = store.read("clients"), store.read("rounds").to_dict("records")
    full = 2 * math.ceil(clients["num_samples"][1] / 100)
    assert clients["num_steps"].tolist() == [1, full]
    assert clients["simulated_seconds"][0] == pytest.approx(10 + 2 * 0.0026)
    assert row["dropped"] == 0
    assert row["simulated_seconds"] == clients["simulated_seconds"][0]


@pytest.mark.slow
def test_the_work_that_is_planned_is_the_work_that_is_done(tmp_path):
    store = run(tmp_path / "run", clock={"work": "uniform(0.1, 0.9)"}, train={"batch_size": 7})
    full = run(tmp_path / "full", train={"batch_size": 7}).read("clients")
    clients = store.read("clients")
    setup = prepare(config(clock={"work": "uniform(0.1, 0.9)"}, train={"batch_size": 7}))
    planned = [
        setup.clock.participation(t - 1, c, n).max_steps
        for t, c, n in clients[["round", "client_id", "num_samples"]].itertuples(index=False)
    ]
    assert clients["num_steps"].tolist() == planned
    assert (clients["num_steps"] < full["num_steps"]).all()
    assert store.read("rounds")["simulated_seconds"].isna().all()


# absent clients


def test_if_nobody_answers_the_model_is_kept(tmp_path):
    settings = {"clock": {"availability": 1e-9, "samples_per_second": 10}}
    store = run(tmp_path / "run", "fedpac", model={"name": "cnn"}, **settings)
    setup = prepare(config("fedpac", model={"name": "cnn"}))
    initial = named_tensors(setup.initial, setup.layout)
    final = load_file(store.path / "model.safetensors")
    for name, tensor in initial.items():
        np.testing.assert_array_equal(tensor, final[name])
    assert load_file(store.path / "clients.safetensors") == {}
    table = store.read("rounds")
    assert table["dropped"].tolist() == [3, 3, 3]
    columns = ["downlink_bytes", "uplink_bytes", "simulated_seconds"]
    assert (table[columns] == 0).all(axis=None)
    assert len(store.read("errors")) == 9


# the run directory

CLOCK = {
    **{"samples_per_second": "lognormal(200, 1)", "upload_mb_s": "choice(0.001, 0.01)"},
    **{"availability": 0.8, "work": "uniform(0.3, 1)", "deadline": 4, "late": "partial"},
}


@pytest.mark.slow
def test_a_run_with_a_clock_that_goes_on_has_the_same_bytes(tmp_path):
    settings = config("fedbn", model={"name": "cnn"}, clock=CLOCK, train={"rounds": 5})
    wanted = fedsim.run(settings, tmp_path / "wanted")
    assert wanted.read("rounds")["dropped"].sum() > 0
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(settings, tmp_path / "run", callbacks=[Stopper(2, KeyboardInterrupt)])
    store = driver.resume(tmp_path / "run")
    assert contents(store) == contents(wanted)
    again = fedsim.run(load_config(file=wanted.path / "config.yaml"), tmp_path / "again")
    assert contents(again) == contents(wanted)


def test_the_target_in_a_run(tmp_path):
    changes = {"evaluation": {"target_accuracy": 0.2, "every": 1}, "train": {"lr": 0.1}}
    store = run(tmp_path / "run", clock={"samples_per_second": 100}, **changes)
    table, timings = store.read("rounds").set_index("round"), store.read("timings")
    (row,) = store.read("summary").to_dict("records")
    first = table.index[table["test_accuracy"] >= 0.2][0]
    assert (row["target_accuracy"], row["rounds_to_target"]) == (0.2, first)
    totals = timings[timings["phase"] == "total"].set_index("round")["seconds"]
    assert row["seconds_to_target"] == pytest.approx(totals.loc[:first].sum())
    simulated = table["simulated_seconds"].loc[:first].sum()
    assert row["simulated_seconds_to_target"] == pytest.approx(simulated)
