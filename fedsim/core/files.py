"""Files: atomic writes, and the lock of a run directory."""

import errno
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from fedsim.core.errors import HeldError, StoreError
from fedsim.core.types import Array

logger = logging.getLogger("fedsim")

MODEL, CLIENTS = "model.safetensors", "clients.safetensors"
"""A run's final model, and what clients keep to themselves, named ``client/tensor``."""
VOCABULARY = "vocabulary.json"
"""The words of a run on texts, in the order of their tokens."""
PREPROCESSING = "preprocessing.json"
"""How a run prepared its samples, where that depends on the training samples (tables)."""
EXAMPLES = "examples.npz"
"""Test images with masks, true and predicted."""
UNFINISHED = ".writing-"
"""Prefix of the temporary folders in which files are written; a kill leaves them behind."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, then flushed and renamed; a StoreError leaves all as it was."""
    with writing(path), tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=path.parent) as folder:
        unfinished = Path(folder, path.name)
        yield unfinished
        sync(unfinished)
        unfinished.replace(path)
        sync(path.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are then flushed and moved into ``folder``."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as name:
                yield Path(name)
                for path in sorted(Path(name).rglob("*")):
                    target = folder / path.relative_to(name)
                    if path.is_dir():
                        target.mkdir(exist_ok=True)
                    else:
                        sync(path)
                        path.replace(target)
    except BaseException:
        for path in made:
            with suppress(OSError):  # files were moved into it before another could not be
                path.rmdir()
        raise


def write(path: Path, data: bytes) -> None:
    """Writes or replaces a file as :func:`replacing` does, whole or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(data)


def cache_dir() -> Path:
    """The folder for packed and downloaded data sets, and what else can be made anew."""
    return Path(os.environ.get("FEDSIM_CACHE") or Path.home() / ".cache" / "fedsim")


def sha256_of(*parts: str | bytes | Array) -> str:
    """The SHA-256 of texts, bytes, and the bytes of arrays, one after the other, in hex."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(data if isinstance(data, bytes) else np.ascontiguousarray(data).data)
    return digest.hexdigest()


def sha256(path: Path, size: int | None = None) -> str:
    """The SHA-256 of a file, or of its first bytes, in hex."""
    digest = hashlib.sha256()
    for block in blocks(path, size):
        digest.update(block)
    return digest.hexdigest()


def blocks(path: Path, size: int | None = None) -> Iterator[bytes]:
    """The content of a file, or its first bytes, a MiB at a time."""
    left = path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            yield block
            left -= len(block)


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries where the file system can, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path, done: str = "written") -> Iterator[Path]:
    """Turns an OSError in the block into a StoreError that names the file."""
    try:
        yield path
    except OSError as error:
        raise StoreError(f"{path}: cannot be {done} ({error.strerror or error})") from error


@contextmanager
def reading(path: Path) -> Iterator[Path]:
    """The same as :func:`writing`, for a file that is read."""
    with writing(path, "read"):
        yield path


LOCK_FILE = ".lock"
"""The file that a run locks. It says which process holds the lock, and stays, empty, afterwards."""
LOCK_WAIT = 0.2
"""Seconds to wait for a lock: longer than :func:`lock_holder` ever holds one."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Of file systems without locks."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Locks a run directory while the block runs; the lock of a process that dies is released.

    On a file system without locks the block runs unprotected, with a warning. A HeldError where
    another process, or another run of this one, holds the lock.
    """
    path = folder / LOCK_FILE
    held = FileLock(
        path,
        timeout=LOCK_WAIT,
        fallback_to_soft=False,
        preserve_lock_file=True,
        on_acquired=_write_holder,
    )
    try:
        held.acquire()
    except Timeout:
        holder = path.read_text(encoding="utf-8").strip() or "it does not say which"
        raise HeldError(f"{folder}: another live run holds this directory ({holder})") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error
        logger.warning("%s: no locks on this file system; let no other run use the directory", path)
    try:
        yield
    finally:
        if held.is_locked:
            with suppress(OSError):  # the directory was renamed
                os.truncate(path, 0)
            held.release()


class LockHolder(NamedTuple):
    """A process, by number and machine, that locked a run directory and has not released it.

    Not ``held``: it was killed, or this file system does not show the locks of other machines.
    ``elsewhere``: of another machine.
    """

    process: str
    held: bool
    elsewhere: bool


def lock_holder(folder: Path) -> LockHolder | None:
    """Who holds the lock of a run directory, or was killed while it did; None: nobody."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            process = file.read(200).decode(errors="replace").strip()
            if not process:
                return None
            elsewhere = not process.endswith(f" on {platform.node()}")
            return LockHolder(process, not _can_share(file.fileno()), elsewhere)
    except OSError:
        return None


def _can_share(descriptor: int) -> bool:
    """Whether an open file is free for a shared lock, which is given back at once."""
    import fcntl  # which Windows lacks

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in NO_LOCKS
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _write_holder(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"pid {os.getpid()} on {platform.node()}\n".encode())


def run_around(path: Path) -> Path | None:
    """The run directory that a path lies in, also by a link; None where it lies in none."""
    for folder in Path(os.path.realpath(path)).parents:
        signs = ("env.json", "rounds.csv", LOCK_FILE)
        if (folder / "config.yaml").is_file() and any((folder / s).is_file() for s in signs):
            return folder
    return None
