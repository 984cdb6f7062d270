"""``fedsim list``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli.options import format_option, verbose_option
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from fedsim.data import DatasetInfo

Rows = list[dict[str, Any]]


def _algorithms() -> Rows:
    from fedsim import algorithms

    return [
        {
            "name": name,
            "hyperparameters": {k: p.default for k, p in algorithms.parameters(name).items()},
            "description": algorithms.describe(name),
        }
        for name in algorithms.names()
    ]


def _datasets() -> Rows:
    from fedsim import data
    from fedsim.core.settings import defaults

    return [
        {
            "name": info.name,
            "classes": info.num_classes or None,
            "pixels": info.image_size or None,
            "channels": info.channels or None,
            "model": info.default_model,
            "partition": info.default_partition,
            "files": _origin(info),
            "options": defaults(data.options(info.name)),
            "description": info.title,
            "source": info.source,
        }
        for info in data.catalogue()
    ]


def _origin(info: DatasetInfo) -> str:
    """Where the files come from, in a word; ``source`` has the details."""
    if info.needs_folder:
        return "--data-dir"
    if info.generated:
        return "generated"
    return "embedded" if info.source == "embedded" else "download"


def _models() -> Rows:
    from fedsim.models.catalogue import CATALOGUE, LIBRARIES

    own = [
        {"name": name, "inputs": ", ".join(e.inputs), "description": e.description}
        for name, e in CATALOGUE.items()
    ]
    others = [
        {"name": f"{library}:NAME", "inputs": "images", "description": about}
        for library, about in LIBRARIES.items()
    ]
    return own + others


def _partitions() -> Rows:
    from fedsim.data.partitions import NAMES

    return [{"name": name, "description": text} for name, text in NAMES.items()]


def _presets() -> Rows:
    from fedsim.config import presets

    return [
        {
            "name": name,
            "runs": math.prod(len(axis.values) for axis in presets.load(name).grid),
            "description": presets.load(name).about,
        }
        for name in presets.names()
    ]


KINDS: Mapping[str, Callable[[], Rows]] = {
    "algorithms": _algorithms,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "presets": _presets,
}


@click.command("list")
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="|".join(KINDS))
@format_option
@verbose_option
def listing(kind: str, form: str) -> None:
    """List the names that an experiment can use.

    An algorithm, a data set or a model may also be your own function: module:function.

    \b
      fedsim list algorithms
      fedsim list datasets --format json
    """
    from fedsim.training.tables import show

    rows = KINDS[kind]()
    if form == "json":
        echo(json.dumps(rows, indent=2))
        return
    show([{k: _cell(value) for k, value in row.items() if k != "source"} for row in rows])


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return "-" if value is None else str(value)
