"""What the commands share: flags to a configuration, error messages, and the end of a run."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli.options import VERBOSE
from fedsim.core.errors import StoreError, WorkerError, exit_status, notes
from fedsim.training.signals import handled

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.config.resolve import RunConfig
    from fedsim.training.progress import Lines


def configuration(preset: str | None, config: str | None, flags: Settings) -> RunConfig:
    """The configuration of one run, from --preset, --config and the other flags.

    Raises:
        ConfigError: something given cannot be used.
    """
    from fedsim.config import experiments
    from fedsim.config.resolve import load_config

    file = None if config is None else Path(config)
    make_importable({} if file is None else experiments.read(file).settings, flags)
    return load_config(preset=preset, file=file, overrides=flags)


def make_importable(*layers: Settings) -> None:
    """Puts the current directory, and before it ``engine.working_dir``, in front of sys.path.

    ``module:function`` then names the user's own modules however fedsim was started.

    Args:
        layers: where ``engine.working_dir`` may be given; a later layer wins.

    Raises:
        ConfigError: the folder is not there.
    """
    from fedsim.core.errors import ConfigError

    folders = [Path.cwd()]
    given = [layer["engine.working_dir"] for layer in layers if "engine.working_dir" in layer]
    if given and isinstance(given[-1].value, str):
        folder = Path(given[-1].value)
        if not folder.is_dir():
            raise ConfigError(f"{given[-1].origin}: {str(folder)!r} is not a directory")
        folders.insert(0, folder.resolve())
    sys.path[:0] = [str(path) for path in folders if str(path) not in sys.path]


class Echo(logging.Handler):
    """Shows fedsim's log: notices on stdout, warnings on stderr, each a plain line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record."""
        click.echo(self.format(record), err=record.levelno >= logging.WARNING)


def show_log() -> None:
    """Shows the messages of the logger ``fedsim`` in this process."""
    logger = logging.getLogger("fedsim")
    if not any(isinstance(handler, Echo) for handler in logger.handlers):
        logger.addHandler(Echo())
        logger.setLevel(logging.INFO)


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


@contextmanager
def watched(ctx: click.Context, shown: Lines) -> Iterator[None]:
    """Ends the command in one line that says how to go on, where that makes sense.

    Raises:
        WorkerError, StoreError: as in the block, with how to resume; a diverged run would only
            diverge again.
    """
    try:
        with handled():
            yield
    except KeyboardInterrupt as interrupt:
        shown.close()
        click.echo(shown.interrupted(), err=True)
        show_notes(interrupt)
        ctx.exit(exit_status(interrupt))
    except (WorkerError, StoreError) as error:
        if shown.how_to_resume:
            error.args = (f"{error}; resume with: {shown.how_to_resume}",)
        raise
    finally:
        shown.close()
