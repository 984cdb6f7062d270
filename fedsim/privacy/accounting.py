"""Epsilon of the rounds of a run, by dp-accounting (extra ``privacy``).

A round releases the sum of clipped contributions, each of norm at most C, with noise
N(0, z^2 C^2) on each coordinate; z is the noise multiplier. What a round protects follows from how
its contributors were drawn:

    poisson   each one with probability q = cohort / population; neighbours add or remove one.
              The mean divides by the expected cohort, which is public.
    fixed     ``cohort`` of ``population`` without replacement; neighbours replace one. The sum then
              changes by up to 2 C, so the mechanism below is one of noise multiplier z / 2.
    full      all of them; neighbours add or remove one (a contribution is there, or is zero).

Two accountants:

    rdp   Renyi differential privacy at dp-accounting's orders, an upper bound. Its
          ``GaussianDpEvent`` means noise in units of the sensitivity, whatever the neighbours are,
          so replace-one with noise z C is ``GaussianDpEvent(z / 2)``; in
          ``SampledWithoutReplacementDpEvent`` the bound is Theorem 27 of Wang, Balle,
          Kasiviswanathan (AISTATS 2019, arXiv:1808.00087).
    pld   privacy loss distributions, numerically tight. dp-accounting has them for Poisson
          sampling. For ``full`` T rounds are one Gaussian mechanism with z / sqrt(T), whose epsilon
          is known exactly. For ``fixed`` its accountant has no event; the distribution is built
          here from the tight privacy profile (see :func:`_fixed`).
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.types import F64
from fedsim.version import DISTRIBUTION

Accountant = Literal["pld", "rdp"]
Sampling = Literal["poisson", "fixed", "full"]
Neighbours = Literal["add or remove one", "replace one"]

POINTS, FINEST = 4000, 1e-5
"""Privacy losses are discretised at the largest power of ten with so many intervals up to the
largest loss of a round, but not below the finest (dp-accounting's own is 1e-4). Rounding is
upwards; an epsilon above 0.1 changes by less than 0.5 %."""
MOST_NOISE, CLOSE = 1e6, 1e-6
"""Largest noise multiplier, and how close, relatively, the one for an epsilon is to the least."""
LEAST = 1e-8
"""Noise multiplier below which epsilon is said to be infinite (above it, it is 1e15 or more)."""
TAIL = 10.0
"""Standard deviations of the noise beyond which losses count as infinite (mass 1e-23)."""


@dataclass(frozen=True)
class Release:
    """One round's release, from the sum of clipped contributions of a cohort."""

    noise_multiplier: float  # z, standard deviation of the noise over the clipping norm
    population: int  # of those protected: clients, or the samples of a client
    cohort: float  # how many contribute; with Poisson sampling on average
    sampling: Sampling = "poisson"

    @property
    def rate(self) -> float:
        """q in (0, 1]."""
        return self.cohort / self.population

    @property
    def effective_noise(self) -> float:
        """Standard deviation of the noise over the sensitivity: z, or z / 2 (replace one)."""
        return self.noise_multiplier / (2 if self.sampling == "fixed" else 1)


def neighbours(sampling: Sampling) -> Neighbours:
    """The data sets that the epsilon of a sampling tells apart."""
    return "replace one" if sampling == "fixed" else "add or remove one"


def epsilons(
    release: Release, rounds: Sequence[int], delta: float, accountant: Accountant = "pld"
) -> list[float]:
    """Epsilon of the first T rounds together, for each T of ``rounds``; infinite without noise. A T
    costs some tenths of a second with ``pld``, and nothing with ``rdp``."""
    library()
    return [_epsilon(release, int(count), delta, accountant) for count in rounds]


def least_noise(spent: Callable[[float], float], epsilon: float) -> float | None:
    """The least noise multiplier z with ``spent(z) <= epsilon``, from above; None: there is none.

    Bisection of log z, for an epsilon ``spent`` that does not grow with the noise; z may be larger
    than the least one by the factor 1 + :data:`CLOSE`. ``spent`` may jump: what an epsilon between
    two values costs is the noise of the lower one.
    """
    if spent(MOST_NOISE) > epsilon:
        return None
    low = high = 1.0
    while high < MOST_NOISE and spent(high) > epsilon:
        low, high = high, min(2 * high, MOST_NOISE)
    while low > LEAST and spent(low) <= epsilon:
        low, high = low / 2, low
    while high > low * (1 + CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def statement(release: Release, delta: float, accountant: Accountant = "pld") -> str:
    """What an epsilon means: neighbouring relation, sampling, delta and accountant."""
    drawn = {
        "poisson": f"Poisson sampling with q={release.rate:.4g}",
        "fixed": f"{release.cohort:g} of {release.population} drawn without replacement",
        "full": "full participation",
    }[release.sampling]
    relation = neighbours(release.sampling)
    return f"neighbours {relation}, {drawn}, delta={delta:g}, {accountant} accountant"


def library() -> ModuleType:
    """The package dp-accounting, imported when it is needed."""
    try:
        import dp_accounting as package
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ConfigError(
            f"epsilon needs dp-accounting, which cannot be imported ({error}): "
            f"pip install '{DISTRIBUTION}[privacy]'"
        ) from error
    logging.getLogger("absl").setLevel(logging.ERROR)  # of orders that are left out, as always
    return package


@functools.lru_cache(maxsize=4096)
def _epsilon(release: Release, rounds: int, delta: float, accountant: Accountant) -> float:
    """Epsilon of ``rounds`` rounds."""
    if rounds == 0:
        return 0.0
    if release.noise_multiplier < LEAST:
        return math.inf
    if accountant == "rdp":
        orders, divergences = _rdp(release)
        epsilon, _ = library().rdp.compute_epsilon(orders, rounds * divergences, delta)
        return float(epsilon)
    if release.rate == 1:  # a Gaussian mechanism, whichever the sampling is called
        sigma = release.effective_noise / math.sqrt(rounds)
        with np.errstate(divide="ignore"):  # where epsilon is 0
            return float(library().get_epsilon_gaussian(sigma, delta))
    return float(_pld(release).self_compose(rounds).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=256)
def _rdp(release: Release) -> tuple[F64, F64]:
    """Orders (a,) and Renyi divergences (a,) of one round."""
    dp, event = library(), library().GaussianDpEvent(release.effective_noise)
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if release.sampling == "poisson":
        event = dp.PoissonSampledDpEvent(release.rate, event)
    elif release.sampling == "fixed":
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(
            release.population, int(release.cohort), event
        )  # fmt: skip
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    accountant.compose(event)
    return accountant.orders, accountant.rdp


@functools.lru_cache(maxsize=64)
def _pld(release: Release) -> Any:
    """The privacy loss distribution of one round, with q < 1."""
    largest = _largest(release.rate, release.effective_noise)
    interval = max(10.0 ** math.floor(math.log10(largest / POINTS)), FINEST)
    if release.sampling == "fixed":
        return _fixed(release.rate, release.effective_noise, interval)
    return library().pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=release.noise_multiplier,
        sampling_prob=release.rate,
        value_discretization_interval=interval,
    )


def _largest(rate: float, noise: float) -> float:
    """Privacy loss of one round, beyond which it counts as infinite."""
    return math.log1p(rate * math.expm1(min(0.5 / noise**2 + TAIL / noise, 700.0)))


def _fixed(rate: float, noise: float, interval: float) -> Any:
    """The privacy loss distribution of a cohort of fixed size, neighbours replace one.

    Drawing without replacement has the profile (Balle, Barthe, Gaboardi, NeurIPS 2018,
    arXiv:1807.01647, Theorem 11)

        delta(e) = q delta_G(log(1 + (exp(e) - 1) / q))    for e >= 0,
        delta(e) = 1 - exp(e) + exp(e) delta(-e)           for e < 0,

    where delta_G is that of the Gaussian mechanism. The second line holds because the relation is
    symmetric. The distribution is the smallest one on a grid that is nowhere below the profile
    ("connect the dots", Doroshenko et al., PETS 2022, arXiv:2207.04380).
    """
    last = math.ceil(_largest(rate, noise) / interval)
    grid = interval * np.arange(1, last + 1)
    upper = rate * _gaussian_profile(np.log1p(np.expm1(grid) / rate), noise)
    lower = -np.expm1(-grid) + np.exp(-grid) * upper
    middle = rate * _gaussian_profile(np.zeros(1), noise)
    pmf = library().pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -last, last, np.concatenate([lower[::-1], middle, upper])
    )
    return library().pld.privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _gaussian_profile(epsilon: F64, noise: float) -> F64:
    """delta_G (n,) of the Gaussian mechanism (Balle and Wang, ICML 2018, Theorem 8)."""
    from scipy import special  # not where a run has no privacy: it takes 0.2 s

    far, near = epsilon * noise, 0.5 / noise
    below = np.exp(epsilon + special.log_ndtr(-far - near))
    return np.maximum(special.ndtr(near - far) - below, 0)
