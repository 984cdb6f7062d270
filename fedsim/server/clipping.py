"""Clipping of updates by their norm.

    g_i <- g_i min(1, C / ||g_i||_2)

over the parameters; running statistics are averaged by samples and not clipped. It bounds what one
client can add to a mean with equal weights by C / m (McMahan et al., ICLR 2018, Algorithm 1).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.types import RoundContext, Vectors
from fedsim.server.base import Received
from fedsim.server.cohort import Cohort


@dataclass(frozen=True)
class ClipNorms:
    """Scales updates whose norm is above ``norm`` down to it."""

    norm: float
    name: ClassVar[str] = "clip"
    needs_own_clients: ClassVar[bool] = False
    by_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """See the class."""
        if not self.norm > 0:
            raise ConfigError(f"clipping: norm {self.norm:g} given, must be above 0")

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state; reports the share of updates that are ``clipped``."""
        norms = cohort.norms(slice(0, cohort.layout.num_params))
        factors = np.divide(self.norm, norms, out=np.ones_like(norms), where=norms > self.norm)
        clipped = float(np.mean(norms > self.norm))
        return Received(
            cohort=cohort.scaled(factors), statistics=cohort, metrics={"clipped": clipped}
        )
