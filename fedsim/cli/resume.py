"""``fedsim resume``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedsim.cli.common import make_importable, watched
from fedsim.cli.options import (
    FLAGS,
    F,
    GroupedCommand,
    GroupedOption,
    destination,
    flag_option,
    verbose_option,
)

DECISIVE = ("engine.on_client_failure", "engine.fast")
"""Keys of section engine that can change a result and stay as they are."""
SHOWN = [
    replace(flag, shown=None)  # no default: as it was
    for flag in FLAGS
    if flag.group == "Engine" and flag.key not in DECISIVE
]
"""The flags that may be given anew: where the work is done cannot change a result."""


def placement_options(function: F) -> F:
    """The flags of :data:`SHOWN`, and ``--set`` for keys of their kind without a flag."""
    function = click.option(
        "--set",
        "sets",
        cls=GroupedOption,
        group="Engine",
        metavar="KEY=VALUE",
        multiple=True,
        help="Another key of section engine: engine.memory_per_client=4. Repeatable.",
    )(function)
    for flag in reversed(SHOWN):
        function = flag_option(flag)(function)
    return function


@click.command(cls=GroupedCommand)
@click.argument("directory", metavar="DIR")
@placement_options
@verbose_option
@click.pass_context
def resume(ctx: click.Context, /, directory: str, **values: Any) -> None:
    """Go on with a run that was interrupted, killed or failed.

    DIR is its directory. The tables are cut back to the newest checkpoint; when the run ends, its
    files are those of a run that was never disturbed. Only where the work is done may be given
    anew. A finished run shows its result.

    \b
      fedsim resume runs/digits/fedld/RUN
      fedsim resume runs/digits/fedld/RUN --engine serial
    """
    from fedsim.config import experiments
    from fedsim.config.resolve import from_flags
    from fedsim.storage.run_dir import RunStore
    from fedsim.training.progress import observer, show_result

    store = RunStore(Path(directory))
    given = {flag.key: (flag.names[-1], values[destination(flag.key)]) for flag in SHOWN}
    flags = from_flags(given, values["sets"])
    file = store.path / "config.yaml"
    make_importable(experiments.read(file).settings if file.is_file() else {}, flags)
    if file.is_file() and store.finished:
        click.echo(f"{directory} is finished; its result:")
        show_result(store)
        return
    from fedsim.training import driver

    watcher = observer()
    with watched(ctx, watcher):
        driver.resume(store.path, flags, watcher, tell=lambda text: click.echo(text, err=True))
