"""Section ``compress`` of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.compressors import COMPRESSORS
from fedsim.config.part import PartSection
from fedsim.config.section import Key
from fedsim.core.settings import MOST


class CompressConfig(PartSection):
    """Section ``compress``: how clients compress the update that they send."""

    prefix = "compress."
    registry = COMPRESSORS
    name: Annotated[str, Key(names="compressors")] = "none"
    """Compressor: none, the largest entries (top_k), random ones (random_k), stochastic rounding
    (qsgd), signs (sign), matrices of low rank (power_sgd), or FILE.py:build of your own."""
    fraction: float = Field(default=0.1, gt=0, le=1)
    """Share of the parameters that top_k and random_k send, at least one."""
    k: int | None = Field(default=None, ge=1, le=MOST)
    """Number of parameters that top_k and random_k send; unset: by compress.fraction."""
    levels: int = Field(default=127, ge=1, le=2**15 - 1)
    """Levels s of qsgd above zero; each parameter has ceil(log2(2 s + 1)) bits."""
    rank: int = Field(default=2, ge=1, le=2**15)
    """Rank of the matrices that power_sgd sends in place of a tensor."""
    error_feedback: Literal["none", "ef14", "ef21"] | None = None
    """What becomes of what is not sent: none; a client adds it to its next update (ef14); or
    differences from what the server has are compressed (ef21); unset: ef14 for top_k, sign and
    power_sgd, none for random_k (its entries times d/k) and qsgd."""
