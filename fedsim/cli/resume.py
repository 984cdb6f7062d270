"""``fedsim resume``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli.common import (
    interruptible,
    make_run_importable,
    trackers_of,
)
from fedsim.cli.names import folders
from fedsim.cli.options import (
    FLAGS,
    SettingsCommand,
    accept_option,
    set_option,
    track_option,
    verbose_option,
)
from fedsim.core.imports import uncollected
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings

DECISIVE = (
    *("engine.client_batch", "engine.on_client_failure"),
    *("engine.precision", "engine.deterministic", "engine.fast"),
)
"""Keys of section engine that can change a result: they are fixed for a run."""
CHANGEABLE = {"Engine": tuple(flag for flag in FLAGS["Engine"] if flag.key not in DECISIVE)}
"""The flags that may be given anew, since they cannot change a result."""


@click.command(cls=SettingsCommand, flags=CHANGEABLE, show_defaults=False)
@click.argument("directory", metavar="DIR", shell_complete=folders)
@set_option(
    group="Engine", help="Another key of section engine: engine.memory_per_client=4. Repeatable."
)
@track_option
@accept_option
@verbose_option
@click.pass_context
def resume(
    ctx: click.Context,
    /,
    directory: str,
    track: tuple[str, ...],
    accept_changed_code: bool,
    flags: Settings,
) -> None:
    """Continue a run that was interrupted, killed or failed.

    DIR is its directory. The run continues from its newest checkpoint; at the end, its files are
    those of a run without interruption. Only settings that cannot change the result, such as where
    the work is done, may be changed. Trackers that the run had continue without --track. Of a
    finished run the result is shown.

    \b
      fedsim resume runs/digits/fedld/RUN
      fedsim resume runs/digits/fedld/RUN --engine serial
    """
    from fedsim.display.progress import display, show_result
    from fedsim.storage.run_dir import RunStore

    store, shown = RunStore(Path(directory)), display()
    file = store.path / "config.yaml"
    make_run_importable(directory, flags)
    if file.is_file() and store.finished:
        echo(f"{directory} is finished; its result:")
        show_result(store.path, store.summary)
        return
    trackers = trackers_of(track)
    with interruptible(ctx, shown):
        with uncollected():
            from fedsim.display.trackers import resumed
            from fedsim.training import driver  # imports torch

        driver.resume(
            store.path,
            flags,
            resumed(store.path, [shown, *trackers]),
            accept_changed_code=accept_changed_code,
        )
