"""``fedsim resume``."""

from __future__ import annotations

from pathlib import Path

import click

from fedsim.cli import options
from fedsim.cli.common import interruptible, make_run_importable, trackers_of
from fedsim.cli.names import folders
from fedsim.core.terminal import echo


@click.command(cls=options.SettingsCommand, takes=options.changeable, show_defaults=False)
@click.argument("directory", metavar="DIR", shell_complete=folders)
@options.set_option(
    group="Engine", help="Another key of section engine: engine.memory_per_client=4. Repeatable."
)
@options.track_option
@options.accept_option
@options.verbose_option
@click.pass_context
def resume(
    ctx: click.Context,
    /,
    directory: str,
    track: tuple[str, ...],
    accept_changed_code: bool,
    flags: options.Settings,
) -> None:
    """Continue a run that was interrupted, killed or failed.

    The run in DIR continues from its newest checkpoint; at the end, its files are those of a run
    without interruption. Only settings that cannot change the result may be changed. Trackers that
    the run had continue without --track. Of a finished run the result is shown.

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
    with interruptible(ctx, shown):
        from fedsim.display.trackers import resumed
        from fedsim.training import driver  # imports torch, which takes seconds

        followers = resumed(store.path, [shown, *trackers_of(track)])
        driver.resume(store.path, flags, followers, accept_changed_code=accept_changed_code)
