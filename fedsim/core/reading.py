"""Files and texts that somebody else wrote."""

import json
import re
from typing import Any

URL = re.compile(r"(?!ray://)[A-Za-z][\w+.:-]+://")
"""The beginning of a URL as fsspec takes it, such as ``s3://``; ``C:\\`` and Ray's are none."""
ON_DISK = (
    "must be a path on this machine: mount the storage (NFS, mount-s3, gcsfuse) or copy from it"
)
"""What is said of a URL where a path is needed."""


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON holds; a ValueError where it is none."""
    return json.loads(text)
