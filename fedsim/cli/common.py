"""Shared by the commands: the configuration from flags, messages, and how a run ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from fedsim.cli.names import folders
from fedsim.cli.options import VERBOSE
from fedsim.core import errors
from fedsim.core.files import replacing
from fedsim.core.reading import parse_json
from fedsim.core.terminal import echo, printable, tell
from fedsim.training.signals import handled

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.config.experiments import Settings
    from fedsim.config.run import RunConfig
    from fedsim.display.progress import Lines
    from fedsim.display.trackers import Tracker


F = TypeVar("F", bound=Callable[..., Any])
LONGEST = 1200
"""Characters of an error that are shown."""


def configuration(preset: str | None, config: str | None, flags: Settings) -> RunConfig:
    """The configuration of one run from flags; warns of settings without effect."""
    from fedsim.config.resolve import read_layers, resolve, warn_unused

    file = None if config is None else Path(config)
    layers = read_layers(preset=preset, file=file, overrides=flags)
    make_importable(*layers)
    resolve(*layers, build=False)  # finds most errors before torch is imported
    resolved = resolve(*layers)
    for layer in layers:
        warn_unused(layer, [resolved])
    return resolved


def trackers_of(names: Sequence[str]) -> list[Tracker]:
    """The trackers of --track; a ConfigError where one is not installed."""
    if not names:
        return []
    from fedsim.display.trackers import tracker

    return [tracker(name) for name in dict.fromkeys(names)]


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of a data frame as values of JSON."""
    rows: list[dict[str, object]] = parse_json(frame.to_json(orient="records", double_precision=15))
    return rows


def write_table(frame: pd.DataFrame, out: str, form: str) -> None:
    """Writes the CSV file of --out, and says so, beside JSON on standard error."""
    from fedsim.storage.tables import csv_text

    with replacing(Path(out)) as unfinished:
        unfinished.write_text(csv_text(frame), encoding="utf-8", newline="\n")
    echo(f"file  {out}", err=form == "json")


def make_importable(*layers: Settings) -> None:
    """Prepends ``engine.working_dir``, of the last layer that has it, and the current directory to
    sys.path, so that ``module:function`` finds the user's own modules."""
    folders = [Path.cwd()]
    settings = [layer["engine.working_dir"] for layer in layers if "engine.working_dir" in layer]
    if settings and isinstance(settings[-1].value, str):
        folder = Path(settings[-1].value)
        if not folder.is_dir():
            raise errors.ConfigError(f"{settings[-1].origin}: {str(folder)!r} is not a directory")
        folders.insert(0, folder.resolve())
    sys.path[:0] = [str(path) for path in folders if str(path) not in sys.path]


def make_run_importable(run: str | Path, flags: Settings | None = None) -> None:
    """:func:`make_importable` by a run's config.yaml and flags."""
    from fedsim.config import experiments

    config = Path(run, "config.yaml")
    make_importable(experiments.read(config).settings if config.is_file() else {}, flags or {})


def newest(argument: str, *, sweeps: bool = False, searches: bool = False) -> str:
    """The newest run below runs/, or the sweep of that run, or a search; names it on stderr."""
    from fedsim.storage import directories

    path = directories.newest(Path("runs"), sweeps=sweeps, searches=searches)
    if path is None:
        raise errors.ConfigError(f"{argument}: none is named, and there is none below runs/")
    echo(f"newest: {path}", err=True)
    return str(path)


def on_run(
    name: str = "run",
    metavar: str = "[RUN]",
    *,
    several: bool = False,
    importable: bool = True,
    **kinds: bool,
) -> Callable[[F], F]:
    """The argument of a command on a run or ``several``, unset the :func:`newest`."""

    def directory(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if ctx.resilient_parsing or value not in (None, ()):
            return value
        path = newest(metavar.strip("[]."), **kinds)
        return (path,) if several else path

    def decorate(function: F) -> F:
        @wraps(function)
        def command(*args: Any, **parameters: Any) -> Any:
            if importable and not several:
                make_run_importable(parameters[name], parameters.get("flags"))
            return function(*args, **parameters)

        return click.argument(
            name,
            metavar=metavar,
            nargs=-1 if several else 1,
            required=False,
            shell_complete=folders,
            callback=directory,
        )(cast("F", command))

    return decorate


def check_new_file(file: Path, flag: str) -> None:
    """Refuses a file that is there, in no directory or in that of a run, by a ConfigError."""
    from fedsim.storage.run_dir import check_outside_runs

    if file.exists():
        raise errors.ConfigError(f"{flag} {file}: is already there")
    if not file.parent.is_dir():
        raise errors.ConfigError(f"{flag} {file}: there is no directory {file.parent}")
    check_outside_runs(file, flag)


class Echo(logging.Handler):
    """Shows fedsim's log beside an active display: notices on stdout, warnings on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record."""
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        prefix = "error: " if record.levelno >= logging.ERROR else ""
        tell(printable(prefix + self.format(record)), file=stream)


def show_log() -> None:
    """Shows the messages of the logger ``fedsim``."""
    logger = logging.getLogger("fedsim")
    if not any(isinstance(handler, Echo) for handler in logger.handlers):
        logger.addHandler(Echo())
        logger.setLevel(logging.INFO)


def show_error(message: str) -> None:
    """``error: ...`` in one line without control characters; of a long one both ends."""
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


def error_text(error: Exception) -> str:
    """What an error says; of the operating system's, ``FILE: reason`` as far as it names them."""
    if isinstance(error, errors.FedsimError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: {reason}"
    return f"unexpected {errors.described(error)}; FEDSIM_DEBUG=1 shows where, please report it"


@contextmanager
def repeatable(ctx: click.Context, place: Callable[[], tuple[str, Path] | None]) -> Iterator[None]:
    """Runs a command that continues when given again; ``place``: its folder and what that holds."""
    try:
        with handled():
            yield
    except KeyboardInterrupt as interrupt:
        contents, folder = place() or ("", None)
        there = f"{contents} in {folder}, " if folder is not None and folder.exists() else ""
        echo(f"interrupted; {there}the same command continues", err=True)
        show_notes(interrupt)
        ctx.exit(errors.exit_status(interrupt))


@contextmanager
def interruptible(ctx: click.Context, shown: Lines) -> Iterator[None]:
    """Runs the block; an interruption or failure ends the command with how to resume."""
    try:
        with handled():
            yield
    except KeyboardInterrupt as interrupt:
        shown.close()
        echo(shown.interrupted(), err=True)
        show_notes(interrupt)
        ctx.exit(errors.exit_status(interrupt))
    except (errors.WorkerError, errors.StoreError) as error:
        if shown.how_to_resume:
            error.args = (f"{error}; resume with: {shown.how_to_resume}",)
        raise
    finally:
        shown.close()
