"""The row of summary.csv from a table of rounds written by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from fedsim.config.run import RunConfig
from fedsim.storage.rows import RoundRow, TimingRow
from fedsim.storage.run_dir import RunWriter
from fedsim.training.summary import last10, summarise

SECTIONS = {"data", "model", "train", "evaluation", "clock"}
LAST = [
    *("client_test_accuracy", "simulated_seconds", "downlink_bytes", "uplink_bytes"),
    *("target_accuracy", "rounds_to_target", "seconds_to_target", "simulated_seconds_to_target"),
]
COLUMNS = [
    *("run_id", "algorithm", "dataset", "model", "num_clients", "sample_rate", "alpha", "seed"),
    *("rounds", "final_test_accuracy", "best_test_accuracy", "best_round", "best_by"),
    *("last10_test_accuracy", "total_seconds"),
]


def summary(tmp_path, test, val=None, alpha=0.5, costs=None, **config):
    """The summary of a run whose rounds have these accuracies; None where not evaluated.

    Round t took t seconds; ``costs`` are further columns of all rounds.
    """
    val = [None] * len(test) if val is None else val
    store = RunWriter.create(tmp_path / "run-7")
    store.append(
        "rounds",
        [
            RoundRow(
                round=t,
                lr=0.1,
                cohort_size=1,
                dropped=0,
                test_accuracy=a,
                val_accuracy=v,
                **(costs or {}),
            )
            for t, (a, v) in enumerate(zip(test, val, strict=True), start=1)
        ],
    )
    phases = [("train", 1000.0), ("total", 1.0)]
    rounds = range(1, len(test) + 1)
    store.append(
        "timings",
        [TimingRow(round=t, phase=p, seconds=s * t, bytes=0) for t in rounds for p, s in phases],
    )
    setup = SimpleNamespace(
        config=RunConfig(**config),
        dataset=SimpleNamespace(name="digits"),
        model=SimpleNamespace(name="cnn"),
        partition=SimpleNamespace(num_clients=50),
        alpha=alpha,
    )
    row = summarise(setup, store, 1.5)
    store.write_summary(row)
    return row, store


def test_the_published_columns_come_first(tmp_path):
    row, store = summary(tmp_path, [0.1, 0.3], seed=3)
    assert list(row)[:15] == COLUMNS
    table = store.read("summary").iloc[0]
    wanted = {
        **{"run_id": "run-7", "algorithm": "fedld", "dataset": "digits", "model": "cnn"},
        **{"num_clients": 50, "sample_rate": 0.1, "alpha": 0.5, "seed": 3, "rounds": 2},
        **{"final_test_accuracy": 0.3, "best_test_accuracy": 0.3, "best_round": 2},
        **{"best_by": "test", "last10_test_accuracy": 0.2, "total_seconds": 1.5},
    }
    assert {key: table[key] for key in wanted} == pytest.approx(wanted)


def test_best_is_the_earliest_of_equals_on_the_test_part(tmp_path):
    row, _ = summary(tmp_path, [0.1, 0.7, 0.5, 0.7, 0.6])
    assert (row["best_by"], row["best_round"], row["best_test_accuracy"]) == ("test", 2, 0.7)
    assert row["final_test_accuracy"] == 0.6


def test_best_is_chosen_on_the_validation_part_where_there_is_one(tmp_path):
    row, _ = summary(tmp_path, [0.9, 0.2, 0.3, 0.4], val=[0.1, 0.8, 0.8, 0.7])
    assert (row["best_by"], row["best_round"], row["best_test_accuracy"]) == ("val", 2, 0.2)


def test_rounds_without_evaluation_are_left_out(tmp_path):
    test = [None, 0.5, None, 0.4, None, 0.3, 0.2]
    row, _ = summary(tmp_path, test)
    assert (row["rounds"], row["best_round"], row["final_test_accuracy"]) == (7, 2, 0.2)
    assert row["last10_test_accuracy"] == pytest.approx((0.5 + 0.4 + 0.3 + 0.2) / 4)


def test_last_ten_are_rounds_not_evaluations(tmp_path):
    # 24 rounds, evaluated in 5, 10, 15, 20, 24: those of 15..24 count
    test = [t / 100 if t % 5 == 0 or t == 24 else None for t in range(1, 25)]
    row, _ = summary(tmp_path, test)
    assert row["last10_test_accuracy"] == pytest.approx((0.15 + 0.20 + 0.24) / 3)


def test_last_ten_by_hand():
    accuracy = pd.Series({t: float(t) for t in range(1, 13)})
    assert last10(accuracy, 12) == sum(range(3, 13)) / 10
    assert last10(accuracy[:4], 4) == 2.5


def test_hyperparameters_of_the_methods_in_use_are_columns(tmp_path):
    row, _ = summary(
        tmp_path, [0.1], algorithm="fedprox", server="fedgh", margin="marg_log", margin_weight=0.2,
        fedprox={"mu": 0.3},
    )  # fmt: skip
    extra = dict(list(row.items())[15 : -len(LAST)])
    assert {key: v for key, v in extra.items() if key.partition(".")[0] not in SECTIONS} == {
        **{"server": "fedgh", "margin": "marg_log", "margin_weight": 0.2},
        **{"fedprox.mu": 0.3, "fedprox.prox_form": "squared"},
        **{"fedgh.order": "random", "fedgh.weights": "samples"},
    }


def test_the_default_method_has_every_hyperparameter(tmp_path):
    row, _ = summary(tmp_path, [0.1])
    names = ("margin", "margin_weight", "keep", "norm", "scope", "blocks", "weights", "orientation")
    own = [key for key in row if "." in key and key.partition(".")[0] not in SECTIONS]
    assert own == [f"fedld.{name}" for name in names]


def test_settings_that_a_result_depends_on_are_columns(tmp_path):
    row, _ = summary(tmp_path, [0.1], train={"lr": 0.2}, fedprox={"mu": 0.3})
    assert (row["train.lr"], row["model.norm"], row["data.partition"]) == (0.2, "batch", None)
    assert not {"data.dir", "fedprox.mu", "engine.actors"} & set(row)


def test_a_partition_without_alpha_has_none(tmp_path):
    _, store = summary(tmp_path, [0.1], alpha=None)
    assert store.read("summary")["alpha"].isna().all()


def test_costs_and_the_target_are_the_last_columns_and_empty_without_either(tmp_path):
    row, store = summary(tmp_path, [0.1, 0.9])
    assert list(row)[-len(LAST) :] == LAST
    assert store.read("summary")[LAST].isna().all(axis=None)
    assert not any(key.startswith("clock.") for key in row)


def test_totals_of_bytes_and_simulated_seconds_and_the_last_mean_over_clients(tmp_path):
    costs = {"downlink_bytes": 300, "uplink_bytes": 200, "simulated_seconds": 1.5}
    _, store = summary(tmp_path, [0.1, 0.2], costs=costs | {"client_test_accuracy": 0.4})
    (row,) = store.read("summary")[LAST[:4]].to_dict("records")
    assert list(row.values()) == [0.4, 3.0, 600, 400]


def test_when_the_target_was_first_reached(tmp_path):
    # rounds 2 and 4 are evaluated; a target that is met counts; rounds 1 to 4 took 1 + 2 + 3 + 4 s
    wanted = {"evaluation": {"target_accuracy": 0.6}}
    costs = {"simulated_seconds": 1.5}
    row, _ = summary(tmp_path / "a", [None, 0.5, None, 0.6, 0.9], costs=costs, **wanted)
    assert [row[key] for key in LAST[4:]] == [0.6, 4, 10.0, 6.0]
    assert "evaluation.target_accuracy" not in row


def test_a_target_that_was_not_reached_and_one_without_a_clock(tmp_path):
    row, _ = summary(tmp_path / "a", [0.5, 0.59], evaluation={"target_accuracy": 0.6})
    assert [row[key] for key in LAST[4:]] == [0.6, None, None, None]
    _, store = summary(tmp_path / "b", [0.7, 0.5], evaluation={"target_accuracy": 0.6})
    (found,) = store.read("summary")[LAST[4:]].to_dict("records")
    assert [found[key] for key in LAST[4:7]] == [0.6, 1, 1.0]
    assert pd.isna(found["simulated_seconds_to_target"])


def test_a_clock_is_a_setting(tmp_path):
    row, _ = summary(tmp_path, [0.1], clock={"availability": "uniform(0.5, 1)"})
    assert (row["clock.availability"], row["clock.late"]) == ("uniform(0.5, 1)", "drop")
