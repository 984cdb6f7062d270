"""Predictions for image files that have no labels: ``fedsim predict RUN --images``.

Images are read as those of a folder are (``-d folder``), at the size, channels, mean and standard
deviation that the run's model says it was trained with. The run's own data need not be there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
BLOCK = 512
"""Images that are in memory at a time."""
LISTED = 10
"""So many unreadable images are named; of more the number is given."""

logger = logging.getLogger("fedsim")


@dataclass(frozen=True)
class ImageModel:
    """The final model of a run on images, and what it takes.

    Args:
        network: in evaluation mode on the CPU: (B, channels, size, size) -> (B, C) logits.
        spec: of the network.
        classes: their names.
        mean: per channel, of values in 0..1.
        std: per channel, of values in 0..1.
        config: of the run.
    """

    network: nn.Module
    spec: ModelSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    config: RunConfig

    def read(self, file: Path) -> Array:
        """An image file as (channels, size, size) uint8.

        Raises:
            DataError: it is truncated or no image.
        """
        pixels = decode(file, self.spec.image_size)
        return grey(pixels) if self.spec.in_channels == 1 else pixels

    @cached_property
    def _pristine(self) -> Pristine:
        return Pristine(self.network)

    def logits(self, x: Array, first: int = 0) -> Array:
        """(n, C) float32 logits of images (n, channels, size, size) uint8.

        Args:
            x: the images.
            first: number of the first one among all; what the network draws depends on it.
        """
        pipeline = Pipeline(size=x.shape[-1], mean=self.mean, std=self.std)
        test = Transforms(pipeline, torch.device("cpu")).test
        size, logits = self.config.evaluation.batch_size, []
        for start in range(0, len(x), size):
            self._pristine.restore()
            self.network.eval()
            seed = seed_for(self.config.seed, "evaluate images", first + start)
            with torch.no_grad(), torch_scope(seed):
                logits.append(self.network(test(torch.from_numpy(x[start : start + size]))))
        together: Array = torch.cat(logits).float().numpy()
        return together


def image_model(
    run: Path, client: int | str | None = None, *, accept_changed_code: bool = False
) -> ImageModel:
    """The final model of a finished run on images, or that of one client, by number or name.

    Raises:
        ConfigError: no finished run, no such client, none named where each has a model of its own,
            a run on other data than images, or a user's function whose code has changed.
        StoreError: a file of the run is missing or damaged.
    """
    config = finished_run(run)
    if client is not None:
        client = client_number(run, config.data.num_clients, client)
    if check_code(run, Provenance.read(run), code_of(config), accept=accept_changed_code):
        logger.warning("%s: its models were trained with the code before the change", run)
    description = Description.read(run)
    network, spec = load_model(run, client), description.model
    if spec.inputs != "images":
        raise ConfigError(f"{run}: its model takes {spec.inputs}, no images")
    if spec.in_channels not in (1, 3):
        raise ConfigError(
            f"{run}: its model takes images of {spec.in_channels} channels; files of images have 1 "
            "or 3"
        )
    if client is None:
        _refuse_without_client(run, config, network)
    return ImageModel(network, spec, description.classes, description.mean, description.std, config)


def _refuse_without_client(run: Path, config: RunConfig, network: nn.Module) -> None:
    """Refuses a run of a method whose clients have models of their own."""
    algorithm = algorithm_of(config)
    if algorithm.one_model or not personal_slots(algorithm, layout_of(network)):
        return
    table = RunStore(run).read("partition")
    names = table.drop_duplicates("client_id").set_index("client_id")
    some = names["name"].dropna().head(LISTED).items() if "name" in names else ()
    listed = ", ".join(f"{k} {name}" for k, name in some)
    raise ConfigError(
        f"{run}: with {config.algorithm} each client has a model of its own; choose one by "
        f"--client K, 0 to {config.data.num_clients - 1}{f' ({listed})' if listed else ''}"
    )


def image_files(paths: Sequence[Path | str]) -> list[Path]:
    """The files among ``paths``, and the images in those that are folders, each once.

    Raises:
        DataError: a path does not exist, or no image is in a folder.
    """
    images: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(f"--images {path}: no image in this folder ({', '.join(SUFFIXES)})")
            images |= dict.fromkeys(inside)
        elif path.is_file():
            images[path] = None
        else:
            raise DataError(f"--images {path}: there is no such file or folder")
    return list(images)


def frames(model: ImageModel, files: Sequence[Path]) -> Iterator[pd.DataFrame]:
    """Blocks of rows: ``file``, ``prediction`` (a class's name), ``probability_<class>`` (softmax).

    Raises:
        DataError: images cannot be read; names them after all others were tried.
        DivergedError: outputs are not finite.
    """
    broken: list[str] = []
    for start in range(0, len(files), BLOCK):
        block, images = files[start : start + BLOCK], []
        for file in block:
            try:
                images.append(model.read(file))
            except DataError as error:
                broken.append(str(error))
        if not broken:
            yield _frame(model, block, np.stack(images), start)
    if broken:
        more = f"; and {len(broken) - LISTED} more" if len(broken) > LISTED else ""
        text = "; ".join(broken[:LISTED]) + more
        raise DataError(
            text if len(files) == 1 else f"{len(broken)} of {len(files)} images: {text}"
        )


def probabilities(logits: Array, name: Callable[[int], str]) -> F64:
    """(n, C) softmax of logits (n, C).

    Raises:
        DivergedError: some of them are not finite; ``name`` gives the sample of a row.
    """
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        raise DivergedError(
            f"{name(int(finite.argmin()))}: the model's outputs are NaN or infinite (of "
            f"{int((~finite).sum())} of {finite.size} samples)"
        )
    chances: F64 = softmax(logits.astype(np.float64), axis=1)
    return chances


def _frame(model: ImageModel, files: Sequence[Path], x: Array, first: int) -> pd.DataFrame:
    logits = model.logits(x, first)
    chances = probabilities(logits, lambda i: str(files[i]))
    names = np.array(model.classes, dtype=object)
    columns = {"file": list(map(str, files)), "prediction": names[logits.argmax(axis=1)]}
    columns |= {f"probability_{name}": chances[:, k] for k, name in enumerate(model.classes)}
    return pd.DataFrame(columns)
