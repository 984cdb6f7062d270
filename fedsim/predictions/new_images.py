"""Predictions for image files that have no labels: ``fedsim predict RUN --images``.

Images are read as those of a folder are (``-d folder``), at the size, channels, mean and standard
deviation that the run's model says it was trained with. The run's own data need not be there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import nn

from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError, DivergedError
from fedsim.core.layout import Pristine, layout_of
from fedsim.core.rng import seed_for, torch_scope
from fedsim.core.types import F64, Array, ModelSpec, Pipeline
from fedsim.data.images import decode, grey
from fedsim.data.transforms import Transforms
from fedsim.identity.provenance import Provenance, check_code, code_of
from fedsim.predictions.models import finished_run, load_model
from fedsim.storage.final_models import Description
from fedsim.storage.run_dir import RunStore, client_number
from fedsim.training.assemble import algorithm_of
from fedsim.training.final_models import personal_slots

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
"""Files with such names, in capitals or not, are the images of a folder and of those in it."""

logger = logging.getLogger("fedsim")


@dataclass(frozen=True)
class ImageModel:
    """The final model of a run on images, in evaluation mode on the CPU, and what it takes."""

    network: nn.Module  # (B, channels, size, size) -> (B, C) logits
    spec: ModelSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    config: RunConfig

    def read(self, file: Path) -> Array:
        """An image file as (channels, size, size) uint8."""
        pixels = decode(file, self.spec.image_size)
        return grey(pixels) if self.spec.in_channels == 1 else pixels

    def predict(self, files: Sequence[Path]) -> pd.DataFrame:
        """A row per file: ``file``, ``prediction`` (a class's name), ``probability_<class>``."""
        pipeline = Pipeline(size=self.spec.image_size, mean=self.mean, std=self.std)
        test = Transforms(pipeline, torch.device("cpu")).test
        pristine, size, batches = Pristine(self.network), self.config.evaluation.batch_size, []
        for start in range(0, len(files), size):
            x = np.stack([self.read(file) for file in files[start : start + size]])
            pristine.restore()
            self.network.eval()
            seed = seed_for(self.config.seed, "evaluate images", start)
            with torch.no_grad(), torch_scope(seed):
                batches.append(self.network(test(torch.from_numpy(x))))
        logits = torch.cat(batches).float().numpy()
        chances = probabilities(logits, lambda i: str(files[i]))
        names = np.array(self.classes, dtype=object)
        columns = {"file": list(map(str, files)), "prediction": names[logits.argmax(axis=1)]}
        columns |= {f"probability_{name}": chances[:, k] for k, name in enumerate(self.classes)}
        return pd.DataFrame(columns)


def image_model(
    run: Path, client: int | str | None = None, *, accept_changed_code: bool = False
) -> ImageModel:
    """The final model of a finished run on images, or that of one client, by number or name."""
    config = finished_run(run)
    if client is not None:
        client = client_number(run, config.data.num_clients, client)
    if check_code(run, Provenance.read(run), code_of(config), accept=accept_changed_code):
        logger.warning("%s: its models were trained with the code before the change", run)
    description = Description.read(run)
    network, spec = load_model(run, client), description.model
    if spec.inputs != "images" or spec.in_channels not in (1, 3):
        what = spec.inputs if spec.inputs != "images" else f"images of {spec.in_channels} channels"
        raise ConfigError(f"{run}: its model takes {what}, no files of images of 1 or 3 channels")
    check_alone(run, config)
    algorithm = algorithm_of(config)
    own = personal_slots(algorithm, layout_of(network)) and not algorithm.one_model
    if client is None and own:
        table = RunStore(run).read("partition").drop_duplicates("client_id").set_index("client_id")
        names = table["name"].dropna().head(10).items() if "name" in table else ()
        listed = ", ".join(f"{number} {name}" for number, name in names)
        raise ConfigError(
            f"{run}: with {config.algorithm} each client has a model of its own; choose one by "
            f"--client K, 0 to {config.data.num_clients - 1}{listed and f' ({listed})'}"
        )
    return ImageModel(network, spec, description.classes, description.mean, description.std, config)


def check_alone(run: Path, config: RunConfig) -> None:
    """Refuses methods whose predictions need more of a run than its files."""
    if algorithm_of(config).predict is not None:
        raise ConfigError(
            f"{run}: with {config.algorithm} predictions depend on the clients' training samples, "
            "which new data do not have; fedsim predict without --data-dir and --images reads them"
        )


def image_files(paths: Sequence[Path | str]) -> list[Path]:
    """The files among ``paths``, and the images in those that are folders, each once."""
    images: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"--images {path}: there is no such file or folder")
        files = [path]
        if path.is_dir():
            files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(f"--images {path}: no image in this folder ({', '.join(SUFFIXES)})")
        images |= dict.fromkeys(files)
    return list(images)


def probabilities(logits: Array, name: Callable[[int], str]) -> F64:
    """(n, C) softmax of logits (n, C)."""
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        raise DivergedError(
            f"{name(int(finite.argmin()))}: the model's outputs are NaN or infinite (of "
            f"{int((~finite).sum())} of {finite.size} samples)"
        )
    chances: F64 = softmax(logits.astype(np.float64), axis=1)
    return chances
