"""Random configurations of tiny runs, each of which follows from a seed and its number."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedsim import algorithms
from fedsim.client.criterion import FORMS
from fedsim.core.imports import resolve

Settings = dict[str, Any]
"""The sections and keys of a :class:`fedsim.RunConfig`, nested."""
OWN_MODELS = "benchmarks.draws"
EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
SHORTCUT = f"{EXAMPLES}/shortcut.py:shortcut"
"""Images of several sites."""
VISION = ("logistic", "mlp", "cnn", "cnn", f"{OWN_MODELS}:deep")
WITH_LAYERS = ("mlp", f"{OWN_MODELS}:deep")
"""Models with a linear layer beside their head, to which adapters can be added."""
MODELS: Mapping[str, Sequence[str]] = {
    "digits": VISION,
    SHORTCUT: VISION,
    "synthetic": ("leaf_synthetic", "leaf_synthetic_linear", "mlp"),
    "shakespeare": ("leaf_shakespeare",),
}
"""Small models by data set; what does not fit is refused and drawn anew."""
TRAINABLE = ("head", "norm", "lora(2)", "lora(2, 8)", "head*", "features.0*,head*")
PARTITIONS: Mapping[str, Sequence[str]] = {
    "digits": ("iid", "dirichlet", "dirichlet_plain", "dirichlet_per_client", "quantity", "shards"),
    SHORTCUT: ("by_site", "by_site", "dirichlet", "quantity"),
    "synthetic": ("natural", "natural", "iid"),
    "shakespeare": ("natural",),
}


def deep(num_classes: int, in_channels: int, image_size: int) -> Any:
    """Two hidden layers with BatchNorm, of which the first may be frozen."""
    from torch import nn

    split = resolve("fedsim.models.vision:SplitModel", "model")
    hidden = (nn.Linear(in_channels * image_size**2, 24), nn.BatchNorm1d(24), nn.ReLU())
    features = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(24, 16), nn.ReLU())
    return split(features, nn.Linear(16, num_classes))


def draw(seed: int, number: int, attempt: int, texts: Path) -> Settings:
    """The settings of a run with the serial engine; some contradict each other and are refused.

    Args:
        seed: of all configurations.
        number: of this one.
        attempt: how many were refused in its place.
        texts: the folder of LEAF's Shakespeare data.
    """
    rng = random.Random(f"{seed}/{number}/{attempt}")
    names = algorithms.names()
    algorithm = names[(seed + number) % len(names)] if attempt < 8 else rng.choice(names)
    kind = rng.choices(tuple(MODELS), (6, 2, 1.5, 0.5))[0]
    settings: Settings = {
        "algorithm": algorithm,
        "seed": rng.randrange(100),
        "data": _data(rng, kind, texts),
        "model": {
            "name": rng.choice(MODELS[kind]),
            "norm": rng.choice(("batch", "batch", "group")),
        },
        "train": _train(rng),
        "evaluation": _evaluation(rng),
        "engine": {
            "kind": "serial",
            "client_batch": rng.choice((1, 1, 2, 3, "auto")),
            "checkpoint_every": rng.choice((1, 2)),
        },
    }
    if rng.random() < 0.5:
        settings["model"]["trainable"] = trainable = rng.choice(TRAINABLE)
        if kind in ("digits", SHORTCUT) and "lora" in trainable:
            settings["model"]["name"] = rng.choice(WITH_LAYERS)
    if rng.random() < 0.1:
        settings["model"]["projection"] = 6
    if rng.random() < 0.35:
        settings["clock"] = _clock(rng)
    if rng.random() < 0.2:
        settings["margin"] = rng.choice(tuple(FORMS))
    if rng.random() < 0.25:
        settings["server"] = ",".join(rng.sample(names, rng.choice((1, 1, 2))))
    if kind == SHORTCUT:
        settings[SHORTCUT] = {"sites": settings["data"]["num_clients"]}
    for name in {algorithm, *settings.get("server", algorithm).split(",")}:
        own = _hyperparameters(rng, name)
        if own:
            settings[name] = own
    _complete(settings)
    return settings


def _complete(settings: Settings) -> None:
    """Adds the parts of the data that some of the settings need."""
    data, evaluation = settings["data"], settings["evaluation"]
    split = evaluation.get("decompose_split")
    if split == "test" or "finetune_epochs" in evaluation:
        data["client_test_fraction"] = 0.2
    if split == "val":
        data["client_val_fraction"] = 0.2
    if "patience" in settings["train"]:
        data["val_fraction"] = 0.2
    if "cosines" in evaluation:
        evaluation["conflicts"] = "always"


def _data(rng: random.Random, kind: str, texts: Path) -> Settings:
    settings: Settings = {"name": kind, "seed": rng.randrange(10), "min_samples": 4}
    settings["partition"] = rng.choice(PARTITIONS[kind])
    if kind == "shakespeare":
        return settings | {"dir": str(texts)}
    settings |= {"num_clients": rng.randint(4, 7), "alpha": rng.choice((0.3, 1.0, 10.0))}
    if kind == "digits":
        settings |= {"test_fraction": 0.7}
    shares = {"val_fraction": 0.3, "client_val_fraction": 0.3, "client_test_fraction": 0.5}
    settings |= {key: 0.2 for key, chance in shares.items() if rng.random() < chance}
    if rng.random() < 0.3:
        settings["heldout_clients"] = rng.choice((1, 2, 0.3))
    if kind != "synthetic" and rng.random() < 0.25:
        settings["feature_shift"] = rng.choice(
            ("blur", "noise", "contrast", "intensity", "rotation")
        )
        settings["shift_test"] = rng.choice(("mixed", "clean"))
    if kind != "synthetic" and rng.random() < 0.2:
        settings["augment"] = rng.choice(("flip", "crop_flip", "autoaugment_cifar10"))
    return settings


def _train(rng: random.Random) -> Settings:
    settings: Settings = {
        "rounds": rng.choice((4, 5)),
        "sample_rate": rng.choice((0.4, 0.7, 1.0)),
        "local_epochs": rng.choice((1, 1, 2)),
        "batch_size": rng.choice((8, 20, 50)),
        "lr": rng.choice((0.01, 0.05)),
        "lr_schedule": rng.choice(("constant", "cosine", "warmup_round")),
    }
    if rng.random() < 0.15:
        settings["optimizer"] = "adamw"
    elif rng.random() < 0.5:
        settings["momentum"] = rng.choice((0.0, 0.9))
    maybe = {"lr_head": 0.02, "frozen_bn": True, "clip_norm": 1.0, "patience": 2, "threads": 2}
    return settings | {key: value for key, value in maybe.items() if rng.random() < 0.12}


def _evaluation(rng: random.Random) -> Settings:
    settings: Settings = {
        "every": rng.choice((1, 1, 2)),
        "batch_size": rng.choice((64, 256)),
        "conflicts": rng.choice(("always", "always", "never", 2)),
    }
    maybe: Settings = {"clients_every": 2, "cosines": True, "finetune_epochs": 1}
    maybe |= {"target_accuracy": 0.3, "personal": rng.choice(("cohort_before", "cohort_after"))}
    settings |= {key: value for key, value in maybe.items() if rng.random() < 0.3}
    if rng.random() < 0.4:
        settings |= {
            "decompose_every": rng.choice((1, 2)),
            "decompose_split": rng.choice(("train", "val", "test", "common_test")),
            "decompose_scope": rng.choice(("cohort", "population")),
            "loss_matrix": rng.random() < 0.5,
        }
        if rng.random() < 0.5:
            settings["decompose_max_samples"] = 5
    return settings


def _clock(rng: random.Random) -> Settings:
    settings: Settings = {
        "samples_per_second": rng.choice(("lognormal(60, 1)", "uniform(20, 200)", 100.0)),
        "upload_mb_s": rng.choice((None, "uniform(0.01, 0.1)")),
        "work": rng.choice((1.0, "uniform(0.2, 1)")),
    }
    if rng.random() < 0.5:
        settings["availability"] = rng.choice((0.8, "uniform(0.6, 1)"))
    if rng.random() < 0.6:
        settings |= {"deadline": rng.choice((1.0, 3.0)), "late": rng.choice(("drop", "partial"))}
    return {key: value for key, value in settings.items() if value is not None}


def _hyperparameters(rng: random.Random, name: str) -> Settings:
    """Other choices for some of the method's hyperparameters that are words or truth values."""
    settings: Settings = {}
    for key, parameter in algorithms.parameters(name).items():
        kind = parameter.annotation
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        choices = (False, True) if kind is bool else choices
        if choices and rng.random() < 0.4:
            settings[key] = rng.choice(choices)
    return settings
