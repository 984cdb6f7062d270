"""Text from and to a terminal, which would act on some characters of names that users give."""

from contextlib import suppress
from typing import IO, Any

import click


def printable(text: str, keep: str = "") -> str:
    """The text with escapes for what a terminal obeys or nobody sees, but for ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else repr(c)[1:-1] for c in text)


def echo(
    text: str = "", *, file: IO[Any] | None = None, err: bool = False, nl: bool = True
) -> None:
    """``click.echo`` with escapes for what a terminal obeys or ``file`` cannot encode."""
    shown = printable(text, keep="\n\t")
    if file is not None:
        encoding = getattr(file, "encoding", None) or "utf-8"
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(shown, file=file, err=err, nl=nl)


def tell(text: str, file: IO[Any] | None = None) -> None:
    """As :func:`echo`, of what goes on whether or not anybody reads it, as after ``| head``."""
    with suppress(BrokenPipeError):
        echo(text, file=file)
