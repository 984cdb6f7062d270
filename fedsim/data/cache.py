"""The cache: downloads, and arrays made once: images of files in a size, a network's features.

The folder is ``$FEDSIM_CACHE``, else ``~/.cache/fedsim``; what lies there can be deleted at any
time while no run uses it. Each array is a file, a pack, that is read by memory map.
"""

import hashlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from fedsim.core.errors import DataError, one_line
from fedsim.core.files import cache_dir
from fedsim.core.types import Array

_VERSION = 3
"""Part of the names of packs of images: 3 since files whose content would be cut are refused."""

logger = logging.getLogger("fedsim")


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder in ``folder``, of this process alone, deleted at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".")
    except OSError as error:
        raise DataError(
            f"cache folder {folder}: cannot be written ({error}); set FEDSIM_CACHE to a folder "
            "that can"
        ) from error
    with temporary as name:
        yield Path(name)


def packed(
    name: str, files: Sequence[Path], size: int, decode: Callable[[Path, int], Array]
) -> Array:
    """:func:`packed_rows` of image files: ``decode`` makes (3, size, size) uint8 of each."""
    how = decode.__name__
    return packed_rows(name, files, len(files), size, how, lambda i: decode(files[i], size))


def packed_rows(
    name: str,
    files: Sequence[Path],
    count: int,
    size: int,
    how: str,
    decode: Callable[[int], Array],
    channels: int = 3,
) -> Array:
    """(count, channels, size, size) uint8 of images in some files, memory mapped and read-only.

    ``decode`` makes (channels, size, size) uint8 of an image's number. The pack, whose name begins
    with ``name``, is made anew when the list of files, a file's size or its time of change, or
    ``how`` differs, and, with a warning, when it cannot be read.
    """
    digest = hashlib.blake2b(f"{_VERSION}:{how}".encode(), digest_size=12)
    for file in files:
        info = file.stat()
        digest.update(b"\0" + os.fsencode(file.resolve()))
        digest.update(f"\0{info.st_size}\0{info.st_mtime_ns}".encode())
    path = cache_dir() / "packed" / f"{name}-{size}-{digest.hexdigest()}.npy"

    def write(store: Array, i: int) -> None:
        store[i] = decode(i)

    return stored(path, (count, channels, size, size), np.uint8, count, write)


def stored(
    path: Path,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    pieces: int,
    write: Callable[[Array, int], None],
) -> Array:
    """The array of a pack, memory mapped and read-only; made where it is missing or damaged.

    Its name says what decides the array. ``write`` fills one of the ``pieces`` into which the work
    is divided, by its number; several threads call it.
    """
    if path.exists():
        try:
            return np.asarray(np.load(path, mmap_mode="r"))
        except (OSError, EOFError, ValueError) as error:
            logger.warning("%s: damaged (%s); it is made anew", path, error)
    # in a temporary file that is renamed: never a half-written pack
    with workspace(path.parent) as temporary, ThreadPoolExecutor() as pool:
        free = shutil.disk_usage(path.parent).free
        needed = math.prod(shape) * np.dtype(dtype).itemsize
        if free < needed:  # else writing to mapped memory ends the process
            raise DataError(
                f"cache folder {path.parent}: {free} bytes are free, {needed} are needed; set "
                "FEDSIM_CACHE to another folder"
            )
        new = temporary / path.name
        store = np.lib.format.open_memmap(new, mode="w+", dtype=dtype, shape=shape)
        list(pool.map(partial(write, store), range(pieces)))
        store.flush()
        os.replace(new, path)
    return np.asarray(np.load(path, mmap_mode="r"))


def fetch(urls: tuple[str, ...], md5: str, folder: str, file: str) -> Path:
    """The path of ``file`` in the cache, downloaded from the first of its mirrors that serves it.

    Several processes may ask for it at the same time: the complete file takes its name at once.
    """
    target = cache_dir() / folder / file
    if target.exists():
        return target
    from torchvision.datasets import utils  # takes two seconds to import

    causes = []
    with workspace(target.parent) as temporary:
        for url in urls:
            try:
                utils.download_url(url, temporary, file, md5)
            except Exception as error:  # noqa: BLE001 (of urllib, http and the sum)
                causes.append(f"{url}: {one_line(error)}")
                continue
            os.replace(temporary / file, target)
            return target
    raise DataError(
        f"cannot download {file} ({'; '.join(causes)}); get it elsewhere (md5 {md5}) and put it "
        f"into {target.parent}, or name its folder as data.dir"
    )


def unpacked(archive: Path, folder: str) -> Path:
    """A folder of the cache with what an archive holds, unpacked beside it first: never half."""
    target = cache_dir() / folder
    if target.exists():
        return target
    with workspace(target.parent) as temporary:
        try:
            if archive.suffix == ".zip":  # which has no filter
                shutil.unpack_archive(archive, temporary / "files")
            else:
                shutil.unpack_archive(archive, temporary / "files", filter="data")
            os.replace(temporary / "files", target)
        except Exception as error:  # a damaged archive raises anything
            if not target.is_dir():  # else another process was faster
                raise DataError(
                    f"{archive}: cannot be unpacked ({one_line(error)}); delete it"
                ) from error
    return target
