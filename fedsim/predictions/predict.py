"""Predictions of a finished run's models, sample by sample: ``fedsim predict``.

Models, samples and batches are those of the evaluation after the last round, so that what is
counted from the predictions is what rounds.csv and evaluations.csv say, on the same kind of device.
Nothing is trained, Ray is not started, and the run directory stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from fedsim import tasks
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.text import few
from fedsim.core.types import I64, Array, Dataset, Owned, Part, Partition
from fedsim.data.dataset import in_one_part
from fedsim.engine.base import OUTPUTS, PREDICTIONS
from fedsim.engine.serial import SerialExecutor
from fedsim.identity.environment import device_of
from fedsim.identity.provenance import Provenance, check_data
from fedsim.identity.resume import data_at
from fedsim.metrics.splits import clients_with, count, counts, indices
from fedsim.predictions import masks, models, new_samples
from fedsim.storage import final_models
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.client_states import ClientStates
from fedsim.storage.final_models import ClientTensors, Description
from fedsim.storage.run_dir import RunStore, RunWriter, client_number
from fedsim.training import loading
from fedsim.training.assemble import assemble, prepare
from fedsim.training.driver import write_split
from fedsim.training.evaluate import Candidate, own_model
from fedsim.training.features import with_features
from fedsim.training.final_models import personal_slots
from fedsim.training.personal import with_own_models
from fedsim.training.round import context
from fedsim.training.setup import Setup

ALL = "all"
Own = Literal["train", "val", "test"]
OWNED: Mapping[str, Own] = {"own_test": "test", "own_val": "val", "own_train": "train"}
SPLITS = ("test", "val", "train", *OWNED, ALL)
"""Common parts (the test part may be nothing but the clients' own), parts that clients own, and
every sample of the data set."""

_few = partial(few, most=6)
_NOT_THESE = (
    "these are not the data of the run (for new data: --data-dir NEW, with --split all or none)"
)

logger = logging.getLogger("fedsim")


def predict(
    run: Path | str,
    *,
    client: int | str | None = None,
    split: str | None = None,
    data_dir: Path | str | None = None,
    images: Path | str | Sequence[Path | str] | None = None,
    rows: Path | str | Sequence[Path | str] | None = None,
    accept_changed_code: bool = False,
) -> pd.DataFrame:
    """The classes that the final models of a run give to samples, with all probabilities.

    Without ``client`` the models are those that the evaluation scores: the global model, or in
    personalised methods every client's own.

    Args:
        run: directory of a finished run.
        client: its number or name: only this client's model (the global one where it has no other)
            and, of samples that clients own, only its own.
        split: one of :data:`SPLITS`; by default ``test``, or ``all`` where ``data_dir`` is given.
        data_dir: the folder to read in place of ``data.dir``: new data of the same kind, with
            labels, whose classes are found by name. All splits but ``all`` need the run's own data.
        images: new images without labels: a folder, a file, or several of them.
        rows: new rows of a table, or texts, without labels: a CSV file, a folder, or several.
        accept_changed_code: use the user's own functions even if their code has changed.

    Returns:
        A row per model and sample: ``sample`` (index in the data set), ``client_id`` (of the model,
        or of the samples' owner; missing where the global model meets common samples), ``label``
        and ``prediction`` (class indices), ``probability_<k>`` (softmax, float64), ``label_name``
        and ``prediction_name``, and ``file`` where samples are files. Other tasks have ``target``,
        as text, and columns of their own: ``prediction``, ``risk``, or ``probability_<label>``; of
        masks see :mod:`fedsim.predictions.masks`. Of ``images`` and ``rows`` a row per ``file``, or
        ``row`` (as an editor counts) with ``site`` and ``patient`` where known, with ``prediction``
        (the name of the class) and ``probability_<name>``.

    Raises:
        ConfigError: no finished run, no such client or split, data that do not fit the model, or a
            user's function whose code has changed.
        DataError: the data cannot be read, or are not those of the run.
        DivergedError: a model's outputs are not finite.
        StoreError: a file of the run is missing or damaged.
    """
    path = Path(run)
    given = [name for name, new in {"images": images, "rows": rows}.items() if new is not None]
    if given and (len(given) > 1 or split is not None or data_dir is not None):
        raise ConfigError(
            f"--{given[0]} does not go with --split or --data-dir, nor --rows with --images"
        )
    if given:
        model = models.final_model(path, client, accept_changed_code=accept_changed_code)
    if images is not None:
        return new_samples.of_images(path, model, _several(images))
    if rows is not None:
        return new_samples.of_rows(path, model, _several(rows), client)
    split = (ALL if data_dir else SPLITS[0]) if split is None else split
    if split not in SPLITS:
        raise ConfigError(
            f"--split {split}: there is no such split{nearest(split, SPLITS)}; allowed: "
            f"{', '.join(SPLITS)}"
        )
    config = models.finished_run(path, data_at(data_dir))
    if client is not None:
        client = client_number(path, config.data.num_clients, client)
    description = Description.read(path)
    description.check(path, config)
    models.check_users_code(path, config, accept=accept_changed_code)
    config = _with_device(config, path)
    if split == ALL and data_dir is not None:
        models.check_alone(path, config)
        setup = _new_data(path, config, description)
    else:
        setup = _own_data(path, config)
    _check_fit(setup, description, _origin(config, setup.dataset))
    owned, part = OWNED.get(split), split
    if split == "test" and setup.tests_are_owned:
        owned = "test"
    if split == ALL:
        setup, part = replace(setup, dataset=in_one_part(setup.dataset)), "test"
    _check_samples(setup, client, owned, part, split)
    setup = replace(setup, frozen=final_models.load_tensors(path, setup.frozen))
    state = ServerState(params=final_models.load_vector(path, setup.layout))
    personal = personal_slots(setup.algorithm, setup.layout)
    if setup.personalised and personal:
        state = replace(state, clients=ClientStates(ClientTensors(path, personal)))
    if setup.personalised and setup.config.evaluation.personal != "all_clients":
        logger.warning(
            "evaluation.personal=%s: the tables of the run score other models than its final ones",
            setup.config.evaluation.personal,
        )
    return pd.concat(_frames(setup, state, client, owned, part), ignore_index=True)


def _several(paths: Path | str | Sequence[Path | str]) -> Sequence[Path | str]:
    """One path, or several, as a sequence."""
    return [paths] if isinstance(paths, Path | str) else paths


def _frames(
    setup: Setup, state: ServerState, client: int | None, owned: Own | None, part: str
) -> Iterator[pd.DataFrame]:
    """The rows, model by model and client by client; ``owned`` is the clients' own part, if any."""
    with closing(SerialExecutor(with_features(setup.spec), setup.config.engine)) as executor:
        if setup.algorithm.predict is not None:  # what it needs of the clients is in no file
            state = with_own_models(setup, executor, state, context(setup, 0))
        for clients, model, samples in _passes(setup, state, client, owned, part):
            streams = setup.task.streams
            measure = PREDICTIONS if streams else OUTPUTS
            (outputs,) = executor.evaluate([(model.load(), samples)], measure)
            make = masks.of_samples if streams else _frame
            frame = make(setup.dataset, indices(setup.spec, samples), np.asarray(outputs))
            frame.insert(1, "client_id", pd.Series(clients, dtype="Int64"))
            yield frame if client is None else frame[frame["client_id"] == client]


def _passes(
    setup: Setup, state: ServerState, client: int | None, owned: Own | None, part: str
) -> Iterator[tuple[Sequence[int | None], Candidate, Part]]:
    """Each row's client, the model and the samples of every pass, as the evaluation has it."""
    partition = setup.partition
    clients = partition.participants if client is None else (client,)
    owners = clients
    if owned is not None:
        owners = clients_with(partition, owned, held_out=client is not None)
    if setup.personalised:
        for c in (c for c in owners if c in clients):
            samples = part if owned is None else Owned(owned, (c,))
            yield count(setup.spec, samples) * [c], own_model(state, c), samples
        return
    one = Candidate(None, lambda: (state.params, {}))
    if owned is None:
        yield count(setup.spec, part) * [client], one, part
    else:
        samples = Owned(owned, owners)
        yield np.repeat(owners, counts(partition, samples)).tolist(), one, samples


def _frame(dataset: Dataset, index: I64, outputs: Array) -> pd.DataFrame:
    """The rows of the samples ``index`` (n,), without the client, from their outputs (n, C)."""
    task, classes, y = tasks.of(dataset), dataset.class_names, dataset.y[index]
    names = () if task.cross_entropy else classes  # classes have numbers, and names beside
    said = models.columns_of(task, outputs, names, lambda i: f"sample {index[i]}")
    columns: dict[str, Any] = {"sample": index}
    if task.cross_entropy:
        called = np.array(classes, dtype=object)
        columns |= {"label": y, **said}
        columns |= {"label_name": called[y], "prediction_name": called[said["prediction"]]}
    else:
        columns |= {"target": [*task.prints(y)], **said}
    if dataset.files:
        columns["file"] = [dataset.files[i] for i in index.tolist()]
    return pd.DataFrame(columns)


def _with_device(config: RunConfig, run: Path) -> RunConfig:
    """With a GPU where there is one and the run was done on one."""
    device = device_of(RunStore(run).read_environment())
    if device != "cpu" and torch.cuda.is_available():
        engine = config.engine.model_copy(update={"gpus_per_client": 1.0})
        return config.model_copy(update={"engine": engine})
    if device != "cpu":
        text = "%s: was done on %s; predicting on the CPU, where the last digits may differ"
        logger.warning(text, run, device)
    return config


def _own_data(run: Path, config: RunConfig) -> Setup:
    """The run's setup; a DataError where the data now give other clients or samples."""
    setup = prepare(config)
    if not (run / files.PREPROCESSING).exists():  # of an earlier version, which stays as it is
        setup = replace(setup, dataset=replace(setup.dataset, prepare=None))
    malicious = RunStore(run).read_environment().get("malicious_clients", ())
    try:
        write_split(replace(setup, malicious=tuple(malicious)), RunWriter(run))
    except DataError as error:
        raise DataError(f"{error}; {_NOT_THESE}") from None
    check_data(run, Provenance.read(run), setup.provenance.data, _NOT_THESE)
    return setup


def _new_data(run: Path, config: RunConfig, description: Description) -> Setup:
    """A setup with all samples of other data as the test part; nobody owns any of them. Vocabulary
    and numbers of classes are those of the run."""
    alone = {"group": "none"}  # who the patients are need not be known
    config = config.model_copy(update={"data": config.data.model_copy(update=alone)})
    store = RunStore(run)
    words, known = store.read_words(), store.read_preprocessing()
    dataset = loading.read(config, whole=True, known_words=words, preprocessing=known)
    origin = _origin(config, dataset)
    if dataset.words != (words or ()):
        place = run / files.VOCABULARY
        raise DataError(f"{origin}: the vocabulary is not that of the run, in {place}")
    dataset = _with_the_classes(dataset, description.classes, origin)
    if dataset.pipeline is not None and description.mean:
        pipeline = replace(dataset.pipeline, mean=description.mean, std=description.std)
        dataset = replace(dataset, pipeline=pipeline)
    held_out = tuple(store.read_environment().get("heldout_clients", ()))
    nobody = Partition(train=(dataset.train,) * config.data.num_clients, held_out=held_out)
    return assemble(config, dataset, nobody, config.data.partition or "iid")


def _with_the_classes(dataset: Dataset, classes: tuple[str, ...], origin: str) -> Dataset:
    """The data set with the numbers of the run's classes, which are found by name."""
    names = dataset.class_names
    if names == classes or not tasks.of(dataset).cross_entropy:
        return dataset
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise DataError(
            f"{origin}: the classes are {_few(names)}, those of the run {_few(classes)}; unknown "
            f"to the run: {_few(unknown)} (a folder of images can list the classes in classes.txt)"
        )
    logger.info("%s: the classes have the numbers of the run, by name: %s", origin, _few(classes))
    number = np.array([classes.index(name) for name in names], np.int64)
    return replace(dataset, y=number[dataset.y], class_names=classes)


def _origin(config: RunConfig, dataset: Dataset) -> str:
    """Where the data come from, for messages."""
    return f"data.dir {config.data.dir}" if config.data.dir else dataset.name


def _check_fit(setup: Setup, description: Description, origin: str) -> None:
    """Refuses data of other classes or sizes than those that the network was trained for."""
    if setup.dataset.per_token:
        raise ConfigError(
            f"{origin}: there is a label for every token; predictions are written for samples with "
            "one label each"
        )
    names, classes = setup.dataset.class_names, description.classes
    if classes != names:
        raise DataError(
            f"{origin}: the classes are {_few(names)}, those of the run {_few(classes)}; the same "
            "are needed, in the same order"
        )
    for name in ("inputs", "in_channels", "image_size"):
        have, need = getattr(setup.model, name), getattr(description.model, name)
        if have != need:
            raise DataError(f"{origin}: {name} {have}, the model of the run takes {need}")


def _check_samples(
    setup: Setup, client: int | None, owned: Own | None, part: str, split: str
) -> None:
    """Refuses a split without samples, or without any of the client."""
    if owned is None:
        if not len(getattr(setup.dataset, part)):
            raise ConfigError(f"--split {split}: {setup.dataset.name} has no such part in this run")
        return
    owners = clients_with(setup.partition, owned, held_out=client is not None)
    if not owners:
        raise ConfigError(f"--split {split}: the clients of this run own no {owned} samples")
    if client is not None and client not in owners:
        those = _few([str(c) for c in owners])
        raise ConfigError(
            f"--client {client}: owns no {owned} samples; the clients that do: {those}"
        )
