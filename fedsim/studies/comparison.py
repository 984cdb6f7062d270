"""Whether finished runs of a study are those of the code and the data of now."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.identity.provenance import (
    Code,
    Data,
    Provenance,
    accept_code,
    check_code,
    check_data,
    code_of,
    data_of,
)

logger = logging.getLogger("fedsim")
OF_PARTS = ("val_fraction", "test_fraction", "seed", "num_clients", "group", "augment")
"""Arguments of :func:`fedsim.data.load` on which no sample of a folder depends."""


class Comparison:
    """Compares finished runs with code and data of now; data are read once per configuration.

    Only data that can change under their name are read: those of a folder, or of a user's function.

    Args:
        accept: whether other code is accepted, which env.json of the run then says.
    """

    def __init__(self, *, accept: bool) -> None:
        self.accept = accept
        self._data_of: dict[str, Data | None] = {}
        self._accepted: dict[Path, Mapping[str, Code]] = {}

    def check(self, config: RunConfig, runs: Iterable[Path]) -> None:
        """Refuses finished runs of a configuration, whose seeds may differ, that have changed.

        Raises:
            ConfigError: a run is one of other code, or its env.json is damaged.
            DataError: a run is one of other data, or the data cannot be read.
        """
        code = code_of(config)
        for run in runs:
            before = Provenance.read(run)
            if check_code(run, before, code, accept=self.accept):
                self._accepted[run] = code
            now = self._data(config) if before.data is not None else None
            if now is not None:
                advice = "give another --out, move this run away, or put the data back"
                check_data(run, before, now, advice)

    def record(self) -> None:
        """Says in env.json of each run of other code that it is accepted, once all have passed.

        Raises:
            StoreError: it cannot be written.
        """
        for run, code in self._accepted.items():
            accept_code(run, code)

    def _data(self, config: RunConfig) -> Data | None:
        """The data of now; None where they cannot change, or are not there any more."""
        folder, info = config.data.dir, data.find(config.data.name)
        if info is not None and folder is None:
            return None
        from fedsim.training import loading  # imports torch, which a sweep need not

        arguments = loading.read_arguments(config)
        places: dict[str, Path | str | None] = {"data.dir": folder}
        prepared = info is None or info.prepared
        if prepared:
            places["data.partition_file"] = loading.client_file(config)
        else:
            arguments = {key: v for key, v in arguments.items() if key not in OF_PARTS}
        key = repr((config.data.name, arguments, places))
        if key not in self._data_of:
            gone = [f"{k} {path}" for k, path in places.items() if path and not Path(path).exists()]
            if gone:
                logger.info("%s is not there: the data are not compared", gone[0])
                self._data_of[key] = None
            else:
                read = loading.divided(config)[0] if prepared else loading.read(config)
                self._data_of[key] = data_of(read, folder)
        digests = self._data_of[key]
        return None if digests is None else replace(digests, dir=folder)
