"""Downloads into the cache, checked by md5; a run without a network learns what to get."""

import os
import tarfile
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path

from fedsim.core.errors import DataError, one_line
from fedsim.core.files import cache_dir
from fedsim.data.cache import workspace


def fetch(urls: tuple[str, ...], md5: str, folder: str, file: str) -> Path:
    """The path of ``file`` in the cache, downloaded from the first of its mirrors that serves it.

    Every process downloads to a place of its own, and the complete file takes its name at once, so
    that several may ask for it at the same time.

    Raises:
        DataError: no mirror could be reached, or the sum differs (says what to put where), or
            the cache folder cannot be written.
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
                os.replace(temporary / file, target)
            except (OSError, RuntimeError, ValueError, HTTPException) as error:
                causes.append(f"{url}: {one_line(error)}")
            if target.exists():
                return target
    raise DataError(
        f"cannot download {file} ({'; '.join(causes)}); get it elsewhere (md5 {md5}) and put it "
        f"into {target.parent}, or name its folder as data.dir"
    )


def unpacked(archive: Path, folder: str) -> Path:
    """A folder of the cache with the files of an archive, unpacked beside it first: never half.

    Of a tar.gz the files without their folders, of a zip files and folders.

    Raises:
        DataError: the archive is damaged, or the cache folder cannot be written.
    """
    target = cache_dir() / folder
    if target.exists():
        return target
    with workspace(target.parent) as temporary:
        files = temporary / "files"
        try:
            files.mkdir()
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as content:
                    content.extractall(files)  # names that lead elsewhere lose what would
            else:
                _flat(archive, files)
            os.replace(files, target)
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            if not target.is_dir():  # else another process was faster
                raise DataError(
                    f"{archive}: cannot be unpacked ({one_line(error)}); delete it"
                ) from error
    return target


def _flat(archive: Path, files: Path) -> None:
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            stream = tar.extractfile(member)
            if stream is not None:
                (files / Path(member.name).name).write_bytes(stream.read())
