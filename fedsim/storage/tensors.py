"""Arrays in safetensors files, written without a copy and read one by one.

The format is eight bytes with the length of a JSON header, the header (name, data type, shape,
place of each array), then the arrays' bytes; any safetensors reader opens the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.core import files
from fedsim.core.errors import StoreError
from fedsim.core.types import Array

CODES = {
    **{f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"f{size}" for size in (2, 4, 8)},
    "BOOL": "?",
}
"""NumPy's little-endian data type of each code of the format."""
NAMES = {np.dtype(name).newbyteorder("<"): code for code, name in CODES.items()}


@dataclass(frozen=True)
class Place:
    """Where an array lies in a file: data type (code), shape, first byte of the file."""

    code: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return math.prod(self.shape) * np.dtype(CODES[self.code]).itemsize


def write(path: Path, arrays: Mapping[str, Array]) -> tuple[str, dict[str, Place]]:
    """Writes a file as a whole or not at all; returns its SHA-256 and where each array lies.

    Raises:
        StoreError: the file cannot be written, or an array's data type has no code.
    """
    start, places = 0, {}
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    for name, array in whole.items():
        if array.dtype not in NAMES:
            raise StoreError(f"{path}: {name} has data type {array.dtype}, which has no place here")
        places[name] = Place(NAMES[array.dtype], arrays[name].shape, start)
        start += array.nbytes
    header = {
        name: {
            "dtype": p.code,
            "shape": p.shape,
            "data_offsets": (p.start, p.start + p.nbytes),
        }
        for name, p in places.items()
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pieces = [len(text).to_bytes(8, "little"), text]
    digest = files.write(path, [*pieces, *(a.reshape(-1).view("u1").data for a in whole.values())])
    first = 8 + len(text)
    return digest, {n: Place(p.code, p.shape, first + p.start) for n, p in places.items()}


def places(path: Path) -> dict[str, Place]:
    """Where each array of a file lies; only the header is read.

    Raises:
        OSError, ValueError, KeyError: the file is missing or damaged.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return {
        name: Place(entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def read(path: Path, wanted: Mapping[str, Place]) -> dict[str, Array]:
    """Some arrays of a file, writable, as they were written.

    Raises:
        StoreError: the file is gone or too short.
    """
    found = {}
    try:
        with path.open("rb") as file:
            for name, place in wanted.items():
                array = np.empty(place.shape, CODES[place.code])
                file.seek(place.start)
                if file.readinto(array.reshape(-1).view("u1").data) != place.nbytes:
                    raise StoreError(f"{path}: ends too early")
                found[name] = array
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    return found
