"""A run that starts from the final model of another one: ``model.weights=RUN``."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedsim
from fedsim import models
from fedsim.core.errors import ConfigError
from fedsim.models import weights
from fedsim.training.assemble import prepare
from tests import decomposing

HEAD = ["head.weight", "head.bias"]


def parity(folder):
    """The same digits in two classes, even and odd."""
    found = decomposing.digits(folder)
    return replace(found, y=found.y % 2, class_names=("even", "odd"))


def turned(folder):
    """The same two classes in another order."""
    found = parity(folder)
    return replace(found, y=1 - found.y, class_names=("odd", "even"))


def headless(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def config(data="parity", model=None, **changes):
    """Two rounds; ``data`` is a function of this file, or of tests.decomposing."""
    name = f"tests.decomposing:{data}" if data == "digits" else f"{__name__}:{data}"
    evaluation = {"decompose_every": 0, "loss_matrix": False}
    model = {"name": "cnn"} | (model or {})
    return decomposing.config(data={"name": name}, model=model, evaluation=evaluation, **changes)


class Introduction(fedsim.Callback):
    def on_run_start(self, info):
        self.notes = info.notes


@pytest.mark.slow
@pytest.mark.integration
def test_another_number_of_classes_draws_the_head_anew_and_says_so(tmp_path):
    first = fedsim.run(config("digits"), tmp_path / "first").path
    settings, seen = config(model={"weights": str(first)}), Introduction()
    second = fedsim.run(settings, tmp_path / "second", callbacks=[seen])
    assert seen.notes == (
        "head.weight and head.bias initialised at random: model.weights has no head of this shape",
    )
    assert json.loads((second.path / "env.json").read_text())["head_drawn_anew"] == HEAD
    given, setup = load_file(first / "model.safetensors"), prepare(settings)
    alone = prepare(config())
    for slot in setup.layout.slots:
        known = alone.initial[slot.where] if slot.head else given[slot.name].numpy().ravel()
        assert np.array_equal(setup.initial[slot.where], known), slot.name


@pytest.mark.slow
@pytest.mark.integration
def test_the_same_classes_take_the_head_too(tmp_path):
    first = fedsim.run(config("digits"), tmp_path / "first").path
    settings, seen = config("digits", model={"weights": str(first)}), Introduction()
    second = fedsim.run(settings, tmp_path / "second", callbacks=[seen])
    assert seen.notes == ()
    assert "head_drawn_anew" not in json.loads((second.path / "env.json").read_text())
    given, setup = load_file(first / "model.safetensors"), prepare(settings)
    found = decomposing.named_tensors(setup.initial, setup.layout)
    assert all(np.array_equal(found[name], given[name].numpy()) for name in found)


ORDER = "class 0 is 'even' in the weights' data and 'odd' in these"


@pytest.mark.slow
@pytest.mark.integration
def test_the_same_classes_in_another_order_draw_the_head_anew_and_say_so(tmp_path):
    """The head of the first run would be wrong on every sample."""
    logistic = {"name": "logistic"}
    first = fedsim.run(config(model=logistic), tmp_path / "first").path
    model, seen = logistic | {"weights": str(first)}, Introduction()
    second = fedsim.run(config("turned", model), tmp_path / "second", callbacks=[seen])
    assert seen.notes == (f"head.weight and head.bias initialised at random: {ORDER}",)
    assert json.loads((second.path / "env.json").read_text())["head_drawn_anew"] == HEAD
    anew = prepare(config("turned", logistic)).initial
    assert np.array_equal(prepare(config("turned", model)).initial, anew)
    taken = prepare(config("parity", model))
    assert taken.start == weights.Loaded()
    assert not np.array_equal(taken.initial, anew)
    torch.save(load_file(first / "model.safetensors"), tmp_path / "w.pt")  # says no classes
    given = logistic | {"weights": str(tmp_path / "w.pt")}
    assert np.array_equal(prepare(config("turned", given)).initial, taken.initial)


@pytest.mark.integration
def test_other_classes_without_a_head_to_draw_are_refused(tmp_path):
    own = {"name": f"{__name__}:headless"}
    run = fedsim.run(config(model=own), tmp_path / "run").path
    model = own | {"weights": str(run)}
    assert prepare(config(model=model)).start == weights.Loaded()
    with pytest.raises(ConfigError) as refused:
        prepare(config("turned", model))
    assert ORDER in str(refused.value)
    assert "no module 'head' to be initialised anew" in str(refused.value)


def test_two_names_of_one_tensor_are_refused(tmp_path):
    state = prepare(config()).spec.model
    tensors = models.build(state, 0).state_dict()
    tensors["1.weight"] = torch.zeros_like(tensors["features.1.weight"])
    torch.save(tensors, tmp_path / "w.pt")
    message = r"features\.1\.weight and 1\.weight are both tensors for features\.1\.weight"
    with pytest.raises(ConfigError, match=message):
        prepare(config(model={"weights": str(tmp_path / "w.pt")}))
    del tensors["features.1.weight"]
    torch.save(tensors, tmp_path / "w.pt")
    assert prepare(config(model={"weights": str(tmp_path / "w.pt")})).start == weights.Loaded()


def numbered(classes, channels, size):
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))
    model.register_buffer("order", torch.arange(3))
    return model


def test_integers_of_a_file_that_are_not_the_models_are_refused(tmp_path):
    own = {"name": f"{__name__}:numbered"}
    spec = prepare(config(model=own)).model
    tensors = models.build(spec, 0).state_dict()
    torch.save(tensors, tmp_path / "w.pt")
    weights_of = own | {"weights": str(tmp_path / "w.pt")}
    assert prepare(config(model=weights_of)).start == weights.Loaded()
    torch.save(tensors | {"order": torch.tensor([2, 1, 0])}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="only float tensors are loaded: order"):
        prepare(config(model=weights_of))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "trainable"), [("local", "all"), ("pfedla", "all"), ("fedbn", "features.1.*")]
)
def test_a_run_that_trained_models_of_clients_only_is_refused(algorithm, trainable, tmp_path):
    model, train = {"trainable": trainable}, {"sample_rate": 1.0}
    settings = config("digits", model, method=algorithm, train=train)
    run = fedsim.run(settings, tmp_path / "run").path
    for path in (run, run / "model.safetensors"):
        with pytest.raises(ConfigError) as refused:
            prepare(config("digits", {"weights": str(path)}))
        assert str(refused.value).startswith(
            f"model.weights={path}: model.safetensors of this run of {algorithm} holds the "
            "untrained start, since all tensors that train are the clients' own"
        )
    client = fedsim.load_model(run, client=0).state_dict()
    torch.save(client, tmp_path / "client.pt")
    setup = prepare(config("digits", {"weights": str(tmp_path / "client.pt")}))
    found = decomposing.named_tensors(setup.initial, setup.layout)
    assert all(np.array_equal(found[name], client[name].numpy()) for name in found)
    assert not np.array_equal(setup.initial, prepare(config("digits")).initial)
