"""Downloads into the cache, checked by md5; a run without a network learns what to get."""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from http.client import HTTPException
from pathlib import Path

from torchvision.datasets.utils import download_url

from fedsim.data.cache import cache_dir
from fedsim.errors import DataError


def fetch(urls: tuple[str, ...], md5: str, folder: str, file: str) -> Path:
    """A file of the cache, downloaded from the first of ``urls`` that serves it.

    Args:
        urls: mirrors of one file.
        md5: of the file.
        folder: folder in the cache.
        file: the file's name there.

    Returns:
        The path of the complete file; a download that breaks off leaves only ``<file>.part``.

    Raises:
        DataError: no mirror could be reached, or the sum differs; says what to put where.
    """
    target = cache_dir() / folder / file
    if target.exists():
        return target
    causes = []
    for url in urls:
        try:
            download_url(url, target.parent, f"{file}.part", md5)
        except (OSError, RuntimeError, ValueError, HTTPException) as error:
            causes.append(f"{url}: {' '.join(str(error).split())}")
            continue
        os.replace(target.parent / f"{file}.part", target)
        return target
    raise DataError(
        f"cannot download {file} ({'; '.join(causes)}); get it elsewhere (md5 {md5}) and put it "
        f"into {target.parent}, or name its folder as data.dir"
    )


def unpacked(archive: Path, folder: str) -> Path:
    """The files of ``archive`` (tar.gz), without its folders, in a folder of the cache.

    Raises:
        DataError: the archive is damaged.
    """
    target = cache_dir() / folder
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        files = Path(temporary) / "files"
        files.mkdir()
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    stream = tar.extractfile(member)
                    if stream is not None:
                        (files / Path(member.name).name).write_bytes(stream.read())
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise DataError(f"{archive}: cannot be unpacked ({error}); delete it") from error
        os.replace(files, target)
    return target
