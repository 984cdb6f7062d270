"""Files and texts that somebody else wrote."""

import json
import re
from typing import Any

from fedsim.core.errors import ConfigError

URL = re.compile(r"(?!ray://)[A-Za-z][\w+.:-]+://")
"""The beginning of a URL as fsspec takes it, such as ``s3://``; ``C:\\`` and Ray's are none."""


def check_on_disk(name: str, value: object) -> None:
    """Refuses a URL where a path is needed: it would be a folder of that name."""
    if isinstance(value, str) and URL.match(value):
        reason = "mount the storage (NFS, mount-s3, gcsfuse) or copy from it"
        raise ConfigError(f"{name}: {value!r} given; must be a path on this machine: {reason}")


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON holds; a ValueError where it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply") from None
