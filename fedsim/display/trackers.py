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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedsim.core import files
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.reading import parse_json
from fedsim.identity.resume import decisive
from fedsim.storage.run_dir import RunStore
from fedsim.training.callbacks import Callback, Rows, RunInfo

logger = logging.getLogger("fedsim")

Numbers = dict[str, float]
Samples = dict[str, list[float]]
Record = Mapping[str, Any]
STATE = "fedsim.json"
"""In a tracker's folder: under which name the tracker knows the run."""


class Tracker(Callback):
    """Copies every round of a run to a tool that shows it; see :func:`tracker`.

    Scalars are the columns of rounds.csv, under their names. In evaluated rounds there are also the
    distributions over clients: of clients.csv as ``clients/train_loss`` and
    ``clients/update_norm``, of evaluations.csv as ``clients/SPLIT_loss`` and
    ``clients/SPLIT_accuracy``. Hyperparameters are the settings that decide the results.
    """

    reads_files = False
    name: ClassVar[str]
    """Of the tracker and of its folder in the run directory."""
    package: ClassVar[str]
    """What pip installs."""
    module: ClassVar[str]
    """What is imported."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables that the module reads when it is imported, where the user has not set them."""

    def __init__(self) -> None:
        for variable, value in self.environment.items():
            os.environ.setdefault(variable, value)
        try:
            self.sdk = importlib.import_module(self.module)
        except ImportError as error:
            raise ConfigError(
                f"--track {self.name}: {error}; it needs the package {self.package}: "
                f"pip install {self.package}"
            ) from error
        self.newest: int | None = None
        """The newest round that was written, None before the run started and after its end."""

    def on_run_start(self, info: RunInfo) -> None:
        """Opens the tracker; one that is new to a resumed run also gets the rounds before."""
        folder = info.out / self.name
        begun = folder.exists()
        folder.mkdir(exist_ok=True)
        self.open(info, folder)
        if not begun:
            for number, rows in _rounds(info.out, info.done):
                self.log(number, scalars(rows), histograms(rows))
        self.newest = info.done

    def on_round_end(self, round: int, rows: Rows) -> None:
        """Writes a round."""
        if self.newest is not None:
            self.log(round, scalars(rows), histograms(rows))
            self.newest = round

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        """Adds the results."""
        self._end(summary)

    def close(self) -> None:
        """Ends a run that failed or was interrupted."""
        self._end(None)

    def _end(self, summary: Mapping[str, object] | None) -> None:
        if self.newest is not None:
            self.finish(self.newest, summary)
            self.newest = None

    @abstractmethod
    def open(self, info: RunInfo, folder: Path) -> None:
        """Begins or continues."""

    @abstractmethod
    def log(self, round: int, numbers: Numbers, samples: Samples) -> None:
        """Writes a round."""

    @abstractmethod
    def finish(self, round: int, summary: Mapping[str, object] | None) -> None:
        """Ends after a round, with the row of summary.csv or, where the run failed, without."""


class TensorBoard(Tracker):
    """Event files in ``RUN/tensorboard``, written by tensorboardX."""

    name, package, module = "tensorboard", "tensorboardX", "tensorboardX"

    def open(self, info: RunInfo, folder: Path) -> None:
        """Opens a further event file; the first one begins with the settings."""
        number = len(list(folder.iterdir()))
        self.writer = self.sdk.SummaryWriter(str(folder), filename_suffix=f".{number}")
        if number == 0:
            settings = decisive(info.config)
            lines = (f"    {key}: {value}" for key, value in settings.items())
            self.writer.add_text("config", "\n".join(lines), 0)
            for part in self._hparams(settings)[:2]:
                self.writer.file_writer.add_summary(part, 0)

    def log(self, round: int, numbers: Numbers, samples: Samples) -> None:
        """Scalars and histograms."""
        for tag, value in numbers.items():
            self.writer.add_scalar(tag, value, round)
        for tag, values in samples.items():
            self.writer.add_histogram(tag, np.array(values), round, bins="auto")
        self.writer.flush()

    def finish(self, round: int, summary: Mapping[str, object] | None) -> None:
        """Closes the event file; the tab of hyperparameters has finished runs marked."""
        if summary is not None:
            self.writer.file_writer.add_summary(self._hparams({})[2], round)
        self.writer.close()

    def _hparams(self, settings: Mapping[str, Any]) -> Sequence[Any]:
        parts: Sequence[Any] = self.sdk.summary.hparams(dict(settings), {"test_accuracy": 0.0})
        return parts


class WeightsAndBiases(Tracker):
    """A run of W&B in ``RUN/wandb``, offline unless WANDB_MODE says otherwise."""

    name, package, module = "wandb", "wandb", "wandb"
    environment: ClassVar = {"WANDB_ERROR_REPORTING": "false"}

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begins a run, or goes on with it under the same id."""
        state = folder / STATE
        if not state.exists():
            files.write(state, json.dumps({"id": secrets.token_hex(4)}).encode())
        self.run = self.sdk.init(
            project=os.environ.get("WANDB_PROJECT", "fedsim"),
            dir=str(info.out),
            id=parse_json(state.read_bytes())["id"],
            name=info.out.resolve().name,
            config=decisive(info.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=self.sdk.Settings(
                silent=True, console="off", disable_git=True, disable_code=True,
                x_disable_stats=True,
            ),
        )  # fmt: skip

    def log(self, round: int, numbers: Numbers, samples: Samples) -> None:
        """One step of the run."""
        drawn = {tag: self.sdk.Histogram(values) for tag, values in samples.items()}
        self.run.log({**numbers, **drawn}, step=round, commit=True)

    def finish(self, round: int, summary: Mapping[str, object] | None) -> None:  # noqa: ARG002
        """Adds the row of summary.csv, and ends the run."""
        if summary is not None:
            self.run.summary.update({k: v for k, v in summary.items() if v is not None})
        self.run.finish(exit_code=int(summary is None))


class MLflow(Tracker):
    """A run of MLflow, in files in ``RUN/mlflow`` unless MLFLOW_TRACKING_URI names a server."""

    name, package, module = "mlflow", "mlflow-skinny", "mlflow"
    environment: ClassVar = {"MLFLOW_DISABLE_TELEMETRY": "true"}

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begins a run, or goes on with it."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:  # MLflow wants to be asked for a store of files
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = folder.resolve().as_uri()
        client = self.client = self.sdk.MlflowClient(tracking_uri=uri)
        state = folder / STATE
        if state.exists():
            self.id = parse_json(state.read_bytes())["id"]
            client.update_run(self.id, "RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsim")
            existing = client.get_experiment_by_name(name)
            experiment = existing.experiment_id if existing else client.create_experiment(name)
            run = client.create_run(experiment, run_name=info.out.resolve().name)
            self.id = run.info.run_id
            files.write(state, json.dumps({"id": self.id}).encode())
        make = self.sdk.entities.Param
        params = [make(_plain(k), str(v)[:500]) for k, v in decisive(info.config).items()]
        for start in range(0, len(params), 100):  # so many at once are allowed
            client.log_batch(self.id, params=params[start : start + 100])

    def log(self, round: int, numbers: Numbers, samples: Samples) -> None:  # noqa: ARG002
        """The scalars; MLflow has no histograms."""
        make, now = self.sdk.entities.Metric, time.time_ns() // 1_000_000
        metrics = [make(tag, value, now, round) for tag, value in numbers.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def finish(self, round: int, summary: Mapping[str, object] | None) -> None:
        """Adds the results of summary.csv, and ends the run."""
        if summary is not None and round:
            results = {k: v for k, v in summary.items() if k.startswith(("final_", "best_test_"))}
            self.log(round, _finite(results), {})
        self.client.set_terminated(self.id, "FAILED" if summary is None else "FINISHED")


TRACKERS: Mapping[str, type[Tracker]] = {t.name: t for t in (TensorBoard, WeightsAndBiases, MLflow)}
"""By name."""


def tracker(name: str) -> Tracker:
    """A tracker for one run, to be passed to ``fedsim.run(callbacks=[...])``.

    Args:
        name: tensorboard, wandb or mlflow.

    Raises:
        ConfigError: there is none of this name, or its package is not installed.
    """
    if name not in TRACKERS:
        raise ConfigError(
            f"--track: unknown tracker {name!r}{nearest(name, TRACKERS)}; "
            f"allowed: {', '.join(TRACKERS)}"
        )
    return TRACKERS[name]()


def resumed(run: Path, callbacks: Sequence[Callback] = ()) -> list[Callback]:
    """The callbacks of a run that is resumed: its trackers, which those given replace, and these.

    A tracker whose package is missing here is left out, with a warning.
    """
    names = [callback.name for callback in callbacks if isinstance(callback, Tracker)]
    trackers: list[Callback] = []
    for name in TRACKERS:
        if (run / name).is_dir() and name not in names:
            try:
                trackers.append(tracker(name))
            except ConfigError as error:
                logger.warning("%s; the run is resumed without this tracker", error)
    return [*trackers, *callbacks]


def scalars(rows: Mapping[str, Sequence[Record]]) -> Numbers:
    """The columns of a round's row of rounds.csv that have a value."""
    (row,) = rows["rounds"]
    return _finite({column: value for column, value in row.items() if column != "round"})


def histograms(rows: Mapping[str, Sequence[Record]]) -> Samples:
    """In evaluated rounds the values of the clients, by tag."""
    (row,) = rows["rounds"]
    if not _finite({"test": row.get("test_accuracy"), "val": row.get("val_accuracy")}):
        return {}
    values = [
        (f"clients/{column}", client.get(column))
        for client in rows.get("clients", ())
        for column in ("train_loss", "update_norm")
    ]
    values += [
        (f"clients/{each['split']}_{column}", each.get(column))
        for each in rows.get("evaluations", ())
        if _finite({"id": each.get("client_id")})  # else a group of test samples
        for column in ("loss", "accuracy")
    ]
    samples: Samples = {}
    for tag, value in values:
        if finite := _finite({tag: value}):
            samples.setdefault(tag, []).extend(finite.values())
    return samples


def _finite(values: Mapping[str, object]) -> Numbers:
    """The values that are finite numbers."""
    kinds = (int, float, np.integer, np.floating)
    numbers = {k: float(v) for k, v in values.items() if isinstance(v, kinds)}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


def _rounds(run: Path, last: int) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """The rows of the first rounds, from the tables."""
    store = RunStore(run)
    names = [t for t in ("rounds", "clients", "evaluations") if (run / f"{t}.csv").exists()]
    tables = {name: store.read(name) for name in names if last}
    for number in range(1, last + 1):
        rows = {name: table[table["round"] == number] for name, table in tables.items()}
        yield number, {name: table.to_dict("records") for name, table in rows.items()}


def _plain(key: str) -> str:
    """A key in characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", key)
