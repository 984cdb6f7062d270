"""The server rules for everybody: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsim import algorithms
from fedsim.cohort import Cohort
from fedsim.contracts import Array, ClientUpdate, Layout, RoundContext, Slot
from fedsim.errors import ContractError
from fedsim.server import HistoryGram


def aggregate(
    updates: Sequence[ArrayLike] | Array,
    num_samples: ArrayLike,
    algorithm: str = "fedld",
    *,
    sizes: Sequence[int] | None = None,
    num_steps: ArrayLike | None = None,
    history: ArrayLike | None = None,
    seed: int = 0,
    round: int = 0,
    **hyperparameters: Any,
) -> Array:
    """The step that a method's server adds to the global vector.

    Args:
        updates: (m, d) array or m arrays (d,): local minus global parameters, in client order.
        num_samples: (m,) training samples of each client.
        algorithm: the method's name.
        sizes: lengths of the tensors that make up d, for rules per tensor; default one tensor.
        num_steps: (m,) local steps, for rules that use them.
        history: (d,) for ``fedgh_released`` after its first round, and ``fedld_released``.
        seed: of the rules that draw (``fedgh``).
        round: from 0; rules that draw, draw anew each round.
        hyperparameters: the method's own, e.g. ``keep=0.8``.

    Returns:
        (d,) float64, or float32 if all updates are float32.

    Raises:
        ContractError: shapes that do not fit, or a method that needs more than updates.
        ConfigError: an unknown method or hyperparameter.
    """
    rows = _rows(updates)
    counts = np.asarray(num_samples, dtype=np.float64)
    steps = np.ones(len(rows), int) if num_steps is None else np.asarray(num_steps, dtype=int)
    if counts.shape != (len(rows),) or steps.shape != counts.shape:
        raise ContractError(
            f"{len(rows)} updates, but num_samples has shape {counts.shape} "
            f"and num_steps {steps.shape}"
        )
    if not (np.isfinite(counts).all() and (counts > 0).all()):
        raise ContractError(f"num_samples must be positive, got {counts.tolist()}")
    layout = _layout(len(rows[0]), sizes)
    server = algorithms.load(algorithm, hyperparameters).server
    if server.exchange is not None:
        raise ContractError(
            f"{algorithm} also combines what clients upload beside their updates "
            "(heads, prototypes); use fedsim.run"
        )
    ctx = RoundContext(round, round + 1, len(rows), lr=1.0, seed=seed)
    cohort = Cohort.of(
        [
            ClientUpdate(i, n, s, row)
            for i, (n, s, row) in enumerate(zip(counts, steps, rows, strict=True))
        ],
        layout,
    )
    state = {}
    if isinstance(server.reduce, HistoryGram):
        state = _history(algorithm, history, len(rows[0]), round)
    return server.step(state, cohort, ctx).step


def _rows(updates: Sequence[ArrayLike] | Array) -> list[Array]:
    rows = [np.asarray(row) for row in updates]
    if not rows or any(r.ndim != 1 or r.shape != rows[0].shape for r in rows):
        raise ContractError(
            f"updates must be m vectors of one length, got {[r.shape for r in rows]}"
        )
    single = all(r.dtype == np.float32 for r in rows)
    rows = [np.ascontiguousarray(r, dtype=np.float32 if single else np.float64) for r in rows]
    bad = [i for i, r in enumerate(rows) if not np.isfinite(r).all()]
    if bad:
        raise ContractError(f"updates {bad} contain NaN or infinity")
    return rows


def _layout(size: int, sizes: Sequence[int] | None) -> Layout:
    lengths = [size] if sizes is None else list(sizes)
    if sum(lengths) != size or min(lengths, default=0) < 1:
        raise ContractError(f"sizes {lengths} must be positive and add up to {size}")
    stops = np.cumsum(lengths).tolist()
    return Layout(
        tuple(
            Slot(f"tensor{i}", (n,), stop - n, stop)
            for i, (n, stop) in enumerate(zip(lengths, stops, strict=True))
        )
    )


def _history(algorithm: str, history: ArrayLike | None, size: int, round: int) -> dict[str, Array]:
    """The state of a released rule: nothing in round 0, later a history (any nonzero for fedld)."""
    if history is None and round == 0:
        return {}
    if history is None and algorithm == "fedgh_released":
        raise ContractError("fedgh_released sorts by its history after round 0: give history (d,)")
    past = np.ones(size) if history is None else np.asarray(history, dtype=np.float64)
    if past.shape != (size,):
        raise ContractError(f"history has shape {past.shape}, the updates have {size} entries")
    return {"reduce.history": past}
