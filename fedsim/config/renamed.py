"""Renamed keys: configurations, run directories and checkpoints may use the former names.

They still work; a warning says which name replaces them.
"""

import functools
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedsim import data
from fedsim.config.sections import RENAMED
from fedsim.core.settings import InvalidSetting

_LOGGER = logging.getLogger("fedsim")


def current(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, with each renamed key under its present name.

    Raises:
        InvalidSetting: a key is given under both names.
    """
    found = dict(values)
    for key, new in RENAMED.items():
        section, _, leaf = key.rpartition(".")
        given = found.get(section)
        if not isinstance(given, Mapping) or leaf not in given:
            continue
        found[section] = {k: v for k, v in given.items() if k != leaf}
        section, _, new_leaf = new.rpartition(".")
        there = found.get(section) or {}
        if new_leaf in there:
            raise InvalidSetting(key, f"given beside {new}, which replaces it")
        found[section] = {**there, new_leaf: given[leaf]}
    return found


def notify(given: Iterable[str], sections: Collection[str]) -> None:
    """Warns of renamed keys, once per process for each message.

    Args:
        given: dotted keys of a configuration.
        sections: methods and data sets whose options the configuration has. An older config.yaml
            also contains options of unused data sets, which need no warning.
    """
    old = [key for key in given if key in RENAMED and not _unused(RENAMED[key], sections)]
    if old:
        _log("; ".join(f"{key} is now called {RENAMED[key]}" for key in old))


def _unused(key: str, sections: Collection[str]) -> bool:
    """Whether ``key`` is an option of a data set that is not among the sections."""
    section = key.rpartition(".")[0]
    return section not in sections and data.find(section) is not None


@functools.cache
def _log(message: str) -> None:
    _LOGGER.warning(message)
