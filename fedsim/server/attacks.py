"""Attacks by malicious clients that know updates of the round, and work together.

Each replaces the parameters of every malicious update by one vector, computed from the h known
updates x_i of the cohort, mu their mean: the benign ones (omniscient), or what the malicious
clients trained themselves. All but those :class:`ByCoordinate` lie in the span of the updates: they
need their Gram matrix alone, and are applied where the updates are. Running statistics stay those
of training. A cohort without benign or without malicious updates stays as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.core.malicious import Malicious
from fedsim.core.rng import generator
from fedsim.core.types import F64, Array, RoundContext, Vectors
from fedsim.server.base import Received
from fedsim.server.cohort import Cohort
from fedsim.server.columns import LocalColumns, MixedColumns
from fedsim.server.threads import single_threaded_blas

BLOCK = 1 << 16
"""Coordinates whose mean and standard deviation are computed at a time."""


@dataclass(frozen=True)
class Omniscient(ABC):
    """Changes the updates of a cohort as malicious clients send them, before the server's rule.

    Args:
        malicious: who they are.
        knows: the benign updates of the round, or their own ones as they trained them.
    """

    malicious: Malicious
    knows: Literal["benign", "own"] = field(default="benign", kw_only=True)
    name: ClassVar[str] = "attack"
    needs_own_clients: ClassVar[bool] = False
    in_span: ClassVar[bool] = True

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps what :meth:`prepared` keeps."""
        active = (self.malicious.active(u.client_id, ctx.round) for u in cohort.updates)
        bad = np.fromiter(active, np.bool_, len(cohort.updates))
        if bad.any() and not bad.all():
            with single_threaded_blas():
                attack, state = self.prepared(cohort, self.known(bad), state, ctx)
                cohort = attack.attacked(cohort, bad)
        return Received(cohort=cohort, state=state)

    def prepared(
        self, cohort: Cohort, known: NDArray[np.bool_], state: Vectors, ctx: RoundContext
    ) -> tuple[Omniscient, Vectors]:
        """The attack on this round, and the state for the next one; by default itself and {}."""
        return self, {}

    def known(self, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(m,) whose updates the malicious clients know; ``bad`` (m,) says who these are."""
        return bad if self.knows == "own" else ~bad

    @abstractmethod
    def attacked(self, cohort: Cohort, bad: NDArray[np.bool_]) -> Cohort:
        """The cohort with other malicious updates; ``bad`` (m,) says which, some and not all."""


class InSpan(Omniscient):
    """An attack ``sum_i c_i x_i`` over the known updates."""

    def attacked(self, cohort: Cohort, bad: NDArray[np.bool_]) -> Cohort:
        """See :meth:`Omniscient.attacked`."""
        mix = np.diag(np.where(bad, 0.0, 1.0))
        known = self.known(bad)
        mix[np.ix_(bad, known)] = self.coefficients(cohort, known)
        columns = MixedColumns(cohort.columns, mix, cohort.layout.num_params)
        return replace(cohort, columns=columns, _grams={})

    @abstractmethod
    def coefficients(self, cohort: Cohort, known: NDArray[np.bool_]) -> F64:
        """(h,) the coefficients of the known updates."""


@dataclass(frozen=True)
class Ipm(InSpan):
    """Inner product manipulation: ``-scale mu`` (Xie et al., UAI 2019)."""

    scale: float = 0.5

    def coefficients(self, cohort: Cohort, known: NDArray[np.bool_]) -> F64:
        """See :meth:`InSpan.coefficients`."""
        h = int(known.sum())
        return np.full(h, -self.scale / h)


@dataclass(frozen=True)
class Mimic(InSpan):
    """A copy of a benign update (Karimireddy et al., ICLR 2022).

    Without ``warmup`` it is that of the lowest client id. Else, as in the authors' code, a power
    iteration over the first rounds with an attack finds the direction z in which benign updates
    differ most. In round t = 0, 1, ... of the warm-up, from a random z,

        mu <- (t mu + 1/h sum_i x_i) / (t + 1)
        s  =  sum_i <x_i - mu, z> (x_i - mu)
        z  <- (t z + s / |s|) / (t + 1), normalised

    and the update with the largest ``<x_i, z>`` is copied; after it that of the client copied last
    or, where a cohort is without this client, again the one with the largest ``<x_i, z>``.

    Args:
        warmup: rounds of the power iteration.
        copied: position of the client among those known, in this round.
    """

    warmup: int = 0
    copied: int = 0

    def prepared(
        self, cohort: Cohort, known: NDArray[np.bool_], state: Vectors, ctx: RoundContext
    ) -> tuple[Omniscient, Vectors]:
        """Keeps z, mu (P,) and (2,) the rounds of the warm-up that are over and whom it copied."""
        if not self.warmup:
            return self, {}
        done, target = state.get("counts", np.array([0, -1])).tolist()
        ids = [u.client_id for u, own in zip(cohort.updates, known, strict=True) if own]
        if done < self.warmup:
            state = self._iterated(cohort, known, state, done, ctx)
        elif target in ids:
            return replace(self, copied=ids.index(target)), state
        chosen = int(np.argmax(_along(cohort, state["z"])[known]))
        if done < self.warmup:
            state = {**state, "counts": np.array([done + 1, ids[chosen]])}
        return replace(self, copied=chosen), state

    def _iterated(
        self, cohort: Cohort, known: NDArray[np.bool_], state: Vectors, t: int, ctx: RoundContext
    ) -> dict[str, Array]:
        """mu and z after this round of the warm-up."""
        size, h = cohort.layout.num_params, int(known.sum())
        drawn = generator(ctx.seed, "mimic", ctx.round).standard_normal(size) if t == 0 else None
        z: F64 = state["z"] if drawn is None else drawn
        mu: F64 = (t * state.get("mu", np.zeros(size)) + _combined(cohort, known / h)) / (t + 1)
        w = np.where(known, _along(cohort, z) - mu @ z, 0.0)
        s = _combined(cohort, w) - w.sum() * mu
        length = float(np.linalg.norm(s))
        turned = np.asarray(t * z + (s / length if length else 0.0))
        norm = float(np.linalg.norm(turned))
        return {"mu": mu, "z": turned / norm if norm else z}

    def coefficients(self, cohort: Cohort, known: NDArray[np.bool_]) -> F64:
        """See :meth:`InSpan.coefficients`; updates are sorted by client id."""
        return np.eye(int(known.sum()))[self.copied]


def _along(cohort: Cohort, z: Array) -> F64:
    """(m,) inner products of the parameters with z (P,)."""
    params, whole = slice(0, len(z)), np.zeros(cohort.layout.size, cohort.columns.dtype)
    whole[params] = z
    return cohort.grams_with(whole, [params])[0][1]


def _combined(cohort: Cohort, coefficients: F64) -> F64:
    """(P,) ``sum_i c_i x_i`` of the parameters."""
    step = cohort.step([coefficients], [slice(0, cohort.layout.size)])
    return step[: cohort.layout.num_params].astype(np.float64)


class Farthest(InSpan):
    """``mu - gamma p``, as far as a bound on its distances from the known updates x_i allows.

    Of Shejwalkar and Houmansadr (NDSS 2021). Here ``p = mu / |mu|`` (``unit_vec``); for others see
    :class:`Perturbed`. ``|mu - gamma p - x_i|^2 = u_i - 2 gamma b_i + gamma^2 c`` with
    ``u_i = |mu - x_i|^2``, ``b_i = <mu - x_i, p>`` and ``c = |p|^2`` gives the largest gamma in
    closed form; the authors find it by bisection, below twice a start value.
    """

    def coefficients(self, cohort: Cohort, known: NDArray[np.bool_]) -> F64:
        """See :meth:`InSpan.coefficients`."""
        gram = _gram(cohort, known)
        h, inner = len(gram), gram.mean(axis=1)  # <mu, x_i>
        norm = np.sqrt(max(inner.mean(), 0.0))
        if norm == 0.0:
            return np.full(h, 1.0 / h)
        u = norm**2 - 2 * inner + gram.diagonal()
        gamma = self.length(u, (norm**2 - inner) / norm, 1.0, _farthest_apart(gram))
        return np.full(h, (1 - gamma / norm) / h)

    @abstractmethod
    def length(self, u: F64, b: F64, c: float, apart: float) -> float:
        """The largest gamma.

        Args:
            u: (h,) see the class.
            b: (h,) see the class.
            c: see the class; not 0.
            apart: the largest squared distance of two known updates.
        """


@dataclass(frozen=True)
class MinMax(Farthest):
    """No farther from a known update than two of these are apart.

    ``max_i |x - x_i|^2 <= max_ij |x_i - x_j|^2``: ``gamma = min_i (b_i + sqrt(b_i^2 + c (max_ij
    |x_i - x_j|^2 - u_i))) / c``.
    """

    def length(self, u: F64, b: F64, c: float, apart: float) -> float:
        """See :meth:`Farthest.length`."""
        return float(np.min(b + np.sqrt(np.maximum(b**2 + c * (apart - u), 0.0)))) / c


@dataclass(frozen=True)
class MinSum(Farthest):
    """In sum no farther from the known updates than one of these is.

    ``sum_i |x - x_i|^2 <= min_i sum_j |x_i - x_j|^2``, as the authors' code has it, or the maximum
    over i, as in the paper: ``gamma = sqrt(min_i u_i / c)``, or of the maximum, since the
    differences from the mean add up to 0.
    """

    bound: Literal["min", "max"] = "min"

    def length(self, u: F64, b: F64, c: float, apart: float) -> float:
        """See :meth:`Farthest.length`."""
        one = np.min(u) if self.bound == "min" else np.max(u)
        return float(np.sqrt(max(float(one) / c, 0.0)))


class ByCoordinate(Omniscient):
    """An attack whose vector is computed coordinate by coordinate, from whole updates."""

    in_span: ClassVar[bool] = False

    def replaced(
        self, cohort: Cohort, bad: NDArray[np.bool_], sent: Callable[[F64], F64]
    ) -> Cohort:
        """The cohort with ``sent``, from known updates (h, width) to (width,), of all blocks."""
        rows, params = cohort.rows, cohort.layout.num_params
        vector: Array = np.empty(params, rows[0].dtype)
        for where, x in self.blocks(cohort, bad):
            vector[where] = sent(x)
        changed = [
            np.concatenate([vector, row[params:]]) if malicious else row
            for row, malicious in zip(rows, bad, strict=True)
        ]
        return replace(cohort, columns=LocalColumns(tuple(changed)), _grams={})

    def blocks(self, cohort: Cohort, bad: NDArray[np.bool_]) -> Iterator[tuple[slice, F64]]:
        """Blocks of parameters, each with the known updates (h, width)."""
        params = cohort.layout.num_params
        known = [row for row, knows in zip(cohort.rows, self.known(bad), strict=True) if knows]
        for start in range(0, params, BLOCK):
            where = slice(start, min(start + BLOCK, params))
            yield where, np.stack([row[where] for row in known], dtype=np.float64)


@dataclass(frozen=True)
class Perturbed(ByCoordinate):
    """:class:`Farthest` along ``p``, the known updates' standard deviation or the sign of ``mu``.

    The standard deviation of each coordinate has h - 1 in the denominator and is 0 for one update.
    """

    of: Farthest
    perturbation: Literal["std", "sign"] = "std"

    def attacked(self, cohort: Cohort, bad: NDArray[np.bool_]) -> Cohort:
        """See :meth:`Omniscient.attacked`; reads whole updates."""
        h = int(self.known(bad).sum())
        u, b, c = np.zeros(h), np.zeros(h), 0.0
        for _, x in self.blocks(cohort, bad):
            mu, p = x.mean(axis=0), self._direction(x)
            away = mu - x
            u += (away**2).sum(axis=1)
            b += away @ p
            c += float(p @ p)
        apart = _farthest_apart(_gram(cohort, self.known(bad)))
        gamma = self.of.length(u, b, c, apart) if c else 0.0
        return self.replaced(cohort, bad, lambda x: x.mean(axis=0) - gamma * self._direction(x))

    def _direction(self, x: F64) -> F64:
        if self.perturbation == "sign":
            return np.sign(x.mean(axis=0))
        return _std(x)


@dataclass(frozen=True)
class Alie(ByCoordinate):
    """A little is enough: ``mu - z sigma`` in each coordinate (Baruch et al., NeurIPS 2019).

    sigma is the standard deviation over the known updates, with h - 1 in the denominator, 0 for
    one; ``z`` that of :func:`alie_z` for the cohort where it is None. In the paper malicious
    clients know their own honest updates only (``of="own"``).
    """

    z: float | None = None

    def attacked(self, cohort: Cohort, bad: NDArray[np.bool_]) -> Cohort:
        """See :meth:`Omniscient.attacked`; reads whole updates."""
        z = alie_z(len(bad), int(bad.sum())) if self.z is None else self.z
        return self.replaced(cohort, bad, lambda x: x.mean(axis=0) - z * _std(x))


def alie_z(n: int, f: int) -> float:
    """``Phi^-1((n - f - s) / (n - f))`` with ``s = floor(n / 2 + 1) - f`` supporters, at least one.

    As in Baruch et al. (NeurIPS 2019). A majority of malicious clients needs no supporters,
    for which the formula has no finite value; one is assumed then. 0 for a single benign client.

    Args:
        n: clients of the cohort.
        f: malicious ones among them, from 1 to n - 1.
    """
    benign, supporters = n - f, max(n // 2 + 1 - f, 1)
    return NormalDist().inv_cdf((benign - supporters) / benign) if benign > supporters else 0.0


def _gram(cohort: Cohort, known: NDArray[np.bool_]) -> F64:
    """(h, h) of the parameters of the known updates."""
    whole = cohort.gram(slice(0, cohort.layout.num_params))
    return whole[np.ix_(known, known)]


def _farthest_apart(gram: F64) -> float:
    """The largest squared distance of two updates."""
    squares = gram.diagonal()
    return float(np.max(squares[:, None] + squares - 2 * gram))


def _std(x: F64) -> F64:
    """(width,) the standard deviation of the columns of (h, width)."""
    return x.std(axis=0, ddof=1) if len(x) > 1 else np.zeros(x.shape[1])
