"""Start weights: ImageNet's by download, or any from a local file; never a silent random start."""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedsim.core.errors import ConfigError, one_line
from fedsim.core.types import ModelSpec

_IMAGENET = ("resnet18", "resnet50")
"""The models for which torchvision publishes ImageNet weights."""


def load(model: nn.Module, spec: ModelSpec) -> None:
    """Overwrites ``model``'s random start by the weights that ``spec`` asks for, in place.

    ``spec.weights``, a file, comes before ``spec.pretrained``; with neither nothing happens. A
    ConfigError where the weights cannot be had, or do not fit the model.
    """
    if spec.weights is not None:
        _copy(read(spec.weights), model, f"model.weights={spec.weights}")
    elif spec.pretrained:
        _copy(_download(spec), model, f"model.pretrained=true, model.name={spec.name}")


def read(path: str) -> dict[str, Tensor]:
    """The tensors by name of a ``.safetensors`` file or of a state dict in a ``.pt``/``.pth``.

    A ConfigError where the file is missing, damaged, or holds anything but named tensors.
    """
    file = Path(path)
    if file.suffix not in (".safetensors", ".pt", ".pth"):
        raise ConfigError(
            f"model.weights={path}: a file named .safetensors, .pt or .pth is needed, "
            f"not {file.suffix or 'one without suffix'}"
        )
    if not file.is_file():
        raise ConfigError(f"model.weights={path}: there is no such file")
    try:
        found = (
            safetensors.torch.load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a damaged pickle raises anything
        reason = "no state dict, or one that is not safe to load: save model.state_dict() alone"
        if isinstance(error, OSError | safetensors.SafetensorError):
            reason = one_line(error)  # torch's would advise to load what is not safe
        raise ConfigError(f"model.weights={path}: cannot be read as weights ({reason})") from error
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"model.weights={path}: holds no state dict (tensors by name)")
    odd = [key for key, value in found.items() if not isinstance(value, Tensor)]
    if odd:
        raise ConfigError(
            f"model.weights={path}: not a plain state dict, {_few(odd)} is no tensor; "
            "save model.state_dict() alone"
        )
    return dict(found)


def _download(spec: ModelSpec) -> dict[str, Tensor]:
    if spec.name not in _IMAGENET or spec.norm != "batch":
        raise ConfigError(
            f"model.pretrained=true: ImageNet weights exist for {' and '.join(_IMAGENET)} with "
            f"model.norm=batch, not for {spec.name} with {spec.norm}; "
            "use model.weights=FILE or model.pretrained=false"
        )
    from torchvision.models import get_model_weights  # takes two seconds to import

    published = get_model_weights(spec.name)["IMAGENET1K_V1"]
    try:
        state: dict[str, Tensor] = published.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"model.pretrained=true: the weights {published.url} cannot be had "
            f"({error}); fetch that file elsewhere and give it as model.weights=FILE"
        ) from error
    return state


def _copy(given: Mapping[str, Tensor], model: nn.Module, origin: str) -> None:
    """Copies ``given`` into ``model``: all tensors but integer counters, and all must match.

    Names may be torchvision's (``conv1.weight``, ``fc.weight``) or the model's own. The head is
    left as it is when its number of classes differs. A first convolution for three colours fits
    a grey image by the sum over the colours: the same output as for the image repeated.
    """
    own = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
    new = {_own_name(key, own): value for key, value in given.items() if value.is_floating_point()}
    heads = {key for key in ("head.weight", "head.bias") if key in own and key in new}
    if any(new[key].shape[:1] != own[key].shape[:1] for key in heads):
        own = {key: value for key, value in own.items() if key not in heads}
        new = {key: value for key, value in new.items() if key not in heads}
    stem = "features.conv1.weight"
    if stem in own and stem in new and own[stem].shape[1] == 1 and new[stem].shape[1:2] == (3,):
        new[stem] = new[stem].sum(dim=1, keepdim=True)
    missing, unknown = sorted(own.keys() - new.keys()), sorted(new.keys() - own.keys())
    bad = [key for key in sorted(new) if not new[key].isfinite().all()]
    shapes = [
        f"{key} {tuple(new[key].shape)} (the model's: {tuple(own[key].shape)})"
        for key in sorted(own.keys() & new.keys())
        if own[key].shape != new[key].shape
    ]
    problems = {"missing": missing, "unknown": unknown, "misshapen": shapes, "not finite": bad}
    faults = [f"{what} {_few(keys)}" for what, keys in problems.items() if keys]
    if faults:
        raise ConfigError(f"{origin}: the weights do not fit the model: {'; '.join(faults)}")
    model.load_state_dict(new, strict=False)


def _own_name(key: str, own: Mapping[str, Tensor]) -> str:
    """The model's name of the tensor that torchvision calls ``key``; other names stay."""
    name = f"head.{key[3:]}" if key.startswith("fc.") else f"features.{key}"
    return name if name in own and key not in own else key


def _few(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
