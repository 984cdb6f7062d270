"""One run at a time in a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

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
        file = path.open("a+b", buffering=0)
    with file:
        with durable.writing(path):
            _take(file, folder)
            _say(file, f"pid {os.getpid()} on {platform.node()}\n")
        try:
            yield
        finally:
            with durable.writing(path):
                _say(file, "")


def _take(file: FileIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().decode().strip() or "it does not say which"
        raise ConfigError(f"{folder}: another live run holds this directory ({holder})") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _say(file: FileIO, text: str) -> None:
    file.truncate(0)
    file.write(text.encode())
