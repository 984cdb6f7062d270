"""A server with several global models, of which each client trains one (IFCA).

The first is the global model, to which all updates are relative; the others are kept and sent to
all. Each client uploads ``cluster`` (1,), the number of its model from 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsim.core.errors import ContractError
from fedsim.core.types import F64, I64, Array, Layout, RoundContext, Vectors
from fedsim.server.base import Exchanged, Reduced
from fedsim.server.cohort import Cohort
from fedsim.server.gram import Weights, shares

Starts = Callable[[Array, Layout, int], Array]
"""(k - 1, D) from the first model (D,), the layout and the run's seed: what the others start as."""


def chosen(cohort: Cohort) -> I64:
    """(m,) the model of each client."""
    return np.array([u.extras["cluster"][0] for u in cohort.updates], np.int64)


def mean_of(cohort: Cohort, inside: NDArray[np.bool_], weights: Weights) -> F64:
    """(D,) the weighted mean of the updates of the clients ``inside`` (m,), zeros without any."""
    c = np.zeros(len(inside))
    if inside.any():
        c[inside] = shares(cohort.num_samples[inside], weights)
    return cohort.step([c], [slice(0, cohort.layout.size)])


@dataclass(frozen=True)
class FirstCluster:
    """The weighted mean of the updates of the first model's clients; no step without any."""

    clusters: int
    weights: Weights

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Reports each model's share of the cohort, where there are several."""
        names = {f"cluster_{j + 1}": chosen(cohort) == j for j in range(self.clusters)}
        each = {name: float(inside.mean()) for name, inside in names.items()}
        step = mean_of(cohort, chosen(cohort) == 0, self.weights)
        return Reduced(step, metrics=each if self.clusters > 1 else {})


@dataclass(frozen=True)
class OtherClusters:
    """The means of the other models' clients; a model that nobody chose stays as it is."""

    starts: Starts
    weights: Weights

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
        """Keeps and sends ``models`` (k - 1, D), nothing where there is one model alone."""
        first = cohort.params
        if first is None:
            raise ContractError("clusters of clients need the model that they started from")
        known = "models" in state
        models = state["models"].copy() if known else self.starts(first, cohort.layout, ctx.seed)
        for j, model in enumerate(models, start=1):
            inside = chosen(cohort) == j
            if inside.any():
                model[:] = first + mean_of(cohort, inside, self.weights)
        kept = {"models": models} if len(models) else {}
        return Exchanged(kept, kept)
