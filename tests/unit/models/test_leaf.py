"""LEAF's models, what inputs each model takes, and models of your own for other inputs."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.types import ModelSpec
from fedsim.models import build
from fedsim.models.leaf import SigmoidLinear
from fedsim.models.registry import zeros
from fedsim.models.vision import SplitModel

SYNTHETIC = ModelSpec(
    name="leaf_synthetic", num_classes=5, in_channels=60, image_size=1, inputs="features"
)
SHAKESPEARE = ModelSpec(
    name="leaf_shakespeare", num_classes=80, in_channels=80, image_size=80, inputs="tokens"
)
SENT140 = ModelSpec(
    name="leaf_sent140", num_classes=2, in_channels=11, image_size=25, inputs="tokens"
)
REDDIT = ModelSpec(
    name="leaf_reddit",
    num_classes=30,
    in_channels=30,
    image_size=10,
    inputs="tokens",
    per_token=True,
)
VECTORS = [SYNTHETIC, replace(SYNTHETIC, name="logistic"), replace(SYNTHETIC, name="mlp")]
TEXTS = [SHAKESPEARE, SENT140, REDDIT]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def samples(spec: ModelSpec, n: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if spec.inputs == "tokens":
        return torch.randint(spec.in_channels, (n, spec.image_size), generator=generator)
    return torch.rand(n, *zeros(spec).shape[1:], generator=generator)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (ModelSpec(name="leaf_femnist", num_classes=62, in_channels=1, image_size=28), 6_603_710),
        (ModelSpec(name="leaf_celeba", num_classes=2, in_channels=3, image_size=84), 31_202),
        (SYNTHETIC, 305),
        (replace(SYNTHETIC, name="leaf_synthetic_linear"), 305),
        (replace(SYNTHETIC, name="logistic"), 305),
        (replace(SYNTHETIC, name="mlp"), 60 * 64 + 64 + 64 * 5 + 5),
        (SHAKESPEARE, 819_920),
        # V words | two layers, kernels and two biases | dense | dense
        (SENT140, 11 * 100 + 2 * (200 * 400 + 800) + 100 * 128 + 128 + 128 * 2 + 2),
        (REDDIT, 30 * 256 + 2 * (512 * 1024 + 2048) + 256 * 30 + 30),
    ],
    ids=lambda given: given.name if isinstance(given, ModelSpec) else str(given),
)
def test_number_of_parameters(spec: ModelSpec, count: int) -> None:
    assert parameters(build(spec, 0)) == count


@pytest.mark.parametrize("spec", [*VECTORS, *TEXTS], ids=lambda spec: spec.name)
def test_features_and_head(spec: ModelSpec) -> None:
    model = build(spec, 0)
    assert isinstance(model, SplitModel)
    x = samples(spec)
    tokens = (spec.image_size,) if spec.per_token else ()
    features = model.features(x)
    assert features.shape == (3, *tokens, model.head.in_features)
    assert torch.equal(model(x), model.head(features))
    assert model(x).shape == (3, *tokens, spec.num_classes)
    model(x).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert [m for m in model.modules() if isinstance(m, nn.Linear)][-1] is model.head


def test_celeba_takes_the_batch_at_hand_in_evaluation_too() -> None:
    model = build(ModelSpec(name="leaf_celeba", num_classes=2, in_channels=3, image_size=16), 0)
    x = torch.rand(4, 3, 16, 16)
    trained = model(x)
    assert torch.equal(model.eval()(x), trained)
    assert not torch.allclose(model(x[:1]), trained[:1])
    assert list(model.buffers()) == []


def test_the_sigmoid_is_part_of_the_head() -> None:
    model = build(SYNTHETIC, 0)
    x = samples(SYNTHETIC)
    linear = x @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), 1 / (1 + torch.exp(-linear)))
    assert isinstance(model.head, SigmoidLinear)
    slots = FlatModel(model, torch.device("cpu")).layout.slots
    assert [slot.name for slot in slots if slot.head] == ["head.weight", "head.bias"]
    plain = build(replace(SYNTHETIC, name="leaf_synthetic_linear"), 0)
    assert torch.equal(plain.head.weight, model.head.weight)
    torch.testing.assert_close(plain(x), linear)


def basic_lstm(x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """TensorFlow's cell with gates i, j, f, o, forget bias 1 and zero start: (B, T, d) -> outputs.

    kernel (d + n, 4n), bias (4n,), which starts at zero.
    """
    n = bias.numel() // 4
    c = h = torch.zeros(len(x), n)
    outputs = []
    for step in x.unbind(1):
        i, j, f, o = (torch.cat([step, h], 1) @ kernel + bias).chunk(4, dim=1)
        c = c * torch.sigmoid(f + 1) + torch.sigmoid(i) * torch.tanh(j)
        h = torch.tanh(c) * torch.sigmoid(o)
        outputs.append(h)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("spec", [SENT140, SHAKESPEARE], ids=lambda spec: spec.name)
def test_lstm_is_that_of_tensorflow(spec: ModelSpec) -> None:
    model = build(spec, 3)
    lstm = model.features[1].lstm
    x = model.features[0](samples(replace(spec, image_size=6)))
    outputs = model.features[1](x)
    for w_ih, w_hh, *_ in lstm.all_weights:
        i, f, g, o = torch.cat([w_ih, w_hh], 1).T.chunk(4, dim=1)
        x = basic_lstm(x, torch.cat([i, g, f, o], 1), torch.zeros(4 * lstm.hidden_size))
    torch.testing.assert_close(outputs, x)
    assert torch.equal(model.features[2](outputs), outputs[:, -1])


def test_forget_bias_and_start_of_reddit() -> None:
    model = build(REDDIT, 0)
    biases = [p for name, p in model.named_parameters() if "lstm.bias" in name]
    assert len(biases) == 4
    assert not any(p.any() for p in biases)
    rest = [p for name, p in model.named_parameters() if "lstm.bias" not in name]
    for p in rest:
        assert 0.08 < p.abs().max() <= 0.1


def test_glorot_limits() -> None:
    model = build(SHAKESPEARE, 0)
    bounds = {
        "features.0.weight": math.sqrt(6 / (80 + 8)),
        "features.1.lstm.weight_ih_l0": math.sqrt(6 / (8 + 5 * 256)),
        "features.1.lstm.weight_hh_l0": math.sqrt(6 / (8 + 5 * 256)),
        "features.1.lstm.weight_ih_l1": math.sqrt(6 / (256 + 5 * 256)),
        "head.weight": math.sqrt(6 / (256 + 80)),
    }
    for name, bound in bounds.items():
        assert 0.98 * bound < model.get_parameter(name).abs().max() <= bound
    assert not model.head.bias.any()


def test_an_lstm_in_a_flat_vector() -> None:
    flat = FlatModel(build(SENT140, 0), torch.device("cpu"))
    x = samples(SENT140)
    before, vector = flat.model(x), flat.flat.clone()
    loss = F.cross_entropy(flat.model(x), torch.tensor([0, 1, 1]))
    loss.backward()
    with torch.no_grad():
        for _, p in flat.params:
            p -= 0.5 * p.grad
    assert not torch.equal(flat.flat, vector)
    assert not torch.equal(flat.model(x), before)
    flat.load(vector)
    assert torch.equal(flat.model(x), before)


# ---- inputs


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            replace(SHAKESPEARE, name="cnn"),
            r"^model\.name=cnn: takes images with one label each, and the data are tokens with one "
            r"label each; for them there are leaf_sent140, leaf_shakespeare, your own as",
        ),
        (
            replace(REDDIT, name="leaf_shakespeare"),
            r"leaf_shakespeare: takes tokens with one label each, and the data are tokens with a "
            r"label for every token; for them there are leaf_reddit, your own as module:function$",
        ),
        (replace(REDDIT, per_token=False), r"leaf_reddit: takes tokens with a label for every"),
        (
            replace(SYNTHETIC, name="resnet18"),
            r"there are logistic, logistic_reference, mlp, leaf_synthetic, leaf_",
        ),
        (replace(SYNTHETIC, inputs="images", name="leaf_synthetic"), r"takes features with one"),
        (replace(SENT140, name="mlp"), r"mlp: takes images or features with one label each, and"),
    ],
)
def test_data_that_a_model_does_not_take(spec: ModelSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(spec, 0)
    assert "\n" not in str(caught.value)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_text_models_of_test.py").write_text(
        "from torch import nn\n"
        "def tagger(num_classes, vocabulary, length):\n"
        "    return nn.Sequential(nn.Embedding(vocabulary, 4), nn.Linear(4, num_classes))\n"
        "def bag(num_classes, vocabulary, length):\n"
        "    return nn.Sequential(nn.EmbeddingBag(vocabulary, 4), nn.Linear(4, num_classes))\n"
        "def linear(num_classes, d, one):\n"
        "    return nn.Linear(d * one, num_classes)\n"
        "class Picky(nn.Module):\n"
        "    def forward(self, x):\n"
        "        batch, channels, height, width = x.shape\n"
        "def picky(num_classes, d, one):\n"
        "    return Picky()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_text_models_of_test", raising=False)
    return "own_text_models_of_test"


@pytest.mark.parametrize(
    ("spec", "function"), [(REDDIT, "tagger"), (SENT140, "bag"), (SYNTHETIC, "linear")]
)
def test_model_of_your_own_for_other_inputs(
    own_module: str, spec: ModelSpec, function: str
) -> None:
    model = build(replace(spec, name=f"{own_module}:{function}"), 0)
    assert model.training
    tokens = (10,) if spec.per_token else ()
    assert model(samples(spec)).shape == (3, *tokens, spec.num_classes)


@pytest.mark.parametrize(
    ("spec", "function", "message"),
    [
        (SENT140, "tagger", r"2 samples give \(2, 25, 2\), not logits \(2, 2\)$"),
        (REDDIT, "bag", r"2 samples give \(2, 30\), not logits \(2, 10, 30\)$"),
        (SENT140, "linear", r"does not take tokens \(2, 25\): RuntimeError"),
        (SYNTHETIC, "picky", r"does not take features \(2, 60\): ValueError: not enough values"),
    ],
)
def test_model_of_your_own_that_does_not_fit(
    own_module: str, spec: ModelSpec, function: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(replace(spec, name=f"{own_module}:{function}"), 0)
