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
    """Warns of renamed keys among the dotted keys given, once per process for each message.

    An older config.yaml also contains options of unused data sets, which need no warning: those
    that are not among ``sections``, the methods and data sets in use.
    """
    old = []
    for key in given:
        section = RENAMED.get(key, "").rpartition(".")[0]
        if key in RENAMED and (section in sections or data.find(section) is None):
            old.append(f"{key} is now called {RENAMED[key]}")
    if old:
        _log("; ".join(old))


@functools.cache
def _log(message: str) -> None:
    _LOGGER.warning(message)
