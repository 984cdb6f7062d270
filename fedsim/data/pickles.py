"""Pickles of NumPy arrays, lists and dictionaries, read without running any code of the file."""

import codecs
import pickle
from typing import Any

import numpy as np

from fedsim.data.files import ARRAY_FILE_ERRORS


def _encode(text: str, encoding: str) -> bytes:
    """``codecs.encode`` for the one encoding that python 3 writes bytes with at protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return codecs.encode(text, "latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
PICKLE_ERRORS = (*ARRAY_FILE_ERRORS, pickle.UnpicklingError, IndexError, AttributeError)
"""What a damaged pickle raises, or one that holds anything else."""


class ArrayUnpickler(pickle.Unpickler):
    """Knows numpy arrays and nothing else, so that a file cannot run code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A name that arrays are made with; an UnpicklingError for any other."""
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is not allowed")
        return _ALLOWED[module_name, global_name]
