"""Section ``compress`` of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from fedsim.compressors import COMPRESSORS
from fedsim.config.section import Key, Section
from fedsim.core.errors import nearest
from fedsim.core.settings import MOST, InvalidSetting

if TYPE_CHECKING:
    from fedsim.compressors.base import Compressor


class CompressConfig(Section):
    """Section ``compress``: how clients compress the update that they send."""

    prefix = "compress."
    name: Annotated[str, Key(names="compressors")] = "none"
    """Compressor: none, the largest entries (top_k), entries drawn uniformly (random_k), stochastic
    rounding (qsgd), signs times the mean magnitude of a tensor's entries (sign), matrices of low
    rank (power_sgd), or FILE.py:build of your own."""
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
    power_sgd, none for random_k, which then sends its entries times d/k, and qsgd, which has
    none."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not their defaults."""
        return {key: v for key, v in self if key != "name" and v != self._default(key)}

    def build(self, options: Mapping[str, Mapping[str, Any]]) -> Compressor:
        """The compressor; ``options`` are by name those of its own section.

        Raises:
            ConfigError: it refuses a setting.
        """
        from fedsim.compressors.base import Compressor  # imports torch

        declared = COMPRESSORS.parameters(self.name)
        settings = {key: value for key, value in self.settings.items() if key in declared}
        settings |= options.get(self.name, {})
        return COMPRESSORS.build(self.name, Compressor, (), settings)

    @classmethod
    def _default(cls, key: str) -> object:
        return cls.model_fields[key].default

    @model_validator(mode="after")
    def _without_effect(self) -> CompressConfig:
        if self.name == "none":
            for key, value in self.settings.items():
                raise InvalidSetting(f"compress.{key}", f"{value} given; give compress.name too")
            return self
        if ":" not in self.name and self.name not in COMPRESSORS.names():
            names = ("none", *COMPRESSORS.names())
            raise InvalidSetting(
                "compress.name",
                f"{self.name!r} given; must be one of {', '.join(names)}, or FILE.py:function"
                f"{nearest(self.name, names)}",
            )
        if self.k is not None and self.fraction != self._default("fraction"):
            raise InvalidSetting("compress.fraction", f"{self.fraction:g} given beside compress.k")
        declared = COMPRESSORS.parameters(self.name) if self.settings else {}
        for key, value in self.settings.items():
            if key not in declared and (key, value) != ("error_feedback", "none"):
                more = ", which is no contraction" if key == "error_feedback" else ""
                raise InvalidSetting(
                    f"compress.{key}", f"{value} given; not possible with {self.name}{more}"
                )
        return self
