"""The row of summary.csv from a table of rounds written by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pandas as pd
import pytest

from fedsim.config.keys import KEYS, is_setting
from fedsim.config.run import RunConfig
from fedsim.core.rows import RoundRow, TimingRow
from fedsim.identity.provenance import Data, Provenance
from fedsim.metrics.collapse import final_predictions
from fedsim.storage.run_dir import RunWriter
from fedsim.storage.tables import Outcome
from fedsim.training.summary import settings_of, summarise

SECTIONS = {"data", "model", "train", "evaluation", "clock"}
LAST = [
    *("client_test_accuracy", "simulated_seconds", "downlink_bytes", "uplink_bytes"),
    *("target_accuracy", "rounds_to_target", "seconds_to_target", "simulated_seconds_to_target"),
    *(
        f"{when}_test_{metric}"
        for metric in ("balanced_accuracy", "macro_f1", "auc")
        for when in ("final", "best", "last10")
    ),
    *("client_accuracy_std", "client_accuracy_p10", "client_accuracy_worst", "collapsed"),
    *("final_test_ece", "best_test_ece", "last10_test_ece", "client_accuracy_gini"),
    *("data_digest", "label"),
]
DIGESTS = Data("a", "b", "c", None)
COLUMNS = [
    *("run_id", "algorithm", "dataset", "model", "num_clients", "sample_rate", "alpha", "seed"),
    *("rounds", "final_test_accuracy", "best_test_accuracy", "best_round", "best_by"),
    *("last10_test_accuracy", "total_seconds"),
]


def summary(
    tmp_path, test, val=None, alpha=0.5, costs=None, tables=None, f1=None, digests=None, **config
):
    """The summary of a run whose rounds have these accuracies; None where not evaluated.

    Round t took t seconds; ``costs`` are further columns of all rounds, ``tables`` further tables.
    """
    val = [None] * len(test) if val is None else val
    f1 = [None] * len(test) if f1 is None else f1
    store = RunWriter.create(tmp_path / "run-7")
    for name, text in (tables or {}).items():
        store.write(name, text)
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
                test_macro_f1=f,
                **(costs or {}),
            )
            for t, (a, v, f) in enumerate(zip(test, val, f1, strict=True), start=1)
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
        provenance=Provenance(data=digests),
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


def test_an_outcome_by_hand():
    accuracy = {t: float(t) for t in range(1, 13)}
    assert Outcome.of(accuracy, 4, 12) == Outcome(12.0, 4.0, sum(range(3, 13)) / 10)
    assert Outcome.of({1: 0.5, 3: math.nan, 4: 0.25}, None, 4).last10 == 0.375
    assert Outcome.of({}, None, 3) == Outcome(None, None, None)


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
    assert [row[key] for key in LAST[4:8]] == [0.6, 4, 10.0, 6.0]
    assert "evaluation.target_accuracy" not in row


def test_a_target_that_was_not_reached_and_one_without_a_clock(tmp_path):
    row, _ = summary(tmp_path / "a", [0.5, 0.59], evaluation={"target_accuracy": 0.6})
    assert [row[key] for key in LAST[4:8]] == [0.6, None, None, None]
    _, store = summary(tmp_path / "b", [0.7, 0.5], evaluation={"target_accuracy": 0.6})
    (found,) = store.read("summary")[LAST[4:]].to_dict("records")
    assert [found[key] for key in LAST[4:7]] == [0.6, 1, 1.0]
    assert pd.isna(found["simulated_seconds_to_target"])


def test_other_metrics_are_those_of_the_same_rounds(tmp_path):
    # the best round is 3 by validation accuracy, whatever the other metrics are
    row, _ = summary(
        tmp_path, [None, 0.9, 0.4, 0.5], val=[None, 0.1, 0.8, 0.3], f1=[None, 0.7, 0.2, 0.6]
    )
    assert [row[f"{when}_test_macro_f1"] for when in ("final", "best")] == [0.6, 0.2]
    assert row["last10_test_macro_f1"] == pytest.approx((0.7 + 0.2 + 0.6) / 3)
    assert pd.isna(row["final_test_auc"])
    assert row["collapsed"] is None


EVALUATIONS = "round,client_id,group,split,num_samples,loss,accuracy\n"


def test_the_spread_of_the_clients_is_that_of_their_last_evaluation(tmp_path):
    rows = ["1,0,,test,9,1.0,0.0", "4,0,,val,9,1.0,0.0", "4,,group a,test,9,1.0,0.0"]
    accuracies = [0.1, 0.3, 0.4, 0.8, 0.9]
    rows += [f"3,{c},,test,9,1.0,{a}" for c, a in enumerate(accuracies)]
    rows += ["4,0,,own_test,9,1.0,0.7"]
    table = EVALUATIONS + "\n".join(rows) + "\n"
    row, _ = summary(tmp_path, [0.1] * 4, tables={"evaluations.csv": table})
    # mean 0.5, deviations 0.4 0.2 0.1 0.3 0.4: std sqrt(0.46 / 5); the percentile lies 0.4 of the
    # way from the first to the second
    assert [row[key] for key in LAST[-10:-7]] == pytest.approx([(0.46 / 5) ** 0.5, 0.18, 0.1])


def test_the_spread_is_that_of_the_clients_own_test_parts_where_those_are_evaluated(tmp_path):
    rows = "2,0,,own_test,9,1.0,0.25\n2,5,,own_test,9,1.0,0.75\n2,5,,own_train,9,1.0,0.0\n"
    tables = {"evaluations.csv": EVALUATIONS + rows}
    row, _ = summary(tmp_path, [0.1, 0.2], tables=tables)
    assert [row[key] for key in LAST[-10:-7]] == pytest.approx([0.25, 0.3, 0.25])


def classes(*rows):
    """classes.csv of an old run: label, support, recall and precision after the first round."""
    header = "round,label,support,recall,precision\n"
    return {"classes.csv": header + "".join(f"1,{','.join(map(str, row))}\n" for row in rows)}


@pytest.mark.parametrize(
    ("rows", "collapsed", "words"),
    [
        # one class alone is predicted
        (
            [(0, 60, 1.0, 0.6), (1, 30, 0.0, 0.0), (2, 10, 0.0, 0.0), (3, 0, "", 0.0)], True,
            "class 0 (a) is predicted for all 100 test samples in the last evaluation; balanced "
            "accuracy is that of chance, 0.3333 (3 classes)",
        ),
        # one that no test sample has
        (
            [(0, 60, 0.0, 0.0), (1, 40, 0.0, 0.0), (2, 0, "", 0.0)], True,
            "balanced accuracy 0.0000 in the last evaluation is at most that of chance, 0.5000 "
            "(2 classes)",
        ),
        # class 0 is always right, but also class 1 is predicted, for samples of class 2
        ([(0, 60, 1.0, 0.75), (1, 30, 0.0, 0.0), (2, 10, 0.0, 0.0)], True, "balanced accuracy 0.3"),
        # hits of a random model below chance
        ([(0, 50, 0.5, 0.5), (1, 50, 0.48, 0.49)], True, "balanced accuracy 0.4900 in the last"),
        # the majority class nearly always
        ([(0, 60, 1.0, 0.61), (1, 40, 0.05, 1.0)], False, None),
        # a mean over three models, rounded
        ([(0, 1, 1 / 3, 0.3), (1, 1, 1 / 3 + 1e-16, 0.3), (2, 1, 1 / 3, 0.3)], True, "balanced"),
        # one class in the test part, where chance is 1; text with a label per token
        ([(0, 60, 1.0, 1.0), (1, 0, "", 0.0)], None, None),
        ([], None, None),
    ],
)  # fmt: skip
def test_collapse_is_balanced_accuracy_at_most_that_of_chance(tmp_path, rows, collapsed, words):
    row, store = summary(tmp_path, [0.6], tables=classes(*rows))
    assert row["collapsed"] is collapsed
    if words is not None:
        assert final_predictions(store.read("classes")).describe(["a", "b", "c"]).startswith(words)
    elif collapsed is None and rows:
        assert final_predictions(store.read("classes")) is None


def test_the_data_are_named_by_their_digest_unless_the_settings_decide_them(tmp_path):
    row, store = summary(tmp_path / "files", [0.5], digests=DIGESTS)
    assert row["data_digest"] == DIGESTS.short == store.summary["data_digest"]
    assert DIGESTS.short.startswith("sha256:"), "no CSV reader takes it for a number"
    data = {"name": "synthetic", "dir": None}
    row, _ = summary(tmp_path / "drawn", [0.5], digests=DIGESTS, data=data)
    assert row["data_digest"] is None
    data = {"name": "synthetic", "dir": "a folder of LEAF's"}
    row, _ = summary(tmp_path / "leaf", [0.5], digests=DIGESTS, data=data)
    assert row["data_digest"] == DIGESTS.short


def test_every_column_is_a_setting_or_an_outcome(tmp_path):
    given = {
        "attack": {"name": "alie"}, "clock": {"samples_per_second": 9.0}, "server": "fedgh",
        "dp": {"level": "user", "clip": 1.0}, "margin": "marg_log",
    }  # fmt: skip
    row, _ = summary(tmp_path, [0.1], **given)
    without_effect = {key for key, declared in KEYS.items() if declared.role != "result"}
    written = settings_of(RunConfig(**given)).keys() - without_effect
    named = [*COLUMNS[1:7], "rounds", "best_by"]
    assert {name for name in row if is_setting(name)} == {*named, *written}
