"""Values of another kind, out of range or absurd, for every key; in YAML, in grids and as flags."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from fedsim.config.sections import fields
from tests.fuzz.harness import Case, tried

NO_NUMBERS: tuple[object, ...] = (
    *("abc", "", "nan", "1e999", "0x10", "1,5", "x" * 5000, "a\nb"),
    *(math.nan, math.inf, True, [], [1], {"a": 1}),
)
NO_WHOLE_NUMBERS: tuple[object, ...] = (1.5, "1.5", 0.1, 1e-9, 10**30)
NO_NAMES: tuple[object, ...] = (
    *("no such name", "", "x" * 5000, "\x07", "fed\navg"),
    *(3, 1.5, True, ["x"], [], {"a": 1}),
)
NO_TEXTS: tuple[object, ...] = (3, 1.5, True, ["x"], [], {"a": 1})
NO_SWITCHES: tuple[object, ...] = ("maybe", "", 2, -1, 0.5, [], [True], {"a": 1}, "null ", math.nan)
NAMED = ("algorithm", "server", "margin", "data.partition", "data.augment", "data.name")
ANYTHING = ("engine.kind", "model.name")
"""Names that are looked up only when a run starts."""


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types that a key takes, without None."""
    members = (annotation,) if get_origin(annotation) in (None, Literal) else get_args(annotation)
    return tuple(kind for kind in members if kind is not type(None))


def wrong_values(key: str) -> tuple[object, ...]:
    """What the key must refuse, whatever its range."""
    wanted = kinds(fields()[key].annotation)
    if bool in wanted:
        return NO_SWITCHES
    if {int, float} & set(wanted) and str not in wanted:
        return NO_NUMBERS + (() if float in wanted else NO_WHOLE_NUMBERS)
    literal = any(get_origin(kind) is Literal for kind in wanted)
    if literal or key in NAMED:
        return tuple(v for v in NO_NAMES if not (key == "server" and isinstance(v, list)))
    return NO_TEXTS if str in wanted and float not in wanted else ("no such law", "", [1], {"a": 1})


def outside(key: str) -> Iterator[object]:
    """Numbers beyond the range of the key."""
    for limit in fields()[key].metadata:
        for name, step in (("gt", 0), ("ge", -1), ("lt", 0), ("le", 1)):
            bound = getattr(limit, name, None)
            if bound is not None:
                yield bound + step * max(1, abs(bound) * 1e-3)
                if name in ("gt", "ge"):
                    yield from (-1e300, -7)


def dumped(key: str, value: object) -> str:
    """The key as YAML, half of the time nested."""
    section, _, leaf = key.rpartition(".")
    nested = {section: {leaf: value}} if section and len(repr(value)) % 2 else {key: value}
    return yaml.safe_dump(nested, allow_unicode=True)


def yaml_cases(key: str) -> list[Case]:
    """A file for each wrong value; the line must name file and key."""
    values = [*wrong_values(key), *outside(key)]
    says = ("e.yaml", key.rpartition(".")[2])
    runs = (
        "sweep e.yaml --dry-run --no-measure",
        "run -c e.yaml --out out",
        "partition -c e.yaml --out out",
    )
    return [
        Case(f"{key}={value!r}"[:60], args, says, files={"e.yaml": dumped(key, value)})
        for value, args in zip(values, itertools.cycle(runs), strict=False)
    ]


def texts_of(key: str) -> list[str]:
    """Wrong values as a shell can give them; any text may be a path or name of one's own."""
    wrong = wrong_values(key)
    if wrong is NO_TEXTS:
        return []
    values = [v for v in (*wrong, *outside(key)) if not isinstance(v, list | dict | bytes)]
    return [v if isinstance(v, str) else str(v) for v in values]


def set_cases(key: str) -> list[Case]:
    """``--set KEY=VALUE``; the line must name it."""
    run = ("run", "--out", "out", "--set")
    return [Case(f"{key}={t}"[:60], (*run, f"{key}={t}"), f"--set {key}") for t in texts_of(key)]


KEYS = tuple(fields())
pytestmark = pytest.mark.integration


@pytest.mark.parametrize("step", [41, pytest.param(13, marks=pytest.mark.slow)])
def test_some_of_all_keys(step: int, tmp_path: Path) -> None:
    every = [case for key in KEYS for case in (*yaml_cases(key), *set_cases(key))]
    tried(every[::step], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("key", KEYS)
def test_yaml(key: str, tmp_path: Path) -> None:
    tried(yaml_cases(key), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("key", KEYS)
def test_set(key: str, tmp_path: Path) -> None:
    tried(set_cases(key), tmp_path)
