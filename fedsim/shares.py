"""From a configuration to the samples and who owns them."""

from __future__ import annotations

from pathlib import Path

from fedsim import data
from fedsim.config import RunConfig
from fedsim.contracts import Array, Dataset, Partition
from fedsim.data import partitions
from fedsim.data.own import hold_out, needed
from fedsim.data.shifts import shifted
from fedsim.data.users import with_enough
from fedsim.errors import ConfigError, DataError
from fedsim.settings import FIXED_PARTITIONS


def load(config: RunConfig) -> tuple[Dataset, Partition, str]:
    """The data set with the clients' feature shifts, who owns what of it, the kind of partition.

    Raises:
        ConfigError, DataError: something does not fit; the message names key and file.
    """
    dataset, kind = _dataset(config)
    partition = _partition(config, dataset, kind)
    return _shifted(config, dataset, partition), partition, kind


def _shifted(config: RunConfig, dataset: Dataset, partition: Partition) -> Dataset:
    c = config.data
    if c.feature_shift != "none" and dataset.inputs != "images":
        given, inputs = c.feature_shift, dataset.inputs
        raise ConfigError(f"data.feature_shift {given!r}: {dataset.name} has {inputs}, no images")
    shift = c.feature_shift, c.feature_strength, c.seed, c.shift_test
    return shifted(dataset, partition, *shift)


def _dataset(config: RunConfig) -> tuple[Dataset, str]:
    """The data set and the kind of partition, by default the data set's own.

    Users with too few samples are in no part of it, where each user is to be a client.
    """
    c = config.data
    file = _client_file(config)
    if file is not None and c.partition not in (None, "files"):
        raise ConfigError(
            f"data.partition_file {file} goes with data.partition 'files', not {c.partition!r}"
        )
    split = c.partition_file if file is None else None
    dataset = data.load(
        c.name,
        Path(c.dir) if c.dir else None,
        image_size=c.image_size,
        augment=c.augment,
        val_fraction=c.val_fraction,
        test_fraction=c.test_fraction,
        seed=c.seed,
        split=split,
        num_clients=c.num_clients,
        samples_per_client=c.samples_per_client,
        correlation=c.correlation,
        synthetic_alpha=c.synthetic_alpha,
        synthetic_beta=c.synthetic_beta,
        synthetic_iid=c.synthetic_iid,
    )
    by_data = "files" if file is not None else partitions.default_kind(dataset)
    kind = c.partition or by_data
    if kind == "natural" and not _generated(config):
        dataset = with_enough(dataset, _fewest(config))
    return dataset, kind


def _generated(config: RunConfig) -> bool:
    """Whether the data set is drawn for the number of clients that is asked for."""
    c = config.data
    return c.dir is None and any(d.generated for d in data.catalogue() if d.name == c.name)


def _fewest(config: RunConfig) -> int:
    """The fewest samples of a client before it holds out parts of its own."""
    c = config.data
    return needed(c.min_samples, c.client_val_fraction, c.client_test_fraction)


def read_images(config: RunConfig, partition: Partition) -> Array:
    """The samples (N, ...) that clients see, from this machine's files."""
    return _shifted(config, _dataset(config)[0], partition).x


def _client_file(config: RunConfig) -> Path | None:
    """``data.partition_file`` where it is a CSV file, not the name of a folder of client lists."""
    name = config.data.partition_file
    return Path(name) if name and name.lower().endswith(".csv") else None


def _partition(config: RunConfig, dataset: Dataset, kind: str) -> Partition:
    """The clients' shares of the training part.

    Raises:
        ConfigError: an explicit number of clients other than the one that files or sites fix.
    """
    c = config.data
    given = _generated(config) or "num_clients" in c.model_fields_set
    asked = given or kind not in FIXED_PARTITIONS
    fewest = _fewest(config)
    try:
        partition = partitions.make(
            dataset,
            kind,
            num_clients=c.num_clients if asked else None,
            alpha=c.alpha,
            min_samples=fewest if asked else c.min_samples,
            seed=c.seed,
            file=_client_file(config),
            shards_per_client=c.shards_per_client,
            prior=c.prior,
            order=c.order,
        )
    except DataError as error:
        if not asked or fewest == c.min_samples:
            raise
        raise DataError(
            f"{error} ({fewest}: data.min_samples {c.min_samples} and the clients' own held-out "
            "parts)"
        ) from error
    return hold_out(
        dataset,
        partition,
        val_fraction=c.client_val_fraction,
        test_fraction=c.client_test_fraction,
        min_samples=c.min_samples,
        seed=c.seed,
    )
