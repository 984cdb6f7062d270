"""The decomposition of a run's rounds: against models that are trained and evaluated once more."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.core.errors import ConfigError, DivergedError
from fedsim.core.types import Owned
from fedsim.engine.base import SAMPLES
from fedsim.engine.serial import SerialExecutor
from fedsim.metrics.splits import count, counts, drawn, indices
from fedsim.storage.run_dir import RunWriter
from fedsim.training import driver as runs
from fedsim.training.assemble import prepare
from tests.decomposing import SPREADS, TERMS, config, mean_loss, merged, rounds, terms
from tests.stopping import Stop, Stopper

pytestmark = pytest.mark.integration

CASES = [
    *((split, scope) for split in ("train", "val", "test") for scope in ("cohort", "population")),
    ("common_test", "cohort"),
]


def decomposing(method, split, scope, **more):
    evaluation = {"decompose_split": split, "decompose_scope": scope} | more
    return config(method, evaluation=evaluation)


def matrix(store, number):
    """The loss matrix of a round from loss_matrix.csv: models by owners, in order."""
    table = store.read("loss_matrix").astype({"model": str, "owner": str})
    table = table[table["round"] == number]
    models, owners = table["model"].unique().tolist(), table["owner"].unique().tolist()
    return models, owners, table["loss"].to_numpy().reshape(len(models), len(owners))


# every kind of method, split and scope

KINDS = ("fedavg", "fedld", "scaffold", "fedbn", "fediir", "fedpac", "fedsr", "pfedla")
"""Two stateless ones, client states, personal slots, a probe, phases with private answers, an
adapted model, a server of its own. A decomposition sees models and states, never the rule."""


def cases_of(method):
    """All of them for a common model and for own ones; the others also when the tests are slow."""
    return CASES if method in ("fedavg", "fedpac") else CASES[2:7:4]


@pytest.mark.parametrize(
    ("method", "cases"),
    [
        *((method, cases_of(method)) for method in KINDS),
        *(pytest.param(m, CASES, marks=pytest.mark.slow) for m in KINDS if cases_of(m) != CASES),
    ],
)
def test_the_terms_add_up_and_are_those_of_the_loss_matrix(method, cases, tmp_path):
    for split, scope in cases:
        settings = decomposing(method, split, scope)
        setup = prepare(settings)
        store = fedsim.run(settings, tmp_path / f"{split}-{scope}")
        table = store.read("decomposition")
        assert table["round"].tolist() == [1, 2]
        assert set(table["split"]) == {split}
        assert set(table["scope"]) == {scope}
        gap = table["local_loss"] + table["shift_loss"] + table["aggregation_loss"]
        assert np.abs(gap - table["global_loss"]).max() <= 1e-12
        arrays = np.load(store.path / "loss_matrix.npz", allow_pickle=False)
        assert len(arrays.files) == 6
        for _, row in table.iterrows():
            number = row["round"]
            models, owners, losses = matrix(store, number)
            assert arrays[f"{number}/models"].tolist() == models
            assert arrays[f"{number}/owners"].tolist() == owners
            np.testing.assert_array_equal(arrays[f"{number}/losses"], losses)
            clients = store.read("clients").query("round == @number")
            cohort = clients["client_id"].tolist()
            after = [f"after:{c}" for c in cohort] if setup.personalised else ["after"]
            assert models == [*map(str, cohort), *after]
            everybody = range(setup.partition.num_clients)
            own = list(everybody) if scope == "population" else cohort
            held = [len(getattr(setup.partition, split)[c]) for c in own] if "_" not in split else [
                *(0 for _ in own), len(setup.dataset.test)
            ]  # fmt: skip
            assert owners == [*map(str, own), *(["test"] if "_" in split else [])]
            p = [len(setup.partition.train[c]) for c in cohort]
            last = losses[3:] if setup.personalised else losses[3]
            expected = terms(losses[:3], last, p, held, [own.index(c) for c in cohort])
            assert expected == pytest.approx(dict(row[list(expected)]), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("method", ["fedavg", "fedld", "fedpac", "fedbn"])
@pytest.mark.parametrize(
    ("split", "scope", "most"),
    [
        ("train", "cohort", None),
        ("val", "population", None),
        ("train", "population", 5),
        ("common_test", "cohort", None),
    ],
)
def test_the_numbers_are_those_of_the_models_trained_and_tested_again(method, split, scope, most):
    settings = decomposing(method, split, scope, decompose_max_samples=most)
    setup = prepare(settings)
    own_split = "train" if split == "common_test" else split
    everybody = range(setup.partition.num_clients)
    for done in rounds(settings):
        own = everybody if scope == "population" else done.cohort
        part = Owned(own_split, tuple(own), most)
        samples = {c: drawn(setup.partition, settings.seed, part, c) for c in own}
        data = list(samples.values())
        held = [len(getattr(setup.partition, own_split)[c]) for c in own]
        if split == "common_test":
            data, held = [*data, setup.dataset.test], [*(0 for _ in own), 80]
        last = {
            c: merged(setup, done.after.params, done.after.clients.get(c) or {})
            for c in done.cohort
        }
        before = [[mean_loss(setup, done.local[c], part) for part in data] for c in done.cohort]
        after = [[mean_loss(setup, last[c], part) for part in data] for c in done.cohort]
        p = [len(setup.partition.train[c]) for c in done.cohort]
        expected = terms(before, after, p, held, [list(own).index(c) for c in done.cohort])
        (row,) = done.tables["decomposition"]
        for name in (*TERMS, *SPREADS):
            assert row[name] == pytest.approx(expected[name], abs=1e-6), name
        found = [r["loss"] for r in done.tables["loss_matrix"]]
        models = len(done.cohort) if setup.personalised else 1
        np.testing.assert_allclose(found, np.ravel([*before, *after[:models]]), atol=1e-6)
        assert row["local_loss"] != row["global_loss"]
        assert setup.personalised == (method in ("fedpac", "fedbn"))


# when, and whose models


@pytest.mark.slow
def test_a_decomposition_changes_nothing_else(tmp_path):
    with_it = fedsim.run(config("fedpac"), tmp_path / "with")
    never = {"decompose_every": 0, "loss_matrix": False}
    without = fedsim.run(config("fedpac", evaluation=never), tmp_path / "without")
    for name in ("rounds.csv", "clients.csv", "evaluations.csv", "model.safetensors"):
        assert (with_it.path / name).read_bytes() == (without.path / name).read_bytes()
    names = {path.name for path in without.path.glob("*")}
    assert not names & {"decomposition.csv", "loss_matrix.csv", "loss_matrix.npz"}


def test_a_cohort_of_one_has_no_shift_and_fedavg_no_aggregation_loss(tmp_path):
    settings = config(train={"sample_rate": 1 / 6})
    table = fedsim.run(settings, tmp_path / "run").read("decomposition")
    assert table["shift_loss"].tolist() == [0.0, 0.0]
    assert table["shift_spread"].tolist() == [0.0, 0.0]
    # w + (w' - w) is w' but for the last bit of float32
    np.testing.assert_allclose(table["aggregation_loss"], 0.0, atol=1e-6)


def test_the_global_loss_on_the_common_test_part_is_that_of_the_round(tmp_path):
    settings = config("fedld", evaluation={"decompose_split": "common_test"})
    store = fedsim.run(settings, tmp_path / "run")
    globally = store.read("decomposition")["global_loss"]
    np.testing.assert_allclose(globally, store.read("rounds")["test_loss"], rtol=1e-14)


@pytest.mark.slow
def test_the_population_is_everybody_and_the_local_term_is_the_cohorts(tmp_path):
    """The local term does not depend on the scope, the global one on its data alone."""
    tables = {
        scope: fedsim.run(decomposing("fedavg", "train", scope), tmp_path / scope)
        for scope in ("cohort", "population")
    }
    cohort, everybody = (tables[s].read("decomposition") for s in ("cohort", "population"))
    np.testing.assert_allclose(cohort["local_loss"], everybody["local_loss"], rtol=1e-6)
    assert (np.abs(cohort["global_loss"] - everybody["global_loss"]) > 1e-3).all()


# part of the data


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_part_of_a_clients_data_is_drawn_once(split):
    setup = prepare(config())
    spec, everything = setup.spec, getattr(setup.partition, split)
    for most in (1, 3, 7, 1000):
        part = Owned(split, (4, 0, 2), most)
        for client in part.owners:
            some = drawn(setup.partition, 0, part, client)
            assert len(some) == min(most, len(everything[client]))
            assert len(set(some.tolist())) == len(some)
            assert set(some.tolist()) <= set(everything[client].tolist())
            position = {index: i for i, index in enumerate(everything[client].tolist())}
            places = [position[index] for index in some.tolist()]
            assert places == sorted(places), "in the order of the whole"
            again = drawn(setup.partition, 0, Owned(split, (client,), most), client)
            np.testing.assert_array_equal(again, some)
        whole = [drawn(setup.partition, 0, part, c) for c in part.owners]
        np.testing.assert_array_equal(indices(spec, part), np.concatenate(whole))
        assert counts(setup.partition, part) == [len(some) for some in whole]
        assert count(spec, part) == sum(map(len, whole))
    assert count(spec, "test") == 80


# interrupted, refused, failed


TABLES = ("decomposition.csv", "loss_matrix.csv", "loss_matrix.npz", "cosines.csv", "spectrum.csv",
          "evaluations.csv", "rounds.csv")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedld", "fedpac"])
def test_a_run_that_was_stopped_and_goes_on_has_the_same_tables(method, tmp_path):
    settings = config(
        method,
        train={"rounds": 4},
        evaluation={"decompose_every": 2, "clients_every": 3, "cosines": True},
    )
    whole = fedsim.run(settings, tmp_path / "whole")
    expected = {name: (whole.path / name).read_bytes() for name in TABLES}
    for after in (1, 2, 3, 4):
        run = tmp_path / str(after)
        with pytest.raises(Stop):
            fedsim.run(settings, run, [Stopper(after)])
        store = runs.resume(run)
        for name in TABLES:
            assert (store.path / name).read_bytes() == expected[name], f"{name} after {after}"


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_part_that_clients_do_not_own_is_refused(split, tmp_path):
    settings = config(data={f"client_{split}_fraction": 0.0}, evaluation={"decompose_split": split})
    with pytest.raises(ConfigError, match=rf"{split!r}: .* set data\.client_{split}_fraction"):
        fedsim.run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_every_client_is_left_out_there_is_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.training.round.without_diverged", lambda *_: [])
    store = fedsim.run(config(engine={"on_client_failure": "drop"}), tmp_path / "run")
    assert store.read("rounds")["dropped"].tolist() == [3, 3]
    assert not list(store.path.glob("decomposition*"))
    assert not list(store.path.glob("loss_matrix*"))


def test_losses_that_are_not_finite_name_the_round(tmp_path, monkeypatch):
    evaluate = SerialExecutor.evaluate

    def broken(self, jobs, reduction):
        if reduction == SAMPLES:
            raise DivergedError("the logits of 1 of 9 evaluated samples are NaN or infinite")
        return evaluate(self, jobs, reduction)

    monkeypatch.setattr(SerialExecutor, "evaluate", broken)
    with pytest.raises(DivergedError, match=r"^round 1, evaluation: the logits .* lower train\.lr"):
        fedsim.run(config(), tmp_path / "run")


# the files


def test_the_loss_matrix_reads_back_as_it_was_written(tmp_path):
    """Client ids and names alike in one column, rounds of different clients."""
    store = RunWriter(tmp_path)
    rows = [
        {"round": r, "model": model, "owner": owner, "loss": r + i + j / 8}
        for r, models in ((2, ("0", "7", "after")), (5, ("1", "after:1")))
        for i, model in enumerate(models)
        for j, owner in enumerate(("0", "7", "test"))
    ]
    store.append("loss_matrix", rows)
    store.save_loss_matrix()
    arrays = np.load(tmp_path / "loss_matrix.npz", allow_pickle=False)
    assert set(arrays.files) == {f"{r}/{a}" for r in (2, 5) for a in ("models", "owners", "losses")}
    assert arrays["2/models"].tolist() == ["0", "7", "after"]
    assert arrays["5/models"].tolist() == ["1", "after:1"]
    assert arrays["5/owners"].tolist() == ["0", "7", "test"]
    assert arrays["5/losses"].tolist() == [[5.0, 5.125, 5.25], [6.0, 6.125, 6.25]]
    table = pd.read_csv(tmp_path / "loss_matrix.csv")
    assert table["loss"].tolist() == [row["loss"] for row in rows]
