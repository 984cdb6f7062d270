"""Section attack in whole runs: who attacks, what is written, what is refused."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedsim
from fedsim.attacks import ATTACKS
from fedsim.config.attack import AttackConfig
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.settings import InvalidSetting
from fedsim.engine.worker import Worker
from fedsim.testing.rounds import config, difference, results, rounds, small
from fedsim.training.assemble import check_effects, prepare
from fedsim.training.setup import needs_whole_updates
from fedsim.training.summary import UNDER_ATTACK
from tests.stopping import Stop, Stopper

NAMES = ATTACKS.names()
THIRD = {"fraction": 0.4}


def attacked(name, method="fedavg", **sections):
    attack = {"name": name, **THIRD, **sections.pop("attack", {})}
    return small(method, attack=attack, **sections)


def ran(tmp_path, method="fedavg", **sections):
    return fedsim.run(config(method, **sections), tmp_path, progress=False)


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        ({"scale": 2}, "scale", "2.0 given; give attack.name too"),
        ({"clients": "1"}, "clients", "give attack.name too"),
        ({"name": "sign_flp"}, "name", "did you mean 'sign_flip'"),
        ({"name": "ipm", "scale": 0}, "scale", "greater than 0"),
        ({"name": "ipm", "fraction": 1.1}, "fraction", "less than or equal to 1"),
        ({"name": "ipm", "clients": "1;2"}, "clients", "ids of clients, separated by commas"),
        ({"name": "ipm", "clients": "-1"}, "clients", "ids of clients, separated by commas"),
        ({"name": "ipm", "clients": []}, "clients", "ids of clients, separated by commas"),
        ({"name": "mimic", "scale": 2}, "scale", "mimic has none; only alie, backdoor"),
        (
            {"name": "ipm", "source": 1, "target": 2},
            "source",
            "ipm has none; only backdoor, label",
        ),
        ({"name": "backdoor", "pixels": 0}, "pixels", "greater than or equal to 1"),
        ({"name": "ipm", "pixels": 2}, "pixels", "2 given; ipm has none; only backdoor"),
        ({"name": "mimic", "knowledge": "own"}, "knowledge", "mimic has none; only alie"),
        ({"name": "ipm", "warmup": 2}, "warmup", "ipm has none; only mimic"),
        ({"name": "min_max", "bound": "max"}, "bound", "min_max has none; only min_sum"),
        ({"name": "ipm", "perturbation": "std"}, "perturbation", "only min_max, min_sum"),
        ({"name": "ipm", "start_round": 0}, "start_round", "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_used(given, key, reason):
    with pytest.raises(InvalidSetting) as error:
        AttackConfig(**given)
    assert error.value.key == f"attack.{key}"
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("clients", ["7, 0,3", [3, 0, 7], ["3", 7, 0, 0]])
def test_clients_are_a_text_or_a_list(clients):
    attack = AttackConfig(name="ipm", clients=clients)
    assert (attack.clients, attack.client_ids) == ("0,3,7", [0, 3, 7])


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ({"clients": "2,8"}, r"^attack\.clients: 8 given; it is no client that trains"),
        ({"fraction": 0.1}, r"^attack\.fraction: 0\.1 given; of 8 clients that is none$"),
        ({"name": "label_flip", "source": 1, "target": 10}, r"^attack\.target: 10 .* 0 to 9$"),
        ({"name": "backdoor", "pixels": 9}, r"^attack\.pixels: 9 given; the images have 8 x 8"),
        ({"name": "label_flip", "source": 1}, r"^attack\.source: give attack\.target too"),
        ({"name": "label_flip", "target": 0}, r"^attack\.target: give attack\.source too"),
        ({"name": "label_flip", "source": 1, "target": 1}, r"^attack\.source: 1 is .* no label"),
        ({"name": "backdoor", "source": 0}, r"^attack\.source: 0 is attack\.target"),
    ],
)
def test_attackers_and_classes_that_do_not_exist(attack, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare(config("fedavg", attack={"name": "ipm", **attack}))


@pytest.mark.parametrize(
    ("method", "name", "sections", "other"),
    [
        ("centralized", "label_flip", {}, "pooled training"),
        ("local", "ipm", {}, "stays on the clients"),
        ("fedavg", "alie", {"evaluation": {"decompose_every": 1}}, "evaluation.decompose_every"),
        ("fedavg", "sign_flip", {"evaluation": {"decompose_every": 1}}, "decompose_every"),
        ("fedbn", "ipm", {"evaluation": {"personal": "cohort_after"}}, "personal=cohort_after"),
    ],
)
def test_what_an_attack_cannot_go_with(method, name, sections, other):
    with pytest.raises(
        ConfigError, match=f"^malicious clients .*cannot be combined with .*{other}"
    ):
        prepare(config(method, attack={"name": name, **THIRD}, **sections))


def test_the_malicious_clients_are_the_same_for_every_method_and_seed():
    settings = [
        config(method, attack={"name": name, **THIRD}).model_copy(update={"seed": seed})
        for method, seed, name in product(("fedavg", "fedld"), (0, 1), ("sign_flip", "alie"))
    ]
    found = {prepare(each).malicious for each in settings}
    assert len(found) == 1
    assert len(*found) == 3
    other = prepare(config("fedavg", data={"seed": 1}, attack={"name": "alie", **THIRD}))
    assert {other.malicious} != found


def test_held_out_clients_are_not_malicious():
    data = {"heldout_clients": 3}
    setup = prepare(config("fedavg", data=data, attack={"name": "sign_flip", "fraction": 1.0}))
    assert setup.malicious == setup.partition.participants


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_in_blocks_as_alone(name):
    """Trained together as one model, clients send the same up to rounding."""
    one, two = (
        rounds(attacked(name, engine={"client_batch": batch}, train={"momentum": 0.0}))
        for batch in (1, 3)
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a.after.params, b.after.params, rtol=0, atol=2e-5)
    honest = rounds(small("fedavg", train={"momentum": 0.0}))
    assert np.abs(honest[-1].after.params - one[-1].after.params).max() > 1e-3


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_without_attackers_and_before_the_start_nothing_changes(name):
    honest = [r.content() for r in rounds(small("fedavg"))]
    for attack, before in ({"fraction": 0}, 3), ({"start_round": 3}, 2):
        found = [r.content() for r in rounds(attacked(name, attack=attack))]
        assert len(found) == len(honest) == 3
        found, wanted = ([without_columns(r) for r in each[:before]] for each in (found, honest))
        assert difference(wanted, found, "a run without an attack") is None


def without_columns(content):
    """The cells without the columns that only attacked runs have."""
    return {k: v for k, v in content.items() if not k.endswith(("attacker", *UNDER_ATTACK))}


@pytest.mark.integration
def test_the_pass_before_training_sees_the_flipped_labels():
    """All clients flip 2 to 7, and pass over their data once: nobody has seen a 2."""
    flip = {"name": "label_flip", "source": 2, "target": 7, "fraction": 1.0}
    (round,) = rounds(small("fediir", attack=flip, train={"rounds": 1, "sample_rate": 1.0}))
    gradient = round.after.server.probe["gm"]
    assert (gradient[2] >= 0).all()  # (softmax - 0) times features of a ReLU
    (honest,) = rounds(small("fediir", train={"rounds": 1, "sample_rate": 1.0}))
    assert (honest.after.server.probe["gm"][2] < 0).any()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", ["gaussian", "backdoor", "alie", "mimic", "min_sum"])
def test_an_attacked_run_resumes_to_the_same_bytes(tmp_path, name):
    own = {"warmup": 2} if name == "mimic" else {}
    sections = {
        "train": {"rounds": 4, "sample_rate": 0.5},
        "attack": {"name": name, **THIRD, "start_round": 2, **own},
        "engine": {"checkpoint_every": 1},
    }
    whole = ran(tmp_path / "whole", **sections)
    with pytest.raises(Stop):
        fedsim.run(config("fedavg", **sections), tmp_path / "cut", [Stopper(2)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)


@pytest.mark.slow
@pytest.mark.integration
def test_what_a_run_writes(tmp_path):
    attack = {"name": "ipm", "clients": [1, 6], "scale": 2}
    store = ran(tmp_path / "run", attack=attack, train={"rounds": 2, "sample_rate": 1.0})
    clients = store.clients
    assert list(clients.columns)[-1] == "attacker"
    assert (clients.attacker == clients.client_id.isin([1, 6])).all()
    assert json.loads((store.path / "env.json").read_text())["malicious_clients"] == [1, 6]
    assert (store.summary["attack.name"], store.summary["attack.clients"]) == ("ipm", "1,6")
    norms = clients[clients["round"] == 1].set_index("client_id").update_norm
    assert norms[1] == norms[6]  # what is sent, not what was trained
    for table in ("partition", "split"):
        found = store.read(table).dropna(subset=["client_id"])
        assert list(found.columns)[-1] == "malicious"
        assert (found.malicious == found.client_id.isin([1, 6])).all()
    plain = ran(tmp_path / "plain", train={"rounds": 1})
    assert "attacker" not in plain.clients.columns
    assert not any("malicious" in plain.read(table).columns for table in ("partition", "split"))
    assert "benign_test_accuracy" not in plain.rounds.columns
    assert not any(key.startswith("attack") for key in plain.summary)
    load_file(store.path / "model.safetensors")


FLIPPED = {
    "data": {"num_clients": 20, "test_fraction": 0.2, "alpha": 100.0},
    "train": {"rounds": 30, "sample_rate": 1.0, "lr": 0.05, "batch_size": 20},
    "engine": {"client_batch": 20},
}


def final_accuracy(folder, server, **sections):
    """The robust rules have their default f, a fifth of the clients (Bulyan: fewer)."""
    given = config("fedavg", "mlp", **FLIPPED).model_dump() | {"server": server} | sections
    return fedsim.run(RunConfig(**given), folder, progress=False).summary["final_test_accuracy"]


@pytest.mark.slow
@pytest.mark.integration
def test_flipped_signs_break_the_mean_and_not_robust_rules(tmp_path):
    """Digits, 20 % of the clients flip and enlarge their updates: FedAvg falls below 30 %."""
    attack = {"name": "sign_flip", "fraction": 0.2, "scale": 5.0}
    plain = final_accuracy(tmp_path / "plain", "fedavg")
    assert plain > 0.85
    assert final_accuracy(tmp_path / "mean", "fedavg", attack=attack) < 0.3
    for name in ("krum", "multikrum", "geometric_median", "trimmed_mean", "coordinate_median"):
        found = final_accuracy(tmp_path / name, f"nnm,{name}", attack=attack)
        assert found > plain - 0.1, name


@pytest.mark.slow
@pytest.mark.integration
def test_the_price_of_robust_rules_without_attackers(tmp_path):
    """Digits at alpha 100: each rule costs less than 5 points."""
    plain = final_accuracy(tmp_path / "plain", "fedavg")
    for name in (
        *("krum", "multikrum", "geometric_median", "centered_clipping"),
        *("mda", "coordinate_median", "trimmed_mean", "bulyan"),
    ):
        assert final_accuracy(tmp_path / name, name) > plain - 0.05, name


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "split", "sections"),
    [
        ("fedavg", None, {}),
        ("fedavg", "own_test", {"data": {"client_test_fraction": 0.2}}),
        ("fedpac", "test", {}),
        ("fedpac", "own_test", {"data": {"client_test_fraction": 0.2}}),
    ],
)
def test_the_accuracy_of_benign_clients(tmp_path, method, split, sections):
    """By hand from evaluations.csv; the column is there from the first round, evaluated or not."""
    evaluation = {"every": 2, "clients_every": 2 * (split == "own_test")}
    attack = {"name": "gaussian", "clients": "1,6", "scale": 10.0}
    store = ran(
        tmp_path, method, **sections, evaluation=evaluation, attack=attack, train={"rounds": 2}
    )
    found = store.rounds.benign_test_accuracy
    assert np.isnan(found[0])
    if split is None:
        wanted = store.rounds.test_accuracy[1]
    else:
        rows = store.read("evaluations").query("split == @split")
        assert rows.client_id.nunique() == 8
        wanted = rows[~rows.client_id.isin([1, 6])].accuracy.mean()
    assert found[1] == pytest.approx(wanted, abs=1e-12)
    assert store.summary["final_benign_test_accuracy"] == found[1]
    assert store.summary["last10_benign_test_accuracy"] == found[1]


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedpac"])
@pytest.mark.parametrize(
    "attack",
    [
        {"name": "backdoor", "target": 3, "scale": 2.0},
        {"name": "label_flip", "source": 1, "target": 7},
    ],
)
def test_the_success_of_an_attack(method, attack):
    """By hand: the share of the triggered test images that are given the target class."""
    settings = small(method, attack={**attack, "clients": "1,6"})
    setup = prepare(settings)
    last = rounds(settings)[-1]
    test = setup.dataset.test[:60]
    y = setup.dataset.y[test]
    x = setup.dataset.x[test][y != 3 if attack["name"] == "backdoor" else y == 1].copy()
    if attack["name"] == "backdoor":
        x[:, :, -3:, -3:] = 255
    benign = [c for c in range(8) if c not in (1, 6)] if setup.personalised else [None]
    states = [last.after.clients.get(c) or {} for c in benign]
    worker = Worker(setup.spec, torch.device("cpu"))
    rates = []
    for state in states:
        worker.flat.load(worker._start(torch.from_numpy(last.after.params), state))
        worker.flat.mode(train=False)
        logits = worker.flat.model(worker.transforms.test(torch.from_numpy(x)))
        rates.append((logits.argmax(1) == attack["target"]).double().mean().item())
    assert last.row["attack_success_rate"] == pytest.approx(np.mean(rates), abs=1e-12)


@pytest.mark.slow
@pytest.mark.integration
def test_a_backdoor_is_learnt(tmp_path):
    """Half of the clients poison: the model keeps its accuracy and sees the trigger."""
    sections = {
        "data": {"num_clients": 4, "test_fraction": 0.2, "alpha": 100.0},
        "train": {"rounds": 8, "sample_rate": 1.0, "lr": 0.1, "local_epochs": 2},
    }
    attack = {"name": "backdoor", "clients": "1,2", "target": 4}
    summary = ran(tmp_path, attack=attack, **sections).summary
    assert summary["final_attack_success_rate"] > 0.7
    assert summary["final_test_accuracy"] > 0.8


def test_a_backdoor_needs_images():
    attack = {"name": "backdoor", "fraction": 0.5}
    with pytest.raises(ConfigError, match=r"^attack\.name backdoor: .* has features; label_flip"):
        prepare(config("fedavg", "logistic", data={"name": "synthetic"}, attack=attack))


@pytest.mark.parametrize(
    ("attack", "whole"),
    [
        ({"name": "min_sum", "bound": "max", "knowledge": "own"}, None),
        ({"name": "min_max", "perturbation": "unit_vec"}, None),
        ({"name": "min_max", "perturbation": "std"}, "attack.perturbation=std"),
        ({"name": "alie", "knowledge": "own"}, "attack.name=alie"),
    ],
)
def test_what_needs_whole_updates(attack, whole):
    setup = prepare(config("fedavg", attack={**attack, **THIRD}))
    assert needs_whole_updates(setup) == whole
    assert setup.attack.cohort.knows == attack.get("knowledge", "benign")


MALICIOUS = {"clients": "0,1"}


@pytest.mark.parametrize(
    ("attack", "sections", "reason"),
    [
        ({"name": "sign_flip", "start_round": 4}, {}, "attack.start_round: 4 given.*never starts"),
        ({"name": "mimic", "warmup": 9}, {}, "attack.warmup: 9 given; the attack has 3 rounds"),
        (
            {"name": "mimic", "warmup": 3, "start_round": 3}, {},
            "attack.warmup: 3 given; the attack has 1 round,",
        ),
        ({"name": "alie", "clients": "0,1,2"}, {"train": {"sample_rate": 1}}, None),
        (
            {"name": "alie", "clients": "0"},
            {"train": {"sample_rate": 1}, "data": {"num_clients": 5}},
            "1 malicious client, in cohorts of 5 of 5 clients, would send what .*attack.scale",
        ),
        (
            {"name": "alie", "clients": "0", "scale": 1.0},
            {"train": {"sample_rate": 1}, "data": {"num_clients": 5}}, None,
        ),
        ({"name": "ipm", "fraction": 1.0}, {}, "needs a benign client beside it"),
        (
            {"name": "ipm", **MALICIOUS}, {"train": {"sample_rate": 0.125}},
            "needs a benign client beside it in a round: cohorts of 1 of 8 clients",
        ),
        (
            {"name": "min_max", "knowledge": "own", "clients": "3"}, {},
            "1 malicious client, in cohorts of 2 of 8 clients, .* attack.knowledge=benign",
        ),
        (
            {"name": "backdoor", "poisoned": 0.001, **MALICIOUS}, {},
            "changes no training sample of 2 malicious clients",
        ),
        (
            {"name": "label_flip", **MALICIOUS},
            {"train": {"selection": "fixed", "clients": "2,3,4"}}, "selects no malicious client",
        ),
    ],
)  # fmt: skip
def test_an_attack_without_effect_is_refused_before_the_run(tmp_path, attack, sections, reason):
    if reason is None:
        check_effects(prepare(small("fedavg", "mlp", attack=attack, **sections)))
        return
    with pytest.raises(ConfigError, match=reason):
        ran(tmp_path / "run", model="mlp", attack=attack, **sections)
    assert not (tmp_path / "run").exists()


def test_buckets_of_more_updates_than_a_round_has_are_refused():
    setup = prepare(small("bucketing", "mlp", bucketing={"size": 4}))
    check_effects(setup)
    with pytest.raises(
        ConfigError, match=r"bucketing\.size: 5 given; a round has at most 4 updates"
    ):
        check_effects(prepare(small("bucketing", "mlp", bucketing={"size": 5})))
