"""The global loss as local, distribution-shift and aggregation loss (Zeng et al., Eq. 2).

With weights p of m clients, weights q of K data owners, ``L_j(w)`` the mean cross-entropy of a
model w over the data of owner j, ``w_i`` the local model of client i, w the model after aggregation
and ``Lq(w) = sum_j q_j L_j(w)``:

    local       = sum_i p_i L_i(w_i)
    shift       = sum_ij p_i q_j (L_j(w_i) - L_i(w_i))
    aggregation = Lq(w) - sum_i p_i Lq(w_i)
    global      = Lq(w) = local + shift + aggregation        for all p, q that sum to 1
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from fedsim.core.errors import ContractError, DivergedError
from fedsim.core.types import F64, I64

TOLERANCE = 1e-9
"""How far the terms may miss the global loss, relative to the larger of 1 and that loss."""


def terms(client_losses: F64, global_losses: F64, p: F64, q: F64, owners: I64) -> dict[str, float]:
    """The signed terms of Eq. 2, and two diagnostics; every sum is correctly rounded.

    Losses are (m, K): ``L_j(w_i)``, and ``L_j`` of the model after aggregation; ``owners`` (m,) are
    the columns of the clients' own data. Diagnostics are the sums of absolute values:
    ``shift_spread`` of the pairs, ``aggregation_spread`` of ``p_i |Lq(w) - Lq(w_i)|``.
    """
    at_home = client_losses[np.arange(len(p)), owners]
    shifts = client_losses - at_home[:, None]
    pairs = p[:, None] * q
    seen = np.array([math.fsum(row) for row in q * client_losses])
    after = np.array([math.fsum(row) for row in q * global_losses])
    whole = math.fsum(p * after)
    losses = {
        "local_loss": math.fsum(p * at_home),
        "shift_loss": math.fsum((pairs * shifts).ravel()),
        "aggregation_loss": math.fsum(p * (after - seen)),
        "global_loss": whole,
        "shift_spread": math.fsum((pairs * np.abs(shifts)).ravel()),
        "aggregation_spread": math.fsum(p * np.abs(after - seen)),
    }
    gap = losses["local_loss"] + losses["shift_loss"] + losses["aggregation_loss"] - whole
    if not abs(gap) <= TOLERANCE * max(1.0, whole):
        raise DivergedError(
            f"the loss decomposition misses the global loss {whole:g} by {gap:g}: losses of up to "
            f"{client_losses.max():g} are too large to be added"
        )
    return losses


def decompose(
    client_losses: ArrayLike,
    global_losses: ArrayLike,
    num_samples: ArrayLike,
    owner_samples: ArrayLike | None = None,
    owners: ArrayLike | None = None,
) -> dict[str, float]:
    """Local, distribution-shift and aggregation loss of a round (Zeng et al., MICCAI 2024, Eq. 2).

    The three add up to the global loss, whatever the weights; they are signed.

    Args:
        client_losses: (m, K) mean loss of each client's local model on the data of each owner.
        global_losses: (K,) mean loss of the model after aggregation on the data of each owner, or
            (m, K) of each client's own model in personalised methods.
        num_samples: (m,) training samples of each client.
        owner_samples: (K,) samples of each owner; by default ``num_samples``, each in the column
            of its client.
        owners: (m,) the column of each client's own data; by default column i is client i's.

    Returns:
        ``local_loss``, ``shift_loss``, ``aggregation_loss`` and ``global_loss``.

    Raises:
        ContractError: shapes that do not fit, weights that are no counts, NaN or infinity.
        DivergedError: losses so large that the terms do not add up in float64.
    """
    local = np.asarray(client_losses, dtype=np.float64)
    after = np.asarray(global_losses, dtype=np.float64)
    n = np.asarray(num_samples, dtype=np.float64)
    weights = n if owner_samples is None else np.asarray(owner_samples, dtype=np.float64)
    columns = np.arange(n.size) if owners is None else np.asarray(owners)
    shapes = local.shape, after.shape, n.shape, weights.shape, columns.shape
    if local.ndim != 2 or shapes not in (
        (local.shape, of_global, local.shape[:1], local.shape[1:], local.shape[:1])
        for of_global in (local.shape, local.shape[1:])
    ):
        raise ContractError(
            "needed are client_losses (m, K), global_losses (K,) or (m, K), num_samples (m,), "
            f"owner_samples (K,) and owners (m,), got {', '.join(map(str, shapes))}"
        )
    m, k = local.shape
    if not (m and columns.dtype.kind in "iu" and columns.min() >= 0 and columns.max() < k):
        raise ContractError(f"owners must be columns 0..{k - 1}, got {columns.tolist()}")
    numbers = (local, after, n, weights)
    if not all(np.isfinite(each).all() for each in numbers) or min(n.min(), weights.min()) < 0:
        raise ContractError("losses must be finite, num_samples and owner_samples counts")
    if not (n.sum() > 0 and weights.sum() > 0):
        raise ContractError("some of num_samples, and of owner_samples, must be above 0")
    if owner_samples is None:
        weights = np.bincount(columns.astype(np.int64), n, k).astype(np.float64)
    p, q = n / n.sum(), weights / weights.sum()
    parts = terms(local, np.broadcast_to(after, local.shape), p, q, columns)
    return {
        name: parts[name]
        for name in ("local_loss", "shift_loss", "aggregation_loss", "global_loss")
    }
