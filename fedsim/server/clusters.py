"""A server with several global models, of which each client trains one (IFCA).

Updates are relative to the first model, and each says in its upload ``cluster`` (1,) to which model
its client's belongs, from 0. The first is the global model; the others are kept and sent to all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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


def coefficients(cohort: Cohort, cluster: int, weights: Weights) -> F64:
    """(m,) the weights of the clients of a cluster, 0 elsewhere."""
    inside = chosen(cohort) == cluster
    c = np.zeros(len(inside))
    if inside.any():
        c[inside] = shares(cohort.num_samples[inside], weights)
    return c


@dataclass(frozen=True)
class FirstCluster:
    """The weighted mean of the updates of the first model's clients; no step without any."""

    clusters: int
    weights: Weights

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Reports each model's share of the cohort, where there are several."""
        each = [float(np.mean(chosen(cohort) == j)) for j in range(self.clusters)]
        named = {f"cluster_{j}": share for j, share in enumerate(each, start=1)}
        everything = slice(0, cohort.layout.size)
        step = cohort.step([coefficients(cohort, 0, self.weights)], [everything])
        return Reduced(step, metrics=named if self.clusters > 1 else {})


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
        models = np.array(state.get("models", self.starts(first, cohort.layout, ctx.seed)))
        for j, model in enumerate(models, start=1):
            c = coefficients(cohort, j, self.weights)
            if c.any():
                model[:] = first + cohort.step([c], [slice(0, cohort.layout.size)])
        kept = {"models": models} if len(models) else {}
        return Exchanged(kept, kept)
