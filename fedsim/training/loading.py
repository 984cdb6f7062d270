"""The data of a configuration: read, dealt to the clients, and shifted."""

from pathlib import Path
from typing import Any

from fedsim import data, tasks
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.normalization import OF_DATASET, Normalization
from fedsim.core.settings import listed
from fedsim.core.types import I64, Array, Dataset, Partition
from fedsim.data import partitions, patients, splits
from fedsim.data.holdout import fewest_samples, hold_out, hold_out_clients, without_small_users
from fedsim.data.shifts import shifted


def load(config: RunConfig) -> tuple[Dataset, Partition, str]:
    """The data set with the clients' feature shifts, who owns what of it, the kind of partition."""
    dataset, partition, kind = deal(config)
    return with_shifts(config, dataset, partition), partition, kind


def deal(config: RunConfig) -> tuple[Dataset, Partition, str]:
    """What :func:`load` returns, without the clients' feature shifts: samples as they were read."""
    dataset, kind, listed = divided(config)
    partition = _partition(config, dataset, kind, listed)
    # before the shift, which looks at the common parts: nodes that shift themselves know these
    heldout, seed = config.data.heldout_clients, config.data.seed
    return *hold_out_clients(dataset, partition, heldout, seed), kind


def with_shifts(config: RunConfig, dataset: Dataset, partition: Partition) -> Dataset:
    """The data set with the clients' feature shifts; a ConfigError where it has no images."""
    c = config.data
    if c.feature_shift != "none" and dataset.inputs != "images":
        raise ConfigError(
            f"data.feature_shift {c.feature_shift!r}: {dataset.name} has {dataset.inputs}, no "
            "images"
        )
    if c.feature_shift == "rotation" and tasks.of(dataset).output == "pixel":
        raise ConfigError("data.feature_shift 'rotation': turns images, and masks would stay")
    shift = c.feature_shift, c.feature_strength, c.seed, c.shift_test
    return shifted(dataset, partition, *shift)


def divided(config: RunConfig) -> tuple[Dataset, str, Partition | None]:
    """The data set, the kind of partition, by default the data set's own, and that of a file."""
    c = config.data
    file = client_file(config)
    if file is not None and c.partition not in (None, "files"):
        raise ConfigError(
            f"data.partition_file {file} goes with data.partition 'files', not {c.partition!r}"
        )
    dataset = read(config)
    kind = config.named_partition or partitions.default_kind(dataset)
    if kind == "natural" and not _generated(config):
        dataset = without_small_users(dataset, _fewest(config))
    if file is None:
        return dataset, kind, None
    dataset, listed = splits.read(dataset, file)
    return dataset, kind, listed


def read(config: RunConfig, whole: bool = False, **known: Any) -> Dataset:
    """The data set as its reader gives it, without feature shift; ``whole``: all of it is the test
    part. Where a run ``known`` its words or preprocessing, new samples are read with these."""
    arguments = read_arguments(config) | known
    dataset = data.load(config.data.name, whole=whole, **arguments)
    normal = _normalization(config)
    try:
        return dataset if normal is None else normal.applied(dataset)
    except ValueError as error:
        raise ConfigError(f"data.normalization {config.data.normalization!r}: {error}") from error


def _normalization(config: RunConfig) -> Normalization | None:
    """What ``data.normalization`` says; None: the data set's own."""
    text = config.data.normalization
    return None if text in (None, OF_DATASET) else Normalization.parse(text)


def read_arguments(config: RunConfig) -> dict[str, Any]:
    """What :func:`fedsim.data.load` is given beside the name; samples follow from these alone."""
    c, named, normal = config.data, config.named_partition, _normalization(config)
    kept = "auto" if named is None else "none" if named == "files" else "patient"
    return {
        "folder": Path(c.dir) if c.dir else None,
        "image_size": c.image_size or (normal and normal.size),
        "enlarge": c.image_size is not None,
        "augment": c.augment,
        "val_fraction": c.val_fraction,
        "test_fraction": c.test_fraction,
        "seed": c.seed,
        "split": c.partition_file if client_file(config) is None else None,
        "num_clients": c.num_clients,
        "group": c.group or kept,
        "columns": c.column_names,
        "task": config.task,
        "task_options": config.hyperparameters.get(config.task or ""),
        "measures": listed(config.evaluation.measures or ""),
        **config.hyperparameters.get(c.name, {}),
    }


def _generated(config: RunConfig) -> bool:
    """Whether the data set is drawn for the number of clients that is asked for."""
    info = data.find(config.data.name)
    return config.data.dir is None and info is not None and info.generated


def _fewest(config: RunConfig) -> int:
    """The fewest samples of a client before it holds out parts of its own."""
    c = config.data
    return fewest_samples(c.min_samples, c.client_val_fraction, c.client_test_fraction)


def read_images(config: RunConfig, partition: Partition, parts: tuple[I64, I64, I64]) -> Array:
    """The samples (N, ...) that clients see, from this machine's files; ``parts`` are the driver's
    train, val and test."""
    train, val, test = parts
    dataset = read(config)
    dataset = dataset.with_parts(train=train, val=val, test=test, own_test=dataset.own_test)
    return with_shifts(config, dataset, partition).x


def client_file(config: RunConfig) -> Path | None:
    """``data.partition_file`` where it is a CSV file, not the name of a folder of client lists."""
    name = config.data.partition_file
    return Path(name) if name and name.lower().endswith(".csv") else None


def _partition(
    config: RunConfig, dataset: Dataset, kind: str, listed: Partition | None
) -> Partition:
    """The clients' shares of the training part."""
    c = config.data
    counted = _generated(config) or "num_clients" in c.model_fields_set
    wanted = counted or kind not in partitions.FIXED
    fewest = _fewest(config)
    group = patients.grouping(dataset, kind, c.group)
    try:
        partition = partitions.make(
            dataset,
            kind,
            num_clients=c.num_clients if wanted else None,
            min_samples=fewest if wanted else c.min_samples,
            seed=c.seed,
            listed=listed,
            group=group,
            min_patients=1 + (c.client_val_fraction > 0) + (c.client_test_fraction > 0),
            **{name: getattr(c, name) for name in partitions.IN_DATA},
            **config.hyperparameters.get(kind, {}),
        )
    except DataError as error:
        if not wanted or f"data.min_samples {fewest}" not in str(error) or fewest == c.min_samples:
            raise
        parts = f"{fewest}: data.min_samples {c.min_samples} and the clients' own held-out parts"
        raise DataError(f"{error} ({parts})") from error
    of_file = listed or Partition(train=())  # its parts are not drawn again
    return hold_out(
        dataset,
        partition,
        val_fraction=0.0 if of_file.val else c.client_val_fraction,
        test_fraction=0.0 if of_file.test else c.client_test_fraction,
        min_samples=c.min_samples,
        seed=c.seed,
        group=group,
    )
