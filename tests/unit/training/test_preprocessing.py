"""``data.normalization``: what a network was pretrained with is what its images get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim import models
from fedsim.cli import main
from fedsim.config import experiments
from fedsim.config.resolve import resolve, with_normalization
from fedsim.config.run import RunConfig
from fedsim.core.normalization import Normalization
from fedsim.models import libraries
from fedsim.training import final_models
from tests.decomposing import digits

NAME = "torchvision:mobilenet_v3_small"
IMAGENET = "0.485,0.456,0.406/0.229,0.224,0.225"


def config(data=None, **model):
    return RunConfig(
        algorithm="fedavg",
        data={"name": "digits"} | (data or {}),
        model={"name": NAME, "pretrained": True} | model,
        train={"rounds": 1, "sample_rate": 1, "batch_size": 32},
        engine={"kind": "serial"},
    )


@pytest.mark.parametrize("text", ["0.5/0.25", IMAGENET, f"{IMAGENET}/224"])
def test_the_text_says_what_it_is(text):
    known = Normalization.parse(text)
    assert str(known) == text
    assert RunConfig(data={"normalization": text}).data.normalization == text


@pytest.mark.slow
def test_grey_images_get_the_means_over_the_channels():
    grey = digits(None)
    given = Normalization.parse("0.1,0.2,0.6/0.2,0.2,0.5/16").applied(grey).pipeline
    assert (given.mean, given.std, given.size) == (pytest.approx((0.3,)), pytest.approx((0.3,)), 16)
    colour = replace(grey, x=np.repeat(grey.x, 3, 1))
    assert Normalization.parse("0.5/0.25").applied(colour).pipeline.std == (0.25,) * 3
    with pytest.raises(ValueError, match="2 channels, and the images have 3"):
        Normalization.parse("1,2/1,1").applied(colour)


@pytest.mark.parametrize(
    ("data", "model", "wanted"),
    [
        ({}, {}, f"{IMAGENET}/224"),
        ({"image_size": 32}, {}, IMAGENET),
        ({"normalization": "dataset"}, {}, "dataset"),
        ({"normalization": "0.5/0.5"}, {}, "0.5/0.5"),
        ({}, {"pretrained": False}, "dataset"),
        ({}, {"weights": "file.pt"}, "dataset"),
        ({}, {"name": "resnet18"}, "dataset"),
    ],
)
def test_it_is_that_of_the_pretraining_unless_something_else_is_said(data, model, wanted):
    resolved = with_normalization(config(data, **model))
    assert resolved.data.normalization == wanted
    assert with_normalization(resolved) == resolved


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_says_it_and_its_models_take_images_so(tmp_path, monkeypatch):
    def published(spec):
        return models.build(spec.without_weights, 1).features.state_dict()

    monkeypatch.setattr(libraries, "pretrained", published)
    monkeypatch.chdir(tmp_path)
    sets = {"data.image_size": 32, "model.pretrained": "true", "data.num_clients": 3}
    sets |= {"data.test_fraction": 0.95, "train.batch_size": 32}
    args = ["run", "-a", "fedavg", "--model", NAME, "--rounds", "1", "--engine", "serial"]
    args += [f"--set={key}={value}" for key, value in sets.items()]
    done = CliRunner().invoke(main, [*args, "--out", "r"])
    assert done.exit_code == 0, done.output
    line = "images of 32 x 32 pixels, mean 0.449, standard deviation 0.226 (data.normalization; "
    assert line in done.output
    written = resolve(experiments.read(tmp_path / "r" / "config.yaml").settings)
    assert written.data.normalization == IMAGENET
    known = final_models.Description.read(tmp_path / "r")
    assert (known.mean, known.std) == (pytest.approx((0.449,)), pytest.approx((0.226,)))
    Image.fromarray(np.zeros((32, 32), np.uint8)).save("black.png")
    done = CliRunner().invoke(main, ["predict", "r", "--images", "black.png", "--out", "p.csv"])
    assert done.exit_code == 0, done.output
    with torch.no_grad():
        logits = fedsim.load_model("r")(torch.full((1, 1, 32, 32), -0.449 / 0.226))
    wanted = logits.softmax(1).numpy()[0]
    np.testing.assert_allclose(pd.read_csv("p.csv").iloc[0, 2:].astype(float), wanted, atol=1e-5)
    assert CliRunner().invoke(main, ["predict", "r", "--out", "own.csv"]).exit_code == 0
