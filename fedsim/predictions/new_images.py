"""Predictions for image files that have no labels: ``fedsim predict RUN --images``.

Images are read as those of a folder are (``-d folder``), at the size, channels, mean and standard
deviation that the run's model says it was trained with. The run's own data need not be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Array, Pipeline
from fedsim.data.images import decode, grey
from fedsim.data.transforms import Transforms
from fedsim.predictions.final_model import FinalModel, final_model

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
"""Files with such names, in capitals or not, are the images of a folder and of those in it."""


def read(model: FinalModel, file: Path) -> Array:
    """An image file as (channels, size, size) uint8."""
    pixels = decode(file, model.spec.image_size)
    return grey(pixels) if model.spec.in_channels == 1 else pixels


def predict(model: FinalModel, files: Sequence[Path]) -> pd.DataFrame:
    """A row per file: ``file``, ``prediction`` (a class's name), ``probability_<class>``."""
    pipeline = Pipeline(size=model.spec.image_size, mean=model.mean, std=model.std)
    test = Transforms(pipeline, torch.device("cpu")).test

    def inputs(some: slice) -> torch.Tensor:
        return test(torch.from_numpy(np.stack([read(model, file) for file in files[some]])))

    columns = model.predict(inputs, len(files), lambda i: str(files[i]))
    return pd.DataFrame({"file": list(map(str, files)), **columns})


def image_model(
    run: Path, client: int | str | None = None, *, accept_changed_code: bool = False
) -> FinalModel:
    """The final model of a finished run on images, or that of one client, by number or name."""
    model = final_model(run, client, accept_changed_code=accept_changed_code)
    spec = model.spec
    if spec.inputs != "images" or spec.in_channels not in (1, 3):
        what = spec.inputs if spec.inputs != "images" else f"images of {spec.in_channels} channels"
        raise ConfigError(f"{run}: its model takes {what}, no files of images of 1 or 3 channels")
    return model


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
