"""FLTrust: trust by direction of the server's own update (Cao, Fang, Liu, Gong, NDSS 2021).

The server trains on validation samples, the root set, from the model that the clients get; with its
update g_0 and the clients' g_i (arXiv:2012.13995, algorithm 2):

    w_i = max(0, cos(g_0, g_i)),    step = sum_i w_i (||g_0|| / ||g_i||) g_i / sum_i w_i

Where no client agrees with the server, all w_i are 0 and the model stays. Cosines and lengths are
over the parameters.

:client: plain SGD
:server: mean of updates of the server's own length, by their cosine with its update; statistics by
    the cosines
:state: none
:sends: nothing more
:public code: the paper steps by a rate alpha, 1 here; the server trains as clients do, on plain
    cross-entropy; the root set is a part of the validation samples
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.base import Algorithm
from fedsim.core.errors import ContractError
from fedsim.core.types import RoundContext, Vectors
from fedsim.server import Cohort, Reduced, Server


@dataclass(frozen=True)
class Trust:
    """Coefficients of the updates by their cosine with the server's own one."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps no state; tells the share of ``trusted`` updates, those with a weight."""
        if cohort.reference is None:
            raise ContractError("fltrust needs the server's own update (Cohort.reference)")
        layout = cohort.layout
        params, statistics = slice(0, layout.num_params), slice(layout.num_params, layout.size)
        ((gram, dots),) = cohort.grams_with(cohort.reference, [params])
        length = float(np.linalg.norm(cohort.reference[params].astype(np.float64)))
        lengths = np.sqrt(gram.diagonal())
        # c_i = w_i length / lengths_i / sum w, and 0 where an update or the server's own is zero
        with np.errstate(divide="ignore", invalid="ignore"):
            cosines = np.where(lengths * length > 0, dots / lengths / length, 0.0)
            weights = np.maximum(cosines, 0)
            weights /= weights.sum() or 1.0
            c = np.where(weights > 0, weights * (length / lengths), 0.0)
        step = cohort.step([c, weights], [params, statistics])
        return Reduced(step, metrics={"trusted": float(np.mean(weights > 0))})


def build(samples: Annotated[int, Field(ge=1)] = 100) -> Algorithm:
    """FLTrust.

    Args:
        samples: of the root set, drawn from the validation part by ``data.seed``.
    """
    return Algorithm(server=Server(Trust(), root_samples=samples))
