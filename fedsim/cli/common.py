"""Shared by the commands: the configuration from flags, messages, and how a run ends."""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedsim.cli.names import folders
from fedsim.cli.options import VERBOSE
from fedsim.core.errors import (
    ConfigError,
    FedsimError,
    StoreError,
    WorkerError,
    described,
    exit_status,
)
from fedsim.core.terminal import echo, printable, tell
from fedsim.training.signals import handled

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.config.run import RunConfig
    from fedsim.display.progress import Lines
    from fedsim.display.trackers import Tracker


F = TypeVar("F", bound=Callable[..., Any])

LONGEST = 1000
"""Characters of an error's line."""


def configuration(preset: str | None, config: str | None, flags: Settings) -> RunConfig:
    """The configuration of one run, from --preset, --config and the other flags.

    Raises:
        ConfigError: a setting cannot be used.
    """
    return resolved(layers_of(preset, config, flags))


def layers_of(preset: str | None, config: str | None, flags: Settings) -> Sequence[Settings]:
    """The settings of --preset, --config and the other flags; a later layer wins.

    The user's modules that they name can be imported from then on.

    Raises:
        ConfigError: there is no such preset, file or folder.
    """
    from fedsim.config.resolve import read_layers

    file = None if config is None else Path(config)
    layers = read_layers(preset=preset, file=file, overrides=flags)
    make_importable(*layers)
    return layers


def resolved(layers: Sequence[Settings]) -> RunConfig:
    """The configuration of layers of settings; warns of those that have no effect.

    Raises:
        ConfigError: a setting cannot be used.
    """
    from fedsim.config.resolve import resolve, warn_unused

    resolve(*layers, build=False)  # finds most errors before torch is imported
    config = resolve(*layers)
    for layer in layers:
        warn_unused(layer, [config])
    return config


def trackers_of(names: Sequence[str]) -> list[Tracker]:
    """The trackers of --track.

    Raises:
        ConfigError: one is not installed.
    """
    if not names:
        return []
    from fedsim.display.trackers import tracker

    return [tracker(name) for name in dict.fromkeys(names)]


def make_importable(*layers: Settings) -> None:
    """Prepends ``engine.working_dir`` and the current directory to sys.path.

    ``module:function`` then finds the user's own modules however fedsim was started. Of the layers
    of settings a later one wins.

    Raises:
        ConfigError: the folder is not there.
    """
    folders = [Path.cwd()]
    given = [layer["engine.working_dir"] for layer in layers if "engine.working_dir" in layer]
    if given and isinstance(given[-1].value, str):
        folder = Path(given[-1].value)
        if not folder.is_dir():
            raise ConfigError(f"{given[-1].origin}: {str(folder)!r} is not a directory")
        folders.insert(0, folder.resolve())
    sys.path[:0] = [str(path) for path in folders if str(path) not in sys.path]


def make_run_importable(run: str | Path, flags: Settings | None = None) -> None:
    """:func:`make_importable` by a run's config.yaml and flags."""
    from fedsim.config import experiments

    config = Path(run, "config.yaml")
    make_importable(experiments.read(config).settings if config.is_file() else {}, flags or {})


def newest(argument: str, *, sweeps: bool = False, searches: bool = False) -> str:
    """The newest run below runs/, where 'fedsim run' writes; it is named on standard error.

    Args:
        argument: that names none, for the error.
        sweeps: whether the sweep of that run, where it is of one, stands for it.
        searches: whether it may be a search.

    Raises:
        ConfigError: there is none.
    """
    from fedsim.storage import directories

    path = directories.newest(Path("runs"), sweeps=sweeps, searches=searches)
    if path is None:
        raise ConfigError(f"{argument}: none is named, and there is none below runs/")
    echo(f"newest: {path}", err=True)
    return str(path)


def run_argument(
    name: str, metavar: str = "[RUN]", *, several: bool = False, **kinds: bool
) -> Callable[[F], F]:
    """The directory of a run, or of several; unset: :func:`newest`."""

    def given(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if ctx.resilient_parsing or value not in (None, ()):
            return value
        path = newest(metavar.strip("[]."), **kinds)
        return (path,) if several else path

    return click.argument(
        name,
        metavar=metavar,
        nargs=-1 if several else 1,
        required=False,
        shell_complete=folders,
        callback=given,
    )


def check_new_file(file: Path, flag: str) -> None:
    """Refuses a file that is there, in no directory or in that of a run, by a ConfigError."""
    from fedsim.storage.run_dir import check_outside_runs

    if file.exists():
        raise ConfigError(f"{flag} {file}: is already there")
    if not file.parent.is_dir():
        raise ConfigError(f"{flag} {file}: there is no directory {file.parent}")
    check_outside_runs(file, flag)


class Echo(logging.Handler):
    """Shows fedsim's log: notices on stdout, warnings on stderr, each a plain line.

    Both streams are named, since click finds the terminal itself below a display that is active,
    and would write into its lines.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record."""
        if record.levelno >= logging.ERROR:
            show_error(self.format(record))
        else:
            stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
            tell(printable(self.format(record)), file=stream)


def show_log() -> None:
    """Shows the messages of the logger ``fedsim``."""
    logger = logging.getLogger("fedsim")
    if not any(isinstance(handler, Echo) for handler in logger.handlers):
        logger.addHandler(Echo())
        logger.setLevel(logging.INFO)


def show_error(message: str) -> None:
    """``error: ...`` in one line without control characters; a very long one loses its middle."""
    text = printable(" ".join(message.split()))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    echo(f"error: {text}", file=sys.stderr)


def show_notes(error: BaseException) -> None:
    """``note: ...``, a line for each note of an error, such as a checkpoint that failed."""
    for note in getattr(error, "__notes__", []):
        echo(f"note: {' '.join(note.split())}", err=True)


def tracebacks(ctx: click.Context) -> bool:
    """Whether tracebacks are shown: with ``--verbose`` or ``FEDSIM_DEBUG=1``."""
    return bool(ctx.meta.get(VERBOSE)) or os.environ.get("FEDSIM_DEBUG", "0") not in ("", "0")


def show_traceback(ctx: click.Context, error: BaseException) -> None:
    """The traceback, where tracebacks are shown."""
    if tracebacks(ctx):
        echo("".join(traceback.format_exception(error)), err=True, nl=False)


def error_text(error: Exception) -> str:
    """What an error says; of the operating system's, ``FILE: reason`` as far as it names them."""
    if isinstance(error, FedsimError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: {reason}"
    return f"unexpected {described(error)}; FEDSIM_DEBUG=1 shows where, please report it"


def reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more, as after ``| head``."""
    if not hasattr(select, "poll"):  # Windows
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # errors are always reported
        return bool(poll.poll(0))
    except (OSError, ValueError):  # closed, or no file
        return False


def error_status(error: Exception) -> int:
    """1 for what failed, 2 for usage and configuration, and for a path longer than any file's."""
    if isinstance(error, FedsimError):
        return error.exit_status
    return 2 if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG else 1


@contextmanager
def repeatable(ctx: click.Context, contents: str, folder: Path) -> Iterator[None]:
    """Runs the block of a command that continues when it is given again.

    An interruption, from the first import on, ends the command and says so.

    Args:
        ctx: of the command.
        contents: of the folder, such as ``"the runs are"``.
        folder: of the command; it may not exist yet.
    """
    try:
        with handled():
            yield
    except KeyboardInterrupt as interrupt:
        where = f"{contents} in {folder}, " if folder.exists() else ""
        echo(f"interrupted; {where}the same command continues", err=True)
        show_notes(interrupt)
        ctx.exit(exit_status(interrupt))


@contextmanager
def interruptible(ctx: click.Context, shown: Lines) -> Iterator[None]:
    """Runs the block; an interruption or failure ends the command with how to resume.

    Raises:
        WorkerError, StoreError: of the block, with how to resume. Other errors, such as
            divergence, would only come again.
    """
    try:
        with handled():
            yield
    except KeyboardInterrupt as interrupt:
        shown.close()
        echo(shown.interrupted(), err=True)
        show_notes(interrupt)
        ctx.exit(exit_status(interrupt))
    except (WorkerError, StoreError) as error:
        if shown.how_to_resume:
            error.args = (f"{error}; resume with: {shown.how_to_resume}",)
        raise
    finally:
        shown.close()
