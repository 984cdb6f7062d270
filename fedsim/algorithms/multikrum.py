"""Multi-Krum: the mean of the q best by Krum (Blanchard et al., NeurIPS 2017, arXiv:1703.02757).

    w <- w + sum over the q clients with the least Krum scores of g_i / q,   m >= 2f + 3

The scores are those of ``krum``; the mean is not weighted by samples, which clients report
themselves.

:client: plain SGD
:server: the mean of q clients' updates; of their running statistics too
:state: none
:sends: nothing more
:public code: q is m - f in ByzFL and by default 1 in Flower, which weights by samples; the code of
    EPFL's MLO group adds the q updates up in place of their mean
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.krum import Neighbours, scores
from fedsim.core.errors import ConfigError
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64
from fedsim.server import Faulty, Server, Span
from fedsim.server.robust import squared_distances


@dataclass(frozen=True)
class MultiKrum:
    """Equal coefficients for the q least scores."""

    q: int
    neighbours: Neighbours

    def __call__(self, gram: F64, f: int, n: F64) -> F64:
        """Coefficients (m,)."""
        m = len(gram)
        q = self.q or m - f
        if q > m:
            raise ConfigError(f"multikrum.q: {q} given, but the cohort has {m} updates")
        c = np.zeros(m)
        order = np.argsort(scores(squared_distances(gram), f, self.neighbours), kind="stable")
        c[order[:q]] = 1 / q
        return c


def build(
    f: NonNegative = 0.2, q: Annotated[int, Field(ge=0)] = 0, neighbours: Neighbours = "paper"
) -> Algorithm:
    """Multi-Krum.

    Args:
        f: faulty clients: their number, or below 1 their share of the cohort, rounded down.
        q: clients of the mean; 0: m - f.
        neighbours: of the scores, as of krum.
    """
    rule = MultiKrum(q, neighbours)
    return Algorithm(server=Server(Span(rule, Faulty("multikrum", f, 2, 3))))
