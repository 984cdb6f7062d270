"""Downloads into the cache, checked by md5; a run without a network learns what to get."""

import os
import shutil
from pathlib import Path

from fedsim.core.errors import DataError, one_line
from fedsim.core.files import cache_dir
from fedsim.data.cache import workspace


def fetch(urls: tuple[str, ...], md5: str, folder: str, file: str) -> Path:
    """The path of ``file`` in the cache, downloaded from the first of its mirrors that serves it.

    Several processes may ask for it at the same time: the complete file takes its name at once.

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
