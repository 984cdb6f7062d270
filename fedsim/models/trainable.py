"""The values of ``model.trainable``: which tensors train; without torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Word = Literal["all", "head", "norm"]
ALL = "all"
FORMS = "all, head, norm, lora(rank), lora(rank, alpha), or patterns of tensor names"
_WORDS: Mapping[str, Word] = {"all": "all", "head": "head", "norm": "norm"}
_LORA = re.compile(r"lora\(\s*([1-9]\d{0,5})\s*(?:,\s*(\d+(?:\.\d+)?)\s*)?\)")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: ``W + alpha / rank B A``, A (rank, inputs), B (outputs, rank)."""

    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        """What the product of the adapter is multiplied by."""
        return self.alpha / self.rank


Trainable = Word | Lora | tuple[str, ...]
"""A word, adapters, or patterns of tensor names."""


def parse(text: str) -> Trainable:
    """What ``model.trainable`` asks for, else a ValueError; alpha is the rank by default."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if match := _LORA.fullmatch(text):
        alpha = float(match[2] or match[1])
        if alpha > 0:
            return Lora(int(match[1]), alpha)
    patterns = tuple(pattern.strip() for pattern in text.split(","))
    if not all(patterns) or "(" in text:
        raise ValueError(f"must be {FORMS}, separated by commas")
    return patterns
