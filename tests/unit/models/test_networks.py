"""fedsim.models: sizes, determinism, inputs, and networks of libraries and of the user."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision
from click.testing import CliRunner
from torch import nn

from fedsim import algorithms, models
from fedsim.cli import main
from fedsim.core.errors import ConfigError
from fedsim.core.imports import resolve
from fedsim.core.layout import FlatModel
from fedsim.core.types import ModelSpec
from fedsim.models import build, libraries, weights
from fedsim.models.leaf import SigmoidLinear
from fedsim.models.registry import CATALOGUE, zeros
from fedsim.models.vision import MaxPool2x2, SplitModel

DIGITS = ModelSpec(name="cnn", num_classes=10, in_channels=1, image_size=8)
RESNET = ModelSpec(name="resnet18", num_classes=3, in_channels=3, image_size=8)
IMAGES = [n for n, entry in CATALOGUE.items() if "images" in entry.inputs and not entry.per_pixel]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def same(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x)


SYNTHETIC = ModelSpec(
    name="leaf_synthetic", num_classes=5, in_channels=60, image_size=1, inputs="features"
)
SHAKESPEARE = ModelSpec(
    name="leaf_shakespeare", num_classes=80, in_channels=80, image_size=80, inputs="tokens"
)
SENT140 = replace(SHAKESPEARE, name="leaf_sent140", num_classes=2, in_channels=11, image_size=25)
REDDIT = ModelSpec(
    name="leaf_reddit",
    num_classes=30,
    in_channels=30,
    image_size=10,
    inputs="tokens",
    per_token=True,
)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (("logistic", 10, 1, 8), 10 * 64 + 10),
        (("mlp", 10, 1, 8), 64 * 64 + 64 + 64 * 10 + 10),
        # 9*16 + 32 | 9*16*32 + 64 | 9*32*64 + 128 | 64*10 + 10
        (("cnn", 10, 1, 8), 176 + 4672 + 18560 + 650),
        (("cnn_reddi", 62, 1, 28), 1_206_590),
        (("cnn_reddi", 10, 3, 32), 1_626_442),
        (("cnn_mcmahan", 10, 1, 28), 1_663_370),
        # 75*64 + 64 | 25*64*64 + 64 | 1600*384 + 384 | 384*192 + 192 | 192*10 + 10
        (("cnn_fedavg", 10, 3, 32), 4864 + 102_464 + 614_784 + 73_920 + 1930),
        (("resnet50", 3, 3, 32), 23_514_179),
        (("mobilenetv2_cifar", 10, 3, 32), 2_296_922),
        (("mobilenetv2_cifar", 200, 3, 32), 2_540_312),
        (("leaf_femnist", 62, 1, 28), 6_603_710),
        (("leaf_celeba", 2, 3, 84), 31_202),
        (SYNTHETIC, 305),
        (replace(SYNTHETIC, name="leaf_synthetic_linear"), 305),
        (replace(SYNTHETIC, name="mlp"), 60 * 64 + 64 + 64 * 5 + 5),
        (SHAKESPEARE, 819_920),
        # V words | two layers, kernels and two biases | dense | dense
        (SENT140, 11 * 100 + 2 * (200 * 400 + 800) + 100 * 128 + 128 + 128 * 2 + 2),
        (REDDIT, 30 * 256 + 2 * (512 * 1024 + 2048) + 256 * 30 + 30),
    ],
    ids=str,
)
def test_number_of_parameters(spec, count: int) -> None:
    if isinstance(spec, tuple):
        name, classes, channels, size = spec
        spec = ModelSpec(name=name, num_classes=classes, in_channels=channels, image_size=size)
    assert parameters(build(spec, 0)) == count


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 17)])
def test_every_model_is_features_and_head_and_learns(name: str, channels: int, size: int) -> None:
    size = max(size, CATALOGUE[name].min_size)
    model = build(ModelSpec(name=name, num_classes=4, in_channels=channels, image_size=size), 0)
    assert isinstance(model, SplitModel)
    assert model.training
    x = torch.rand(3, channels, size, size)
    features = model.eval().features(x)
    assert features.shape == (3, model.head.in_features)
    assert torch.equal(model(x), model.head(features))
    assert model(x).shape == (3, 4)
    model.train()(x).square().sum().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None]
    assert still == []
    assert [m for m in model.modules() if isinstance(m, nn.Linear)][-1] is model.head


@pytest.mark.parametrize("name", ["cnn", "cnn_reddi", "resnet18"])
def test_weights_depend_on_spec_and_seed_alone(name: str) -> None:
    spec = replace(DIGITS, name=name)
    first = build(spec, 1)
    torch.rand(7)
    assert same(first, build(spec, 1))
    assert not same(first, build(spec, 2))


@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet50", "mobilenetv2_cifar"])
def test_group_norm_replaces_every_batchnorm(name: str) -> None:
    batch = build(replace(DIGITS, name=name), 0)
    group = build(replace(DIGITS, name=name, norm="group"), 0)
    norms = {
        key: module for key, module in batch.named_modules() if isinstance(module, nn.BatchNorm2d)
    }
    assert norms
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in group.modules())
    for key, norm in norms.items():
        new = group.get_submodule(key)
        assert isinstance(new, nn.GroupNorm)
        assert new.num_channels == norm.num_features
        assert new.num_channels // new.num_groups >= 2
        assert new.num_groups <= 32
    assert parameters(group) == parameters(batch)
    assert not list(group.buffers())
    assert torch.isfinite(group(torch.rand(2, 1, 8, 8))).all()


@pytest.mark.parametrize("shape", [(3, 2, 8, 8), (2, 3, 7, 5), (4, 3, 2, 6, 9)])
def test_pooling_without_gradients_gives_the_same_numbers(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    x.view(-1)[1] = torch.nan
    rows = x.flatten(0, -4)  # nn.MaxPool2d takes one dimension in front of the channels at most
    with torch.no_grad():
        found = MaxPool2x2()(x).flatten(0, -4)
    torch.testing.assert_close(found, nn.MaxPool2d(2)(rows), rtol=0, atol=0, equal_nan=True)


# ---- start weights


@pytest.fixture(scope="module")
def imagenet() -> dict[str, torch.Tensor]:
    """A state dict with torchvision's names and 1000 classes, as the download brings it."""
    state: dict[str, torch.Tensor] = torchvision.models.resnet18(weights=None).state_dict()
    return state


def check_features(model: nn.Module, given: dict[str, torch.Tensor]) -> None:
    own = model.state_dict()
    for key, value in given.items():
        if not key.startswith("fc."):
            assert torch.equal(own[f"features.{key}"], value), key


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_torchvision_file_with_another_head(
    tmp_path: Path, imagenet: dict[str, torch.Tensor], suffix: str
) -> None:
    file = tmp_path / f"r{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(imagenet, file)
    else:
        torch.save(imagenet, file)
    model = build(replace(RESNET, weights=str(file)), 5)
    check_features(model, imagenet)
    assert torch.equal(model.head.weight, build(RESNET, 5).head.weight)


@pytest.mark.parametrize("change", [{"name": "cnn"}, {"norm": "group"}, {"in_channels": 2}])
def test_pretrained_where_there_is_no_such_thing(
    change: dict[str, str], monkeypatch: pytest.MonkeyPatch, imagenet: dict[str, torch.Tensor]
) -> None:
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda *_, **__: imagenet
    )
    with pytest.raises(ConfigError, match=r"model\.pretrained=true"):
        build(replace(RESNET, pretrained=True, **change), 0)


FAULTS = {
    "missing": ({"layer1.0.conv1.weight": None}, r"missing features\.layer1\.0\.conv1\.weight$"),
    "unknown": (
        {f"new{i}": torch.zeros(1) for i in range(5)},
        "unknown new0, new1, new2, and 2 more",
    ),
    "misshapen": ({"bn1.weight": torch.zeros(63)}, r"bn1\.weight \(63,\) \(the model's: \(64,\)\)"),
    "not finite": (
        {"bn1.weight": torch.full((64,), torch.nan)},
        r"not finite features\.bn1\.weight",
    ),
    "nested": ({"epoch": 3}, "not a plain state dict, epoch is no tensor"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit(
    tmp_path: Path, imagenet: dict[str, torch.Tensor], fault: str
) -> None:
    change, message = FAULTS[fault]
    state = {name: value for name, value in (imagenet | change).items() if value is not None}
    torch.save(state, tmp_path / "r.pth")
    with pytest.raises(ConfigError, match=message):
        build(replace(RESNET, weights=str(tmp_path / "r.pth")), 0)


class Surprise:
    """An object that only a full unpickling could bring back."""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.pt", b"not weights at all", "cannot be read as weights"),
        ("w.safetensors", b"PK\x03\x04 cut", "cannot be read as weights"),
        ("w.pt", {"cnn": Surprise()}, "cannot be read as weights"),
        ("w.pt", torch.zeros(3), "it holds no tensors by name"),
        ("w.pt", None, "there is no such file"),
        ("w.bin", b"", r"\.safetensors, \.pt or \.pth is needed, not \.bin"),
    ],
)
def test_files_that_are_no_weights_are_refused(tmp_path: Path, name, content, message) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises(ConfigError, match=message):
        build(replace(DIGITS, weights=str(tmp_path / name)), 0)


# ---- names and sizes


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("cnn", 3), ("cnn_reddi", 5), ("cnn_fedavg", 15), ("resnet50", 7),
        ("mobilenetv2_cifar", 7), ("leaf_femnist", 3), ("leaf_celeba", 8),
    ],
)  # fmt: skip
def test_images_that_are_too_small(name: str, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: images of {size}x{size} pixels are too small"):
        build(ModelSpec(name=name, num_classes=2, in_channels=1, image_size=size), 0)
    build(ModelSpec(name=name, num_classes=2, in_channels=1, image_size=size + 1), 0)


def net(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def wrong(num_classes, in_channels, image_size):
    return net(num_classes + 1, in_channels, image_size)


def nothing(num_classes, in_channels, image_size):
    return None


def stuck(num_classes, in_channels, image_size):
    return nn.Linear(3, num_classes)


def classes_alone(num_classes):
    return None


def orthogonal(num_classes, in_channels, image_size):
    wide = nn.Linear(256, 256, bias=False)
    nn.init.orthogonal_(wide.weight)
    first = nn.Linear(in_channels * image_size**2, 256)
    return nn.Sequential(nn.Flatten(), first, wide, nn.Linear(256, num_classes))


def tagger(num_classes, vocabulary, length):
    return nn.Sequential(nn.Embedding(vocabulary, 4), nn.Linear(4, num_classes))


def bag(num_classes, vocabulary, length):
    return nn.Sequential(nn.EmbeddingBag(vocabulary, 4), nn.Linear(4, num_classes))


def test_the_number_of_threads_changes_no_bit_and_stays() -> None:
    spec, before, built = replace(DIGITS, name=f"{__name__}:orthogonal"), [], []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            built.append(build(spec, 0))
            before.append(torch.get_num_threads())
        with pytest.raises(ConfigError):
            build(replace(DIGITS, name="none"), 0)
        before.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(threads)
    assert same(*built)
    assert before == [1, 2, 2]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("stuck", r"does not take images \(2, 1, 8, 8\): RuntimeError: .*mat1 and mat2"),
        ("classes_alone", r"takes 1 positional argument but 3 were given"),
        ("wrong", r"2 samples give \(2, 11\), not outputs \(2, 10\)"),
        ("nothing", r"returned NoneType, not a torch\.nn\.Module"),
        ("nets", r"no function 'nets' \(did you mean 'net'\?\)"),
    ],
)
def test_function_of_your_own_that_gives_no_model(function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(replace(DIGITS, name=f"{__name__}:{function}"), 0)


# ---- fedsim.core.imports, shared with data sets and methods


@pytest.fixture
def module_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes the given text as a module of the user's and returns the module's name."""

    def write(text: str) -> str:
        (tmp_path / "own_method_of_test.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "own_method_of_test", raising=False)
        return "own_method_of_test"

    return write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module", r"cannot be imported \(No module named 'no_such_module'\)"),
        ("def build(:", r"cannot be imported \(SyntaxError: .*line 1\)"),
        ("1 / 0", r"cannot be imported \(ZeroDivisionError: .* \(.*:1, in <module>\)\)"),
        ("raise OSError('a\\nb')", r"cannot be imported \(OSError: a b \(.*:1, in <module>\)\)"),
        ("build = 3", r"has no function 'build'$"),
        ("bild = int", r"has no function 'build' \(did you mean 'bild'\?\)"),
    ],
)
def test_module_of_your_own_that_fails(
    module_with: Callable[[str], str], text: str, message: str
) -> None:
    name = module_with(text)
    with pytest.raises(ConfigError, match=rf"^here: '?{name}'? {message}"):
        resolve(f"{name}:build", "here")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":x", r"':x' is not of the form module:function"),
        ("os:getcwd", r"the function returned str, needed is fedsim\.algorithms\.base\.Algorithm"),
        ("os:path", r"os has no function 'path'"),
        ("os:listdir", r"'path=None' is no hyperparameter; .* path: float = 0\.5"),
        ("builtins:dict", r"its parameters cannot be read"),
    ],
)
def test_name_that_is_no_method(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm '{name}': {message}") as caught:
        algorithms.load(name)
    assert "\n" not in str(caught.value)
    done = CliRunner().invoke(main, ["run", "--engine", "serial", "-a", name])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_reference_class_of_two_is_a_sigmoid_of_one_output() -> None:
    spec = ModelSpec(
        name="logistic_reference", num_classes=2, in_channels=13, image_size=1, inputs="features"
    )
    model = build(spec, 0).double()
    assert parameters(model) == 14
    x, y = torch.randn(9, 13, dtype=torch.float64), torch.arange(9) % 2
    torch.nn.functional.cross_entropy(model(x), y).backward()
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    one = nn.Linear(13, 1).double()
    one.load_state_dict(model.head.state_dict())
    nn.BCELoss()(torch.sigmoid(one(x)).squeeze(1), y.double()).backward()
    for p, gradient in zip(one.parameters(), ours, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-9, atol=1e-12)
    three = build(replace(spec, num_classes=3), 0)
    assert torch.equal(three(x.float())[:, 0], torch.zeros(9))
    assert three(x.float()).shape == (9, 3)


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
def test_a_start_drawn_as_torch_draws_it(seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        expected = nn.Linear(13, 1)
    spec = ModelSpec(
        name="logistic_reference", num_classes=2, in_channels=13, image_size=1,
        inputs="features", init="torch",
    )  # fmt: skip
    drawn = build(spec, seed)
    assert torch.equal(drawn.head.weight, expected.weight)
    assert torch.equal(drawn.head.bias, expected.bias)
    assert not same(drawn, build(replace(spec, init="fedsim"), seed))


def samples(spec: ModelSpec, n: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if spec.inputs == "tokens":
        return torch.randint(spec.in_channels, (n, spec.image_size), generator=generator)
    return torch.rand(n, *zeros(spec).shape[1:], generator=generator)


@pytest.mark.parametrize("spec", [SYNTHETIC, SHAKESPEARE, SENT140, REDDIT], ids=lambda s: s.name)
def test_features_and_head(spec: ModelSpec) -> None:
    model, x = build(spec, 0), samples(spec)
    tokens = (spec.image_size,) if spec.per_token else ()
    features = model.features(x)
    assert features.shape == (3, *tokens, model.head.in_features)
    assert torch.equal(model(x), model.head(features))
    assert model(x).shape == (3, *tokens, spec.num_classes)
    model(x).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


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


# ---- inputs


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            replace(SHAKESPEARE, name="cnn"),
            "cnn: takes images with one label each, and the data are tokens with one label each; "
            "for them there are leaf_sent140, leaf_shakespeare, your own as",
        ),
        (replace(REDDIT, per_token=False), r"leaf_reddit: takes tokens with a label for every"),
        (replace(SENT140, name="mlp"), r"mlp: takes images or features with one label each, and"),
    ],
)
def test_data_that_a_model_does_not_take(spec: ModelSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(spec, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "function"), [(REDDIT, "tagger"), (SENT140, "bag"), (SYNTHETIC, "net")]
)
def test_model_of_your_own_for_other_inputs(spec: ModelSpec, function: str) -> None:
    model = build(replace(spec, name=f"{__name__}:{function}"), 0)
    assert model.training
    tokens = (10,) if spec.per_token else ()
    assert model(samples(spec)).shape == (3, *tokens, spec.num_classes)


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


MASKS = ModelSpec(name="unet", num_classes=3, in_channels=3, image_size=40, per_pixel=True)


@pytest.mark.parametrize(
    "name", ["unet", "unet_small", "timm:resnet18", "torchvision:fcn_resnet50"]
)
@pytest.mark.parametrize(("channels", "size"), [(1, 40), (3, 35)])
def test_networks_for_masks_are_features_and_head_and_learn(name, channels, size):
    spec = replace(MASKS, name=name, in_channels=channels, image_size=size)
    model, x = models.build(spec, 0), torch.rand(2, channels, size, size)
    assert model(x).shape == spec.output_shape(2)
    model.eval()
    assert torch.equal(model(x), model.head(model.features(x)))
    assert {slot.head for slot in FlatModel(model, torch.device("cpu")).layout.slots} == {
        True,
        False,
    }
    model(x).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_segmentation_network_is_torchvisions():
    """With its weights, of which the auxiliary classifier's are not there, and its last layer."""
    net = torchvision.models.get_model(
        "fcn_resnet50", weights=None, weights_backbone=None, num_classes=3
    )
    model, x = (
        models.build(replace(MASKS, name="torchvision:fcn_resnet50"), 0).eval(),
        torch.rand(2, 3, 40, 40),
    )
    assert not weights._copy(net.state_dict(), model, "test", with_head=True)
    torch.testing.assert_close(model(x), net.eval()(x)["out"])


def test_an_encoders_weights_leave_the_pyramid_as_drawn():
    encoder = pytest.importorskip("timm").create_model("resnet18", features_only=True)
    model = models.build(replace(MASKS, name="timm:resnet18"), 0)
    drawn = weights._copy(encoder.state_dict(), model, "test", with_head=True)
    assert set(drawn) == {f"head.{name}" for name in model.head.state_dict()}


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
        ({"name": "torchvision:resnet50", "per_pixel": True}, r"no such network for masks"),
        ({"name": "torchvision:squeezenet1_0"}, r"its classifier is not a linear layer"),
        ({"inputs": "tokens"}, r"takes images, and the data are tokens"),
        ({"name": "torchvision:vit_b_16", "image_size": 30}, r"images of 30x30 pixels: "),
    ],
)
def test_networks_of_torchvision_that_do_not_fit(change, message):
    with pytest.raises(ConfigError, match=message):
        models.build(replace(SQUARES, **change), 0)


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


def test_pretrained_weights_that_cannot_be_had(monkeypatch):
    def nothing(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", nothing)
    message = r"of torchvision:mobilenet_v3_small cannot be had \(no route.*model\.weights=FILE"
    with pytest.raises(ConfigError, match=message):
        models.build(replace(SQUARES, pretrained=True), 0)
    timm = pytest.importorskip("timm")
    monkeypatch.setattr(timm, "create_model", nothing)
    with pytest.raises(ConfigError, match=r"timm:test_vit cannot be had"):
        libraries.pretrained(of_timm(pretrained=True))
