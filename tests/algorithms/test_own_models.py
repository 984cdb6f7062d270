"""Methods whose clients train the global model, and are evaluated with another one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsim
from fedsim.core.errors import ConfigError
from fedsim.core.types import Training
from fedsim.testing.rounds import config, rounds, small
from fedsim.training.assemble import prepare
from tests.algorithms.training import (
    LR,
    TRAINING,
    assert_update,
    classification,
    context,
    tensors,
    train,
    worker,
)
from tests.tasks import run

SETTINGS = {"train": {"rounds": 3, "sample_rate": 1.0, "momentum": 0.9, "weight_decay": 0.01}}


def gradient_of(objective):
    """The gradient of an objective, both functions of the parameters."""

    def gradient(params):
        leaves = [p.detach().clone().requires_grad_() for p in params]
        return torch.autograd.grad(objective(leaves), leaves)

    return gradient


def squared_distance(params, others):
    return sum((p - q).square().sum() for p, q in zip(params, others, strict=True))


def own(made):
    """By client the bytes of its own model after the last of some rounds."""
    clients = made[-1].after.clients
    return {client: clients[client]["personal"].tobytes() for client in clients}


def models(made):
    return [r.after.params.tobytes() for r in made]


@pytest.mark.integration
def test_ditto_without_a_term_is_local_beside_fedavg():
    ditto = rounds(small("ditto", ditto={"lam": 0.0}, **SETTINGS))
    assert own(ditto) == own(rounds(small("local", **SETTINGS)))
    assert models(ditto) == models(rounds(small("fedavg", **SETTINGS)))


def test_ditto_against_its_objective_in_float64():
    # The second round: the client comes with a model of its own, and anchor and start differ.
    w = worker("ditto", "mlp", TRAINING, lam=0.5)
    sent = w.flat.vector()
    kept = sent + np.float32(0.05) * np.random.default_rng(0).normal(size=sent.shape)
    kept = kept.astype(np.float32)
    states = {1: {"personal": kept}}
    (report,), (delta,) = run(w, (1,), context(1, LR), sent, states=states)
    loss, anchor = classification(w, 1), tensors(w, sent)

    def objective(params):
        return loss(params) + 0.25 * squared_distance(params, anchor)

    assert_update(w, delta, sent, gradient_of(loss))
    assert_update(w, report.state["personal"] - kept, kept, gradient_of(objective))


def test_a_step_of_ditto_by_hand():
    # One step from v = w + d without data: v - lr lam (v - w) - lr g, so that two values of lam
    # differ by lr (lam' - lam) d.
    training = Training(batch_size=64, momentum=0.0, weight_decay=0.0)
    made = {}
    for lam in (1.0, 3.0):
        w = worker("ditto", "mlp", training, lam=lam)
        sent = w.flat.vector()
        (report,), _ = run(w, (0,), context(1, 0.1), sent, states={0: {"personal": sent + 1}})
        made[lam] = report.state["personal"]
    np.testing.assert_allclose(made[1.0] - made[3.0], 0.2, atol=1e-6)


def test_the_term_of_ditto_holds_the_clients_models_together():
    # With lr lam = 0.5 the models stay near the received one, which at lam = 0 they leave.
    def spread(lam):
        reports, _ = train(worker("ditto", "mlp", lam=lam), lr=0.05)
        kept = np.stack([r.state["personal"] for r in reports])
        return np.linalg.norm(kept - kept.mean(axis=0))

    assert spread(0.0) > 2 * spread(10.0) > 0


@pytest.fixture(scope="module")
def ditto(tmp_path_factory):
    settings = {"data": {"num_clients": 6, "client_test_fraction": 0.3}}
    settings["evaluation"] = {"every": 1, "clients_every": 3, "finetune_epochs": 1}
    settings["train"] = {"rounds": 3, "sample_rate": 1 / 3}
    return fedsim.run(config("ditto", "mlp", **settings), tmp_path_factory.mktemp("ditto") / "run")


@pytest.mark.integration
def test_the_clients_own_models_are_scored_kept_and_fine_tuned(ditto):
    took_part = set(ditto.read("clients")["client_id"])
    assert 0 < len(took_part) < 6
    shared = fedsim.load_model(ditto.path).state_dict()
    for client in range(6):
        mine = fedsim.load_model(ditto.path, client=client).state_dict()
        same = all(torch.equal(mine[name], shared[name]) for name in shared)
        assert same == (client not in took_part)
    scores = ditto.read("evaluations").query("split == 'test' and round == 3")
    found = fedsim.predict(ditto.path).groupby("client_id")
    right = found.apply(lambda g: (g["label"] == g["prediction"]).mean(), include_groups=False)
    np.testing.assert_allclose(scores.set_index("client_id")["accuracy"], right, atol=1e-12)
    final = ditto.read("final_clients").set_index("client_id")
    last = ditto.read("evaluations").query("split == 'own_test' and round == 3")
    np.testing.assert_array_equal(final["loss"], last.set_index("client_id")["loss"])
    assert (final["finetuned_loss"] != final["loss"]).all()


@pytest.mark.integration
def test_privacy_of_samples_knows_one_training_a_round():
    private = {"dp": {"level": "example", "clip": 1.0, "noise_multiplier": 1.0}}
    with pytest.raises(ConfigError, match="more of their samples than gradients"):
        prepare(config("ditto", "mlp", **private))
