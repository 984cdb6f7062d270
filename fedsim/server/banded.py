"""Noise of banded matrix factorisation, row by row (DP-FTRL, see :mod:`fedsim.privacy.banded`).

    y_t = (z_t - sum_j c_j y_(t - j)) / c_0,   j = 1, ..., b - 1

Forward substitution of C Y = Z (arXiv:2306.08153, Algorithm 9): only the last b - 1 rows of Y are
needed, which are the state.
"""

from dataclasses import dataclass

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import Array, RoundContext, Vectors

BLOCK = 1 << 20
"""Normal numbers drawn at a time (8 MiB)."""


@dataclass(frozen=True)
class BandedNoise:
    """Noise that is correlated over b rounds; with c = (1,) it is that of independent rounds.

    Args:
        sent: the coordinates that clients send, P' together; the others get none.
        coefficients: c (b,) of norm 1.
    """

    sent: tuple[slice, ...]
    coefficients: tuple[float, ...]

    def __call__(
        self, step: Array, scale: float, state: Vectors, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """The step (D,) with the noise times ``scale``, and the state for the next round.

        ``step`` is written to. Keeps ``noise``, the last rows of Y (up to b - 1, P') with the
        newest first.
        """
        if scale == 0:
            return step, state
        c = self.coefficients
        total = sum(where.stop - where.start for where in self.sent)
        past = state.get("noise", np.empty((0, total)))
        rows = np.empty((min(len(past) + 1, len(c) - 1), total))
        rng, first = generator(ctx.seed, "dp", ctx.round), 0
        for where in self.sent:
            for start in range(where.start, where.stop, BLOCK):
                stop = min(start + BLOCK, where.stop)
                columns = slice(first, first + stop - start)
                fresh = rng.standard_normal(stop - start)
                for weight, row in zip(c[1:], past[:, columns], strict=False):
                    fresh -= weight * row
                fresh /= c[0]
                step[start:stop] = step[start:stop] + scale * fresh
                if len(rows):
                    rows[0, columns] = fresh
                    rows[1:, columns] = past[: len(rows) - 1, columns]
                first = columns.stop
        return step, {"noise": rows}
