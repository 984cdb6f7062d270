"""What the commands that run something do when it ends before its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fedsim.cli.failure import show_notes
from fedsim.errors import StoreError, WorkerError
from fedsim.interrupts import exit_status, handled

if TYPE_CHECKING:
    from fedsim.progress import Watcher


@contextmanager
def watched(ctx: click.Context, watcher: Watcher) -> Iterator[None]:
    """Ends the command in one line that says how to go on, where that makes sense.

    Raises:
        WorkerError, StoreError: as in the block, with how to resume; a diverged run would only
            diverge again.
    """
    try:
        with handled():
            yield
    except KeyboardInterrupt as interrupt:
        watcher.close()
        click.echo(watcher.interrupted(), err=True)
        show_notes(interrupt)
        ctx.exit(exit_status(interrupt))
    except (WorkerError, StoreError) as error:
        if watcher.how_to_resume:
            error.args = (f"{error}; go on with: {watcher.how_to_resume}",)
        raise
    finally:
        watcher.close()
