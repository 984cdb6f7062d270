"""What an error looks like: one line on stderr, and the traceback where it was asked for."""

from __future__ import annotations

import os
import traceback

import click

from fedsim.cli.options import VERBOSE
from fedsim.errors import notes


def complain(message: str) -> None:
    """``error: ...`` in one line."""
    click.echo(f"error: {' '.join(message.split())}", err=True)


def show_notes(error: BaseException) -> None:
    """``note: ...``, a line for each thing that went wrong beside the error."""
    for note in notes(error):
        click.echo(f"note: {' '.join(note.split())}", err=True)


def show_traceback(ctx: click.Context, error: BaseException) -> None:
    """The traceback, with ``--verbose`` or ``FEDSIM_DEBUG=1``."""
    if ctx.meta.get(VERBOSE) or os.environ.get("FEDSIM_DEBUG", "0") not in ("", "0"):
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)


def said_by_the_system(error: OSError) -> str:
    """``FILE: reason``, as far as the system names them."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"
