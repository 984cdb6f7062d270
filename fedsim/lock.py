"""One run at a time in a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedsim import durable
from fedsim.errors import ConfigError

NAME = ".lock"
"""The file that a run locks; it names the run that holds it and stays, empty, when that ends."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a file system says that has no locks; runs there are not protected from each other."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds a run directory while the block runs; the system lets go when the process dies.

    Raises:
        ConfigError: another live run holds it.
        StoreError: the file cannot be written.
    """
    with durable.writing(folder / NAME) as path:
        file = path.open("a+", encoding="utf-8")
    with file:
        _take(file, folder)
        with durable.writing(path):
            _say(file, f"pid {os.getpid()} on {platform.node()}\n")
        try:
            yield
        finally:
            _say(file, "")


def _take(file: TextIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "it does not say which"
        raise ConfigError(f"{folder}: another live run holds this directory ({holder})") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _say(file: TextIO, text: str) -> None:
    file.truncate(0)
    file.write(text)
    file.flush()
