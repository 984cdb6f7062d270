"""Section ``attack`` of a configuration."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedsim.config.section import Section
from fedsim.core.settings import MOST, InvalidSetting


class AttackConfig(Section):
    """Section ``attack``: malicious clients and what they do."""

    prefix = "attack."
    default_fraction: ClassVar[float] = 0.2
    name: (
        Literal[
            "sign_flip",
            "gaussian",
            "label_flip",
            "backdoor",
            "alie",
            "ipm",
            "mimic",
            "min_max",
            "min_sum",
        ]
        | None
    ) = None
    """What malicious clients do; alie, ipm, mimic, min_max and min_sum know the benign updates of
    the round; unset: no client is malicious."""
    fraction: float | None = Field(default=None, ge=0, le=1)
    """Share of the clients that are malicious, rounded down; data.seed draws them; unset: 0.2."""
    clients: str | None = None
    """The malicious clients, in place of a fraction, as in 0,3,7."""
    start_round: int = Field(default=1, ge=1, le=MOST)
    """First round (from 1) in which malicious clients attack."""
    scale: float | None = Field(default=None, gt=0, le=1e6)
    """Strength: factor of sign_flip (unset: 1), ipm (0.5) and the updates of backdoor (1), standard
    deviation of gaussian (1), z of alie (that of the paper for the cohort)."""
    source: int | None = Field(default=None, ge=0)
    """Class whose labels label_flip changes to attack.target (unset: label y becomes C - 1 - y), or
    whose images backdoor poisons (unset: all but those of attack.target)."""
    target: int | None = Field(default=None, ge=0)
    """Class that label_flip gives to samples of attack.source, and backdoor to triggered images
    (unset: 0)."""
    poisoned: float | None = Field(default=None, gt=0, le=1)
    """Share of a malicious client's images, of those not of attack.target, that backdoor poisons,
    rounded down (unset: 0.5)."""
    pixels: int | None = Field(default=None, ge=1)
    """Side in stored pixels of the white square in the lower right corner that is the trigger of
    backdoor (unset: 3)."""

    warmup: int | None = Field(default=None, ge=1, le=MOST)
    """Rounds in which mimic looks for the direction in which benign updates differ most, and for
    the client to copy (unset: it copies the one with the lowest id)."""
    knowledge: Literal["benign", "own"] | None = None
    """What alie, ipm, min_max and min_sum are computed from: the benign updates of the round
    (unset), or the malicious clients' own ones, as they trained them."""
    perturbation: Literal["unit_vec", "std", "sign"] | None = None
    """Direction of min_max and min_sum away from the mean: the mean itself (unset), the standard
    deviation of each coordinate, or the sign of the mean."""
    bound: Literal["min", "max"] | None = None
    """Of the sums of squared distances of a known update from the others, the one that bounds that
    of min_sum: the smallest, as in the authors' code (unset), or the largest, as in the paper."""

    @field_validator("clients", mode="plain")
    @classmethod
    def _ids(cls, value: object) -> str | None:
        if value is None:
            return None
        given = value if isinstance(value, list | tuple) else str(value).split(",")
        texts = [str(client).strip() for client in given]
        known = all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts)
        if not (texts and known):
            raise ValueError("must be ids of clients, separated by commas, as in 0,3,7")
        return ",".join(map(str, sorted(set(map(int, texts)))))

    @property
    def client_ids(self) -> list[int]:
        """``clients`` as numbers."""
        return [int(client) for client in self.clients.split(",")] if self.clients else []

    @model_validator(mode="after")
    def _used(self) -> AttackConfig:
        given = {key: value for key, value in self if value != type(self).model_fields[key].default}
        if given and self.name is None:
            key, value = next(iter(given.items()))
            raise InvalidSetting(f"attack.{key}", f"{value!r} given; give attack.name too")
        if self.fraction is not None and self.clients is not None:
            reason = f"{self.fraction:g} given beside attack.clients"
            raise InvalidSetting("attack.fraction", reason)
        used: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(("source", "target"), ("label_flip", "backdoor")),
            **dict.fromkeys(("poisoned", "pixels"), ("backdoor",)),
            "warmup": ("mimic",),
            "knowledge": ("alie", "ipm", "min_max", "min_sum"),
            "perturbation": ("min_max", "min_sum"),
            "bound": ("min_sum",),
            "scale": ("sign_flip", "gaussian", "alie", "ipm", "backdoor"),
        }
        for key in used:
            if key in given and self.name not in used[key]:
                reason = f"attack {self.name} has none; only {', '.join(used[key])}"
                raise InvalidSetting(f"attack.{key}", f"{given[key]!r} given; {reason}")
        if self.name == "label_flip" and (self.source is None) != (self.target is None):
            key, other = ("source", "target") if self.target is None else ("target", "source")
            raise InvalidSetting(f"attack.{key}", f"{given[key]} given; give attack.{other} too")
        if self.name == "label_flip" and self.source is not None and self.source == self.target:
            reason = f"{self.source} given; it is attack.target, so that no label changes"
            raise InvalidSetting("attack.source", reason)
        if self.name == "backdoor" and self.source == (self.target or 0):
            reason = f"{self.source} given; it is attack.target, which needs no trigger"
            raise InvalidSetting("attack.source", reason)
        return self
