"""Start weights: by download, from a file or from a run; never a silent random start."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedsim.core.errors import ConfigError, one_line
from fedsim.core.files import MODEL
from fedsim.core.layout import FlatModel, changed, not_finite
from fedsim.core.text import few
from fedsim.core.types import ModelSpec
from fedsim.models import libraries
from fedsim.models.frozen import merged
from fedsim.models.trainable import ALL, Lora, parse
from fedsim.models.vision import SplitModel

UNTRAINED = "untrained"
"""The entry in the metadata of ``MODEL`` that says why its tensors are those of the start."""
_IMAGENET = ("resnet18", "resnet50")
"""The models for which torchvision publishes ImageNet weights."""


@dataclass(frozen=True)
class Loaded:
    """The head's tensors that stay as drawn, and lines that the user should read."""

    drawn: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check(flat: FlatModel, name: str) -> None:
    """Refuses start weights that are not finite, and a model of which nothing is trained."""
    bad = not_finite(flat.vector(), flat.layout)
    bad += [tensor for tensor, array in flat.frozen.items() if not np.isfinite(array).all()]
    if bad:
        raise ConfigError(
            f"model.name={name}: the start weights are NaN or infinite in tensor {bad[0]}"
        )
    if not flat.params:
        raise ConfigError(f"model.name={name}: no parameter of it is trained")


def apply(model: nn.Module, spec: ModelSpec, classes: Sequence[str] = ()) -> Loaded:
    """Overwrites ``model``'s random start by the weights that ``spec`` asks for, in place.

    ``spec.weights``, a file or a run, comes before ``spec.pretrained``; with neither nothing
    happens. The head fits where it has the same shape and, as far as the file says, the same
    ``classes`` in the same order; otherwise it stays as drawn.
    """
    theirs: tuple[str, ...] = ()
    if spec.weights is not None:
        key, origin = "model.weights", f"model.weights={spec.weights}"
        tensors, theirs = read_tensors(spec.weights)
    elif spec.pretrained:
        key, origin = "model.pretrained", f"model.pretrained=true, model.name={spec.name}"
        tensors = _download(spec)
    else:
        return Loaded()
    other = ""
    if theirs and classes and theirs != tuple(classes):
        pairs = enumerate(zip_longest(theirs, classes))
        number, (their, our) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        other = f"class {number} is {their!r} in the weights' data and {our!r} in these"
    drawn = _copy(tensors, model, origin, with_head=not other)
    if other and not drawn:
        raise ConfigError(
            f"{origin}: {other}, and the model has no module 'head' to be initialised anew; to "
            "take all tensors as they are give a file FILE.pt: "
            "torch.save(fedsim.load_model(RUN).state_dict(), FILE.pt)"
        )
    reason = other if len(theirs) == len(classes) else ""
    reason = reason or f"{key} has no head of this shape"
    notes = (f"{' and '.join(drawn)} initialised at random: {reason}",) if drawn else ()
    return Loaded(drawn, notes)


def file_of(path: str) -> Path:
    """The file of ``model.weights``, which may be the directory of a finished run."""
    file = Path(path)
    if file.is_dir():
        if not (file / MODEL).is_file():
            raise ConfigError(f"model.weights={path}: is no finished run, it holds no {MODEL}")
        return file / MODEL
    if file.suffix not in (".safetensors", ".pt", ".pth"):
        raise ConfigError(
            f"model.weights={path}: a run directory, or a file named .safetensors, .pt or .pth is "
            f"needed, not {file.suffix or 'one without suffix'}"
        )
    if not file.is_file():
        raise ConfigError(f"model.weights={path}: there is no such file")
    return file


def read_tensors(path: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors by name of a run, a ``.safetensors`` file or a state dict in a ``.pt``/``.pth``.

    And the classes of a run's model. Adapters that a run trained are added to its weights.
    """
    file = file_of(path)
    metadata: dict[str, str] = {}
    try:
        if file.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(file)
            with safetensors.safe_open(file, framework="pt") as opened:
                metadata = opened.metadata() or {}
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises anything
        reason = "no state dict, or one that is not safe to load: save model.state_dict() alone"
        if isinstance(error, OSError | safetensors.SafetensorError):
            reason = one_line(error)  # torch's would advise to load what is not safe
        raise ConfigError(f"model.weights={path}: cannot be read as weights ({reason})") from error
    odd = [*tensors] if isinstance(tensors, dict) else []
    odd = [key for key in odd if not isinstance(tensors[key], Tensor)]
    if not isinstance(tensors, dict) or not tensors or odd:
        what = f"{few(odd, 3)} is no tensor" if odd else "it holds no tensors by name"
        raise ConfigError(
            f"model.weights={path}: not a plain state dict, {what}; save model.state_dict() alone"
        )
    if UNTRAINED in metadata:
        raise ConfigError(
            f"model.weights={path}: {file.name} of this run of {metadata.get('algorithm')} holds "
            f"the untrained start, {metadata[UNTRAINED]}; give a run of another method, or the "
            "model of one client as a file FILE.pt: "
            "torch.save(fedsim.load_model(RUN, client=K).state_dict(), FILE.pt)"
        )
    model, classes = (_json(metadata.get(key, "null")) for key in ("model", "classes"))
    adapters = parse(model.get("trainable", ALL)) if isinstance(model, dict) else None
    tensors = merged(tensors, adapters) if isinstance(adapters, Lora) else tensors
    return tensors, tuple(map(str, classes)) if isinstance(classes, list) else ()


def _json(text: str) -> Any:
    """The value; None where the text, of another program, is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _download(spec: ModelSpec) -> dict[str, Tensor]:
    if libraries.library_of(spec.name) is not None:
        return libraries.pretrained(spec)
    if spec.name not in _IMAGENET or spec.norm != "batch":
        raise ConfigError(
            f"model.pretrained=true: ImageNet weights exist for {' and '.join(_IMAGENET)} with "
            f"model.norm=batch, not for {spec.name} with {spec.norm}; "
            "use model.weights=FILE or model.pretrained=false"
        )
    return libraries.pretrained(replace(spec, name=f"torchvision:{spec.name}"))


def _copy(
    given: Mapping[str, Tensor], model: nn.Module, origin: str, with_head: bool
) -> tuple[str, ...]:
    """Copies ``given`` into ``model``: all float tensors, and all must match.

    Others are those of a new model in every round; where the file has other ones they cannot be
    had. Names may be the library's (``conv1.weight``, ``fc.weight``) or the model's own. A head
    that is missing or of another shape, or not wanted, stays as it is; returned are its tensors.
    A first convolution for three colours fits a grey image by the sum over the colours.
    """
    every = model.state_dict()
    state = {key: value for key, value in every.items() if value.is_floating_point()}
    classifier = getattr(model, "classifier", SplitModel.classifier)
    new: dict[str, Tensor] = {}
    fixed: dict[str, Tensor] = {}
    for key, value in given.items():
        name = _own_name(key, every, classifier)
        if value.is_floating_point():
            new[name] = value
        elif name in every and not name.endswith("num_batches_tracked"):
            fixed[name] = value
    head = [key for key in state if key.startswith("head.")]
    fits = with_head and all(key in new and new[key].shape == state[key].shape for key in head)
    drawn = () if fits else tuple(head)
    state = {key: value for key, value in state.items() if key not in drawn}
    new = {key: value for key, value in new.items() if key not in drawn}
    convolutions = (name for name, m in model.named_modules() if isinstance(m, nn.Conv2d))
    stem = f"{next(convolutions, '')}.weight"
    if stem in state and stem in new and state[stem].shape[1] == 1 and new[stem].shape[1:2] == (3,):
        new[stem] = new[stem].sum(dim=1, keepdim=True)
    both = sorted(state.keys() & new.keys())
    problems = {
        "missing": sorted(state.keys() - new.keys()),
        "unknown": sorted(new.keys() - state.keys()),
        "misshapen": [
            f"{key} {tuple(new[key].shape)} (the model's: {tuple(state[key].shape)})"
            for key in both
            if state[key].shape != new[key].shape
        ],
        "not finite": [key for key in sorted(new) if not new[key].isfinite().all()],
        "other than the model's, and only float tensors are loaded:": changed(
            {name: every[name] for name in fixed}, fixed
        ),
    }
    faults = [f"{fault} {few(keys, 3)}" for fault, keys in problems.items() if keys]
    if faults:
        raise ConfigError(f"{origin}: the weights do not fit the model: {'; '.join(faults)}")
    for key, value in new.items():
        state[key].copy_(value)  # shares the model's memory
    return drawn


def _own_name(key: str, state: Mapping[str, Tensor], classifier: str) -> str:
    """The model's name of the tensor that its library calls ``key``; other names stay."""
    of_head = key.startswith(f"{classifier}.")
    name = f"head.{key.removeprefix(f'{classifier}.')}" if of_head else f"features.{key}"
    return name if name in state and key not in state else key
