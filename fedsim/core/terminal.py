"""Text from and to a terminal, which would act on some characters of names that users give."""

import os
import sys
from contextlib import suppress
from typing import IO, Any

import click

from fedsim.core.errors import ConfigError


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: without lone surrogates, which JSON, file systems
    and command lines can bring."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: str, where: str) -> None:
    """Refuses a name that this process cannot read, or that no file can have in it.

    Raises:
        ConfigError: it is no UTF-8, or the encoding of file names, as in the locale C, lacks some
            of its characters.
    """
    encoding = sys.getfilesystemencoding()
    try:
        os.fsencode(text)
        text.encode()
    except UnicodeEncodeError:
        reason = "is no UTF-8"
        if encoding != "utf-8":
            reason = f"is not {encoding} as in this locale; set PYTHONUTF8=1 or LC_ALL=C.UTF-8"
        raise ConfigError(f"{where} {text!r}: {reason}") from None


def printable(text: str, keep: str = "") -> str:
    """The text with escapes such as ``\\x1b`` for what a terminal obeys or nobody sees.

    These are control characters, marks that turn the direction of writing, lone surrogates and
    blanks other than the space; see ``str.isprintable``. Characters in ``keep`` stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else repr(c)[1:-1] for c in text)


def echo(
    text: str = "", *, file: IO[Any] | None = None, err: bool = False, nl: bool = True
) -> None:
    """Prints a text as ``click.echo`` does; line ends and tabs alone have their effect.

    Args:
        text: may have several lines.
        file: the stream; None: standard output, or with ``err`` standard error. What its encoding
            does not have is escaped too.
        err: whether to print to standard error.
        nl: whether a line end follows.
    """
    shown = printable(text, keep="\n\t")
    if file is not None:
        encoding = getattr(file, "encoding", None) or "utf-8"
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(shown, file=file, err=err, nl=nl)


def tell(text: str, file: IO[Any] | None = None) -> None:
    """As :func:`echo`, of what goes on whether or not anybody reads it, as after ``| head``."""
    with suppress(BrokenPipeError):
        echo(text, file=file)
