"""Compression of what clients send, with error feedback: section ``compress``.

Of a client's update the d parameters that are sent are compressed: not those that stay on the
client (personal slots), which are zero and cost nothing, and not running statistics of BatchNorm,
which are sent as they are (4 bytes each), since a rounded variance may be negative. What a method
sends beside its update (control variates, prototypes) is not compressed either.

Bytes are those of a message without a header: 4 for each floating-point number, indices, signs and
levels packed with the fewest whole bits that tell them apart, rounded up to a byte once. Shapes,
and what is drawn from (seed, round, client), the server knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from fedsim.client.transform import Coded
from fedsim.core.rng import generator
from fedsim.core.types import F64, Array, ClientTask, Layout, RoundContext, Slot, Vector, Vectors

Feedback = Literal["none", "ef14", "ef21"]
FLOAT_BYTES = 4
BIASED = frozenset({"top_k", "sign", "power_sgd"})
"""Compressors that need error feedback to converge in general, and have it by default."""


class Message(NamedTuple):
    """A vector as it is sent.

    Args:
        vector: (d,) float32, as the server decodes it.
        floats: numbers of 4 bytes in the message.
        bits: of everything else.
        memory: what the compressor keeps for its next message.
    """

    vector: Vector
    floats: int
    bits: int = 0
    memory: Vector | None = None

    @property
    def bytes(self) -> int:
        """Size of the message."""
        return FLOAT_BYTES * self.floats + -(-self.bits // 8)


class Compressor(Protocol):
    """A compression operator C."""

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """C(x) of x (d,), whose tensors are given; random numbers are from ``draw``."""


def entries(fraction: float, k: int | None, d: int) -> int:
    """How many of d entries are sent: k, else max(1, floor(fraction d))."""
    return min(d, max(1, math.floor(fraction * d + 1e-9)) if k is None else k)


@dataclass(frozen=True)
class TopK:
    """The k entries of the largest magnitude (Stich et al., NeurIPS 2018, arXiv:1809.07599).

    ``|x - C(x)|^2 <= (1 - k/d) |x|^2``. Of equal ones the first are sent. A message has k values
    and k indices of ceil(log2 d) bits; no indices where all are sent.
    """

    fraction: float
    k: int | None = None

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """See :class:`Compressor`."""
        d = len(x)
        k = entries(self.fraction, self.k, d)
        if k == d:
            return Message(x, d)
        size = np.abs(x)
        least = np.partition(size, d - k)[d - k]
        chosen = size > least
        chosen[np.flatnonzero(size == least)[: k - np.count_nonzero(chosen)]] = True
        return Message(np.where(chosen, x, np.float32(0)), k, k * (d - 1).bit_length())


@dataclass(frozen=True)
class RandomK:
    """k entries drawn uniformly without replacement, times d/k where ``unbiased``.

    Unbiased, ``E |C(x) - x|^2 = (d/k - 1) |x|^2``; else ``E |x - C(x)|^2 = (1 - k/d) |x|^2``, as
    error feedback needs it (Stich et al., 2018). A message has the k values alone: which they are
    follows from seed, round and client (Konecny et al., 2016, arXiv:1610.05492, random mask).
    """

    fraction: float
    k: int | None = None
    unbiased: bool = True

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """See :class:`Compressor`."""
        d = len(x)
        k = entries(self.fraction, self.k, d)
        chosen = draw.choice(d, k, replace=False)
        sent = np.zeros_like(x)
        sent[chosen] = x[chosen] * np.float32(d / k if self.unbiased else 1)
        return Message(sent, k)


@dataclass(frozen=True)
class QSGD:
    """Stochastic rounding to levels (Alistarh et al., NeurIPS 2017, arXiv:1610.02132, Sec. 3.1).

    Of each tensor v with n entries, ``C(v)_i = |v|_2 sign(v_i) l / s`` where l is the integer
    below or above ``a = s |v_i| / |v|_2``, the one above with probability a - floor(a). Unbiased,
    ``E |C(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2``; zeros stay zeros. A message has a norm
    for each tensor, rounded up to a float32, and ceil(log2(2 s + 1)) bits for each entry (the
    paper's Elias codes are not used).

    Args:
        levels: s.
    """

    levels: int

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """See :class:`Compressor`."""
        sent, chance = np.zeros_like(x), draw.random(len(x))
        for where in tensors:
            v = x[where].astype(np.float64)
            exact = math.sqrt(np.sum(v * v))
            norm = np.float32(exact)
            if norm < exact:
                norm = np.nextafter(norm, np.float32(np.inf))
            if norm > 0:
                a = self.levels * np.abs(v) / np.float64(norm)
                level = np.floor(a)
                level += chance[where] < a - level
                sent[where] = np.sign(v) * level / self.levels * norm
        return Message(sent, len(tensors), len(x) * (2 * self.levels).bit_length())


@dataclass(frozen=True)
class ScaledSign:
    """The signs of each tensor times the mean magnitude of its entries.

    ``C(v) = |v|_1 / n sign(v)`` with sign(0) = 1, so that a sign is one bit; a contraction:
    ``|v - C(v)|^2 = |v|_2^2 - |v|_1^2 / n`` (Karimireddy et al., 2019, arXiv:1901.09847, Sec. 4).
    A message has a scale for each tensor and a bit for each entry.
    """

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """See :class:`Compressor`."""
        sent = np.empty_like(x)
        for where in tensors:
            v = x[where]
            scale = np.float32(np.mean(np.abs(v), dtype=np.float64))
            sent[where] = np.where(v < 0, -scale, scale)
        return Message(sent, len(tensors), len(x))


@dataclass(frozen=True)
class PowerSGD:
    """Matrices of rank r by one power iteration (Vogels et al., NeurIPS 2019, arXiv:1905.13727).

    A tensor of two dimensions or more is a matrix M (n, m), n its first dimension. With Q (m, r)
    from the client's last message, at first standard normal (Algorithm 1, warm start):

        P <- M Q;  P <- orthogonalise(P);  Q <- M^T P;  C(M) = P Q^T

    so that ``C(M) = P P^T M``, a projection: ``|M - C(M)| <= |M|``. In the paper the workers share
    Q, and the sums over workers of P and then of Q are sent, two messages a step; here each client
    has a Q of its own, and sends both at once. A message has r (n + m) numbers for a matrix, unless
    n m are as few: then, and for vectors, it has the tensor.

    Products are summed in float64 without BLAS, so that they do not depend on threads.

    Args:
        rank: r.
        shapes: of the tensors.
        memory: the Q of all matrices, one after the other.
    """

    rank: int
    shapes: Sequence[tuple[int, ...]] = ()
    memory: Vector | None = None

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """See :class:`Compressor`."""
        sent, floats, r = x.copy(), 0, self.rank
        kept: list[Vector] = []
        rest = self.memory
        for shape, where in zip(self.shapes, tensors, strict=True):
            matrix = x[where].reshape(shape[0] if shape else 1, -1).astype(np.float64)
            n, m = matrix.shape
            if len(shape) < 2 or r * (n + m) >= n * m:
                floats += where.stop - where.start
                continue
            fresh = draw.standard_normal((m, r))
            q = fresh if rest is None else rest[: m * r].reshape(m, r).astype(np.float64)
            rest = None if rest is None else rest[m * r :]
            p = orthonormal(np.einsum("nm,mr->nr", matrix, q)).astype(np.float32)
            q = np.einsum("nm,nr->mr", matrix, p.astype(np.float64)).astype(np.float32)
            low = np.einsum("nr,mr->nm", p.astype(np.float64), q.astype(np.float64))
            sent[where] = low.ravel()
            floats += r * (n + m)
            unused = ~p.any(axis=0)  # M has fewer directions than r
            kept.append(np.where(unused, fresh, q).astype(np.float32).ravel())
        return Message(sent, floats, memory=np.concatenate(kept) if kept else None)


def orthonormal(p: F64) -> F64:
    """Columns of p (n, r) made orthonormal by Gram and Schmidt, twice; 0 where one depends on
    those before it."""
    q = np.zeros_like(p)
    for j in range(p.shape[1]):
        column, size = p[:, j].copy(), math.sqrt(np.sum(p[:, j] ** 2))
        for _ in range(2):
            for i in range(j):
                column -= np.sum(q[:, i] * column) * q[:, i]
        norm = math.sqrt(np.sum(column**2))
        if norm > 1e-10 * size:
            q[:, j] = column / norm
    return q


@dataclass(frozen=True, kw_only=True)
class Compression:
    """A client transform: what a client sends is compressed.

    ``ef14`` (Seide et al., 2014; Karimireddy et al., 2019, arXiv:1901.09847, Algorithm 2): a client
    sends C(p), ``p = delta + e``, and keeps ``e <- p - C(p)`` for its next participation.

    ``ef21`` (Richtarik et al., NeurIPS 2021, arXiv:2106.05203): client and server both keep h, at
    first 0; the client sends ``C(delta - h)``, and both set ``h <- h + C(delta - h)``, which is the
    update that the server combines; the paper's server combines the h of all clients, here it is
    those of the cohort.

    Args:
        compressor: C.
        feedback: what becomes of the error.
        personal: the slots that stay on the client.
    """

    compressor: Compressor
    feedback: Feedback
    personal: Callable[[Slot], bool]
    name: ClassVar[str] = "compress"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Keeps (d,): ``residual``, e of ef14; or ``h`` of ef21; and ``memory``, Q of PowerSGD.

        See :class:`ClientTransform`.
        """
        shared = [slot for slot in layout.slots if not self.personal(slot)]
        slots = [slot for slot in shared if slot.role == "param"]
        statistics = sum(slot.stop - slot.start for slot in shared if slot.role == "stat")
        where = _ranges(slots)
        x = np.concatenate([delta[slot.where] for slot in slots])
        draw = generator(task.ctx.seed, self.name, task.key, task.client)
        kept: dict[str, Array] = {}
        compressor = self.compressor
        if isinstance(compressor, PowerSGD):
            shapes = [slot.shape for slot in slots]
            compressor = replace(compressor, shapes=shapes, memory=state.get("memory"))
        if self.feedback == "ef21":
            h = state.get("h", np.zeros_like(x))
            message = compressor(x - h, where, draw)
            decoded = kept["h"] = h + message.vector
        else:
            if self.feedback == "ef14":
                x += state.get("residual", np.float32(0))
            message = compressor(x, where, draw)
            decoded = message.vector
            if self.feedback == "ef14":
                kept["residual"] = x - decoded
        if message.memory is not None:
            kept["memory"] = message.memory
        sent: Array = delta.copy()
        for slot, part in zip(slots, where, strict=True):
            sent[slot.where] = decoded[part]
        return Coded(sent, kept, message.bytes + FLOAT_BYTES * statistics)

    def size(self, layout: Layout) -> int:
        """Bytes of a client's update; they follow from the model alone, not from its values."""
        ctx = RoundContext(round=0, num_rounds=1, num_clients=1, lr=0.0, seed=0)
        nothing = np.zeros(layout.size, np.float32)
        return self(nothing, {}, ClientTask(client=0, ctx=ctx), layout).wire_bytes or 0


def compression(
    personal: Callable[[Slot], bool],
    *,
    name: str,
    fraction: float,
    k: int | None,
    levels: int,
    rank: int,
    error_feedback: Feedback | None,
) -> Compression:
    """What section ``compress`` asks for; without ``error_feedback`` where C is biased."""
    feedback = error_feedback or ("ef14" if name in BIASED else "none")
    compressors: dict[str, Compressor] = {
        "top_k": TopK(fraction, k),
        "random_k": RandomK(fraction, k, unbiased=feedback == "none"),
        "qsgd": QSGD(levels),
        "sign": ScaledSign(),
        "power_sgd": PowerSGD(rank),
    }
    return Compression(compressor=compressors[name], feedback=feedback, personal=personal)


def _ranges(slots: Sequence[Slot]) -> list[slice]:
    """Where the tensors stand in the vector of all of them."""
    ends = np.cumsum([slot.stop - slot.start for slot in slots]).tolist()
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
