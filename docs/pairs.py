"""The matrix of docs/reference/combinations.md: which two parts of a run go together.

Parts are read from the configuration and the registry of methods, so that a new one appears by
itself; two parts are tried by building a small run with both, which starts nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from fedsim import algorithms
from fedsim.attacks import ATTACKS
from fedsim.compressors import COMPRESSORS
from fedsim.config.dp import DpConfig
from fedsim.config.resolve import with_normalization
from fedsim.config.run import RunConfig
from fedsim.config.sections import ClockConfig, TrainConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import Dataset, Partition
from fedsim.server import Average
from fedsim.testing.rounds import VALIDATION, small
from fedsim.training.assemble import assemble
from fedsim.training.loading import deal

Settings = Mapping[str, Any]
Part = tuple[str, str]
"""A kind and a name."""
NO_STATISTICS = {"model": {"norm": "group"}}
LATE = {"samples_per_second": "lognormal(100, 1)"}
WITH: dict[Part, Settings] = {
    ("selection", "fixed"): {"train": {"clients": "0,1,2,3"}},
    ("privacy", "user"): {"dp": {"clip": 1.0, "max_samples": 100}, **NO_STATISTICS},
    ("privacy", "example"): {"dp": {"clip": 1.0}, **NO_STATISTICS},
    ("asynchronous mode", "async"): {"clock": LATE},
}
"""What a part needs beside its name."""
VARIANTS: dict[Part, Settings] = {
    ("privacy", "user, adaptive"): {
        "dp": {"level": "user", "quantile": 0.5, "count_noise": 2.0, "max_samples": 100},
        **NO_STATISTICS,
    },
    ("privacy", "user, banded"): {
        "dp": {"level": "user", "clip": 1.0, "mechanism": "banded", "max_samples": 100},
        **NO_STATISTICS,
        "train": {"selection": "round_robin"},
    },
    ("asynchronous mode", "async, mixing"): {
        "clock": {"mode": "async", **LATE},
        "async": {"mixing": 0.5, "buffer": 1},
    },
}
"""Parts that are more than a name."""
DEFAULTS = (("selection", "uniform"), ("asynchronous mode", "sync"))
"""Names that stand for the absence of a part."""
TITLES = {
    "method": "Methods and rules",
    "pre-aggregation": "Pre-aggregations",
    "attack": "Attacks",
    "privacy": "Differential privacy",
    "compressor": "Compressors",
    "selection": "Selection of clients",
    "asynchronous mode": "Asynchronous modes",
}
"""The kinds of parts, and how they are called together."""
SERVER = re.compile(r"server '[^']*'")
INTRO = """## Pair by pair

Every part of a run is tried with every part of another kind, in a small run of `fedavg` (or of the
method) with a cohort of 4 of 8 clients. A pair that is not named here as refused runs. A cohort
that is too small for a rule is refused beside these, with the numbers.
"""


def names(section: type, key: str) -> list[str]:
    """The names that a key takes."""
    kind = section.model_fields[key].annotation
    kinds = (kind, *get_args(kind))
    return [n for k in kinds if get_origin(k) is Literal for n in get_args(k)]


@cache
def parts() -> dict[str, dict[str, Settings]]:
    """By kind and name the settings that add a part to a run."""
    found: dict[str, dict[str, Settings]] = {
        "method": {n: {"algorithm": n} for n in algorithms.names() if not mixes(n)},
        "pre-aggregation": {n: {"server": [n]} for n in algorithms.names() if mixes(n)},
        "attack": {n: {"attack": {"name": n}} for n in ATTACKS.names()},
        "privacy": {n: {"dp": {"level": n}} for n in names(DpConfig, "level")},
        "compressor": {n: {"compress": {"name": n}} for n in COMPRESSORS.names()},
        "selection": {n: {"train": {"selection": n}} for n in names(TrainConfig, "selection")},
        "asynchronous mode": {n: {"clock": {"mode": n}} for n in names(ClockConfig, "mode")},
    }
    for kind, default in DEFAULTS:
        del found[kind][default]
    for (kind, name), more in WITH.items():
        if name in found[kind]:
            found[kind][name] = merged([found[kind][name], more])
    for (kind, name), settings in VARIANTS.items():
        found[kind][name] = settings
    return found


def mixes(name: str) -> bool:
    """Whether a method is a pre-aggregation, which is followed by the mean or another rule."""
    server = algorithms.load(name).server
    received = any(not getattr(part, "needs_own_clients", False) for part in server.receive)
    return received and type(server.reduction) is Average and not server.optimizers


def merged(given: Iterable[Settings]) -> dict[str, Any]:
    """Settings of several parts together; a pre-aggregation comes before the method's own rule."""
    made: dict[str, Any] = {}
    for settings in given:
        for key, value in settings.items():
            nested = isinstance(value, Mapping)
            made[key] = {**made.get(key, {}), **value} if nested else value
    if "server" in made and made.get("algorithm", "fedavg") != "fedavg":
        made["server"] = [*made["server"], made["algorithm"]]
    if made.get("algorithm") == "fedbn":
        made.pop("model", None)  # it needs BatchNorm
    return made


def configuration(chosen: Iterable[Part]) -> RunConfig:
    """A small run with some parts.

    Raises:
        ConfigError: the configuration refuses them.
    """
    made = merged(parts()[kind][name] for kind, name in sorted(chosen, key=order))
    name, server = made.pop("algorithm", "fedavg"), made.pop("server", None)
    model = made.pop("model", {})
    config = small(name, **{"async_" if k == "async" else k: v for k, v in made.items()})
    dumped = config.model_dump(by_alias=True)
    return RunConfig(**{**dumped, "server": server, "model": {**dumped["model"], **model}})


def order(part: Part) -> int:
    """Where the kind of a part stands."""
    return list(parts()).index(part[0])


@cache
def data() -> tuple[Dataset, Partition, str]:
    """What all runs share."""
    return deal(with_normalization(small("fedavg", data=VALIDATION)))


@cache
def refusal(*chosen: Part) -> str | None:
    """Why a run with these parts is refused, None where it is not."""
    try:
        assemble(with_normalization(configuration(chosen)), *data())
    except ConfigError as error:
        return str(error)
    return None


def everything() -> list[Part]:
    """All parts."""
    return [(kind, name) for kind, named in parts().items() for name in named]


def pairs() -> list[tuple[Part, Part]]:
    """All pairs of parts of different kinds that are possible alone."""
    alone = [part for part in everything() if refusal(part) is None]
    return [(a, b) for a, b in itertools.combinations(alone, 2) if a[0] != b[0]]


def page() -> str:
    """The matrix in Markdown."""
    reasons: dict[str, int] = {}
    refused: dict[Part, dict[tuple[str, int], list[str]]] = {part: {} for part in everything()}
    for one, other in pairs():
        reason = refusal(one, other)
        if reason is not None:
            number = reasons.setdefault(SERVER.sub("server rules", reason), len(reasons) + 1)
            for a, b in ((one, other), (other, one)):
                refused[a].setdefault((b[0], number), []).append(b[1])
    lines = [INTRO]
    for kind, named in parts().items():
        lines += [f"### {TITLES[kind]}", ""]
        free = [n for n in named if not refused[kind, n] and refusal((kind, n)) is None]
        if free:
            lines += [f"With every part of another kind: {quoted(free)}.", ""]
        rest = [n for n in named if n not in free]
        lines += ["| part | refused with |", "|---|---|"] if rest else []
        for name in rest:
            cells = [
                f"{them(other, found)} ([{number}](#why-{number}))"
                for (other, number), found in refused[kind, name].items()
            ]
            lines.append(f"| `{name}` | {refusal((kind, name)) or '; '.join(cells)} |")
        lines.append("")
    lines += ["### Reasons", ""]
    lines += [f'{n}. <span id="why-{n}"></span>{reason}' for reason, n in reasons.items()]
    return "\n".join(lines) + "\n"


def them(kind: str, found: list[str]) -> str:
    """Parts of a kind in words."""
    possible = [name for name in parts()[kind] if refusal((kind, name)) is None]
    return f"every {kind}" if len(found) == len(possible) > 1 else quoted(found)


def quoted(found: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in found)
