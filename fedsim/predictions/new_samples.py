"""Predictions for samples without labels: ``fedsim predict RUN --images`` and ``--rows``.

Images are read as those of ``-d folder``, at the size, channels, mean and standard deviation of the
run's model; rows are prepared by ``preprocessing.json`` of the run, texts by its
``vocabulary.json``. The run's own data need not be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedsim.core.errors import ConfigError, DataError, StoreError
from fedsim.core.files import PREPROCESSING
from fedsim.core.tables import Table
from fedsim.core.types import Array
from fedsim.data import new_rows
from fedsim.data.files import listed_files
from fedsim.data.readers.leaf_text import tokens
from fedsim.predictions import masks
from fedsim.predictions.models import FinalModel
from fedsim.storage.run_dir import RunStore

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
"""Files with such names, in capitals or not, are the images of a folder and of those in it."""
_KEYS = {"features", "missing", "scaling", "all", "sites", "site", "patient"}


def of_images(run: Path, model: FinalModel, paths: Sequence[Path | str]) -> pd.DataFrame:
    """A row per file: ``file``, ``prediction`` (a class's name), ``probability_<class>``; of a
    class for each pixel as :func:`fedsim.predictions.masks.of_images`."""
    check_takes_images(run, model)
    files = image_files(paths)
    if model.spec.per_pixel:
        return masks.of_images(model, files)
    columns = model.predict(
        lambda some: model.pixels(files[some]), len(files), lambda i: str(files[i])
    )
    return pd.DataFrame({"file": list(map(str, files)), **columns})


def check_takes_images(run: Path, model: FinalModel) -> None:
    """Refuses a run whose model takes something else than image files."""
    spec = model.spec
    if spec.inputs != "images" or spec.in_channels not in (1, 3):
        what = spec.inputs if spec.inputs != "images" else f"images of {spec.in_channels} channels"
        raise ConfigError(f"{run}: its model takes {what}, no files of images of 1 or 3 channels")


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


def of_rows(
    run: Path, model: FinalModel, paths: Sequence[Path | str], client: int | str | None
) -> pd.DataFrame:
    """A row per row of the files: ``file`` where there are several, ``row``, ``site`` and
    ``patient`` where known, ``prediction`` (a class's name), ``probability_<class>``."""
    files = [file for path in paths for file in listed_files(Path(path))]
    about: dict[str, Any] = {}
    if model.spec.inputs == "tokens":
        table, x = _texts(model, run, files)
    else:
        table, about, x = new_rows.read(files, preprocessing_of(run, model), str(client))
    found = model.predict(lambda some: torch.from_numpy(x[some]), len(x), table.where)
    place = {"file": list(map(str, table.files))} if table.files else {}
    return pd.DataFrame({**place, "row": list(table.numbers), **about, **found})


def preprocessing_of(run: Path, model: FinalModel) -> dict[str, Any]:
    """What a run on tables keeps for new rows."""
    known = RunStore(run).read_preprocessing()
    if model.spec.inputs != "features":
        raise ConfigError(f"{run}: its model takes {model.spec.inputs}, no rows of a table")
    if known is None:
        raise ConfigError(
            f"{run}: has no {PREPROCESSING}: its data set is no csv, or it was trained by an "
            "earlier version; train it again"
        )
    if _KEYS - known.keys():
        raise StoreError(f"{run / PREPROCESSING}: damaged: not what fedsim writes there")
    return known


def _texts(model: FinalModel, run: Path, files: Sequence[Path]) -> tuple[Table, Array]:
    """The rows, and the tokens (n, T) int64 of the texts in the run's column of texts."""
    words = RunStore(run).read_words()
    if model.spec.per_token or words is None or len(words) + 1 != model.spec.in_channels:
        raise ConfigError(f"{run}: its texts have no words of their own with one class a text")
    column = model.config.data.column_names.get("text", "text").lower()
    table = new_rows.read_files(files, [column], files[0])
    x, _ = tokens(table.columns[column], model.spec.image_size, np.empty(0), 0, words)
    return table, x.astype(np.int64)
