"""What a report says of one figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

Rounds = Mapping[str, Mapping[str, pd.DataFrame]]
"""Columns of rounds.csv indexed by (seed, round), by setting and label."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its words.

    Attributes:
        name: of its files, without suffix.
        title: its heading.
        caption: what is shown, over how many seeds, and what the band is.
        reading: how to read it.
        figure: the figure itself.
    """

    name: str
    title: str
    caption: str
    reading: str
    figure: Figure


@dataclass(frozen=True)
class Absent:
    """A figure that the runs have no table for, and what would make it."""

    title: str
    reason: str
