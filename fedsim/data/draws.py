"""Random partitions: how each is drawn. Typed keyword-only parameters are a partition's options.

The order of calls on ``numpy.random.RandomState`` is that of SSL-FL's and NIID-Bench's public
code, so that published splits can be drawn again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.settings import Alpha, Order, Prior, Shards
from fedsim.core.types import F64, I64

MAX_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a random partition is drawn from; ``labels`` (n,) of the training part, in order."""

    labels: I64
    num_clients: int
    rng: np.random.RandomState


Deal = Callable[..., list[I64]]
"""``deal(draw, *, ...options) -> positions``: which of the n samples each of the K clients gets."""


def iid(draw: Draw) -> list[I64]:
    """A random permutation cut into K nearly equal parts."""
    return np.array_split(draw.rng.permutation(len(draw.labels)), draw.num_clients)


def dirichlet_plain(draw: Draw, *, alpha: Alpha = 0.5) -> list[I64]:
    """Per class q ~ Dir(alpha) over the clients."""
    return _split_classes(draw, alpha, cap=np.inf)


def dirichlet(draw: Draw, *, alpha: Alpha = 0.5) -> list[I64]:
    """Per class q ~ Dir(alpha) over the clients, 0 for clients that have n/K samples already.

    Where that leaves no client with a positive q, q itself is used; the public codes divide by
    zero there.
    """
    return _split_classes(draw, alpha, cap=len(draw.labels) / draw.num_clients)


def _split_classes(draw: Draw, alpha: float, cap: float) -> list[I64]:
    """Per class in ascending order: shuffle, draw q, cut at floor(cumsum(q) n_class)."""
    owned: list[list[I64]] = [[] for _ in range(draw.num_clients)]
    sizes = np.zeros(draw.num_clients, dtype=np.int64)
    for label in np.unique(draw.labels):
        indices = np.flatnonzero(draw.labels == label)
        draw.rng.shuffle(indices)
        q = _proportions(draw.rng, np.full(draw.num_clients, alpha))
        capped = np.where(sizes < cap, q, 0.0)
        q = capped / capped.sum() if capped.sum() > 0 else q
        cuts = (np.cumsum(q) * len(indices)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(indices, cuts)):
            owned[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(p) for p in owned]


def quantity(draw: Draw, *, alpha: Alpha = 0.5) -> list[I64]:
    """A random permutation cut by q ~ Dir(alpha) over the clients, whatever the classes.

    As NIID-Bench draws it, except that a draw that is repeated shuffles again as well.
    """
    shuffled = draw.rng.permutation(len(draw.labels))
    q = _proportions(draw.rng, np.full(draw.num_clients, alpha))
    return np.split(shuffled, (np.cumsum(q) * len(shuffled)).astype(np.int64)[:-1])


def _proportions(rng: np.random.RandomState, alpha: F64) -> F64:
    """A Dirichlet draw, or its limit for alpha to 0: everything on one entry.

    The limit stands where all gamma draws underflow (alpha below about 1e-3) and NumPy gives NaN.
    """
    q = rng.dirichlet(alpha)
    if np.isnan(q).any():
        q = np.eye(len(alpha))[rng.choice(len(alpha), p=alpha / alpha.sum())]
    return q


def redrawn(
    rule: Deal,
    draw: Draw,
    min_samples: int,
    *,
    alpha: float | None = None,
    patient: I64 | None = None,
    min_patients: int = 1,
) -> list[I64]:
    """Draws again, the generator going on, until every client has ``min_samples``; shuffles then.

    With ``patient`` (n,), the samples' patients, every client must also have ``min_patients``. A
    DataError where no draw of 1000 does quotes ``alpha`` and the sizes of the best one.
    """
    best: list[int] = []
    for _ in range(MAX_TRIES):
        owned = rule(draw)
        sizes = [len(p) for p in owned]
        if min(sizes) >= min_samples and (
            patient is None or min(len(np.unique(patient[p])) for p in owned) >= min_patients
        ):
            for piece in owned:
                draw.rng.shuffle(piece)
            return owned
        best = max(best, sizes, key=lambda s: min(s, default=-1))
    prefix = "" if alpha is None else f"data.alpha {alpha} with "
    least = "" if patient is None else f" and {min_patients} patients (data.group patient)"
    raise DataError(
        f"{prefix}{draw.num_clients} clients and {len(draw.labels)} training samples: none of "
        f"{MAX_TRIES} draws gives every client data.min_samples {min_samples}{least}; the smallest "
        f"clients of the best one reached {sorted(best)[:20]}; take fewer clients, a smaller "
        f"minimum{', a larger alpha' if prefix else ''}{' or --group none' if least else ''}"
    )


def dirichlet_per_client(
    draw: Draw, *, alpha: Alpha = 0.5, prior: Prior = "uniform", order: Order = "round_robin"
) -> list[I64]:
    """Every client takes floor(n/K) samples by class proportions of its own (Hsu et al. 2019).

    ``prior`` is what ``alpha`` is multiplied by: ones, or the class frequencies. A class that is
    used up leaves all proportions; a client with nothing left of its classes takes from the
    remaining ones with equal probability.
    """
    pools = [np.flatnonzero(draw.labels == label) for label in np.unique(draw.labels)]
    for pool in pools:
        draw.rng.shuffle(pool)
    left = np.array([len(pool) for pool in pools])
    weights = np.ones(len(pools)) if prior == "uniform" else left / left.sum()
    q = [_proportions(draw.rng, alpha * weights) for _ in range(draw.num_clients)]
    share = len(draw.labels) // draw.num_clients
    clients = np.arange(draw.num_clients)
    turns = np.repeat(clients, share) if order == "sequential" else np.tile(clients, share)
    owned: list[list[int]] = [[] for _ in clients]
    for client in turns.tolist():
        p = np.where(left > 0, q[client], 0.0)
        p = p if p.sum() > 0 else (left > 0).astype(np.float64)
        label = draw.rng.choice(len(pools), p=p / p.sum())
        left[label] -= 1
        owned[client].append(pools[label][left[label]])
    return [np.array(p, dtype=np.int64) for p in owned]


def shards(draw: Draw, *, shards_per_client: Shards = 2) -> list[I64]:
    """Sorted by label, cut into shards, the shards dealt out at random (McMahan et al. 2017)."""
    count = draw.num_clients * shards_per_client
    if not draw.num_clients <= count <= len(draw.labels):
        raise ConfigError(
            f"shards_per_client {shards_per_client}: {draw.num_clients} clients would need "
            f"{count} shards, possible are {draw.num_clients} to {len(draw.labels)}"
        )
    shuffled = draw.rng.permutation(len(draw.labels))
    by_label = shuffled[np.argsort(draw.labels[shuffled], kind="stable")]
    parts = np.array_split(by_label, count)
    dealt = draw.rng.permutation(count).reshape(draw.num_clients, shards_per_client)
    return [np.concatenate([parts[s] for s in row]) for row in dealt]


@dataclass(frozen=True)
class Kind:
    """A random partition: what draws it, what it is in a line, and whether it depends on labels.

    ``redrawn``: it is drawn again until every client has ``min_samples``; else sizes are known.
    """

    deal: Deal
    about: str
    by_label: bool
    redrawn: bool


_CAPPED = "each class split by Dirichlet(alpha); a client with n/K samples gets no more"
_PLAIN = "each class split by Dirichlet(alpha), without a limit on sizes"
_SHARDS = "a few shards of the data sorted by label per client"
_EQUAL = "equal sizes, class proportions drawn for each client"
_SIZES = "unequal sizes by Dirichlet(alpha), regardless of class"
KINDS: Mapping[str, Kind] = {
    kind.deal.__name__: kind
    for kind in (
        Kind(iid, "equal numbers of samples at random", by_label=False, redrawn=False),
        Kind(dirichlet, _CAPPED, by_label=True, redrawn=True),
        Kind(dirichlet_plain, _PLAIN, by_label=True, redrawn=True),
        Kind(dirichlet_per_client, _EQUAL, by_label=True, redrawn=False),
        Kind(quantity, _SIZES, by_label=False, redrawn=True),
        Kind(shards, _SHARDS, by_label=True, redrawn=False),
    )
}
