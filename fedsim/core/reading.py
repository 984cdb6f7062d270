"""Files and texts that somebody else wrote: opened only if they are regular, read with a bound."""

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedsim.core.errors import DataError

MOST_BYTES = 2**28
"""Of a file that is read as a whole: 256 MiB."""
MOST_OF_A_TREE = 2**36
"""Of a file in a folder that somebody else wrote: 64 GiB, a model of 16 billion parameters."""
MOST_LEVELS = 32
"""Of lists and objects in each other; what fedsim writes has six at most."""
URL = re.compile(r"(?!ray://)[A-Za-z][\w+.:-]+://")
"""The beginning of a URL as fsspec takes it, such as ``s3://``; ``C:\\`` and Ray's are none."""
ON_DISK = (
    "must be a path on this machine: mount the storage (NFS, mount-s3, gcsfuse) or copy from it"
)
"""What is said of a URL where a path is needed."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular(path: Path) -> Path:
    """The path; to read a pipe, a socket or a device may never end, so that it is refused.

    What is missing or a folder passes: whoever opens it says so.

    Raises:
        OSError: it is one of these.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return path
    if kind in _KINDS:
        raise OSError(errno.EINVAL, f"{_KINDS[kind]}, not a regular file", str(path))
    return path


def check_tree(folder: Path) -> None:
    """Refuses a folder of somebody else's that cannot be read safely, whatever reads it.

    Raises:
        DataError: something below it is a pipe, a socket or a device, a link that leads out of it,
            a file of more than :data:`MOST_OF_A_TREE` bytes, or a folder that cannot be read or
            lies too deep.
    """

    def failed(error: OSError) -> None:
        raise error

    inside = folder.resolve()
    try:
        for parent, folders, names in os.walk(folder, onerror=failed):
            if len(Path(parent).relative_to(folder).parts) > MOST_LEVELS:
                raise DataError(f"{parent}: more than {MOST_LEVELS} folders in each other")
            for path in (Path(parent, name) for name in (*folders, *names)):
                target = Path(os.path.realpath(path))  # resolve() fails at links in a circle
                if path.is_symlink() and not target.is_relative_to(inside):
                    raise DataError(f"{path}: a link that leads out of {folder}")
                size = regular(path).lstat().st_size
                if size > MOST_OF_A_TREE:
                    raise DataError(f"{path}: {size:,} bytes, at most {MOST_OF_A_TREE:,} are read")
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror or error}") from error


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: there is none, it cannot be read, or it is larger.
    """
    with regular(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            reason = f"{size:,} bytes, at most {most:,} are read"
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read()


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """As :func:`read_bytes`, as text with "\\n" at line ends.

    Raises:
        OSError: as :func:`read_bytes`.
        UnicodeDecodeError: it is not UTF-8.
    """
    text = read_bytes(path, most).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON holds.

    Raises:
        ValueError: it is none, or has more than :data:`MOST_LEVELS` levels.
    """
    deep = f"more than {MOST_LEVELS} levels of lists and objects"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(deep) from None
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [item for each in level for item in _items(each)]
        if not level:
            return value
    raise ValueError(deep)


def _items(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
