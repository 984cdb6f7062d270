"""How long work may take before it counts as lost."""

from __future__ import annotations

import math
import statistics
from collections import deque

LEAST = 60.0
"""Seconds that any work may take where no limit was given."""
TIMES = 10.0
"""Beyond :data:`LEAST`: times the median of the work done so far."""


class Patience:
    """The limit for pieces of work of one kind, learnt from what they took so far.

    Without a given limit a piece of size n may take ``max(60 s, 10 n median(seconds / size))``,
    and any time before the first pieces are :meth:`settled`.

    Args:
        given: seconds for a piece of any size, or None.
    """

    def __init__(self, given: float | None) -> None:
        self._given = given
        self._new: list[float] = []
        self._paces: deque[float] = deque(maxlen=1000)

    def finished(self, size: float, seconds: float) -> None:
        """Remembers that work of ``size`` (samples, say) took so long."""
        self._new.append(seconds / max(size, 1.0))

    def settled(self) -> None:
        """What was finished counts from now on: a round's first client is no measure for it."""
        self._paces.extend(self._new)
        self._new.clear()

    def limit(self, size: float) -> float:
        """Seconds that work of ``size`` may take; infinite where nothing is known."""
        if self._given is not None:
            return self._given
        if not self._paces:
            return math.inf
        return max(LEAST, TIMES * max(size, 1.0) * statistics.median(self._paces))
