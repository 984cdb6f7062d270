"""User-level differential privacy on the server: the mean of clipped updates, with noise.

    step = (sum_S w_i Delta_i min(1, C / ||Delta_i||) + N(0, z^2 C^2 I)) / (q W)

Sources: McMahan et al., ICLR 2018 (DP-FedAvg, Algorithm 1, the estimator with a fixed denominator);
adaptive C: Andrew et al., NeurIPS 2021, arXiv:1905.03871. S is the cohort, to which each of N
clients belongs with probability q. The weights w_i lie in [0, 1] and have the sum W over all N
clients, so that a client changes the sum by at most C, whatever its data are; equal weights are 1,
and q W is the expected cohort. Who is drawn but does not answer adds nothing, and the denominator
stays. All randomness is drawn from the seed of the run: whoever knows that seed knows the noise.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import F64, Array, ClientUpdate, RoundContext, Vectors
from fedsim.server.base import Exchange, Exchanged, Reduced
from fedsim.server.cohort import Cohort

BLOCK = 1 << 20
"""Normal numbers drawn at a time (8 MiB)."""
LARGEST = 10.0
"""Exponent by which adaptive clipping changes the norm in a round at most, far from any of use."""


class Noise(Protocol):
    """Noise of unit standard deviation for the sum of clipped updates."""

    def __call__(
        self, step: Array, scale: float, state: Vectors, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """The step (D,) with the noise times ``scale``, and the state for the next round.

        ``step`` may be written to; ``state`` is {} in the first round.
        """


@dataclass(frozen=True)
class GaussianNoise:
    """Independent in every round and coordinate (the Gaussian mechanism).

    Args:
        sent: the coordinates that clients send; the others get none.
    """

    sent: tuple[slice, ...]

    def __call__(
        self, step: Array, scale: float, state: Vectors, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """Keeps no state."""
        if scale > 0:
            rng = generator(ctx.seed, "dp", ctx.round)
            for block in self.sent:
                for start in range(block.start, block.stop, BLOCK):
                    stop = min(start + BLOCK, block.stop)
                    step[start:stop] = step[start:stop] + scale * rng.standard_normal(stop - start)
        return step, state


@dataclass(frozen=True)
class AdaptiveClip:
    """The clipping norm follows a quantile of the updates' norms (arXiv:1905.03871).

        b = 1/2 + (sum_S (b_i - 1/2) + N(0, sigma_b^2)) / qN,   b_i = 1 if ||Delta_i|| <= C else 0
        C <- C exp(-eta (b - gamma)), by e^10 at most

    For a full cohort b is the paper's mean of the b_i. Centred at 0 each of them moves the sum by
    1/2, so that sum and count together have the noise multiplier z where that of the sum alone is
    ``(z^-2 - (2 sigma_b)^-2)^(-1/2)``.

    Args:
        quantile: gamma.
        lr: eta.
        count_noise: sigma_b, in clients; 0: none.
        expected: qN.
    """

    quantile: float
    lr: float
    count_noise: float
    expected: float

    def __call__(self, clip: float, norms: F64, ctx: RoundContext) -> float:
        """The clipping norm of the next round, from the norms (m,) of this one."""
        noise = self.count_noise * generator(ctx.seed, "dp_count", ctx.round).standard_normal()
        centred = float(np.sum((norms <= clip) - 0.5)) + noise
        share = 0.5 + centred / self.expected
        exponent = -self.lr * (share - self.quantile)
        return clip * math.exp(min(max(exponent, -LARGEST), LARGEST))


@dataclass(frozen=True, kw_only=True)
class PrivateMean:
    """The mean of clipped updates with noise, see the module.

    The norm is that of all parameters; running statistics must not be among what is sent.

    Args:
        clip: C of the first round.
        noise_multiplier: standard deviation of the noise on the sum in units of C.
        expected: q W.
        max_samples: w_i is min(n_i / max_samples, 1); None: 1.
        noise: how it is drawn.
        adaptive: changes C from round to round; None: C stays.
    """

    clip: float
    noise_multiplier: float
    expected: float
    max_samples: int | None = None
    noise: Noise
    adaptive: AdaptiveClip | None = None

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps ``clip`` where it is adaptive, and what the noise keeps; a cohort may be empty."""
        layout, kept = cohort.layout, dict(state)
        clip = float(kept.pop("clip", self.clip))
        norms = cohort.norms(slice(0, layout.num_params))
        factors = np.divide(clip, norms, out=np.ones_like(norms), where=norms > clip)
        weights = factors * (1.0 / self.expected)
        if self.max_samples is not None:
            weights *= np.minimum(cohort.num_samples / self.max_samples, 1.0)
        step = cohort.step([weights], [slice(0, layout.size)])
        scale = self.noise_multiplier * clip / self.expected
        step, after = self.noise(step, scale, kept, ctx)
        if self.adaptive is not None:
            fresh = self.adaptive(clip, norms, ctx)
            after = {**after, "clip": np.array(fresh)}
        clipped = float(np.mean(norms > clip)) if len(norms) else 0.0
        return Reduced(step, after, {"clip": clip, "clipped": clipped})


@dataclass(frozen=True)
class PrivateSum:
    """An exchange that reads nothing but the sum of one upload, which is clipped and noised.

    The exchange gets a single update that carries the noised sum.

    Args:
        exchange: linear in the sum of the uploads.
        key: of the upload in :attr:`~fedsim.core.types.ClientUpdate.extras`.
        clip: norm to which a client's upload is clipped.
        noise_multiplier: standard deviation of the noise on the sum in units of ``clip``.
    """

    exchange: Exchange
    key: str
    clip: float
    noise_multiplier: float

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
        """The answer of the exchange."""
        rng = generator(ctx.seed, f"dp_{self.key}", ctx.round)
        total = np.zeros(cohort.layout.num_params)
        for update in cohort.updates:
            upload = update.extras[self.key].astype(np.float64)
            norm = float(np.linalg.norm(upload))
            total += upload * (self.clip / norm if norm > self.clip else 1.0)
        if self.noise_multiplier > 0:
            total += self.noise_multiplier * self.clip * rng.standard_normal(len(total))
        whole = ClientUpdate(client_id=0, num_samples=0, num_steps=0, extras={self.key: total})
        return self.exchange(replace(cohort, updates=(whole,)), state, ctx)


def noise_beside_count(noise_multiplier: float, count_noise: float) -> float | None:
    """That of the sum, ``(z^-2 - (2 sigma_b)^-2)^(-1/2)``; None where the count uses up all z."""
    if noise_multiplier == 0:
        return 0.0
    rest = noise_multiplier**-2 - (2 * count_noise) ** -2
    return rest**-0.5 if rest > 0 else None
