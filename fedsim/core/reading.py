"""Files and texts that somebody else wrote."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from fedsim.core.errors import DataError

MOST_OF_A_TREE = 2**36
"""Of a file in a folder that somebody else wrote: 64 GiB, a model of 16 billion parameters."""
MOST_LEVELS = 32
"""Of folders in each other."""
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
                kind = _KINDS.get(stat.S_IFMT(path.lstat().st_mode))
                if kind is not None:
                    raise DataError(f"{path}: {kind}, not a regular file")
                size = path.lstat().st_size
                if size > MOST_OF_A_TREE:
                    raise DataError(f"{path}: {size:,} bytes, at most {MOST_OF_A_TREE:,} are read")
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror or error}") from error


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON holds.

    Raises:
        ValueError: it is none, or its lists and objects lie too deep in each other.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply") from None
