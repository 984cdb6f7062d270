"""Named arrays in safetensors files: written atomically, read one by one.

A StoreError where a file cannot be written, is missing or damaged.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedsim.core import files
from fedsim.core.errors import StoreError
from fedsim.core.types import Array


def save(path: Path, arrays: Mapping[str, Array]) -> str:
    """Writes or replaces a file; returns its SHA-256."""
    # safetensors writes an array's memory as it lies there; NumPy makes scalars 1-d
    whole = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
    with files.replacing(path) as unfinished:
        unfinished.touch()
        mode = unfinished.stat().st_mode
        try:
            save_file(whole, unfinished)
        except SafetensorError as error:
            raise StoreError(f"{path}: cannot be written ({_reason(error)})") from error
        unfinished.chmod(mode)  # safetensors 0.8 makes a file of its own that only the owner reads
        return files.sha256(unfinished)


Shapes = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Element type and shape of each array of a file, by name."""
_DTYPES = {
    **{"bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
    **{"uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64"},
    **{"float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64"},
}


def header(shapes: Shapes, metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file: the length of a JSON text, and this text.

    The arrays follow it in the order of ``shapes``. The library writes the metadata in another
    order in each process, so that equal contents would not be equal files.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, (dtype, shape) in shapes.items():
        stop = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        entry = {"dtype": _DTYPES[dtype.name], "shape": shape, "data_offsets": (start, stop)}
        entries[name], start = entry, stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the arrays begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def stream(path: Path, head: bytes, arrays: Iterable[Array]) -> None:
    """Writes or replaces a file; the arrays are taken one by one, as :func:`header` has them."""
    with files.replacing(path) as unfinished, unfinished.open("wb") as file:
        file.write(head)
        for array in arrays:
            file.write(np.ascontiguousarray(array).data)


def opened(path: Path) -> Any:
    """The open file, a context: its ``keys()``, ``metadata()`` and ``get_tensor(name)``."""
    try:
        with files.reading(path):
            return safe_open(path, framework="np")
    except SafetensorError as error:
        raise StoreError(f"{path}: cannot be read ({_reason(error)})") from error


def load(path: Path, prefix: str = "") -> dict[str, Array]:
    """The arrays of a file whose names begin with ``prefix``, by the rest of the name; writable."""
    with opened(path) as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def _reason(error: SafetensorError) -> str:
    """What the system said, where safetensors quotes it, else what safetensors says."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else str(error)
