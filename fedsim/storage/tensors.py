"""Named arrays in safetensors files: written atomically, read one by one.

A StoreError where a file cannot be written, is missing or damaged.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

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


def load(path: Path, prefix: str = "") -> dict[str, Array]:
    """The arrays of a file whose names begin with ``prefix``, by the rest of the name; writable."""
    try:
        with files.reading(path), safe_open(path, framework="np") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise StoreError(f"{path}: cannot be read ({_reason(error)})") from error


def _reason(error: SafetensorError) -> str:
    """What the system said, where safetensors quotes it, else what safetensors says."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else str(error)
