"""Rounds done again with one thing changed: what is equal, what is changed, what starts afresh."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import fedsim
from fedsim.audit.replay import COLUMNS, assemble_again, carry_over, replay
from fedsim.audit.rerun import opened
from fedsim.cli import main
from fedsim.cli.replay import of_clients
from fedsim.core.errors import ConfigError
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.testing.rounds import VALIDATION, config
from fedsim.training.round import context, gather, model_sha256, train
from fedsim.training.rows import RoundLog

pytestmark = pytest.mark.integration

SERIAL = {"kind": "serial", "checkpoint_every": 1}


def small(name="fedavg", **sections):
    """Three rounds of 6 of 8 clients with a validation part, evaluated after each."""
    sections["data"] = {"num_clients": 8, **VALIDATION} | sections.get("data", {})
    sections["train"] = {"sample_rate": 0.75, "lr": 0.05} | sections.get("train", {})
    every = {"every": 1} | sections.pop("evaluation", {})
    model = "cnn" if name == "fedbn" else "mlp"
    return config(name, model, evaluation=every, engine=SERIAL, **sections)


def made_run(tmp_path_factory, name, **sections):
    return fedsim.run(small(name, **sections), tmp_path_factory.mktemp(name) / "run").path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory, "fedavg")


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path, caplog):
    out = shutil.copytree(run, tmp_path / "run")
    path = max((out / "checkpoints").glob("round-*.safetensors"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with opened(out) as again:
        assert again.nearest(3).rounds < 3
    assert "round-000003.json cannot be used" in caplog.text


@pytest.mark.parametrize("gpus_here", [0, 1])
def test_a_run_on_a_gpu_is_done_again_on_a_gpu_where_there_is_one(
    run, gpus_here, tmp_path, monkeypatch
):
    out = shutil.copytree(run, tmp_path / "run")
    monkeypatch.setattr("fedsim.audit.rerun.num_gpus", lambda: gpus_here)
    environment = json.loads((out / "env.json").read_text()) | {"device": "NVIDIA H100"}
    (out / "env.json").write_text(json.dumps(environment))
    if gpus_here and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch finds no GPU here"), opened(out):
            pass
    else:
        with opened(out) as again:
            assert again.setup.config.engine.gpus_per_client == gpus_here


def updates_of(run, number):
    """The cohort of a round as the server gets it, the round's context and the server's state."""
    with opened(run) as again:
        state, ctx = again.state(number - 1), context(again.setup, number - 1)
        trained = train(again.setup, again.executor, state, ctx, RoundLog(number))
        got = gather(again.setup, again.executor, trained, ctx, RoundLog(number))
        return got.cohort, ctx, state


def quantities(made, number=None):
    """By quantity the row of a table, those of all clients."""
    table = made.table[made.table["client_id"].isna()]
    if number is not None:
        table = table[table["round"] == number]
    return table.set_index("quantity")


@pytest.mark.parametrize("name", ["fedgh", "scaffold", "fedadam", "fedbn", "fediir", "fltrust"])
def test_without_a_change_the_bytes_come_again(name, tmp_path_factory):
    out = made_run(tmp_path_factory, name)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    made = replay(out, 2, 3)
    assert made.unlike == ""
    assert not made.replayed
    assert (made.table["difference"].dropna()[made.table["original"].notna()] == 0).all()
    digests = pd.read_csv(out / "models.csv")["sha256"]
    assert [model_sha256(done.after) for done in made.original] == list(digests[1:])
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before


def test_a_changed_digit_is_found(run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    path = out / "clients.csv"
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("2,"))
    lines[at] = lines[at].replace(".", ".9", 1)
    path.write_text("".join(lines))
    place = f"clients.csv, line {at + 1}, round 2, column "
    assert replay(out, 2).unlike.startswith(place)
    assert replay(out, 3).unlike == ""
    result = CliRunner().invoke(main, ["replay", str(out), "--round", "2"])
    assert result.exit_code == 1
    assert place in result.output
    assert "is not what this machine computes" in result.output


RULES = {"fedgh": {}, "fedld": {}, "krum": {"f": 1}, "trimmed_mean": {"f": 1}}


@pytest.mark.parametrize("rule", RULES)
def test_another_server_is_that_of_aggregate(run, rule):
    settings = {f"{rule}.{key}": value for key, value in RULES[rule].items()}
    made = replay(run, 2, server=rule, settings=settings)
    cohort, ctx, state = updates_of(run, 2)
    step = fedsim.aggregate(
        cohort.rows,
        cohort.num_samples,
        rule,
        sizes=[slot.stop - slot.start for slot in cohort.layout.slots],
        seed=ctx.seed,
        round=ctx.round,
        **RULES[rule],
    )
    (done,) = made.replayed
    np.testing.assert_allclose(done.after, state.params + step, rtol=0, atol=1e-9)
    assert quantities(made).loc["update_norm", "replayed"] == pytest.approx(
        np.linalg.norm(step.astype(float)), rel=1e-6
    )
    own = made.table[made.table["client_id"].notna()]
    assert (own["difference"] == 0).all()  # the clients trained the same
    assert quantities(made).loc["step_distance", "difference"] > 0


def test_without_a_client_the_rule_sees_the_others(run):
    cohort, ctx, state = updates_of(run, 2)
    out = cohort.updates[2].client_id
    made = replay(run, 2, without=[out])
    (done,) = made.replayed
    others = [update for update in cohort.updates if update.client_id != out]
    with opened(run) as again:
        server = again.setup.algorithm.server
    step = server.step(RuleState(), Cohort.of(others, cohort.layout), ctx).step
    np.testing.assert_array_equal(done.after, state.params + step)
    own = made.table[made.table["client_id"].notna()].set_index("client_id")
    assert own.loc[out, "replayed"].isna().all()
    assert (own.drop(index=out)["difference"] == 0).all()
    assert quantities(made).loc["cohort_size", "difference"] == -1
    assert made.changes == [f"without client {out}"]


@pytest.mark.slow
def test_a_rule_that_stays_keeps_its_state(tmp_path_factory):
    adam = made_run(tmp_path_factory, "fedadam")
    margin = replay(adam, 3, margin="marg_log")
    assert margin.fresh == []
    cohort, ctx, state = updates_of(adam, 3)
    (optimizer,) = state.server.optimizers
    assert optimizer.keys() == {"m", "v"}
    other = replay(adam, 3, server="fedgh,fedadam")
    assert other.fresh == []  # the optimiser is the same, at the same place
    settings = replay(adam, 3, settings={"fedadam.eta": 0.3})
    assert settings.fresh == ["server optimiser 1"]
    with opened(adam) as again:
        eta = again.setup.algorithm.server.optimizers[0]
    changed = replace(again.setup.algorithm.server, optimizers=(replace(eta, eta=0.3),))
    step = changed.step(RuleState(), cohort, ctx).step
    np.testing.assert_array_equal(settings.replayed[0].after, state.params + step)


@pytest.mark.slow
def test_another_method_starts_with_the_model_alone(tmp_path_factory):
    out = made_run(tmp_path_factory, "scaffold")
    made = replay(out, 3, settings={"algorithm": "fedprox"})
    assert made.fresh == [
        "exchange of algorithm fedprox",
        "states of the clients",
        "what the server sends beside the model",
    ]
    kept = replay(out, 3, margin="marg_log")
    assert kept.fresh == []
    with opened(out) as again:
        state, setup = again.state(2), again.setup
    others = assemble_again(setup, setup.config.model_copy(update={"algorithm": "fedprox"}))
    after, _ = carry_over(setup, others, state)
    assert len(state.clients)
    assert not len(after.clients)
    assert not after.downlink
    assert not after.server.exchange
    np.testing.assert_array_equal(after.params, state.params)
    same, fresh = carry_over(setup, setup, state)
    assert fresh == []
    assert same.server.flatten().keys() == state.server.flatten().keys()
    assert same.clients is state.clients


@pytest.mark.slow
def test_a_round_without_the_attack_of_the_run(tmp_path_factory):
    attack = {"name": "sign_flip", "clients": "0,1,2", "scale": 3.0}
    out = made_run(tmp_path_factory, "fedavg", attack=attack)
    honest = replay(out, 1, attack="none")
    assert honest.changes == ["attack.name=None"]
    alone = made_run(tmp_path_factory, "fedavg")
    assert model_sha256(honest.replayed[0].after) == pd.read_csv(alone / "models.csv")["sha256"][0]
    other = replay(out, 1, attack="gaussian")  # by the same clients
    own = other.table[other.table["quantity"] == "attacker"]
    assert (own["difference"] == 0).all()
    assert quantities(other).loc["step_distance", "difference"] > 0


def test_what_is_measured_holds_for_both_sides(run):
    made = replay(run, 2, server="fedgh", settings={"evaluation.decompose_every": 1})
    table = quantities(made)
    for side in ("original", "replayed"):
        terms = table.loc[["local_loss", "shift_loss", "aggregation_loss"], side].sum()
        assert terms == pytest.approx(table.loc["global_loss", side], abs=1e-9)
    assert table.loc["local_loss", "difference"] == 0
    assert table.loc["aggregation_loss", "difference"] != 0
    alone = replay(run, 2, settings={"evaluation.decompose_every": 1})
    assert not alone.replayed
    assert "global_loss" in quantities(alone).index


def refused(run, *arguments, **options):
    with pytest.raises(ConfigError) as caught:
        replay(run, *arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.alpha": 1.0}, "the clients and their samples are those of the run"),
        ({"model.name": "cnn"}, "the state before the round is that of the run's model"),
        ({"dp.level": "user"}, "an epsilon is a statement about all rounds"),
        ({"clock.mode": "async"}, "who answers, and when"),
        ({"async.buffer": 3}, "who is at work"),
        ({"engine.kind": "ray"}, "give it as a flag of the engine"),
        ({"algorithm": "fedsr"}, "has another model than fedavg"),
        ({"algorithm": "local"}, "keeps other tensors on the clients"),
        ({"train.nope": 1}, "unknown key 'train.nope'"),
        ({"krum.f": 3, "server": "krum"}, "krum.f: 3 given"),
        (
            {"attack.name": "alie", "attack.knowledge": "own", "attack.clients": "0"},
            "attack.name: alie given; 1 malicious client",
        ),
    ],
)
def test_what_cannot_change_is_refused(run, settings, message):
    assert message in refused(run, 2, settings=settings)


def test_rounds_and_clients_that_are_not_there(run):
    assert "the run has rounds 1 to 3" in refused(run, 4)
    assert "the run has rounds 1 to 3" in refused(run, 2, 9)
    assert "--until 1: is before --round 2" in refused(run, 2, 1)
    assert "--without 8: the run has the clients 0 to 7" in refused(run, 2, without=[8])
    assert "have no names" in refused(run, 2, without=["north"])


def test_compression_that_keeps_residuals_stays(tmp_path_factory):
    out = made_run(tmp_path_factory, "fedavg", compress={"name": "top_k"})
    assert "clients keep what" in refused(out, 2, settings={"compress.fraction": 0.5})
    assert replay(out, 2).unlike == ""


def call(*arguments, status=0):
    result = CliRunner().invoke(main, ["replay", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.slow
def test_the_command(run, tmp_path):
    assert call(run, "--round", 2) == "round 2: the same bytes again\n"
    out = tmp_path / "fedgh.csv"
    text = call(run, "--round", 2, "--until", 3, "--server", "fedgh", "--out", out)
    assert text.startswith("round 2 to 3: server=fedgh\n")
    assert "6 of 6 trained the same" in text
    written = pd.read_csv(out)
    made = replay(run, 2, 3, server="fedgh").table
    assert tuple(written.columns) == COLUMNS
    np.testing.assert_allclose(written["difference"], made["difference"], rtol=1e-12)
    assert "is already there" in call(run, "--round", 2, "--out", out, status=2)


def test_clients_that_differ_in_rounding_alone_trained_the_same():
    def row(client, original, replayed):
        return {
            "client_id": client,
            "original": original,
            "replayed": replayed,
            "difference": replayed - original,
        }

    norm = 0.638563
    rows = [row(0, norm, math.nextafter(norm, 1)), row(1, norm, norm * (1 + 1e-8))]
    rows += [row(2, norm, math.nan), row(3, 0.0, 0.0), row(4, 0.0, 1e-9)]
    assert (
        of_clients(pd.DataFrame(rows)) == "clients: 2 of 4 trained the same; on one side alone: 2"
    )
