"""Predictions of a class for each pixel: masks, in a table and as PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedsim import tasks
from fedsim.core import files
from fedsim.core.types import I64, Array, Dataset
from fedsim.data.masks import enlarged, size_of, write_mask
from fedsim.metrics.samples import predicted
from fedsim.predictions.models import FinalModel


def of_samples(dataset: Dataset, index: I64, masks: Array) -> pd.DataFrame:
    """A row for each of the samples ``index`` (n,) with its mask (n, H, W) uint8: ``sample``,
    ``file`` where samples are files, the task's measure of it, and as :func:`_pixels`."""
    task, classes = tasks.of(dataset), dataset.num_classes
    measure = next(m for m in task.measures if m.name == task.primary)
    scores = [
        measure.of_samples(np.eye(classes)[mask].transpose(2, 0, 1)[None], dataset.y[i : i + 1])
        for i, mask in zip(index.tolist(), masks, strict=True)
    ]
    frame = pd.DataFrame({"sample": index})
    if dataset.files:
        frame["file"] = [dataset.files[i] for i in index.tolist()]
    frame[measure.name] = pd.Series(scores, dtype="float64")
    return _pixels(frame, list(masks), dataset.class_names)


def of_images(model: FinalModel, paths: Sequence[Path]) -> pd.DataFrame:
    """A row for each image file with its mask, of the image's own size: ``file``, and as
    :func:`_pixels`; what the model does not see, beside the central square, is background."""
    each = model.outputs(lambda some: model.pixels(paths[some]), len(paths), 1)
    found = (predicted(model.task, outputs)[0] for outputs in each)
    masks = [enlarged(mask, size_of(path)[::-1]) for mask, path in zip(found, paths, strict=True)]
    frame = pd.DataFrame({"file": list(map(str, paths))})
    return _pixels(frame, masks, model.description.classes)


def _pixels(frame: pd.DataFrame, masks: Sequence[Array], classes: Sequence[str]) -> pd.DataFrame:
    """With ``pixels_<class>``, how many the mask has, and ``mask`` (H, W) uint8 itself."""
    counts = np.array([np.bincount(mask.ravel(), minlength=len(classes)) for mask in masks])
    for k, name in enumerate(classes):
        frame[f"pixels_{name}"] = counts[:, k]
    frame["mask"] = list(masks)  # type: ignore[assignment]
    return frame


def folder_of(table: Path) -> Path:
    """Where the masks of a table lie: beside it, ``new_masks/`` of ``new.csv``."""
    return table.with_name(f"{table.stem}_masks")


def written(frame: pd.DataFrame, table: Path) -> pd.DataFrame:
    """The frame with the files of the masks, which are written to :func:`folder_of`, in place of
    these: PNG files of class indices, with a colour for each class."""
    folder = folder_of(table)
    names = [Path(str(name)).stem for name in frame["file" if "file" in frame else "sample"]]
    times = Counter(names)
    names = [name if times[name] == 1 else f"{row}_{name}" for row, name in enumerate(names)]
    with files.replacing_folder(folder) as unfinished:
        for name, mask in zip(names, frame["mask"], strict=True):
            write_mask(unfinished / f"{name}.png", mask)
    return frame.assign(mask=[f"{folder.name}/{name}.png" for name in names])
