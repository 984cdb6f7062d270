"""Mimic: malicious clients send a copy of a benign update (Karimireddy et al., ICLR 2022).

Without ``warmup`` it is that of the lowest client id. Else, as in the authors' code, a power
iteration over the first rounds with an attack finds the direction z in which benign updates differ
most. In round t = 0, 1, ... of the warm-up, from a random z,

    mu <- (t mu + 1/h sum_i x_i) / (t + 1)
    s  =  sum_i <x_i - mu, z> (x_i - mu)
    z  <- (t z + s / |s|) / (t + 1), normalised

and the update with the largest ``<x_i, z>`` is copied; after it that of the client copied last or,
where a cohort is without this client, again the one with the largest ``<x_i, z>``.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.omniscient import InSpan, Mask, Omniscient
from fedsim.core.rng import generator
from fedsim.core.types import F64, Array, RoundContext, Vectors
from fedsim.server import Cohort


@dataclass(frozen=True)
class Mimic(InSpan):
    """A copy of the client in place ``copied`` of those that are seen in this round."""

    warmup: int = 0
    copied: int = 0

    def prepare(
        self, cohort: Cohort, seen: Mask, state: Vectors, ctx: RoundContext
    ) -> tuple[Omniscient, Vectors]:
        """Keeps z, mu (P,) and (2,) the rounds of the warm-up that are over and whom it copied."""
        if not self.warmup:
            return self, {}
        done, target = state.get("counts", np.array([0, -1])).tolist()
        ids = [u.client_id for u, benign in zip(cohort.updates, seen, strict=True) if benign]
        if done < self.warmup:
            state = _iterate(cohort, seen, state, done, ctx)
        elif target in ids:
            return replace(self, copied=ids.index(target)), state
        chosen = int(np.argmax(_along(cohort, state["z"])[seen]))
        if done < self.warmup:
            state = {**state, "counts": np.array([done + 1, ids[chosen]])}
        return replace(self, copied=chosen), state

    def coefficients(self, cohort: Cohort, seen: Mask) -> F64:
        """1 for the one that is copied; updates are sorted by client id."""
        return np.eye(int(seen.sum()))[self.copied]


def _iterate(
    cohort: Cohort, seen: Mask, state: Vectors, t: int, ctx: RoundContext
) -> dict[str, Array]:
    """mu and z after this round of the warm-up."""
    size, h = cohort.layout.num_params, int(seen.sum())
    drawn = generator(ctx.seed, "mimic", ctx.round).standard_normal(size) if t == 0 else None
    z: F64 = state["z"] if drawn is None else drawn
    mu: F64 = (t * state.get("mu", np.zeros(size)) + _combine(cohort, seen / h)) / (t + 1)
    w = np.where(seen, _along(cohort, z) - mu @ z, 0.0)
    s = _combine(cohort, w) - w.sum() * mu
    length = float(np.linalg.norm(s))
    turned = np.asarray(t * z + (s / length if length else 0.0))
    norm = float(np.linalg.norm(turned))
    return {"mu": mu, "z": turned / norm if norm else z}


def _along(cohort: Cohort, z: Array) -> F64:
    """(m,) inner products of the parameters with z (P,)."""
    params, whole = slice(0, len(z)), np.zeros(cohort.layout.size, cohort.columns.dtype)
    whole[params] = z
    return cohort.grams_with(whole, [params])[0][1]


def _combine(cohort: Cohort, coefficients: F64) -> F64:
    """(P,) ``sum_i c_i x_i`` of the parameters."""
    step = cohort.step([coefficients], [slice(0, cohort.layout.size)])
    return step[: cohort.layout.num_params].astype(np.float64)


def build(federation: Federation, warmup: int = 0) -> Attack:
    """Mimic, with so many rounds of warm-up."""
    return Attack(cohort=Mimic(warmup))
