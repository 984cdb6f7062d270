"""FedPAC: aligned features and collaborating heads (Xu, Tong, Huang, ICLR 2023).

Client i holds the shared extractor phi and its own head psi_i:
    1. with phi as received: H_ik = q_ik mu_ik and V_i, the trace of the variance of its mean
    2. one epoch of SGD on psi_i, phi frozen
    3. E epochs on phi, psi_i frozen: CE + lam mean_b,d (h(x_b) - c_{y_b})^2, c the global
       prototypes (its own where a class has none; no such term in the first round)
    4. uploads prototypes c_ik of the new phi_i, counts n_ik, H_i, V_i and psi_i
Server: phi and its statistics averaged; c_k = sum_i n_ik c_ik / sum_i n_ik, kept for absent
classes; alpha_i = argmin over the simplex of alpha^T (diag(V) + D_i) alpha,
(D_i)_ab = sum_k <H_ik - H_ak, H_ik - H_bk>, entries <= 1e-3 dropped; psi_i <- sum_j alpha_ij psi_j.

:client: an epoch on the head, then on the extractor with a term towards class prototypes
:server: mean by samples of the extractor, a mixed head for each client by a quadratic program,
    class prototypes
:state: client its head, server the prototypes (C d)
:sends: up head, prototypes, counts, H (each C d or C) and V, down prototypes (C d) and the head
:public code: the original drops eigenvalues below 0.01 where rounding makes the program indefinite
    and fails where a class is absent; PFLlib averages prototypes without counts, trains head and
    extractor with one rate, pairs the weights of the clients with heads in another order, and mixes
    heads that it has already replaced; FL-bench also averages the head into the global model and
    has the prototype term in round 1, with the client's own prototypes; the released FedLD code
    takes the first statistics in training mode
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import Batch, FeaturePenalty, LocalEnv, Phase, Uplink
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64, Array, RoundContext, Vectors
from fedsim.server import Average, Cohort, Exchanged, Server


def class_means(features: Array, labels: Array, num_classes: int) -> F64:
    """(C, d) mean feature of each class, 0 for absent ones, in float64."""
    means = np.zeros((num_classes, features.shape[1]))
    for k in np.unique(labels):
        means[k] = features[labels == k].mean(axis=0, dtype=np.float64)
    return means


def statistics(features: Array, labels: Array, num_classes: int) -> tuple[F64, float]:
    """H (C, d) = q_k mu_k and V of a client's features (n, d) and labels (n,).

    V = (1/n) sum_k (q_k mean_{y=k} ||h||^2 - q_k^2 ||mu_k||^2).
    """
    n = len(labels)
    q = np.bincount(labels, minlength=num_classes) / n
    h = q[:, None] * class_means(features, labels, num_classes)
    second = np.square(features, dtype=np.float64).sum() / n
    return h, float((second - np.square(h).sum()) / n)


def solve_simplex(p: F64) -> F64:
    """(m,) argmin of ``a^T P a`` over the simplex, P (m, m) positive semidefinite.

    With a = b / sum b its KKT system is that of ``min_{b >= 0} b^T P b / 2 - sum b``, a
    non-negative least-squares problem in a Cholesky factor of P (plus a ridge of 1e-12 tr P / m).
    """
    m = len(p)
    scale = np.trace(p) / m
    if scale <= 0:
        return np.full(m, 1.0 / m)
    lower = np.linalg.cholesky(p / scale + 1e-12 * np.eye(m))
    target = scipy.linalg.solve_triangular(lower, np.ones(m), lower=True)
    b, _ = scipy.optimize.nnls(lower.T, target)
    return b / b.sum()


def head_weights(features: F64, variances: F64) -> F64:
    """(m, m) rows alpha_i, from H (m, C d) and V (m,)."""
    rows = []
    for h in features:
        apart = h - features
        alpha = solve_simplex(np.diag(variances) + apart @ apart.T)
        alpha = np.where(alpha > 1e-3, alpha, 0.0)
        rows.append(alpha / alpha.sum())
    return np.stack(rows)


class _Memory(NamedTuple):
    """What :func:`statistics` returns, as tensors on the CPU, and the prototypes."""

    features: Tensor
    variance: Tensor
    targets: Tensor | None


@dataclass(frozen=True)
class AlignedFeatures(FeaturePenalty):
    """The client part."""

    lam: float
    head_lr: float
    head_epochs: int
    needs_classes: ClassVar[bool] = True
    stackable: ClassVar[bool | str] = "local training has two phases"
    capturable: ClassVar[bool | str] = True

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """First the head, then the extractor."""
        body = Phase(env.training.local_epochs, env.ctx.lr, "features")
        return (Phase(self.head_epochs, self.head_lr, "head"), body)

    def begin(self, env: LocalEnv) -> _Memory:
        """Statistics of the received extractor, and the prototypes to align with."""
        features, labels = env.features().cpu().numpy(), env.y.cpu().numpy()
        moments = statistics(features, labels, env.num_classes)
        h, variance = (torch.as_tensor(v, dtype=torch.float64) for v in moments)
        if "prototypes" not in env.downlink:
            return _Memory(h, variance, None)
        sent = np.asarray(env.downlink["known"])[:, None]
        local = class_means(features, labels, env.num_classes)
        targets = np.where(sent, env.downlink["prototypes"], local).astype(np.float32)
        return _Memory(h, variance, torch.from_numpy(targets).to(env.x.device))

    def penalty(self, env: LocalEnv, s: _Memory, batch: Batch) -> Tensor | None:
        """The distance to the prototypes while the extractor trains."""
        if env.phase.part == "head" or s.targets is None:
            return None
        return self.lam * F.mse_loss(batch.h, s.targets[batch.y])

    def finish(self, env: LocalEnv, s: _Memory) -> Uplink:
        """Prototypes of the new extractor and the trained head."""
        features, labels = env.features().cpu().numpy(), env.y.cpu().numpy()
        head = [p.detach().flatten() for slot, p in env.flat.params if slot.head]
        return Uplink(
            {
                "head": torch.cat(head).cpu().numpy(),
                "prototypes": class_means(features, labels, env.num_classes),
                "counts": np.bincount(labels, minlength=env.num_classes),
                "H": s.features.numpy(),
                "V": s.variance.view(1).numpy(),
            }
        )


def collaborate(cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
    """Global prototypes, and for each participant its combination of the cohort's heads."""
    extras = [u.extras for u in cohort.updates]
    counts = np.stack([e["counts"] for e in extras]).astype(np.float64)
    total = counts.sum(axis=0)
    summed = sum(c[:, None] * e["prototypes"] for c, e in zip(counts, extras, strict=True))
    present = total > 0
    fresh = summed / np.where(present, total, 1.0)[:, None]
    prototypes = np.where(present[:, None], fresh, state.get("prototypes", 0.0))
    known = present | state.get("known", np.zeros(len(present), dtype=bool))
    shared = {"prototypes": prototypes, "known": known}
    alpha = head_weights(
        np.stack([e["H"].ravel() for e in extras]), np.concatenate([e["V"] for e in extras])
    )
    heads, private = [e["head"].astype(np.float64) for e in extras], {}
    for update, row in zip(cohort.updates, alpha, strict=True):
        mixed = sum(a * head for a, head in zip(row, heads, strict=True))
        private[update.client_id] = {"personal": np.asarray(mixed, dtype=np.float32)}
    return Exchanged(shared, shared, private)


def build(
    lam: NonNegative = 1.0,
    head_lr: NonNegative = 0.1,
    head_epochs: Annotated[int, Field(ge=0, le=10**9)] = 1,
) -> Algorithm:
    """FedPAC.

    Args:
        lam: weight of the prototype term, >= 0.
        head_lr: learning rate of the head's epochs.
        head_epochs: epochs on the head before those on the extractor.
    """
    return Algorithm(
        local=AlignedFeatures(lam, head_lr, head_epochs),
        server=Server(Average(), exchange=collaborate, needs_same_start=True),
        personal=attrgetter("head"),
    )
