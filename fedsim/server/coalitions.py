"""The step of a server rule for some of a round's clients alone, from the same updates.

Nothing is trained again: the rule is applied to fewer updates, with the state from before the
round. All lengths and products are over the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsim.core.types import F64, Array, RoundContext
from fedsim.server.base import RuleState, Server
from fedsim.server.cohort import Cohort
from fedsim.server.columns import LocalColumns
from fedsim.server.linalg import single_threaded_blas


class Coalitions:
    """The steps of a server for the coalitions of a round's clients.

    What the server answers beside its step is left out. A coalition of nobody makes no step, as a
    round without updates. It is given by the places of its updates in the cohort, ascending, which
    are those that clients sent, after an attack, whole and in this process; ``state`` is that
    before the round.
    """

    def __init__(self, server: Server, state: RuleState, cohort: Cohort, ctx: RoundContext) -> None:
        self.server = replace(server, exchange=None, attack=None)
        self.state, self.ctx = state, ctx
        self.cohort, self.rows, self.m = cohort, cohort.rows, len(cohort.updates)
        self.whole = self._params(range(self.m))
        self.norm = float(np.linalg.norm(self.whole))

    def step(self, coalition: Sequence[int]) -> Array:
        """(D,) as :meth:`Server.step` gives it for the coalition's updates."""
        if not coalition:
            return np.zeros(self.cohort.layout.size, self.cohort.columns.dtype)
        updates = [self.cohort.updates[i] for i in coalition]
        columns = LocalColumns(tuple(self.rows[i] for i in coalition))
        some = Cohort.of(updates, self.cohort.layout, columns, self.cohort.params)
        some = replace(some, reference=self.cohort.reference)
        return self.server.step(self.state, some, self.ctx).step

    def along(self, coalition: Sequence[int]) -> float:
        """``<step(S), step(all)> / ||step(all)||``, the way made in its direction; 0 where it is
        zero."""
        with single_threaded_blas():
            return float(self._params(coalition) @ self.whole) / self.norm if self.norm else 0.0

    def moved(self, coalition: Sequence[int]) -> tuple[float, float]:
        """``||step(S) - step(all)||`` and the cosine of the two, NaN where one of them is zero."""
        step = self._params(coalition)
        with single_threaded_blas():
            lengths = float(np.linalg.norm(step)) * self.norm
            cosine = float(step @ self.whole) / lengths if lengths else float("nan")
            return float(np.linalg.norm(step - self.whole)), cosine

    def _params(self, coalition: Sequence[int]) -> F64:
        return self.step(coalition)[: self.cohort.layout.num_params].astype(np.float64)
