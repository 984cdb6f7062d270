"""Readers of LEAF's texts: shakespeare, sent140, reddit. Users become sites.

Words are numbered as they come while the files are read; which of them make up the vocabulary, and
their final numbers, is decided when all are known.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from types import UnionType
from typing import Any

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.types import I64, Array
from fedsim.data.dataset import TRAIN, Raw, Request
from fedsim.data.readers.leaf import Samples, gather, info, labels, place, read

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
WORDS = 25
SEQUENCE = 10
VOCABULARY = 10_000
PAD, UNK = "<PAD>", "<UNK>"
PADDING = " "
"""What texts are filled up with; no word."""
_WORD = re.compile(r"[\w']+|[.,!?;]")
_LETTER = np.full(0x110000, len(LETTERS) - 1, dtype=np.int32)
_LETTER[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


def shakespeare(request: Request) -> Raw:
    """Windows of 80 characters and the next one, a user per role; 80 symbols.

    A character outside the alphabet becomes ``}``, the last symbol, where LEAF's own -1 ends up.
    """
    raw = gather(place(request), _shakespeare)
    return replace(raw, class_names=tuple(LETTERS), vocabulary=len(LETTERS))


def _shakespeare(samples: Samples) -> tuple[Array, I64]:
    for values, length, name in ((samples.x, WINDOW, "x"), (samples.y, 1, "y")):
        for i, text in enumerate(values):
            if not isinstance(text, str) or len(text) != length:
                raise DataError(f"{samples.where}: {name} of sample {i} is no text of {length}")
    return _letters(samples.x).reshape(-1, WINDOW), _letters(samples.y).astype(np.int64)


def _letters(texts: list[str]) -> Array:
    """The numbers of all characters, one text after the other."""
    points = "".join(texts).encode("utf-32-le", "surrogatepass")
    return _LETTER[np.frombuffer(points, dtype="<u4")]


def sent140(request: Request) -> Raw:
    """Tweets, positive or not, a user per account: the first 25 words, V + 1 tokens.

    Words are ``[\\w']+`` and the marks ``.,!?;``. The vocabulary is ``vocab`` of LEAF's embs.json
    where that file lies beside train/ or one folder above it, else the 10,000 words that are most
    frequent in the training part (ties by alphabet). V stands for unknown words and fills up.
    """
    folder, known = place(request), request.known_words

    def convert(samples: Samples) -> tuple[Array, I64]:
        for i, x in enumerate(samples.x):
            if not isinstance(x, list) or len(x) < 5 or not isinstance(x[4], str):
                raise DataError(f"{samples.where}: x of sample {i} is no list with a text at 4")
        return np.array([sample[4] for sample in samples.x], dtype=object), labels(samples, 2)

    raw = gather(folder, convert)
    for file in (folder / "embs.json", folder.parent / "embs.json"):
        if known is None and file.is_file():
            known = tuple(map(str, read(file).get("vocab", ())))
    training = np.asarray(raw.parts == TRAIN)
    x, words = tokens(raw.x.tolist(), WORDS, training, VOCABULARY, known)
    names = ("negative", "positive")
    return replace(raw, x=x, class_names=names, vocabulary=len(words) + 1, words=words)


def reddit(request: Request) -> Raw:
    """Comments in sequences of 10 tokens, a user per account; each token's label is the next one.

    A sample is a sequence. Labels are -1 where ``count_tokens`` is 0, and sequences without any
    other label are left out. The vocabulary is ``<PAD>``, ``<UNK>``, which are never right, and
    the most frequent tokens of the training part (ties by alphabet), 10,000 in all.
    """
    number_of = {PAD: 0, UNK: 1}

    def convert(samples: Samples) -> tuple[Array, I64]:
        inputs: list[int] = []
        targets: list[int] = []
        counts: list[float] = []
        for i, (comment, label) in enumerate(zip(samples.x, samples.y, strict=True)):
            where = f"{samples.where}: sample {i}"
            if not isinstance(label, dict):
                raise DataError(f"{where}: y is no object with target_tokens and count_tokens")
            parts = (comment, label.get("target_tokens"), label.get("count_tokens"))
            kinds = (str, str, int | float)
            x, y, counted = (_sequences(*pair, where) for pair in zip(parts, kinds, strict=True))
            if not len(x) == len(y) == len(counted):
                raise DataError(f"{where}: x, target_tokens and count_tokens differ in length")
            inputs += _numbered(number_of, x)
            targets += _numbered(number_of, y)
            counts += counted
        ids = np.array(inputs, dtype=np.int32).reshape(-1, SEQUENCE)
        following = np.array(targets, dtype=np.int64).reshape(-1, SEQUENCE)
        following[np.array(counts).reshape(-1, SEQUENCE) == 0] = -1
        kept = (following >= 0).any(axis=1)
        return ids[kept], following[kept]

    raw = gather(place(request), convert)
    words = request.known_words
    if words is None:
        words = (PAD, UNK, *frequent(raw.x[raw.parts == TRAIN], number_of, 2, VOCABULARY - 2))
    number = renumbered(number_of, words, unknown=1)
    return replace(
        raw,
        x=number[raw.x],
        y=np.where(raw.y < 0, -1, number[raw.y].astype(np.int64)),
        class_names=words,
        vocabulary=len(words),
        words=words,
        never_right=(0, 1),
    )


def _sequences(value: Any, kind: type | UnionType, where: str) -> list[Any]:
    """The tokens or counts of some sequences, one sequence after the other."""
    lists = isinstance(value, list) and all(isinstance(s, list) for s in value)
    flat = list(chain.from_iterable(value)) if lists else []
    if (
        not flat
        or any(len(s) != SEQUENCE for s in value)
        or not all(isinstance(v, kind) for v in flat)
    ):
        raise DataError(
            f"{where}: needed are sequences of {SEQUENCE} tokens, of as many in target_tokens, and "
            f"of as many numbers in count_tokens"
        )
    return flat


def tokens(
    texts: Sequence[str],
    length: int,
    training: Array,
    most: int,
    vocabulary: tuple[str, ...] | None = None,
) -> tuple[Array, tuple[str, ...]]:
    """Token ids (N, length) int32 of the first words of texts, and the vocabulary of V words.

    Words are ``[\\w']+`` and the marks ``.,!?;``. Token V stands for unknown words and fills up. By
    default the vocabulary is the ``most`` most frequent words of the ``training`` (N,) texts.
    """
    number_of = {PADDING: 0}
    x = np.zeros((len(texts), length), dtype=np.int32)
    for row, text in zip(x, texts, strict=True):
        ids = _numbered(number_of, _WORD.findall(text)[:length])
        row[: len(ids)] = ids
    if vocabulary is None:
        vocabulary = tuple(frequent(x[training], number_of, 1, most))
    return renumbered(number_of, vocabulary, unknown=len(vocabulary))[x], vocabulary


def _numbered(number_of: dict[str, int], words: Sequence[str]) -> list[int]:
    """The words' numbers; new words get the next ones."""
    return [number_of.setdefault(word, len(number_of)) for word in words]


def frequent(x: Array, number_of: dict[str, int], first: int, most: int) -> list[str]:
    """The ``most`` most frequent words of ``x``, of those with numbers from ``first`` on.

    Ties are in the order of the alphabet.
    """
    counts = np.bincount(x.ravel(), minlength=len(number_of)).tolist()
    present = [word for word, i in number_of.items() if i >= first and counts[i]]
    return sorted(present, key=lambda word: (-counts[number_of[word]], word))[:most]


def renumbered(number_of: dict[str, int], words: Sequence[str], unknown: int) -> Array:
    """(words known,) final number of each: its place in ``words``, or ``unknown``."""
    final = {word: i for i, word in enumerate(words)}
    return np.array([final.get(word, unknown) for word in number_of], dtype=np.int32)


DATASETS = (
    info(shakespeare, "the next character of what a role says", 80),
    info(sent140, "tweets, positive or negative, by account", 2),
    info(reddit, "the next word of comments, by account", 0),
)
