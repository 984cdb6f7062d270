"""The vocabulary of a run on texts: ``vocabulary.json``, its words in the order of their tokens.

New texts are read with it, wherever the texts are that it was made of.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from fedsim.core import files
from fedsim.core.errors import StoreError, one_line
from fedsim.core.reading import parse_json


def text(words: Sequence[str]) -> str:
    """The content of the file, a word a line."""
    return json.dumps(list(words), indent=0) + "\n"


def read(run: Path) -> tuple[str, ...] | None:
    """The words of a run, None where there is no such file.

    Raises:
        StoreError: it cannot be read.
    """
    with files.reading(run / files.VOCABULARY) as path:
        if not path.exists():
            return None
        content = path.read_bytes()
    try:
        words = parse_json(content)
    except ValueError as error:
        raise StoreError(f"{path}: damaged: {one_line(error)}") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise StoreError(f"{path}: damaged: it holds no list of words")
    return tuple(words)
