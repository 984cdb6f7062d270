"""What methods make of a model: a projection head, a Gaussian representation, a chain of layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedsim.core.errors import ConfigError
from fedsim.core.types import ModelSpec
from fedsim.models import build, vision
from fedsim.models.chain import chain
from fedsim.models.probabilistic import ProbabilisticModel
from fedsim.models.vision import SplitModel

DIGITS = ModelSpec(name="cnn", num_classes=10, in_channels=1, image_size=8)
REDDIT = ModelSpec(
    name="leaf_reddit",
    num_classes=30,
    in_channels=30,
    image_size=10,
    inputs="tokens",
    per_token=True,
)


# ---- the projection head


def test_projection_head_lies_between_features_and_head() -> None:
    model, plain = build(replace(DIGITS, projection=256), 0).eval(), build(DIGITS, 0)
    x = torch.rand(3, 1, 8, 8)
    first, relu, second = model.features.projection
    assert isinstance(relu, nn.ReLU)
    hidden = torch.relu(first(model.features.backbone(x)))
    assert torch.equal(model.features(x), second(hidden))
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model.features(x).shape == (3, 256)
    assert model.head.weight.shape == (10, 256)
    count = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert count == 64 * 64 + 64 + 64 * 256 + 256 + (256 - 64) * 10
    backbone, features = model.features.backbone.state_dict(), plain.features.state_dict()
    assert all(torch.equal(backbone[key], features[key]) for key in features)


# ---- the Gaussian representation


def gaussian(z_dim: int | None = 6) -> ProbabilisticModel:
    model = build(DIGITS, 0, lambda made: ProbabilisticModel(made, z_dim))
    assert isinstance(model, ProbabilisticModel)
    return model


def test_training_draws_and_evaluation_does_not() -> None:
    model, x = gaussian(), torch.rand(4, 1, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    before = torch.random.get_rng_state()
    logits = model(x)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(model(x), logits)
    torch.testing.assert_close(model(x[2:]), logits[2:])
    assert torch.equal(gaussian().noise, model.noise)


def test_evaluation_is_the_mean_of_the_predictions() -> None:
    model, x = gaussian().eval(), torch.rand(3, 1, 8, 8)
    mu, sigma = model.distribution(x)
    each = [model.head(mu + sigma * noise).softmax(dim=1) for noise in model.noise]
    assert len(each) == 20
    torch.testing.assert_close(model(x).exp(), sum(each) / 20)
    assert not torch.allclose(model(x).exp(), model.head(mu).softmax(dim=1), atol=1e-4)


def test_without_deviation_it_is_the_linear_head_on_the_mean() -> None:
    model, x = gaussian(), torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        model.encoder.weight[6:] = 0
        model.encoder.bias[6:] = -80
    torch.testing.assert_close(model(x), model.head(model.features(x)))
    model.eval()
    expected = model.head(model.features(x)).log_softmax(dim=1)
    torch.testing.assert_close(model(x), expected)


def test_reference_distribution() -> None:
    model = gaussian()
    mean, deviation, scale = model.reference(torch.tensor([3, 0]))
    assert mean.shape == deviation.shape == (2, 6)
    assert not mean.any()
    torch.testing.assert_close(deviation, torch.full((2, 6), math.log1p(math.e)))
    torch.testing.assert_close(scale, torch.tensor(1.0))
    own = {name for name, _ in model.named_parameters() if name.startswith("reference.")}
    assert own == {"reference.r_mu", "reference.r_sigma", "reference.scale"}
    assert "noise" not in model.state_dict()
    with torch.no_grad():
        model.reference.r_mu[3] = 2
        model.reference.scale.fill_(-30)
    mean, _, scale = model.reference(torch.tensor([3, 0]))
    assert mean[:, 0].tolist() == [2, 0]
    assert scale > 0


# ---- chains


def tower() -> SplitModel:
    """Convolutions with and without norm and bias, flattening, nested sequences, dense layers."""
    convolutions = nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(1, 5, 3), norm=nn.BatchNorm2d(5), relu=nn.ReLU(),
            pool=nn.MaxPool2d(2), second=nn.Conv2d(5, 4, 2, bias=False),
        )
    )  # fmt: skip
    dense = nn.Sequential(nn.Linear(16, 6), nn.BatchNorm1d(6, affine=False), nn.Tanh())
    return SplitModel(nn.Sequential(convolutions, nn.Flatten(), dense), nn.Linear(6, 3))


def test_links_of_a_chain() -> None:
    first, second, third, head = chain(tower())
    assert (first.weight, first.bias) == ("features.0.first.weight", "features.0.first.bias")
    assert first.norm == tuple(
        f"features.0.norm.{key}" for key in ("weight", "bias", "running_mean", "running_var")
    )
    assert first.vectors == (first.bias, *first.norm)
    assert (first.outputs, first.seen) == (5, 1)
    assert (second.weight, second.bias, second.vectors) == ("features.0.second.weight", None, ())
    assert (second.outputs, second.seen) == (4, 4)
    assert third.norm == ("features.2.1.running_mean", "features.2.1.running_var")
    assert (third.outputs, third.seen) == (6, 1)
    assert (head.weight, head.bias, head.outputs, head.seen) == ("head.weight", "head.bias", 3, 1)


def permuted(model: nn.Module, forget: str = "") -> nn.Module:
    """The hidden outputs in another order, by the links alone; ``forget`` names a slot left out."""
    links, state = chain(model), dict(model.state_dict())
    generator = torch.Generator().manual_seed(0)
    for link, after in pairwise(links):
        order = torch.randperm(link.outputs, generator=generator)
        for name in {link.weight, *link.vectors} - {forget}:
            state[name] = state[name][order]
        inputs = (order[:, None] * link.seen + torch.arange(link.seen)).flatten()
        state[after.weight] = state[after.weight][:, inputs]
    model.load_state_dict(state)
    return model


def uneven(model: nn.Module) -> nn.Module:
    """Other values for every channel of the norms."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    if tensor is not None:
                        tensor.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn_reddi", "cnn_fedavg", "leaf_celeba", "tower"])
def test_a_permutation_by_the_links_leaves_the_function(name: str) -> None:
    if name == "tower":
        model, x = tower(), torch.rand(3, 1, 8, 8)
    else:
        model, x = (
            build(ModelSpec(name=name, num_classes=3, in_channels=1, image_size=16), 0),
            torch.rand(3, 1, 16, 16),
        )
    with torch.no_grad():
        before = uneven(model)(x)
        weight = model.get_parameter(chain(model)[0].weight).clone()
        after = permuted(model)(x)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert not torch.equal(model.get_parameter(chain(model)[0].weight), weight)


shared = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), r"0 is Conv2d: a convolution in 2 groups"),
        (nn.Sequential(shared, nn.ReLU(), shared), r"2 is Linear: its weight comes twice"),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), r"1 is Softmax: not one of these"),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), r"0 is BatchNorm2d: not the one"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)),
            r"2 is BatchNorm1d: not the one normalisation",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.BatchNorm1d(16)),
            r"2 is BatchNorm1d: not the one normalisation",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(4, 3)),
            r"1 is Flatten: it keeps several dimensions",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 3)),
            r"1 is Linear: it acts on pixels that are not flattened",
        ),
        (
            nn.Sequential(nn.Linear(8, 5), nn.Flatten(), nn.Linear(40, 3)),
            r"2 is Linear: its 40 inputs are not the 5 outputs of 0\.weight",
        ),
        (vision.InvertedResidual(4, 4, 1, 1), r"it is InvertedResidual: not one of these"),
        (build(replace(DIGITS, norm="group"), 0), r"features\.1 is GroupNorm: not one of these"),
        (build(replace(DIGITS, name="resnet18"), 0), r"features is ResNet: not one of these"),
        (build(REDDIT, 0), r"features\.0 is Embedding: not one of these"),
    ],
    ids=str,
)
def test_what_is_no_chain(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm x: a chain of .*; {message}") as caught:
        chain(model, "algorithm x")
    assert "\n" not in str(caught.value)
