"""Predictions for rows of tables that have no labels: ``fedsim predict RUN --rows``.

Rows are prepared by what the run kept: the numbers in ``preprocessing.json``, or of texts its
words in ``vocabulary.json``. The run's own data need not be there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedsim.core.errors import ConfigError, DataError, StoreError
from fedsim.core.files import PREPROCESSING
from fedsim.core.tables import Table
from fedsim.core.types import Array
from fedsim.data.files import listed_files
from fedsim.data.new_rows import complete, needed_cells, new_features, read_files, sites_of
from fedsim.data.readers.leaf_text import tokens
from fedsim.predictions.final_model import FinalModel, final_model
from fedsim.storage.run_dir import RunStore

logger = logging.getLogger("fedsim")
_KEYS = {"features", "missing", "scaling", "all", "sites", "site", "patient"}


def predict(
    run: Path,
    paths: Sequence[Path | str],
    client: int | str | None = None,
    *,
    accept_changed_code: bool = False,
) -> pd.DataFrame:
    """A row per row of the files: ``file`` where there are several, ``row``, ``site`` and
    ``patient`` where known, ``prediction`` (a class's name), ``probability_<class>``."""
    model = final_model(run, client, accept_changed_code=accept_changed_code)
    files = [file for path in paths for file in listed_files(Path(path))]
    if model.spec.inputs == "tokens":
        table, about, x = _texts(model, run, files)
    else:
        table, about, x = _rows(preprocessing_of(run, model), files, client)
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


def _rows(
    known: Mapping[str, Any], files: Sequence[Path], client: int | str | None
) -> tuple[Table, dict[str, Any], Array]:
    """The rows, their sites and patients, and their features (n, d) float32."""
    columns = [feature["column"] for feature in known["features"]]
    table = read_files(files, columns, files[0])
    if needed := needed_cells(known):
        table, remarks = complete(table, needed)
        for remark in remarks:
            logger.warning("%s: %s", files[0], remark)
    sites = sites_of(table, known, str(client))
    x = new_features(table, sites, known)
    if not (finite := np.isfinite(x).all(axis=1)).all():
        raise DataError(f"{table.where(int(finite.argmin()))}: a feature is not finite")
    about: dict[str, Any] = {"site": sites} if any(sites) else {}
    for role in ("site", "patient"):
        column = next((name for name in (known[role], role) if name in table.columns), None)
        if column is not None and column not in columns:
            about[role] = list(table.columns[column])
    return table, about, x


def _texts(
    model: FinalModel, run: Path, files: Sequence[Path]
) -> tuple[Table, dict[str, Any], Array]:
    """The rows, and the tokens (n, T) int64 of the texts in the run's column of texts."""
    words = RunStore(run).read_words()
    if model.spec.per_token or words is None or len(words) + 1 != model.spec.in_channels:
        raise ConfigError(f"{run}: its texts have no words of their own with one class a text")
    column = model.config.data.column_names.get("text", "text").lower()
    table = read_files(files, [column], files[0])
    x, _ = tokens(table.columns[column], model.spec.image_size, np.empty(0), 0, words)
    return table, {}, x.astype(np.int64)
