"""Section ``attack`` of a configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from fedsim.attacks import ATTACKS
from fedsim.config.part import PartSection
from fedsim.config.section import Key
from fedsim.core.settings import MOST, client_ids


class AttackConfig(PartSection):
    """Section ``attack``: malicious clients and what they do."""

    prefix = "attack."
    registry = ATTACKS
    common = ("fraction", "clients", "start_round")
    default_fraction: ClassVar[float] = 0.2
    name: Annotated[str | None, Key(names="attacks")] = None
    """What malicious clients do: sign_flip, gaussian, label_flip, backdoor; by the benign updates
    of the round alie, ipm, mimic, min_max or min_sum; or FILE.py:build of your own."""
    fraction: float | None = Field(default=None, ge=0, le=1)
    """Share of the clients that are malicious, rounded down; data.seed draws them; unset: 0.2."""
    clients: str | None = None
    """The malicious clients, in place of a fraction, as in 0,3,7."""
    start_round: int = Field(default=1, ge=1, le=MOST)
    """First round (from 1) in which malicious clients attack."""
    scale: Annotated[float, Field(gt=0, le=1e6)] | Literal["auto"] | None = None
    """Strength: factor of sign_flip (unset: 1), ipm (0.5) and the updates of backdoor (1), standard
    deviation of gaussian (1), z of alie (that of the paper for the cohort); auto, for alie and ipm:
    what moves the step of the server's rule farthest from the benign mean, searched for in each
    round."""
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
        return None if value is None else client_ids(value)

    @property
    def client_ids(self) -> list[int]:
        """``clients`` as numbers."""
        return [int(client) for client in self.clients.split(",")] if self.clients else []
