"""The names that settings can take, and their completion in a shell."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from fedsim.data import DatasetInfo

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Rows = list[dict[str, Any]]
PLACEHOLDER = ":NAME"
"""What the name of a library's networks ends with."""


def _algorithms() -> Rows:
    from fedsim import algorithms

    return [
        {"name": name, "hyperparameters": defaults(name), "description": algorithms.describe(name)}
        for name in algorithms.names()
    ]


def _datasets() -> Rows:
    from fedsim import data

    return [
        {
            "name": info.name,
            "classes": info.num_classes or None,
            "pixels": info.image_size or None,
            "channels": info.channels or None,
            "model": info.default_model,
            "partition": info.default_partition,
            "files": origin(info),
            "options": defaults(info.name),
            "description": info.title,
            "source": info.source,
        }
        for info in data.catalogue()
    ]


def origin(info: DatasetInfo) -> str:
    """Where the files come from, in a word; ``source`` has the details."""
    if info.needs_folder:
        return "--data-dir"
    embedded = "embedded" if info.source == "embedded" else "download"
    return "generated" if info.generated else embedded


def _models() -> Rows:
    from fedsim.models.catalogue import CATALOGUE, LIBRARIES

    rows = [(name, ", ".join(e.inputs), e.description) for name, e in CATALOGUE.items()]
    rows += [(library + PLACEHOLDER, "images", text) for library, text in LIBRARIES.items()]
    return [{"name": name, "inputs": i, "description": text} for name, i, text in rows]


def _partitions() -> Rows:
    from fedsim.data.partitions import LEAVE_ONE_OUT

    of_grids = "in grids and studies: by_site, each site held out in its turn"
    return [*_parts("data.partitions", "NAMES"), {"name": LEAVE_ONE_OUT, "description": of_grids}]


def _parts(package: str, registry: str) -> Rows:
    """Of names with their descriptions."""
    parts = getattr(importlib.import_module(f"fedsim.{package}"), registry)
    texts = parts if isinstance(parts, Mapping) else {n: parts.describe(n) for n in parts.names()}
    return [{"name": name, "description": text} for name, text in texts.items()]


def _tasks() -> Rows:
    return [{**row, "options": defaults(row["name"])} for row in _parts("tasks", "TASKS")]


def _presets() -> Rows:
    from fedsim.config import presets

    rows = []
    for name, preset in ((name, presets.load(name)) for name in presets.names()):
        runs = math.prod(len(axis.values) for axis in preset.grid)
        rows.append({"name": name, "runs": runs, "description": preset.about})
    return rows


CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "algorithms": _algorithms,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "tasks": _tasks,
    "attacks": lambda: _parts("attacks", "ATTACKS"),
    "compressors": lambda: _parts("compressors", "COMPRESSORS"),
    "selections": lambda: _parts("schedules", "SELECTIONS"),
    "presets": _presets,
}
"""By kind the names with what ``fedsim list`` says of them."""


def defaults(section: str) -> dict[str, Any]:
    """The defaults of the options of a method, task or data set; empty for names of the user's."""
    from fedsim.algorithms.catalogue import METHODS
    from fedsim.tasks import TASKS

    for registry in (METHODS, TASKS):
        if section in registry.names():
            return registry.defaults(section)
    from fedsim import data
    from fedsim.core import settings

    return settings.defaults(data.options(section)) if data.find(section) else {}


def named(kind: str) -> Completer:
    """Completes a name; of several with commas the last one."""

    def complete(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
        before, comma, start = text.rpartition(",")
        return [
            CompletionItem(before + comma + row["name"], help=row["description"])
            for row in CATALOGUES[kind]()
            if row["name"].startswith(start) and not row["name"].endswith(PLACEHOLDER)
        ]

    return complete


folders: Completer = click.Path(file_okay=False).shell_complete
files: Completer = click.Path().shell_complete


def preset_or_file(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Completes a preset's name, and where there is none a file."""
    return named("presets")(ctx, parameter, text) or files(ctx, parameter, text)


def published_tables(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Completes the name of a published table."""
    from fedsim.audit import published

    return [
        CompletionItem(name, help=published.load(name).title)
        for name in published.names()
        if name.startswith(text)
    ]


def value_of(key: str) -> Completer | None:
    """How the value of a key is completed; None where it is no name or path."""
    from fedsim.config.keys import KEYS

    if key not in KEYS or not (KEYS[key].names or KEYS[key].path):
        return None
    paths = folders if KEYS[key].path == "dir" else files
    return named(KEYS[key].names) if KEYS[key].names else paths


def keys(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Completes the keys of ``--set``."""
    from fedsim.config.sections import fields

    return [
        CompletionItem(f"{key}=", help=field.description)
        for key, field in fields().items()
        if key.startswith(text)
    ]
