"""Matrices of rank r by one power iteration (Vogels et al., NeurIPS 2019, arXiv:1905.13727).

A tensor of two dimensions or more is a matrix M (n, m), n its first dimension. With Q (m, r) from
the client's last message, at first standard normal (Algorithm 1, warm start):

    P <- M Q;  P <- orthogonalise(P);  Q <- M^T P;  C(M) = P Q^T

so that ``C(M) = P P^T M``, a projection: ``|M - C(M)| <= |M|``. In the paper the workers share Q,
and the sums over workers of P and then of Q are sent, two messages a step; here each client has a Q
of its own, and sends both at once. A message has r (n + m) numbers for a matrix, unless n m are as
few: then, and for vectors, it has the tensor.

Products are summed in float64 without BLAS, so that they do not depend on threads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsim.compressors.base import Compressor, Feedback, Message, Operator
from fedsim.core.types import F64, Vector


@dataclass(frozen=True)
class PowerSGD:
    """Rank r, for tensors of these shapes; ``memory`` has the Q of all matrices."""

    rank: int
    shapes: Sequence[tuple[int, ...]] = ()
    memory: Vector | None = None

    def resume(self, shapes: Sequence[tuple[int, ...]], memory: Vector | None) -> Operator:
        """The same for a client's tensors, with what its last message kept."""
        return replace(self, shapes=shapes, memory=memory)

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        sent, floats, r = x.copy(), 0, self.rank
        kept: list[Vector] = []
        rest = self.memory
        for shape, part in zip(self.shapes, tensors, strict=True):
            matrix = x[part].reshape(shape[0] if shape else 1, -1).astype(np.float64)
            n, m = matrix.shape
            if len(shape) < 2 or r * (n + m) >= n * m:
                floats += part.stop - part.start
                continue
            fresh = draw.standard_normal((m, r))
            q = fresh if rest is None else rest[: m * r].reshape(m, r).astype(np.float64)
            rest = None if rest is None else rest[m * r :]
            p = orthonormal(np.einsum("nm,mr->nr", matrix, q)).astype(np.float32)
            q = np.einsum("nm,nr->mr", matrix, p.astype(np.float64)).astype(np.float32)
            low = np.einsum("nr,mr->nm", p.astype(np.float64), q.astype(np.float64))
            sent[part] = low.ravel()
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


def build(rank: int = 2, error_feedback: Feedback = "ef14") -> Compressor:
    """Matrices of this rank."""
    return Compressor(PowerSGD(rank), error_feedback)
