"""Predictions for rows of tables that have no labels: ``fedsim predict RUN --rows``.

Rows are prepared by the numbers that the run kept, ``preprocessing.json``. The run's own data need
not be there.
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
from fedsim.data.files import listed_files
from fedsim.data.new_rows import complete, needed_cells, new_features, read_files, sites_of
from fedsim.predictions.final_model import FinalModel, final_model
from fedsim.storage.run_dir import RunStore

logger = logging.getLogger("fedsim")


def row_model(
    run: Path, client: int | str | None = None, *, accept_changed_code: bool = False
) -> tuple[FinalModel, dict[str, Any]]:
    """The final model of a finished run on tables, or that of one client, and what its run keeps
    for new rows."""
    model = final_model(run, client, accept_changed_code=accept_changed_code)
    known = RunStore(run).read_preprocessing()
    if model.spec.inputs != "features":
        raise ConfigError(f"{run}: its model takes {model.spec.inputs}, no rows of a table")
    if known is None:
        raise ConfigError(
            f"{run}: has no {PREPROCESSING}: its data set is no csv, or it was trained by an "
            "earlier version; train it again"
        )
    if {"features", "missing", "scaling", "all", "sites", "site", "patient"} - known.keys():
        raise StoreError(f"{run / PREPROCESSING}: damaged: not what fedsim writes there")
    return model, known


def predict(
    model: FinalModel,
    known: Mapping[str, Any],
    paths: Sequence[Path | str],
    client: int | str | None = None,
) -> pd.DataFrame:
    """A row per row of the files: ``file`` where there are several, ``row``, ``site`` and
    ``patient`` where known, ``prediction`` (a class's name), ``probability_<class>``."""
    files = [file for path in paths for file in listed_files(Path(path))]
    columns = [feature["column"] for feature in known["features"]]
    table = read_files(files, columns, files[0])
    if needed := needed_cells(known):
        table, remarks = complete(table, needed)
        for remark in remarks:
            logger.warning("%s: %s", files[0], remark)
    sites = sites_of(table, known, str(client))
    x = new_features(table, sites, known)
    if x.shape[1] != model.spec.in_channels:
        wanted = model.spec.in_channels
        raise DataError(f"{PREPROCESSING} gives {x.shape[1]} features, the model takes {wanted}")
    if not (finite := np.isfinite(x).all(axis=1)).all():
        raise DataError(f"{table.where(int(finite.argmin()))}: a feature is not finite")
    found = model.predict(lambda some: torch.from_numpy(x[some]), len(x), table.where)
    about: dict[str, Any] = {"file": list(map(str, table.files))} if table.files else {}
    about["row"] = list(table.numbers)
    about |= {"site": sites} if any(sites) else {}
    for role in ("site", "patient"):
        column = next((name for name in (known[role], role) if name in table.columns), None)
        if column is not None and column not in columns:
            about[role] = list(table.columns[column])
    return pd.DataFrame(about | found)
