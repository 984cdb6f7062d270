"""Segmentation in whole runs: scores by class and site, masks, examples, stacking, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file

import fedsim
from fedsim import data
from fedsim.cli import main
from fedsim.config.resolve import load_config
from fedsim.core.errors import ConfigError

pytestmark = pytest.mark.integration


TRAIN = {"sample_rate": 1.0, "batch_size": 4, "lr": 0.05}


def config(**changes):
    sections = {
        "algorithm": "fedavg",
        "data": {"name": "discs", "partition": "by_site"},
        "discs": {"samples": 8},
        "model": {"name": "unet_small"},
        "train": {"rounds": 1, **TRAIN},
        "evaluation": {"every": 2, "clients_every": 2, "measures": "hausdorff95"},
        "engine": {"kind": "serial"},
    }
    return fedsim.RunConfig.model_validate(sections | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of 18 steps of each of three clients."""
    train = {"rounds": 2, "local_epochs": 3, "momentum": 0.9, **TRAIN}
    settings = config(discs={"samples": 15}, train=train)
    return fedsim.run(settings, tmp_path_factory.mktemp("segmentation") / "run").path


def test_a_run_records_scores_of_images_classes_and_sites(run):
    store = fedsim.RunStore(run)
    rounds, sites = store.read("rounds").iloc[-1], store.read("evaluations")
    own = sites[sites["split"] == "own_test"]
    assert len(own) == 3
    assert own["dice"].between(0, 1).all()
    assert np.isnan(rounds["test_accuracy"])
    assert rounds["test_dice"] > 0.6
    classes = store.read("classes").set_index("label")
    assert classes.loc[1, "dice"] == pytest.approx(rounds["test_dice"])
    assert classes.loc[1, "hausdorff95"] == pytest.approx(rounds["test_hausdorff95"])
    task = json.loads((run / "env.json").read_text())["task"]
    assert (task["primary"], task["measures"]["hausdorff95"]["better"]) == ("dice", "down")


def test_predictions_are_those_that_were_scored(run, tmp_path):
    """The mean Dice of the masks is the run's; examples.npz has some of these masks."""
    frame = fedsim.predict(run)
    assert frame["dice"].mean() == pytest.approx(
        fedsim.RunStore(run).read("rounds")["test_dice"].iloc[-1], abs=1e-12
    )
    shown = np.load(run / "examples.npz")
    masks = dict(zip(frame["sample"], frame["mask"], strict=True))
    for sample, mask in zip(shown["samples"].tolist(), shown["predictions"], strict=True):
        np.testing.assert_array_equal(mask, masks[sample])
    assert set(shown["clients"]) == {"north", "east", "south"}


def test_new_images_get_masks_of_their_own_size(run, tmp_path):
    """The central square of a larger image has the mask of the square alone."""
    square = data.load("discs", samples=15).x[0, 0]
    wide = np.full((64, 100), 90, np.uint8)
    wide[:, 18:82] = square
    for name, image in (("square", square), ("wide", wide)):
        (tmp_path / "new").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "new" / f"{name}.png")
    out = tmp_path / "new.csv"
    words = ["predict", str(run), "--images", str(tmp_path / "new"), "--out", str(out)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    masks = {
        name: np.array(Image.open(tmp_path / "new_masks" / f"{name}.png"))
        for name in ("square", "wide")
    }
    assert masks["square"].any()
    np.testing.assert_array_equal(masks["wide"][:, 18:82], masks["square"])
    assert masks["wide"].shape == (64, 100)
    assert not masks["wide"][:, :18].any()


def test_an_exported_network_gives_the_same_outputs(run, tmp_path):
    from fedsim.predictions.export import export

    export(run, "torch", tmp_path / "out")
    x = torch.rand(3, 1, 64, 64)
    with torch.no_grad():
        wanted = fedsim.load_model(run)(x)
    got = torch.export.load(tmp_path / "out" / "model.pt2").module()(x)
    torch.testing.assert_close(got, wanted)


def test_stacked_clients_agree_with_one_by_one(tmp_path):
    """Three clients as one model; the last digits may differ."""
    engines = {1: {"kind": "serial"}, 3: {"kind": "serial", "client_batch": 3}}
    one, many = (
        fedsim.load_model(fedsim.run(config(engine=e), tmp_path / f"{n}").path).state_dict()
        for n, e in engines.items()
    )
    for name, tensor in one.items():
        torch.testing.assert_close(many[name], tensor, rtol=2e-3, atol=2e-4)


def test_the_last_convolution_is_the_head_that_stays_on_the_clients(tmp_path):
    """FedRep trains it and the rest in phases; examples are of the clients' own models."""
    run = fedsim.run(config(algorithm="fedrep", fedrep={"head_epochs": 1}), tmp_path / "run").path
    own = load_file(run / "clients.safetensors")
    assert set(own) == {f"{c}/head.{name}" for c in range(3) for name in ("weight", "bias")}
    assert np.load(run / "examples.npz")["predictions"].shape[1:] == (64, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "cnn"}}, "takes images with one label each, and the data are images"),
        ({"algorithm": "moon"}, "a label for every token or pixel"),
        ({"algorithm": "fedsr"}, "a PixelModel does not have both"),
        ({"model": {"name": "unet_small", "trainable": "lora(4)"}}, "no linear or attention layer"),
        (
            {"data": {"name": "discs", "partition": "by_site", "feature_shift": "rotation"}},
            "rotation.*masks would stay",
        ),
        ({"evaluation": {"measures": "auc"}}, "segmentation has no measure 'auc'"),
    ],
)
def test_runs_that_are_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        fedsim.run(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_unet_finds_discs_at_three_sites(tmp_path):
    """The FedAvg of the preset reaches a Dice of 0.9 in minutes."""
    settings = load_config(preset="discs")
    engine = settings.engine.model_copy(update={"kind": "serial"})
    store = fedsim.run(settings.model_copy(update={"engine": engine}), tmp_path / "run")
    assert store.read("rounds")["test_dice"].iloc[-1] > 0.9
