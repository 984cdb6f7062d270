"""Start weights: by download, from a file or from a run; never a silent random start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from fedsim.core.reading import parse_json
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
    """What became of start weights.

    Args:
        drawn: names of the head's tensors that stay as drawn, since the weights have none that fit.
        notes: lines that the user should read.
    """

    drawn: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check(flat: FlatModel, name: str) -> None:
    """Refuses start weights that are not finite, and a model of which nothing is trained.

    Raises:
        ConfigError: names the model, and the tensor.
    """
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
    classes in the same order; otherwise it stays as drawn.

    Args:
        model: the network.
        spec: of it.
        classes: names of the data's classes; none: not known.

    Raises:
        ConfigError: the weights cannot be had, or other tensors do not fit the model.
    """
    if spec.weights is None and not spec.pretrained:
        return Loaded()
    if spec.weights is None:
        origin, key = f"model.pretrained=true, model.name={spec.name}", "model.pretrained"
        state, source = _download(spec), Source()
    else:
        origin, key = f"model.weights={spec.weights}", "model.weights"
        state, source = read_tensors(spec.weights), Source.of(file_of(spec.weights))
    other = source.classes and classes and source.classes != tuple(classes)
    drawn = _copy(state, model, origin, with_head=not other)
    notes = []
    if drawn:
        reason = f"{key} has no head of this shape"
        if other and len(source.classes) == len(classes):
            reason = source.first_other(classes)
        notes.append(f"{' and '.join(drawn)} initialised at random: {reason}")
    elif other:
        raise ConfigError(
            f"{origin}: {source.first_other(classes)}, and the model has no module 'head' to be "
            "initialised anew; to take all tensors as they are give a file FILE.pt: "
            "torch.save(fedsim.load_model(RUN).state_dict(), FILE.pt)"
        )
    if source.model not in (None, spec.name):
        notes.append(
            f"{key} is of the model {source.model}; its tensors have the names and shapes of "
            f"{spec.name}, which may compute something else with them"
        )
    return Loaded(drawn, tuple(notes))


@dataclass(frozen=True)
class Source:
    """What a file of weights says of the network that it is of.

    Args:
        model: its name; None: unknown.
        classes: their names in order; none: unknown.
    """

    model: str | None = None
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: Path) -> "Source":
        """That of a file; other programs' metadata do not count."""
        said = _metadata(file) if file.suffix == ".safetensors" else {}
        if not {"model", "classes"} <= said.keys():
            return cls()
        model = _json(said["model"])
        name = model.get("name") if isinstance(model, dict) else None
        return cls(str(name) if name else None, _names(_json(said["classes"])))

    def first_other(self, classes: Sequence[str]) -> str:
        """The first class that is another one than in the data."""
        pairs = enumerate(zip_longest(self.classes, classes))
        number, (theirs, ours) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        return f"class {number} is {theirs!r} in the weights' data and {ours!r} in these"


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _json(text: str | bytes) -> Any:
    """The value; None where the text is no JSON."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _metadata(file: Path) -> dict[str, str]:
    with safetensors.safe_open(file, framework="pt") as opened:
        return opened.metadata() or {}


def file_of(path: str) -> Path:
    """The file of ``model.weights``, which may be the directory of a finished run.

    Raises:
        ConfigError: it is missing, or of no known kind.
    """
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


def read_tensors(path: str) -> dict[str, Tensor]:
    """The tensors by name of a run, a ``.safetensors`` file or a state dict in a ``.pt``/``.pth``.

    A ConfigError where the file is missing, damaged, holds anything but named tensors, or where the
    run has trained models of clients only.
    """
    file = file_of(path)
    try:
        tensors = (
            _of_safetensors(file, path)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    except ConfigError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        reason = "no state dict, or one that is not safe to load: save model.state_dict() alone"
        if isinstance(error, OSError | safetensors.SafetensorError):
            reason = one_line(error)  # torch's would advise to load what is not safe
        raise ConfigError(f"model.weights={path}: cannot be read as weights ({reason})") from error
    if not isinstance(tensors, Mapping) or not tensors:
        raise ConfigError(f"model.weights={path}: holds no state dict (tensors by name)")
    odd = [key for key, value in tensors.items() if not isinstance(value, Tensor)]
    if odd:
        raise ConfigError(
            f"model.weights={path}: not a plain state dict, {_few(odd)} is no tensor; "
            "save model.state_dict() alone"
        )
    return dict(tensors)


def _of_safetensors(file: Path, path: str) -> dict[str, Tensor]:
    """The tensors; adapters that a run trained are added to its weights."""
    tensors, said = safetensors.torch.load_file(file), _metadata(file)
    why = said.get(UNTRAINED)
    if why is not None:
        raise ConfigError(
            f"model.weights={path}: {file.name} of this run of {said.get('algorithm')} holds the "
            f"untrained start, {why}; give a run of another method, or the model of "
            "one client as a file FILE.pt: "
            "torch.save(fedsim.load_model(RUN, client=K).state_dict(), FILE.pt)"
        )
    try:
        adapters = parse(parse_json(said.get("model", "")).get("trainable", ALL))
    except (ValueError, AttributeError):  # what another program says of its model
        return tensors
    return merged(tensors, adapters) if isinstance(adapters, Lora) else tensors


def _download(spec: ModelSpec) -> dict[str, Tensor]:
    if libraries.library_of(spec.name) is not None:
        return libraries.pretrained(spec)
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


def _copy(
    given: Mapping[str, Tensor], model: nn.Module, origin: str, with_head: bool
) -> tuple[str, ...]:
    """Copies ``given`` into ``model``: all float tensors, and all must match.

    Others are no part of what clients train, and are those of a new model in every round; where
    the file has other ones than the model they cannot be had. Counters of BatchNorm do not matter.

    Names may be the library's (``conv1.weight``, ``fc.weight``) or the model's own. A head that is
    missing or of another shape, or not wanted, stays as it is, and its tensors are returned. A
    first convolution for three colours fits a grey image by the sum over the colours: the same
    output as for the image repeated.
    """
    state = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
    classifier = getattr(model, "classifier", SplitModel.classifier)
    fixed = {key: value for key, value in model.state_dict().items() if key not in state}
    new: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    other: list[str] = []
    for key, value in given.items():
        name = _own_name(key, fixed, classifier)
        if name in fixed and not name.endswith("num_batches_tracked"):
            other += changed({name: fixed[name]}, {name: value})
        if value.is_floating_point():
            name = _own_name(key, state, classifier)
            if name in new:
                raise ConfigError(
                    f"{origin}: {names[name]} and {key} are both tensors for {name}; leave one out"
                )
            new[name], names[name] = value, key
    head = [key for key in state if key.startswith("head.")]
    there = [key for key in head if key in new]
    fits = with_head and there and all(new[key].shape == state[key].shape for key in there)
    drawn = () if fits else tuple(head)
    state = {key: value for key, value in state.items() if key not in drawn}
    new = {key: value for key, value in new.items() if key not in drawn}
    convolutions = (name for name, m in model.named_modules() if isinstance(m, nn.Conv2d))
    stem = f"{next(convolutions, '')}.weight"
    if stem in state and stem in new and state[stem].shape[1] == 1 and new[stem].shape[1:2] == (3,):
        new[stem] = new[stem].sum(dim=1, keepdim=True)
    missing, unknown = sorted(state.keys() - new.keys()), sorted(new.keys() - state.keys())
    bad = [key for key in sorted(new) if not new[key].isfinite().all()]
    shapes = [
        f"{key} {tuple(new[key].shape)} (the model's: {tuple(state[key].shape)})"
        for key in sorted(state.keys() & new.keys())
        if state[key].shape != new[key].shape
    ]
    problems = {"missing": missing, "unknown": unknown, "misshapen": shapes, "not finite": bad}
    problems["other than the model's, and only float tensors are loaded:"] = other
    faults = [f"{fault} {_few(keys)}" for fault, keys in problems.items() if keys]
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


def _few(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
