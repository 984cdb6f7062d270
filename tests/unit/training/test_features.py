"""Features of a frozen network: computed once, and the same run as with the whole network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedsim
from fedsim import models
from fedsim.models.vision import SplitModel
from fedsim.training import assemble
from fedsim.training.assemble import prepare
from fedsim.training.features import with_features
from tests import decomposing
from tests.unit.models.test_trainable import config

FILES = ("rounds.csv", "clients.csv", "classes.csv", "model.safetensors")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the features."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def spec_of(name="cnn", trainable="head", **changes):
    return prepare(config(name, trainable, **changes)).spec


def contents(store):
    return {name: (store.path / name).read_bytes() for name in FILES}


def augmented(folder):
    found = decomposing.digits(folder)
    return replace(found, pipeline=replace(found.pipeline, augment="flip"))


class Renormalised(nn.Module):
    """Subtracts the mean of the batch: what a sample gives depends on those beside it."""

    def forward(self, x):
        return x - x.mean(0)


class Refusing(nn.Module):
    """Takes two samples, with which networks are tried, and no others."""

    def forward(self, x):
        if len(x) != 2:
            raise ValueError("two only")
        return x


class Own(nn.Module):
    """A network of the user's, whose forward pass nobody knows."""

    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.features(x).relu())


def perceptron(*more, activation=nn.ReLU):
    def make(num_classes, in_channels, image_size):
        hidden = nn.Linear(in_channels * image_size**2, 8)
        features = nn.Sequential(nn.Flatten(), hidden, activation(), *more)
        return SplitModel(features, nn.Linear(8, num_classes))

    return make


def own(num_classes, in_channels, image_size):
    return Own(num_classes)


drawing, averaging = perceptron(nn.Dropout(0.1)), perceptron(Renormalised())
refusing, smooth = perceptron(Refusing()), perceptron()


# A sweep, whose runs have them in common


# What the features are


@pytest.mark.parametrize("trainable", ["head", "head.*", "head.weight"])
def test_workers_get_features_and_leave_the_frozen_part_out(trainable):
    spec = spec_of(trainable=trainable)
    found = with_features(spec)
    flat = assemble.FlatModel(models.build(spec.model, spec.seed), torch.device("cpu"))
    flat.mode(train=False)
    x = torch.from_numpy(spec.dataset.x).float().div(255).sub(0.5).div(0.5)
    with torch.no_grad():
        expected = flat.model.features(x).numpy()
    assert found.dataset.x.dtype == np.float32
    np.testing.assert_allclose(found.dataset.x, expected, rtol=1e-5, atol=1e-6)
    assert isinstance(found.dataset.x.base, np.memmap)
    assert found.dataset.inputs == "features"
    assert found.cut == "features"
    assert set(found.frozen) == ({"head.bias"} if trainable == "head.weight" else set())


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("cnn", {"data": f"{__name__}:augmented"}, "data.augment=flip draws"),
        (f"{__name__}:drawing", {}, f"{__name__}:drawing draws in training (dropout)"),
        (
            f"{__name__}:averaging",
            {},
            f"{__name__}:averaging gives others in training, or beside other samples",
        ),
    ],
)
def test_where_something_draws_every_pass_goes_through_the_network(
    name, changes, reason, folder, caplog
):
    caplog.set_level("INFO", "fedsim")
    spec = spec_of(name, **changes)
    assert with_features(spec) is spec
    assert not folder.exists()
    (record,) = caplog.records
    text = f"model.trainable=head: features are computed anew in every pass, since {reason}"
    assert record.getMessage() == text


@pytest.mark.parametrize(
    ("name", "trainable", "method"),
    [
        ("cnn", "all", "fedavg"),
        ("cnn", "norm", "fedavg"),
        ("cnn", "features.4.*,head.*", "fedavg"),
        ("tests.unit.models.test_trainable:vit", "lora(2)", "fedavg"),
        ("cnn", "head", "fedsr"),
        (f"{__name__}:own", "head", "fedavg"),
    ],
)
def test_other_networks_see_the_samples(name, trainable, method, folder):
    spec = spec_of(name, trainable, method=method)
    assert with_features(spec) is spec
    assert not folder.exists()


# The file


def test_a_file_for_whatever_decides_the_features(folder, monkeypatch):
    def files():
        return len(list(folder.iterdir()))

    spec = spec_of(f"{__name__}:smooth")
    with_features(spec)
    with_features(replace(spec, seed=8, batch_size=7, threads=3))  # decide nothing
    assert files() == 1
    x = np.array(spec.dataset.x)
    x[-1] += 1
    data = replace(spec.dataset, x=x)
    with_features(replace(spec, dataset=data))
    pipeline = replace(spec.dataset.pipeline, mean=(0.4,))
    with_features(replace(spec, dataset=replace(spec.dataset, pipeline=pipeline)))
    frozen = {name: array + np.float32(1e-7) for name, array in spec.frozen.items()}
    with_features(replace(spec, frozen=frozen))
    monkeypatch.setitem(globals(), "smooth", perceptron(activation=nn.GELU))  # other code
    with_features(spec)
    assert files() == 5


def test_a_damaged_file_is_made_anew_and_said_so(folder, caplog):
    spec = spec_of()
    first = np.array(with_features(spec).dataset.x)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert np.array_equal(with_features(spec).dataset.x, first)
    (record,) = [found for found in caplog.records if found.levelname == "WARNING"]
    assert record.getMessage().startswith(f"{path}: damaged (")
    assert record.getMessage().endswith("; it is made anew")
    assert path.read_bytes() == whole


# Runs


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        ("scaffold", {}, {}),
        ("local", {}, {}),
        ("moon", {"projection": 6}, {}),
        ("fedavg", {}, {"train": {"local_epochs": 2, "optimizer": "adamw", "momentum": 0.0}}),
    ],
)
def test_a_run_is_that_of_the_whole_network(method, model, changes, tmp_path, folder, monkeypatch):
    settings = config("cnn", "head", method, model=model, **changes)
    cold = fedsim.run(settings, tmp_path / "cold")
    (path,) = folder.iterdir()
    warm = fedsim.run(settings, tmp_path / "warm")
    assert contents(cold) == contents(warm)
    assert [*folder.iterdir()] == [path]
    monkeypatch.setattr(assemble, "with_features", lambda spec: spec)
    whole = fedsim.run(settings, tmp_path / "whole")
    for name in ("rounds", "clients"):
        ours, theirs = (getattr(store, name) for store in (cold, whole))
        timed = [c for c in ours if "seconds" in c]
        pd.testing.assert_frame_equal(
            ours.drop(columns=timed), theirs.drop(columns=timed), rtol=1e-5, atol=1e-7
        )
    ours, theirs = (load_file(s.path / "model.safetensors") for s in (cold, whole))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.integration
def test_the_run_leaves_a_whole_network_which_predicts_the_same(tmp_path, folder):
    settings = config("cnn", "head")
    store = fedsim.run(settings, tmp_path / "run")
    setup, final = prepare(settings), load_file(store.path / "model.safetensors")
    models.build(setup.model, 5).load_state_dict(final, strict=True)
    for name, array in setup.frozen.items():
        assert final[name].numpy().tobytes() == array.tobytes(), name
    files = [*folder.iterdir()]
    frame = fedsim.predict(store.path)
    assert [*folder.iterdir()] == files
    right = (frame["label"] == frame["prediction"]).mean()
    assert right == store.rounds["test_accuracy"].iloc[-1]
    x = torch.from_numpy(setup.dataset.x[frame["sample"]]).float().div(255).sub(0.5).div(0.5)
    with torch.no_grad():
        chances = fedsim.load_model(store.path)(x).softmax(1).numpy()
    columns = [f"probability_{k}" for k in range(10)]
    np.testing.assert_allclose(frame[columns], chances, rtol=1e-4, atol=1e-6)


class Stop(fedsim.Callback):
    def on_round_end(self, round, rows):
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.integration
def test_a_resumed_run_has_the_same_bytes(tmp_path):
    settings = config("cnn", "head", "scaffold")
    whole = fedsim.run(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(settings, tmp_path / "half", callbacks=[Stop()])
    assert contents(fedsim.resume(tmp_path / "half")) == contents(whole)
