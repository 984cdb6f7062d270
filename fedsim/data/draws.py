"""Random partitions: how each kind is drawn.

The order of calls on ``numpy.random.RandomState`` is that of SSL-FL's and NIID-Bench's public
code, so that published splits can be drawn again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import F64, I64

MAX_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a random partition is drawn from; ``labels`` (n,) of the training part, in its order.

    ``alpha``, ``shards_per_client``, ``prior`` and ``order`` are as in
    :func:`fedsim.data.partitions.make`.
    """

    labels: I64
    num_clients: int
    alpha: float
    rng: np.random.RandomState
    shards_per_client: int
    prior: str
    order: str


def iid(draw: Draw) -> list[I64]:
    """A random permutation cut into K nearly equal parts."""
    return np.array_split(draw.rng.permutation(len(draw.labels)), draw.num_clients)


def dirichlet(draw: Draw) -> list[I64]:
    """Per class q ~ Dir(alpha) over the clients, 0 for clients that have n/K samples already."""
    return _split_classes(draw, cap=len(draw.labels) / draw.num_clients)


def dirichlet_plain(draw: Draw) -> list[I64]:
    """Per class q ~ Dir(alpha) over the clients."""
    return _split_classes(draw, cap=np.inf)


def _split_classes(draw: Draw, cap: float) -> list[I64]:
    """Per class in ascending order: shuffle, draw q, cut at floor(cumsum(q) n_class).

    Where the cap leaves no client with a positive q, the uncapped q is used; the public codes
    divide by zero there.
    """
    owned: list[list[I64]] = [[] for _ in range(draw.num_clients)]
    sizes = np.zeros(draw.num_clients, dtype=np.int64)
    for label in np.unique(draw.labels):
        indices = np.flatnonzero(draw.labels == label)
        draw.rng.shuffle(indices)
        q = _proportions(draw.rng, np.full(draw.num_clients, draw.alpha))
        capped = np.where(sizes < cap, q, 0.0)
        q = capped / capped.sum() if capped.sum() > 0 else q
        cuts = (np.cumsum(q) * len(indices)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(indices, cuts)):
            owned[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(p) for p in owned]


def quantity(draw: Draw) -> list[I64]:
    """A random permutation cut by q ~ Dir(alpha) over the clients, whatever the classes.

    As NIID-Bench draws it, except that a draw that is repeated shuffles again as well.
    """
    shuffled = draw.rng.permutation(len(draw.labels))
    q = _proportions(draw.rng, np.full(draw.num_clients, draw.alpha))
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
    rule: Callable[[Draw], list[I64]],
    draw: Draw,
    min_samples: int,
    *,
    patient: I64 | None = None,
    min_patients: int = 1,
) -> list[I64]:
    """Draws again, the generator going on, until every client has ``min_samples``; shuffles then.

    With ``patient`` (n,), the samples' patients, every client must also have ``min_patients``.

    Raises:
        DataError: no draw of 1000 does; quotes the sizes of the best one.
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
    reached = sorted(best)
    smallest = "" if len(reached) <= 20 else " for its smallest clients"
    what, least = f"data.alpha {draw.alpha} with ", ""
    patients, advice = "", "a larger alpha, fewer clients or a smaller minimum"
    if patient is not None:
        what, least = "data.group patient: ", f" and {min_patients} patients"
        patients = f" of {len(np.unique(patient))} patients"
        advice = "fewer clients, a larger alpha where the partition has one, or --group none"
    raise DataError(
        f"{what}{draw.num_clients} clients and {len(draw.labels)} training samples{patients}: none "
        f"of {MAX_TRIES} draws gives every client data.min_samples {min_samples}{least}; the best "
        f"one reached {reached[:20]}{smallest}; take {advice}"
    )


def dirichlet_per_client(draw: Draw) -> list[I64]:
    """Every client takes floor(n/K) samples by class proportions of its own (Hsu et al. 2019).

    A class that is used up leaves all proportions; a client with nothing left of its classes
    takes from the remaining ones with equal probability.
    """
    pools = [np.flatnonzero(draw.labels == label) for label in np.unique(draw.labels)]
    for pool in pools:
        draw.rng.shuffle(pool)
    left = np.array([len(pool) for pool in pools])
    prior = np.ones(len(pools)) if draw.prior == "uniform" else left / left.sum()
    q = [_proportions(draw.rng, draw.alpha * prior) for _ in range(draw.num_clients)]
    share = len(draw.labels) // draw.num_clients
    clients = np.arange(draw.num_clients)
    turns = np.repeat(clients, share) if draw.order == "sequential" else np.tile(clients, share)
    owned: list[list[int]] = [[] for _ in clients]
    for client in turns.tolist():
        p = np.where(left > 0, q[client], 0.0)
        p = p if p.sum() > 0 else (left > 0).astype(np.float64)
        label = draw.rng.choice(len(pools), p=p / p.sum())
        left[label] -= 1
        owned[client].append(pools[label][left[label]])
    return [np.array(p, dtype=np.int64) for p in owned]


def shards(draw: Draw) -> list[I64]:
    """Sorted by label, cut into shards, the shards dealt out at random (McMahan et al. 2017)."""
    count = draw.num_clients * draw.shards_per_client
    if not draw.num_clients <= count <= len(draw.labels):
        raise ConfigError(
            f"shards_per_client {draw.shards_per_client}: {draw.num_clients} clients would need "
            f"{count} shards, possible are {draw.num_clients} to {len(draw.labels)}"
        )
    shuffled = draw.rng.permutation(len(draw.labels))
    by_label = shuffled[np.argsort(draw.labels[shuffled], kind="stable")]
    parts = np.array_split(by_label, count)
    dealt = draw.rng.permutation(count).reshape(draw.num_clients, draw.shards_per_client)
    return [np.concatenate([parts[s] for s in row]) for row in dealt]


EQUAL: dict[str, Callable[[Draw], list[I64]]] = {
    "iid": iid,
    "dirichlet_per_client": dirichlet_per_client,
    "shards": shards,
}
"""The kinds with sizes known beforehand."""
UNEQUAL: dict[str, Callable[[Draw], list[I64]]] = {
    "dirichlet": dirichlet,
    "dirichlet_plain": dirichlet_plain,
    "quantity": quantity,
}
"""The kinds that are drawn again until every client has ``min_samples``."""
