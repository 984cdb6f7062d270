"""The record of a checkpoint: what it says, and a checksum by which damage is seen."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedsim.contracts import Layout

FORMAT = 1
"""Number of the format; a checkpoint with another one is refused."""
FOLDER = "checkpoints"
OWN = re.compile(r"(round|clients)-(\d{6,})\.(json|safetensors)")
"""Names of the files that are written here; no others are ever deleted."""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must agree with: the model's layout, and settings that change results."""

    layout: str
    settings: Mapping[str, Any]


def layout_hash(layout: Layout) -> str:
    """SHA-256 of the names, shapes, places and roles of a model's tensors."""
    return _sha256(_canonical([asdict(slot) for slot in layout.slots]))


def seal(content: Mapping[str, Any]) -> bytes:
    """The text of a record: its content with a checksum of it."""
    return _canonical({"checkpoint": content, "sha256": _sha256(_canonical(content))}) + b"\n"


def unseal(text: bytes) -> dict[str, Any]:
    """The content of a record.

    Raises:
        ValueError: it is damaged.
    """
    try:
        record = json.loads(text)
        content, digest = record["checkpoint"], record["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("it is damaged") from error
    if not isinstance(content, dict) or _sha256(_canonical(content)) != digest:
        raise ValueError("its checksum is wrong")
    return content


def files_of(record: str, content: Mapping[str, Any]) -> frozenset[str]:
    """The names of all files of a checkpoint."""
    return frozenset({record, *content["arrays"], *content["segments"]})


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
