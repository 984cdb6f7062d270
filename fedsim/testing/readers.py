"""The contract of readers and loaders of data sets, for the tests of whoever writes one.

``check_reader(name)`` reads the data set in several ways and trains one round on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.settings import Scalar
from fedsim.core.task import Task
from fedsim.core.types import Dataset
from fedsim.data.registry import reader as reader_of
from fedsim.testing.methods import check_cases, name_of, require, trains
from fedsim.testing.rounds import rounds


@dataclass
class Reader:
    """The reader that is checked: its name or ``module:function``, ``data.dir``, its options."""

    name: str
    folder: Path | None
    options: Mapping[str, Any]

    def load(self, **settings: Any) -> Dataset:
        """The data set, with other settings of section ``data``."""
        return data.load(self.name, self.folder, **{"num_clients": 4, **settings, **self.options})

    @cached_property
    def dataset(self) -> Dataset:
        """As it is read by default."""
        return self.load()


def check_reader(
    reader: Callable[..., Any] | str,
    /,
    folder: Path | str | None = None,
    *,
    cases: Iterable[str] = (),
    **options: Scalar,
) -> None:
    """Checks what a data set is read into; reads it a few times and trains one small round.

    Args:
        reader: the data set's name, as ``fedsim run -d`` takes it; or a function at the top of a
            module that returns a :class:`~fedsim.core.types.Dataset` (``module:function``).
        folder: ``data.dir``, where it needs files.
        cases: names in :data:`fedsim.testing.readers.CASES`; by default all.
        options: of the data set.

    Raises:
        ContractError: it breaks the contract; names the case and the first difference.
    """
    checked = Reader(name_of(reader), None if folder is None else Path(folder), options)
    check_cases("the reader", CASES, cases or CASES, checked)


def options(reader: Reader) -> None:
    """Its options are typed and unknown ones are refused."""
    parameters = signature(reader_of(reader.name)).parameters.values()
    untyped = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.annotation is p.empty]
    require(not untyped, f"the parameters {', '.join(untyped)} have no type, so are no options")
    unknown = "option_" + "_".join(data.options(reader.name))
    try:
        reader.load(**{unknown: 1})
    except ConfigError:
        return
    raise ContractError(f"an option {unknown} that it does not have is taken")


def sound(reader: Reader) -> None:
    """Arrays, labels and parts keep the rules of :func:`fedsim.data.dataset.check`."""
    info, dataset = data.find(reader.name), reader.dataset
    fitted = dataset.x if dataset.prepare is None else dataset.prepare(dataset.train)
    require(content(fitted) == content(dataset.x), "x is not what prepare gives for train")
    if info is None or (info.generated and reader.folder is not None):
        return  # nothing is declared, or what is drawn
    read = {"num_classes": dataset.num_classes}
    if dataset.pipeline is not None:
        read |= {"channels": dataset.x.shape[1], "image_size": dataset.pipeline.size}
    for field, value in read.items():
        declared = getattr(info, field)
        require(declared in (0, value), f"{field} is declared as {declared}, read are {value}")


def twice(reader: Reader) -> None:
    """Read again, every byte is the same; what a reader draws globally is seeded for it."""
    again = reader.load()
    for field in (field for field in fields(Dataset) if field.compare):
        one, two = getattr(reader.dataset, field.name), getattr(again, field.name)
        require(content(one) == content(two), f"{field.name} is another one when read again")


def content(value: object) -> object:
    """What two fields of a data set are compared by."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: content(item) for key, item in value.items()}
    return value.record() if isinstance(value, Task) else value


def other_settings(reader: Reader) -> None:
    """Images are read in the size that is set; a validation part leaves the test part the same."""
    dataset = reader.dataset
    taken = signature(reader_of(reader.name)).parameters
    if dataset.pipeline is not None and (":" not in reader.name or "image_size" in taken):
        size = dataset.pipeline.size + 3
        pipeline = reader.load(image_size=size).pipeline
        read = pipeline and pipeline.size
        require(read == size, f"data.image_size {size} gives images of {read} pixels")
    if ":" not in reader.name or "val_fraction" in taken:
        parted = reader.load(val_fraction=0.3)
        require(len(parted.val) > 0, "data.val_fraction 0.3 gives no validation sample")
        same = parted.y[parted.test].tobytes() == dataset.y[dataset.test].tobytes()
        require(same, "data.val_fraction 0.3 changes the labels of the test part")


def training(reader: Reader) -> None:
    """Its samples are dealt to clients, who train one round."""
    model = {"images": "mlp", "features": "mlp", "tokens": "leaf_sent140"}[reader.dataset.inputs]
    model = "leaf_reddit" if reader.dataset.per_token else model
    settings: dict[str, Any] = {"name": reader.name, "num_clients": 4, "min_samples": 1}
    if reader.folder is not None:
        settings["dir"] = str(reader.folder)
    options: dict[str, Any] = {reader.name: reader.options} if reader.options else {}
    config = RunConfig(
        data=settings,
        model={"name": model},
        train={"rounds": 1, "sample_rate": 1.0, "batch_size": 50},
        engine={"kind": "serial", "checkpoint_every": 0},
        **options,
    )
    trains(rounds(config))


CASES: Mapping[str, Callable[[Reader], None]] = {
    "options": options,
    "arrays and labels": sound,
    "read again": twice,
    "other settings": other_settings,
    "a round of training": training,
}
"""By name the ways in which a reader is tried."""
