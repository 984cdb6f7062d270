"""The errors that fedsim raises on purpose; each carries the process's exit status.

A message is one line that says what was given, where it came from (flag, file and line, key)
and what is allowed.
"""

import difflib
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class FedsimError(Exception):
    """Base of all errors that fedsim raises on purpose; a run that fails ends with status 1."""

    exit_status = 1


class ConfigError(FedsimError):
    """An option, key, name or value that cannot be used, found before anything starts."""

    exit_status = 2


class HeldError(ConfigError):
    """A directory whose lock another process holds, or another run of this one."""


class DataError(FedsimError):
    """A data file or split that is missing, damaged, mislabelled or cannot be partitioned."""

    exit_status = 2


class ContractError(FedsimError):
    """Arrays or states that do not fit a rule: their shape, length or order."""


class DivergedError(FedsimError):
    """A loss or an update that is NaN or infinite; names round, client and tensor."""


class WorkerError(FedsimError):
    """A client's work that failed or was lost; names round and client, and has a cause."""


class StoreError(FedsimError):
    """A run directory that cannot be written or read."""


class Interrupted(KeyboardInterrupt):
    """A signal, by its ``number``, told the process to end; ``again``: at once."""

    def __init__(self, number: int, again: bool = False) -> None:
        super().__init__(number)
        self.number, self.again = number, again


def exit_status(interrupt: KeyboardInterrupt) -> int:
    """130 for Ctrl-C and a plain KeyboardInterrupt, 143 for SIGTERM."""
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


MOST = 400
"""Characters of the text of somebody else's exception that a message repeats."""


def described(error: BaseException) -> str:
    """``Type: text (file.py:12, in function)`` in one line, the place in the user's own code."""
    text = " ".join(str(error).split())
    text = text if len(text) <= MOST else f"{text[:MOST]} ..."
    kind = type(error).__name__
    place = _place(error)
    return (f"{kind}: {text}" if text else kind) + (f" ({place})" if place else "")


def _place(error: BaseException) -> str:
    """File, line and function of the innermost call in code outside fedsim and the libraries."""
    libraries = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    others = (str(Path(__file__).parents[1]), *libraries)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        packaged = {"site-packages", "dist-packages"} & set(file.parts)
        if not packaged and file.is_absolute() and not frame.filename.startswith(others):
            with suppress(OSError, ValueError):  # the current directory is gone, or another
                file = file.relative_to(Path.cwd())
            return f"{file}:{frame.lineno}, in {frame.name}"
    return ""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the allowed name nearest to ``given``, else ``""``."""
    match = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def spelled(given: str, allowed: Iterable[str]) -> str | None:
    """The one allowed name that differs from ``given`` in case, blanks, dashes, brackets alone."""

    def plain(name: str) -> str:
        return re.sub(r"[\s_()-]+", "", name.casefold())

    names = [name for name in allowed if plain(name) == plain(given)]
    return given if given in names else names[0] if len(names) == 1 else None
