"""Networks of timm and torchvision, and start weights that fit but for the head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from fedsim import models
from fedsim.core.errors import ConfigError
from fedsim.core.types import ModelSpec
from fedsim.models import libraries

SQUARES = ModelSpec(
    name="torchvision:mobilenet_v3_small", num_classes=4, in_channels=3, image_size=32
)


def of_timm(name="test_vit", **changes):
    pytest.importorskip("timm", reason="needs timm, which the extra 'models' brings")
    return replace(SQUARES, name=f"timm:{name}", **changes)


def images(spec):
    g = torch.Generator().manual_seed(0)
    return torch.rand(2, spec.in_channels, spec.image_size, spec.image_size, generator=g)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mnasnet0_5", 32), ("resnet18", 32), ("densenet121", 32), ("googlenet", 32),
        ("shufflenet_v2_x0_5", 32), ("mobilenet_v3_small", 32), ("vit_b_32", 32),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_of_torchvision_are_features_and_head(name, size, channels):
    if channels == 1 and name not in ("resnet18", "vit_b_32"):
        return
    spec = replace(SQUARES, name=f"torchvision:{name}", image_size=size, in_channels=channels)
    model, x = models.build(spec, 0).eval(), images(spec)
    assert isinstance(model.head, nn.Linear)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model(x).shape == (2, 4)


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_of_timm_are_those_that_timm_builds(name, channels):
    spec = of_timm(name, in_channels=channels)
    timm = pytest.importorskip("timm")
    model, x = models.build(spec, 0).eval(), images(spec)
    assert torch.equal(model(x), model.head(model.features(x)))
    options = {"img_size": 32} if name == "test_vit" else {}
    own = timm.create_model(name, num_classes=4, in_chans=channels, **options).eval()
    (head,) = (n for n, m in own.named_modules() if m is own.get_classifier())
    state = model.state_dict()
    names = {n: n.replace("head", head) if n.startswith("head.") else n[9:] for n in state}
    own.load_state_dict({names[n]: v for n, v in state.items()}, strict=True)
    assert torch.equal(model(x), own(x))


def test_grey_images_give_what_repeated_ones_give():
    spec = replace(SQUARES, name="torchvision:resnet18")
    colour, grey = models.build(spec, 0).eval(), models.build(replace(spec, in_channels=1), 0)
    x = images(spec)[:, :1]
    torch.testing.assert_close(grey.eval()(x), colour(x.repeat(1, 3, 1, 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"takes images of 1 or 3 channels, and the data have 2"):
        models.build(replace(spec, in_channels=2), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"name": "torchvision:mobilenet_v3_smal"},
            r"no such classifier \(did you mean 'mobilenet_v3_small'",
        ),
        ({"name": "torchvision:fcn_resnet50"}, r"no such classifier"),
        ({"name": "torchvision:squeezenet1_0"}, r"its classifier is not a linear layer"),
        ({"inputs": "tokens"}, r"takes images, and the data are tokens"),
        ({"name": "torchvision:vit_b_16", "image_size": 30}, r"images of 30x30 pixels: "),
    ],
)
def test_networks_of_torchvision_that_do_not_fit(change, message):
    with pytest.raises(ConfigError, match=message):
        models.build(replace(SQUARES, **change), 0)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("test_vitt", {}, r"timm 1\..* has no such model \(did you mean 'test_vit'"),
        ("test_vit", {"image_size": 8}, r"\(8\) should be divisible by patch size"),
        ("test_efficientnet", {"norm": "group"}, r"test_efficientnet has BatchNormAct2d"),
    ],
)
def test_networks_of_timm_that_do_not_fit(name, change, message):
    with pytest.raises(ConfigError, match=message):
        models.build(of_timm(name, **change), 0)


# Start weights


def published(name, **options):
    """A state dict with the library's names and 1000 classes."""
    return torchvision.models.get_model(name, weights=None, **options).state_dict()


def test_files_with_the_names_of_torchvision(tmp_path):
    given = published("mobilenet_v3_small")
    torch.save(given, tmp_path / "w.pt")
    built = models.start(replace(SQUARES, weights=str(tmp_path / "w.pt")), 0)
    assert built.start.drawn == ("head.weight", "head.bias")
    own = built.model.state_dict()
    for name, value in given.items():
        if not name.startswith("classifier.3."):
            assert torch.equal(own[f"features.{name}"], value), name
    whole = replace(SQUARES, num_classes=1000, weights=str(tmp_path / "w.pt"))
    built = models.start(whole, 0)
    assert built.start.drawn == ()
    assert torch.equal(built.model.head.weight, given["classifier.3.weight"])


def test_files_with_the_names_of_timm(tmp_path):
    spec = of_timm("test_convnext")
    timm = pytest.importorskip("timm")
    given = timm.create_model("test_convnext").state_dict()
    save_file(given, tmp_path / "w.safetensors")
    built = models.start(replace(spec, weights=str(tmp_path / "w.safetensors")), 0)
    assert built.start.drawn == ("head.weight", "head.bias")
    own = built.model.state_dict()
    assert torch.equal(own["features.head.norm.weight"], given["head.norm.weight"])
    whole = replace(spec, num_classes=1000, weights=str(tmp_path / "w.safetensors"))
    built = models.start(whole, 0)
    assert torch.equal(built.model.head.weight, given["head.fc.weight"])


def test_what_does_not_fit_is_listed_with_its_number(tmp_path):
    given = published("mobilenet_v3_small")
    kept = {k: v for i, (k, v) in enumerate(given.items()) if i % 2}
    torch.save({"w": torch.zeros(1), **kept}, tmp_path / "w.pt")
    floats = [
        k for k, v in given.items() if v.is_floating_point() and not k.startswith("classifier.3.")
    ]
    number = len([k for k in floats if k not in kept])
    message = rf"missing (features\.\S+, ){{2}}features\.\S+ and {number - 3} more; unknown w$"
    with pytest.raises(ConfigError, match=message):
        models.build(replace(SQUARES, weights=str(tmp_path / "w.pt")), 0)


def test_pretrained_weights_come_through_torchvision(monkeypatch):
    urls, given = [], published("mobilenet_v3_small")

    def download(url, **_):
        urls.append(url)
        return given

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    built = models.start(replace(SQUARES, pretrained=True), 0)
    assert urls == [torchvision.models.MobileNet_V3_Small_Weights.IMAGENET1K_V1.url]
    assert built.start.drawn == ("head.weight", "head.bias")
    assert torch.equal(
        built.model.state_dict()["features.features.0.0.weight"], given["features.0.0.weight"]
    )


def test_pretrained_weights_come_through_timm(monkeypatch):
    spec = of_timm("test_convnext", pretrained=True, in_channels=1)
    timm = pytest.importorskip("timm")
    create, asked = timm.create_model, []

    def create_model(name, pretrained=False, **options):
        if pretrained:
            asked.append((name, options))
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    built = models.start(spec, 0)
    assert asked == [("test_convnext", {"in_chans": 1})]
    assert built.start.drawn == ("head.weight", "head.bias")


def test_pretrained_weights_that_cannot_be_had(monkeypatch):
    def nothing(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", nothing)
    message = (
        r"weights of torchvision:mobilenet_v3_small cannot be had \(no route.*model\.weights=FILE"
    )
    with pytest.raises(ConfigError, match=message):
        models.build(replace(SQUARES, pretrained=True), 0)
    timm = pytest.importorskip("timm")
    monkeypatch.setattr(timm, "create_model", nothing)
    with pytest.raises(ConfigError, match=r"timm:test_vit cannot be had"):
        libraries.pretrained(of_timm(pretrained=True))
