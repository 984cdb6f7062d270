"""The names that settings can take, and their completion in a shell."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
KINDS = {
    "algorithm": "algorithms",
    "server": "algorithms",
    "data.name": "datasets",
    "model.name": "models",
    "data.partition": "partitions",
}
"""The keys whose values are names, and the kind of these."""
FOLDERS = ("data.dir", "engine.working_dir")
"""The keys whose values are folders."""


@cache
def catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """By kind (algorithms, datasets, models, partitions, presets) and name: a description, and
    where there are any the defaults of the options."""
    from fedsim import algorithms, data
    from fedsim.config import presets
    from fedsim.core.settings import defaults
    from fedsim.data import partitions
    from fedsim.models import NAMES

    methods = {
        name: {
            "description": algorithms.describe(name),
            "defaults": defaults(algorithms.parameters(name)),
        }
        for name in algorithms.names()
    }
    datasets = {
        info.name: {
            "description": info.title,
            "defaults": defaults(data.options(info.name)),
            "model": info.default_model,
            "partition": info.default_partition,
        }
        for info in data.catalogue()
    }
    return {
        "algorithms": methods,
        "datasets": datasets,
        "models": {name: {"description": about} for name, about in NAMES.items()},
        "partitions": {n: {"description": about} for n, about in partitions.NAMES.items()},
        "presets": {n: {"description": presets.load(n).about} for n in presets.names()},
    }


def defaults(section: str) -> dict[str, Any]:
    """The defaults of the options of a method or data set; empty for names of the user's."""
    found: dict[str, Any] = {}
    for kind in ("algorithms", "datasets"):
        found |= catalogue()[kind].get(section, {}).get("defaults", {})
    return found


def named(kind: str) -> Completer:
    """Completes a name; of several with commas the last one."""

    def complete(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
        before, comma, start = text.rpartition(",")
        return [
            CompletionItem(before + comma + name, help=entry["description"])
            for name, entry in catalogue()[kind].items()
            if name.startswith(start)
        ]

    return complete


def folders(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Completes a folder."""
    return [CompletionItem(text, type="dir")]


def files(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Completes a file."""
    return [CompletionItem(text, type="file")]


def preset_or_file(
    ctx: click.Context, parameter: click.Parameter, text: str
) -> list[CompletionItem]:
    """Completes a preset's name, and where there is none a file."""
    return named("presets")(ctx, parameter, text) or files(ctx, parameter, text)


def value_of(key: str, annotation: Any) -> Completer | None:
    """How the value of a key is completed; None where nothing is known of it."""
    if key in KINDS:
        return named(KINDS[key])
    if key in FOLDERS:
        return folders
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    if annotation is bool:
        choices = ("true", "false")

    def complete(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
        return [CompletionItem(choice) for choice in choices if choice.startswith(text)]

    return complete if choices else None


def key_or_value(ctx: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
    """Completes ``--set``: keys with ``=``, and after it the value of the key."""
    from fedsim.config.sections import fields

    key, equals, value = text.partition("=")
    known = fields()
    if equals:
        complete = value_of(key, known[key].annotation) if key in known else None
        found = complete(ctx, parameter, value) if complete else []
        return [CompletionItem(f"{key}={item.value}", help=item.help) for item in found]
    keys = {name: field.description for name, field in known.items()}
    sections = [name for kind in ("algorithms", "datasets") for name in catalogue()[kind]]
    keys |= {f"{section}.{leaf}": None for section in sections for leaf in defaults(section)}
    return [CompletionItem(f"{k}=", help=about) for k, about in keys.items() if k.startswith(key)]
