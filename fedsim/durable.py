"""Files that are there whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fedsim.errors import StoreError

UNFINISHED = ".writing-"
"""Prefix of a file that is being written; one that is left after a kill is of no use."""
ONLY_FILES = (errno.EINVAL, errno.ENOTSUP)
"""What a file system says that cannot flush folders."""


def write(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Writes or replaces a file: under another name, flushed to the disk, then renamed.

    Args:
        path: of the file; nobody else may write it at the same time.
        pieces: its content in order.

    Returns:
        The SHA-256 of the content, in hex.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
    """
    digest = hashlib.sha256()
    unfinished = path.with_name(UNFINISHED + path.name)
    with writing(path):
        try:
            with unfinished.open("wb") as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync(path.parent)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flushes a file or a folder's list of names to the disk, a folder where the system can.

    Raises:
        OSError: it cannot be flushed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in ONLY_FILES or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def writing(path: Path) -> AbstractContextManager[Path]:
    """Turns what the system says into a StoreError that names the file.

    Raises:
        StoreError: from the OSError.
    """
    return _named(path, "written")


def reading(path: Path) -> AbstractContextManager[Path]:
    """Likewise, for a file that is read.

    Raises:
        StoreError: from the OSError.
    """
    return _named(path, "read")


@contextmanager
def _named(path: Path, done: str) -> Iterator[Path]:
    try:
        yield path
    except OSError as error:
        raise StoreError(f"{path}: cannot be {done} ({error.strerror})") from error
