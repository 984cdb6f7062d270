"""Networks of timm and torchvision, by their names there: ``timm:NAME``, ``torchvision:NAME``.

Their classifier, a linear layer, becomes the head; all before it, pooling and dropout included, are
the features.
"""

from typing import Any

from torch import Tensor, nn

from fedsim.core.errors import ConfigError, nearest, one_line
from fedsim.core.imports import users_code
from fedsim.core.normalization import Normalization
from fedsim.core.types import ModelSpec
from fedsim.models import pixels
from fedsim.models.catalogue import LIBRARIES
from fedsim.models.vision import SplitModel
from fedsim.version import DISTRIBUTION

_WITHOUT_AUXILIARY = ("googlenet", "inception_v3")
"""torchvision's networks with classifiers in between, which are left out."""


def library_of(name: str) -> str | None:
    """The library that a model's name begins with; None for names of other kinds."""
    library, colon, _ = name.partition(":")
    return library if colon and library in LIBRARIES else None


def build(spec: ModelSpec) -> nn.Module:
    """The randomly initialised network of ``spec``.

    For grey images timm's networks have such a first layer; the weights of torchvision's are summed
    over the colours, which gives the same output as repeating the image.
    """
    where = f"model.name={spec.name}"
    if spec.inputs != "images" or spec.per_token:
        raise ConfigError(f"{where}: takes images, and the data are {spec.inputs}")
    with users_code(f"{where}, images of {spec.image_size}x{spec.image_size} pixels", ConfigError):
        return _of_timm(spec) if library_of(spec.name) == "timm" else _of_torchvision(spec)


def pretrained(spec: ModelSpec) -> dict[str, Tensor]:
    """The weights that the library publishes for a network, with its names and its classes."""
    name = source = spec.name.partition(":")[2]
    try:
        tensors: dict[str, Tensor]
        if library_of(spec.name) == "timm":
            options = {"features_only": True} if spec.per_pixel else {}
            net = _timm().create_model(name, True, **_timm_options(spec), **options)
            tensors = net.state_dict()
            return tensors
        published = _published(name)
        source = published.url
        tensors = published.get_state_dict(progress=False, check_hash=True)
    except ConfigError:
        raise
    except Exception as error:  # of urllib, of huggingface_hub, or for a name without weights
        raise ConfigError(
            f"model.pretrained=true: the weights {source} of {spec.name} cannot be had "
            f"({one_line(error)}); fetch their file elsewhere and give it as model.weights=FILE"
        ) from error
    of_classes = ("aux1.", "aux2.", "AuxLogits.") if name in _WITHOUT_AUXILIARY else ()
    auxiliary = ("aux_classifier.",) if spec.per_pixel else of_classes
    return {key: value for key, value in tensors.items() if not key.startswith(auxiliary)}


def preprocessing(name: str) -> Normalization | None:
    """What a network's published weights were trained with; None where it is of no library, or
    publishes none. Nothing is downloaded.
    """
    library, name_there = library_of(name), name.partition(":")[2]
    if library == "timm":
        cfg = _timm().get_pretrained_cfg(name_there)
        return None if cfg is None else Normalization(cfg.mean, cfg.std, cfg.input_size[-1])
    if library != "torchvision":
        return None
    try:
        made = _published(name_there).transforms()
    except ValueError:  # no such network, which is refused when it is built
        return None
    size = getattr(made, "crop_size", None) or made.resize_size  # whole images of masks
    return Normalization(tuple(made.mean), tuple(made.std), size[0])


def _published(name: str) -> Any:
    """torchvision's weights of a network; a ValueError where it has no such network."""
    from torchvision.models import get_model_weights  # takes two seconds to import

    weights = get_model_weights(name)
    return getattr(weights, "IMAGENET1K_V1", weights.DEFAULT)


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ConfigError(
            f"model.name=timm:NAME needs the package timm ({one_line(error)}); "
            f"pip install '{DISTRIBUTION}[models]'"
        ) from error
    return timm


def _timm_options(spec: ModelSpec) -> dict[str, Any]:
    """Sizes of the input; transformers have to be told the size of the images."""
    options = {"in_chans": spec.in_channels}
    published = _timm().get_pretrained_cfg(spec.name.partition(":")[2])
    if published is not None and published.fixed_input_size:
        options["img_size"] = spec.image_size
    return options


def _of_timm(spec: ModelSpec) -> nn.Module:
    timm, name = _timm(), spec.name.partition(":")[2]
    if not timm.is_model(name):
        raise ConfigError(
            f"model.name={spec.name}: timm {timm.__version__} has no such model"
            f"{nearest(name, timm.list_models())}"
        )
    if spec.per_pixel:
        return pixels.of_timm(spec, timm)
    net = timm.create_model(name, num_classes=spec.num_classes, **_timm_options(spec))
    return _split(net, net.get_classifier(), spec)


def _of_torchvision(spec: ModelSpec) -> nn.Module:
    if spec.per_pixel:
        return _with_grey(pixels.of_torchvision(spec), spec)
    from torchvision import models  # takes two seconds to import

    where, name = f"model.name={spec.name}", spec.name.partition(":")[2]
    names = models.list_models(module=models)
    if name not in names:
        raise ConfigError(f"{where}: torchvision has no such classifier{nearest(name, names)}")
    options: dict[str, Any] = {"image_size": spec.image_size} if name.startswith("vit_") else {}
    if name in _WITHOUT_AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    net = models.get_model(name, weights=None, num_classes=spec.num_classes, **options)
    linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
    return _with_grey(_split(net, linear[-1] if linear else None, spec), spec)


def _with_grey(model: nn.Module, spec: ModelSpec) -> nn.Module:
    """The model for images of one channel, where the data have these, in place."""
    if spec.in_channels != 3:
        where = f"model.name={spec.name}"
        stem = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
        if spec.in_channels != 1 or stem is None or stem.in_channels != 3:
            raise ConfigError(
                f"{where}: takes images of 1 or 3 channels, and the data have {spec.in_channels}"
            )
        stem.in_channels = 1
        stem.weight = nn.Parameter(stem.weight.detach().sum(dim=1, keepdim=True))
    return model


def _split(net: nn.Module, classifier: object, spec: ModelSpec) -> SplitModel:
    """Takes the classifier out of the network."""
    if not isinstance(classifier, nn.Linear) or classifier.out_features != spec.num_classes:
        raise ConfigError(
            f"model.name={spec.name}: its classifier is not a linear layer with "
            f"{spec.num_classes} outputs"
        )
    odd = {type(m).__name__ for m in net.modules() if isinstance(m, nn.BatchNorm2d)}
    if spec.norm == "group" and odd - {"BatchNorm2d"}:
        raise ConfigError(
            f"model.norm=group: {spec.name} has {', '.join(sorted(odd))}, which do more than "
            "normalise"
        )
    name = next(name for name, module in net.named_modules() if module is classifier)
    parent, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(parent), leaf, nn.Identity())
    model = SplitModel(net, classifier)
    model.classifier = name
    return model
