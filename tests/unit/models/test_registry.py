"""fedsim.models: sizes, determinism, norms, start weights and what is refused."""

from __future__ import annotations

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

from fedsim import algorithms
from fedsim.cli import main
from fedsim.core.errors import ConfigError
from fedsim.core.imports import resolve
from fedsim.core.types import ModelSpec
from fedsim.models import build
from fedsim.models.registry import CATALOGUE
from fedsim.models.vision import MaxPool2x2, SplitModel

DIGITS = ModelSpec(name="cnn", num_classes=10, in_channels=1, image_size=8)
RESNET = ModelSpec(name="resnet18", num_classes=3, in_channels=3, image_size=8)
IMAGES = [name for name, entry in CATALOGUE.items() if "images" in entry.inputs]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def same(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x)


@pytest.mark.parametrize(
    ("name", "num_classes", "channels", "size", "count"),
    [
        ("logistic", 10, 1, 8, 10 * 64 + 10),
        ("mlp", 10, 1, 8, 64 * 64 + 64 + 64 * 10 + 10),
        # 9*16 + 32 | 9*16*32 + 64 | 9*32*64 + 128 | 64*10 + 10
        ("cnn", 10, 1, 8, 176 + 4672 + 18560 + 650),
        ("cnn_reddi", 62, 1, 28, 1_206_590),
        ("cnn_reddi", 10, 3, 32, 1_626_442),
        # 75*64 + 64 | 25*64*64 + 64 | 1600*384 + 384 | 384*192 + 192 | 192*10 + 10
        ("cnn_fedavg", 10, 3, 32, 4864 + 102_464 + 614_784 + 73_920 + 1930),
        ("resnet50", 2, 3, 32, 23_512_130),
        ("resnet50", 3, 3, 32, 23_514_179),
        ("mobilenetv2_cifar", 10, 3, 32, 2_296_922),
        ("mobilenetv2_cifar", 100, 3, 32, 2_412_212),
        ("mobilenetv2_cifar", 200, 3, 32, 2_540_312),
    ],
)
def test_number_of_parameters(
    name: str, num_classes: int, channels: int, size: int, count: int
) -> None:
    assert (
        parameters(
            build(
                ModelSpec(
                    name=name, num_classes=num_classes, in_channels=channels, image_size=size
                ),
                0,
            )
        )
        == count
    )


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


def test_group_norm_leaves_a_model_without_norm_alone() -> None:
    spec = replace(DIGITS, name="cnn_reddi")
    assert same(build(spec, 0), build(replace(spec, norm="group"), 0))


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


def test_own_file_restores_the_head_too(tmp_path: Path) -> None:
    file = tmp_path / "cnn.safetensors"
    given = build(DIGITS, 1)
    safetensors.torch.save_file(given.state_dict(), file)
    assert same(build(replace(DIGITS, weights=str(file)), 2), given)


def test_head_of_the_same_number_of_classes_is_taken(
    tmp_path: Path, imagenet: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "r.pth"
    torch.save(imagenet, file)
    model = build(replace(RESNET, num_classes=1000, weights=str(file)), 0)
    assert torch.equal(model.head.weight, imagenet["fc.weight"])
    assert torch.equal(model.head.bias, imagenet["fc.bias"])


@pytest.mark.parametrize("change", [{"name": "cnn"}, {"norm": "group"}, {"in_channels": 2}])
def test_pretrained_where_there_is_no_such_thing(
    change: dict[str, str], monkeypatch: pytest.MonkeyPatch, imagenet: dict[str, torch.Tensor]
) -> None:
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda *_, **__: imagenet
    )
    with pytest.raises(ConfigError, match=r"model\.pretrained=true"):
        build(replace(RESNET, pretrained=True, **change), 0)


def damaged(state: dict[str, torch.Tensor], fault: str) -> dict[str, object]:
    changed: dict[str, object] = dict(state)
    if fault == "missing":
        del changed["layer1.0.conv1.weight"]
    elif fault == "unknown":
        changed["layer9.weight"] = torch.zeros(1)
    elif fault == "misshapen":
        changed["bn1.weight"] = torch.zeros(63)
    elif fault == "not finite":
        changed["bn1.weight"] = torch.full((64,), torch.nan)
    else:
        return {"state_dict": state, "epoch": 3}
    return changed


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", r"missing features\.layer1\.0\.conv1\.weight"),
        ("unknown", r"unknown layer9\.weight"),
        ("misshapen", r"misshapen features\.bn1\.weight \(63,\) \(the model's: \(64,\)\)"),
        ("not finite", r"not finite features\.bn1\.weight"),
        ("nested", r"not a plain state dict, state_dict, epoch is no tensor"),
    ],
)
def test_weights_that_do_not_fit(
    tmp_path: Path, imagenet: dict[str, torch.Tensor], fault: str, message: str
) -> None:
    file = tmp_path / "r.pth"
    torch.save(damaged(imagenet, fault), file)
    with pytest.raises(ConfigError, match=message):
        build(replace(RESNET, weights=str(file)), 0)


class Surprise:
    """An object that only a full unpickling could bring back."""


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_damaged_files_are_refused(tmp_path: Path, suffix: str) -> None:
    for content in (b"", b"not weights at all", b"PK\x03\x04 cut"):
        file = tmp_path / f"w{suffix}"
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"cannot be read as weights"):
            build(replace(DIGITS, weights=str(file)), 0)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    torch.save({"cnn": Surprise()}, file)
    with pytest.raises(ConfigError, match=r"cannot be read as weights"):
        build(replace(DIGITS, weights=str(file)), 0)
    torch.save(torch.zeros(3), file)
    with pytest.raises(ConfigError, match=r"holds no state dict"):
        build(replace(DIGITS, weights=str(file)), 0)
    with pytest.raises(ConfigError, match=r"there is no such file"):
        build(replace(DIGITS, weights=str(tmp_path / "none.pt")), 0)
    with pytest.raises(ConfigError, match=r"\.safetensors, \.pt or \.pth is needed, not \.bin"):
        build(replace(DIGITS, weights=str(tmp_path / "none.bin")), 0)


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


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's with a good model and two functions that give something else."""
    (tmp_path / "own_models_of_test.py").write_text(
        "from torch import nn\n"
        "def net(num_classes, in_channels, image_size):\n"
        "    pixels = in_channels * image_size ** 2\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, num_classes))\n"
        "def wrong(num_classes, in_channels, image_size):\n"
        "    return net(num_classes + 1, in_channels, image_size)\n"
        "def nothing(num_classes, in_channels, image_size):\n"
        "    return None\n"
        "def stuck(num_classes, in_channels, image_size):\n"
        "    return nn.Linear(3, num_classes)\n"
        "def classes_alone(num_classes):\n"
        "    return None\n"
        "def orthogonal(num_classes, in_channels, image_size):\n"
        "    wide = nn.Linear(256, 256, bias=False)\n"
        "    nn.init.orthogonal_(wide.weight)\n"
        "    first = nn.Linear(in_channels * image_size ** 2, 256)\n"
        "    return nn.Sequential(nn.Flatten(), first, wide, nn.Linear(256, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models_of_test", raising=False)
    return "own_models_of_test"


def test_model_of_your_own(own_module: str) -> None:
    spec = replace(DIGITS, name=f"{own_module}:net")
    assert parameters(build(spec, 0)) == 650
    assert same(build(spec, 0), build(spec, 0))
    assert build(spec, 0).training


def test_the_number_of_threads_changes_no_bit_and_stays(own_module: str) -> None:
    spec, before, built = replace(DIGITS, name=f"{own_module}:orthogonal"), [], []
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
        ("classes_alone", r"classes_alone\(\) takes 1 positional argument but 3 were given"),
        ("wrong", r"2 samples give \(2, 11\), not logits \(2, 10\)"),
        ("nothing", r"returned NoneType, not a torch\.nn\.Module"),
        ("nets", r"no function 'nets' \(did you mean 'net'\?\)"),
    ],
)
def test_function_of_your_own_that_gives_no_model(
    own_module: str, function: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(replace(DIGITS, name=f"{own_module}:{function}"), 0)


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
        (
            "1 / 0",
            r"cannot be imported \(ZeroDivisionError: .* \(.*:1, in <module>\)\)",
        ),
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
