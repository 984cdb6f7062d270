"""Section ``async`` of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.config.section import Key, Section
from fedsim.core.settings import NonNegative, Positive


class AsyncConfig(Section):
    """Section ``async``: asynchronous rounds, with ``clock.mode=async``."""

    prefix = "async."
    only_with = "clock.mode=async"
    buffer: int | None = Field(default=None, ge=1, le=10**7)
    """Updates K that the server waits for before it takes a step; unset: the cohort's size m."""
    concurrency: int | None = Field(default=None, ge=1, le=10**7)
    """Clients that train at a time; unset: the cohort's size m."""
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial"
    """Weight s(d) of an update whose training began d server steps before: polynomial
    (1 + d)^-exponent, hinge 1 / (slope max(d - threshold, 0) + 1), constant 1."""
    exponent: Annotated[Positive, Key(only_with=("async.staleness=polynomial",))] = 0.5
    """Exponent of the polynomial weight; 0.5 is 1 / sqrt(1 + d), that of FedBuff."""
    slope: Annotated[Positive, Key(only_with=("async.staleness=hinge",))] = 10.0
    """Slope of the hinge weight."""
    threshold: Annotated[NonNegative, Key(only_with=("async.staleness=hinge",))] = 4.0
    """Staleness up to which the hinge weight is 1."""
    mixing: float | None = Field(default=None, gt=0, le=1)
    """FedAsync: clients' models are mixed into the global model, with weight mixing s(d) together;
    unset: their updates are added (FedBuff)."""
