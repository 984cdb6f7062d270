"""Trackers: callbacks that copy a run's tables to TensorBoard, Weights & Biases or MLflow.

Each writes into a folder of its name in the run directory, from which a resumed run knows that it
was tracked. A resumed run repeats the rounds after its checkpoint with the same numbers, and so
does the tracker. The packages are imported when a tracker is made (``pip install
'fedsim-ray[track]'``).
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedsim.core import files
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.reading import parse_json
from fedsim.identity.resume import decisive
from fedsim.training.callbacks import Callback, Rows, RunInfo

logger = logging.getLogger("fedsim")

Numbers = dict[str, float]


class Tracker(Callback):
    """Copies every round of a run to a tool that shows it; see :func:`tracker`. Scalars are the
    columns of rounds.csv, under their names; the settings that decide the results go with them."""

    reads_files = False
    name: ClassVar[str]
    """Of the tracker and of its folder in the run directory."""
    package: ClassVar[str]
    """What pip installs."""
    module: ClassVar[str]
    """What is imported."""

    def __init__(self) -> None:
        try:
            self.sdk = importlib.import_module(self.module)
        except ImportError as error:
            raise ConfigError(
                f"--track {self.name}: {error}; it needs the package {self.package}: "
                f"pip install {self.package}"
            ) from error
        self.opened, self.round = False, 0
        self.summary: Mapping[str, object] | None = None

    def on_run_start(self, info: RunInfo) -> None:
        folder = info.out / self.name
        folder.mkdir(exist_ok=True)
        self.open(info, folder)
        self.opened, self.round = True, info.done

    def on_round_end(self, round: int, rows: Rows) -> None:
        (row,) = rows["rounds"]
        if self.opened:
            self.log(round, _finite({name: row[name] for name in row if name != "round"}))
            self.round = round

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        self.summary = summary

    def close(self) -> None:
        """Ends, of a run that failed or was interrupted without results."""
        if self.opened:
            self.opened = False
            self.finish(self.summary)

    @abstractmethod
    def open(self, info: RunInfo, folder: Path) -> None:
        """Begins or continues."""

    @abstractmethod
    def log(self, round: int, numbers: Numbers) -> None:
        """Writes a round."""

    @abstractmethod
    def finish(self, summary: Mapping[str, object] | None) -> None:
        """Ends, with the row of summary.csv or, where the run failed, without."""


class TensorBoard(Tracker):
    """Event files in ``RUN/tensorboard``, written by tensorboardX."""

    name, package, module = "tensorboard", "tensorboardX", "tensorboardX"

    def open(self, info: RunInfo, folder: Path) -> None:
        number = len(list(folder.iterdir()))
        self.writer = self.sdk.SummaryWriter(str(folder), filename_suffix=f".{number}")
        if number == 0:
            lines = (f"    {key}: {value}" for key, value in decisive(info.config).items())
            self.writer.add_text("config", "\n".join(lines), 0)

    def log(self, round: int, numbers: Numbers) -> None:
        for tag, value in numbers.items():
            self.writer.add_scalar(tag, value, round)
        self.writer.flush()

    def finish(self, summary: Mapping[str, object] | None) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run of W&B in ``RUN/wandb``, offline unless WANDB_MODE says otherwise."""

    name, package, module = "wandb", "wandb", "wandb"

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        super().__init__()

    def open(self, info: RunInfo, folder: Path) -> None:
        self.run = self.sdk.init(
            project=os.environ.get("WANDB_PROJECT", "fedsim"),
            dir=str(info.out),
            id=_identity(folder, lambda: secrets.token_hex(4)),
            name=info.out.resolve().name,
            config=decisive(info.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=self.sdk.Settings(
                silent=True, console="off", disable_git=True, disable_code=True,
                x_disable_stats=True,
            ),
        )  # fmt: skip

    def log(self, round: int, numbers: Numbers) -> None:
        self.run.log(numbers, step=round, commit=True)

    def finish(self, summary: Mapping[str, object] | None) -> None:
        if summary is not None:
            self.run.summary.update({k: v for k, v in summary.items() if v is not None})
        self.run.finish(exit_code=int(summary is None))


class MLflow(Tracker):
    """A run of MLflow, in files in ``RUN/mlflow`` unless MLFLOW_TRACKING_URI names a server."""

    name, package, module = "mlflow", "mlflow-skinny", "mlflow"

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        super().__init__()

    def open(self, info: RunInfo, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
        self.client = self.sdk.MlflowClient(tracking_uri=uri)
        self.id = _identity(folder, lambda: self._create(info.out.resolve().name))
        self.client.update_run(self.id, "RUNNING")
        make = self.sdk.entities.Param
        settings = {re.sub(r"[^\w./ -]", "_", k): v for k, v in decisive(info.config).items()}
        params = [make(key, str(value)[:500]) for key, value in settings.items()]
        for start in range(0, len(params), 100):  # so many at once are allowed
            self.client.log_batch(self.id, params=params[start : start + 100])

    def _create(self, name: str) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsim")
        existing = self.client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else self.client.create_experiment(experiment)
        return str(self.client.create_run(number, run_name=name).info.run_id)

    def log(self, round: int, numbers: Numbers) -> None:
        make, now = self.sdk.entities.Metric, time.time_ns() // 1_000_000
        metrics = [make(tag, value, now, round) for tag, value in numbers.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def finish(self, summary: Mapping[str, object] | None) -> None:
        if summary is not None and self.round:
            results = {k: v for k, v in summary.items() if k.startswith(("final_", "best_test_"))}
            self.log(self.round, _finite(results))
        self.client.set_terminated(self.id, "FAILED" if summary is None else "FINISHED")


TRACKERS: Mapping[str, type[Tracker]] = {t.name: t for t in (TensorBoard, WeightsAndBiases, MLflow)}
"""By name."""


def tracker(name: str) -> Tracker:
    """A tracker (tensorboard, wandb or mlflow) for the callbacks of one :func:`fedsim.run`. A
    ConfigError where there is none of this name, or its package is not installed."""
    if name not in TRACKERS:
        raise ConfigError(
            f"--track: unknown tracker {name!r}{nearest(name, TRACKERS)}; "
            f"allowed: {', '.join(TRACKERS)}"
        )
    return TRACKERS[name]()


def resumed(run: Path, callbacks: Sequence[Callback] = ()) -> list[Callback]:
    """The trackers of a resumed run, as far as their packages are here, then these callbacks."""
    names = [callback.name for callback in callbacks if isinstance(callback, Tracker)]
    trackers: list[Callback] = []
    for name in TRACKERS:
        if (run / name).is_dir() and name not in names:
            try:
                trackers.append(tracker(name))
            except ConfigError as error:
                logger.warning("%s; the run is resumed without this tracker", error)
    return [*trackers, *callbacks]


def _identity(folder: Path, make: Callable[[], str]) -> str:
    """The id under which a tool knows the run: made once, and kept in the tracker's folder."""
    file = folder / "fedsim.json"
    if not file.exists():
        files.write(file, json.dumps({"id": make()}).encode())
    return str(parse_json(file.read_bytes())["id"])


def _finite(values: Mapping[str, Any]) -> Numbers:
    """The values that are finite numbers."""
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float | np.number)}
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}
