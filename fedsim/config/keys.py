"""What the fields of all sections declare of their keys, by dotted name."""

from collections.abc import Mapping

from fedsim.config.section import Key, Section
from fedsim.config.sections import RunSettings, fields

KEYS: Mapping[str, Key] = {
    key: next((mark for mark in field.metadata if isinstance(mark, Key)), Key())
    for key, field in fields().items()
}
"""What is declared of each dotted key."""
COLUMNS: Mapping[str, str] = {
    key: declared.column or key for key, declared in KEYS.items() if declared.column is not None
}
"""By key its column in summary.csv."""
PLACEMENT = frozenset(key for key, declared in KEYS.items() if declared.role == "placement")
"""Keys that change no result, so that a finished run counts with any values."""
FREE = PLACEMENT | {key for key, declared in KEYS.items() if declared.role == "device"}
"""Keys that may change in a run that has begun; its kind of device is compared once known."""
_OUT = [key for key, declared in KEYS.items() if declared.role != "result"]
_NO_SETTINGS = {"seed", *_OUT, *(COLUMNS.get(key, key) for key in _OUT)}
_SETTINGS = {"best_by", *COLUMNS.values()} - _NO_SETTINGS


def is_setting(column: str) -> bool:
    """Whether results depend on a column of summary.csv; of outcomes only numbers have a dot, as in
    ``final_test_sensitivity@0.9``."""
    section, _, leaf = column.rpartition(".")
    dotted = bool(section) and leaf.isidentifier()
    return column in _SETTINGS or (dotted and column not in _NO_SETTINGS)


def conditions(key: str) -> tuple[str, ...]:
    """What a key has no effect without, see :attr:`~fedsim.config.section.Key.only_with`."""
    section = RunSettings.model_fields[key.partition(".")[0]].default
    common = section.only_with if isinstance(section, Section) else ""
    return (*((common,) if common and common != key else ()), *KEYS[key].only_with)
