"""The clients' influence on rounds: as by rounds done again without them, and exact sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.audit import influence as module
from fedsim.audit.influence import check, parse_rounds
from fedsim.audit.replay import Without
from fedsim.audit.rerun import opened
from fedsim.cli import main
from fedsim.core.analysis import analysis
from fedsim.core.errors import ConfigError
from fedsim.testing.rounds import VALIDATION, config
from fedsim.training.assemble import prepare

pytestmark = pytest.mark.integration

SERIAL = {"kind": "serial", "checkpoint_every": 1}
EVERY = {"every": 1}


def small(name="fedgh", **sections):
    """Three rounds of 4 of 8 clients with a validation part, evaluated after each."""
    sections["data"] = {"num_clients": 8, **VALIDATION} | sections.get("data", {})
    sections["train"] = {"sample_rate": 0.5, "lr": 0.05} | sections.get("train", {})
    return config(name, "mlp", evaluation=EVERY, engine=SERIAL, **sections)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fedsim.run(small(), tmp_path_factory.mktemp("influence") / "run").path


@pytest.fixture(scope="module")
def by_loss(run):
    return fedsim.influence(run, metric="val_loss")


def losses_without(run, number):
    """By who is left out (a set of clients) the validation loss after a round, each done again."""
    with opened(run) as again:
        state = again.state(number - 1)
        _, log = again.step(state, number)
        cohort = [row.client_id for row in log.tables["clients"]]
        outcome = {frozenset(): log.tables["rounds"][0].val_loss}
        for mask in range(1, 2 ** len(cohort)):
            out = frozenset(c for i, c in enumerate(cohort) if mask >> i & 1)
            setup = replace(again.setup, schedule=Without(again.setup.schedule, out))
            _, log = replace(again, setup=setup).step(state, number)
            outcome[out] = log.tables["rounds"][0].val_loss
    return cohort, outcome


def test_values_are_those_of_rounds_done_again_without_the_clients(run, by_loss):
    # the round itself, with 2^4 cohorts: nobody's training knows who else is there
    cohort, losses = losses_without(run, 2)
    rows = by_loss[by_loss["round"] == 2].set_index("client_id")
    assert list(rows.index) == cohort
    nobody = losses[frozenset(cohort)]
    for client in cohort:
        gained = losses[frozenset([client])] - losses[frozenset()]
        assert rows.loc[client, "leave_one_out"] == pytest.approx(gained, abs=1e-12)
        share = 0.0
        others = [c for c in cohort if c != client]
        for mask in range(8):
            joined = {c for i, c in enumerate(others) if mask >> i & 1}
            weight = {0: 1 / 4, 1: 1 / 12, 2: 1 / 12, 3: 1 / 4}[len(joined)]
            before, after = (losses[frozenset(cohort) - s] for s in (joined, joined | {client}))
            share += weight * (before - after)
        assert rows.loc[client, "shapley"] == pytest.approx(share, abs=1e-12)
    assert rows["total"].iloc[0] == pytest.approx(nobody - losses[frozenset()], abs=1e-12)


def test_shapley_values_add_up_to_what_the_run_wrote(run, by_loss):
    written = pd.read_csv(run / "rounds.csv")
    gained = -written["val_loss"].diff()[1:]
    sums = by_loss.groupby("round")["shapley"].sum()
    np.testing.assert_allclose(sums[[2, 3]], gained, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        by_loss.groupby("round")["total"].first()[[2, 3]], gained, atol=1e-12
    )
    assert (by_loss["shapley_error"] == 0).all()


def test_the_step_of_all_is_that_of_the_run(run):
    frame = fedsim.influence(run)
    written = pd.read_csv(run / "rounds.csv")["update_norm"]
    by_round = frame.groupby("round")
    np.testing.assert_allclose(by_round["step_norm"].first(), written, rtol=1e-6)  # float32 step
    np.testing.assert_allclose(by_round["total"].first(), written, rtol=1e-6)
    np.testing.assert_allclose(by_round["shapley"].sum(), by_round["total"].first(), rtol=1e-9)
    assert frame["leave_one_out"].to_numpy() == pytest.approx(
        (frame["share"] * frame["step_norm"]).to_numpy(), rel=1e-9, abs=1e-12
    )
    assert frame["cosine"].between(-1, 1).all()
    assert (frame["distance"] > 0).all()


@pytest.mark.parametrize("name", ["trimmed_mean", "fedadam", "scaffold", "fltrust"])
def test_rules_of_other_kinds(name, tmp_path):
    out = fedsim.run(small(name, train={"rounds": 2}), tmp_path / "run").path
    frame = fedsim.influence(out, metric="val_loss")
    written = pd.read_csv(out / "rounds.csv")
    total = frame[frame["round"] == 2]["shapley"].sum()
    assert total == pytest.approx(-written["val_loss"].diff()[1], abs=1e-9)
    norms = frame.groupby("round")["step_norm"].first()
    np.testing.assert_allclose(norms, written["update_norm"], rtol=1e-5)


@pytest.mark.slow
def test_estimates_of_larger_cohorts(tmp_path, monkeypatch):
    made = small(
        "fedavg", data={"num_clients": 12}, train={"rounds": 1, "sample_rate": 1.0, "lr": 0.02}
    )
    out = fedsim.run(made, tmp_path / "run").path
    estimated = fedsim.influence(out, permutations=200, seed=5)
    again = fedsim.influence(out, permutations=200, seed=5)
    other = fedsim.influence(out, permutations=200, seed=6)
    monkeypatch.setattr(module, "EXACT", 12)
    exact = fedsim.influence(out)
    pd.testing.assert_frame_equal(estimated, again)
    assert not np.allclose(estimated["shapley"], other["shapley"])
    assert estimated["shapley"].sum() == pytest.approx(exact["total"].iloc[0], rel=1e-9)
    assert exact["shapley"].sum() == pytest.approx(exact["total"].iloc[0], rel=1e-9)
    away = (estimated["shapley"] - exact["shapley"]).abs()
    assert (away < 5 * estimated["shapley_error"]).all()
    assert (estimated["shapley_error"] > 0).all()


def test_attackers_are_taken_as_the_server_sees_them(tmp_path):
    attack = {"name": "alie", "fraction": 0.4, "scale": 8.0}
    made = small("fedavg", attack=attack, train={"rounds": 1, "sample_rate": 1.0})
    out = fedsim.run(made, tmp_path / "run").path
    frame = fedsim.influence(out)
    written = pd.read_csv(out / "clients.csv")
    assert list(frame["attacker"]) == list(written["attacker"])
    assert frame["attacker"].sum() == 3
    norm = pd.read_csv(out / "rounds.csv")["update_norm"][0]
    assert frame["step_norm"].iloc[0] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "metric", "message"),
    [
        ({"name": "centralized"}, "step", "send no parameters"),
        ({"name": "local"}, "step", "send no parameters"),
        ({"name": "pfedla"}, "step", "send no parameters"),
        ({"name": "fedavg", "train": {"secure_aggregation": True}}, "step", "hides the updates"),
        ({"name": "fedpac"}, "val_loss", "no one model to evaluate"),
        ({"name": "fedavg", "data": {"val_fraction": 0.0}}, "val_loss", "has no validation part"),
    ],
)
def test_methods_without_an_influence_are_refused(given, metric, message):
    setup = prepare(small(**given))
    with pytest.raises(ConfigError, match=message):
        check(setup, metric)


def test_privacy_of_users_is_kept():
    setup = prepare(small("fedavg"))
    private = setup.config.model_copy(
        update={"dp": setup.config.dp.model_copy(update={"level": "user"})}
    )
    with pytest.raises(ConfigError, match=r"dp\.level=user hides what a single client changes"):
        check(replace(setup, config=private), "step")


def test_a_rule_that_needs_more_clients_says_so(tmp_path):
    made = small("krum", krum={"f": 1}, train={"rounds": 1, "sample_rate": 0.75})
    out = fedsim.run(made, tmp_path / "run").path
    with pytest.raises(ConfigError, match=r"round 1, 4 of the 6 clients: krum.f.*--no-shapley"):
        fedsim.influence(out)
    frame = fedsim.influence(out, shapley=False)
    assert frame["shapley"].isna().all()
    assert frame["leave_one_out"].notna().all()


def test_rounds_are_numbers_and_ranges(run):
    assert parse_rounds("all") is None
    assert parse_rounds("1, 4,8-10") == {1, 4, 8, 9, 10}
    for text in ("", "x", "1-", "-3", "2,,3", "1-2-3", "3-1"):
        with pytest.raises(ConfigError, match="--rounds"):
            parse_rounds(text)
    with pytest.raises(ConfigError, match="round 4: the run has rounds 1 to 3"):
        fedsim.influence(run, rounds=[4])


@pytest.mark.slow
def test_asynchronous_rounds(tmp_path):
    buffered = {"buffer": 3, "concurrency": 5}
    clock = {"mode": "async", "samples_per_second": "uniform(5, 50)"}
    made = small("fedavg", clock=clock, **{"async": buffered})
    out = fedsim.run(made, tmp_path / "run").path
    frame = fedsim.influence(out)
    written = pd.read_csv(out / "rounds.csv")["update_norm"]
    norms = frame.groupby("round")["step_norm"].first()
    np.testing.assert_allclose(norms, written, rtol=1e-5)
    assert fedsim.replay(out, 2, 3).unlike == ""
    client = int(frame[frame["round"] == 3]["client_id"].iloc[0])
    gone = fedsim.replay(out, 3, without=[client])
    (done,) = gone.replayed
    assert client not in [row.client_id for row in done.log.tables["clients"]]


def call(*arguments, status=0):
    result = CliRunner().invoke(main, ["influence", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.slow
def test_the_command_writes_a_table_and_a_figure(run, by_loss, tmp_path):
    out, figure = tmp_path / "influence.csv", tmp_path / "who.png"
    text = call(run, "--metric", "val_loss", "--out", out, "--figure", figure)
    assert "is already there" in call(run, "--figure", figure, status=2)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert text.startswith(
        f"gain in val_loss, 3 rounds: {by_loss.groupby('round')['total'].first().sum():.6g}"
    )
    written = pd.read_csv(out).drop(columns="name")
    pd.testing.assert_frame_equal(written, by_loss.drop(columns="name"), check_dtype=False)
    best = analysis("influence").summed(by_loss).iloc[0]
    first = text.splitlines()[2].split()
    assert first[:2] == [str(best["client_id"]), str(best["rounds"])]
    assert first[3] == f"{best['shapley']:+.4g}"
    assert "is already there" in call(run, "--out", out, status=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a.csv", "--figure", "x.gif"], "named .png, .pdf or .svg"),
        (["--metric", "val_los"], "known are step, val_accuracy"),
        (["--rounds", "0"], "round 0: the run has rounds 1 to 3"),
        (["--permutations", "1"], "permutations"),
        (["--set", "train.lr=1"], "train.lr cannot change in a run that has begun"),
    ],
)
def test_bad_input_is_named(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in call(run, *arguments, status=2)
