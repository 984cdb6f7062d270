"""The rows that a round adds to the tables, from what the server made of its updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from fedsim.client.private import STEPS
from fedsim.core.rows import ClientRow, CosineRow, RoundRow, ServerRow, SpectrumRow
from fedsim.core.types import F64, ClientUpdate, RoundContext
from fedsim.server.gram import conflict_ratio, cosines
from fedsim.storage.checkpoint import ServerState
from fedsim.systems.clock import Participation
from fedsim.systems.costs import Costs
from fedsim.training.log import RoundLog
from fedsim.training.privacy import epsilon_of_samples

if TYPE_CHECKING:
    from fedsim.training.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Aggregated:
    """What the server made of a round's updates.

    Args:
        costs: bytes and simulated seconds.
        clients: ids of the m clients that count; without any the rest is empty.
        norms: (m,) 2-norms of their updates, of the parameters alone, as all that follows.
        gram: (m, m) Gram matrix of their updates where ``evaluation.conflicts`` asks for it.
        axes: (m,) spectrum of ``gram``.
        update_norm: 2-norm of the step of the parameters.
        metrics: what the server rule reports of its step.
    """

    state: ServerState
    costs: Costs
    clients: tuple[int, ...] = ()
    norms: F64 | None = None
    gram: F64 | None = None
    axes: F64 | None = None
    gradient_diversity: float | None = None
    update_norm: float | None = None
    metrics: Mapping[str, float] | None = None


def round_row(
    ctx: RoundContext,
    participation: Mapping[int, Participation],
    updates: Sequence[ClientUpdate],
    found: Aggregated,
    scores: Mapping[str, Any],
) -> RoundRow:
    """The row of rounds.csv; ``scores`` are its columns of the evaluation."""
    return RoundRow(
        round=ctx.round + 1,
        lr=ctx.lr,
        cohort_size=len(participation),
        dropped=len(participation) - len(updates),
        train_loss=_train_loss(updates),
        conflict_ratio=None if found.gram is None else conflict_ratio(found.gram),
        update_norm=found.update_norm,
        gradient_diversity=found.gradient_diversity,
        top_axis_share=None if found.axes is None else found.axes[0],
        **found.costs.row,
        **scores,
    )


def _train_loss(updates: Sequence[ClientUpdate]) -> float | None:
    """Mean over the clients that trained, weighted by samples."""
    trained = sorted((u for u in updates if u.num_steps), key=lambda u: u.client_id)
    total = sum(u.num_samples for u in trained)
    weighted = sum(u.num_samples * u.train_loss for u in trained)
    return weighted / total if total else None


def add_rows(
    setup: Setup,
    participation: Mapping[int, Participation],
    updates: Sequence[ClientUpdate],
    found: Aggregated,
    log: RoundLog,
    stale: Mapping[int, Mapping[str, int]],
) -> None:
    """The rows of clients.csv, server.csv, cosines.csv and spectrum.csv.

    ``stale`` has ``staleness`` and ``version`` of clients, empty in synchronous schedules.
    """
    by_client = {u.client_id: u for u in updates}
    position = {client: i for i, client in enumerate(found.clients)}
    for client in participation:
        samples = len(setup.partition.train[client])
        counted: dict[str, Any] = {"status": "dropped"}
        if client in by_client and found.norms is not None:
            i, update = position[client], by_client[client]
            counted = {
                "status": "ok",
                "num_steps": update.num_steps,
                "train_loss": update.train_loss,
                "update_norm": float(found.norms[i]),
                "simulated_seconds": found.costs.seconds.get(client),
            }
        counted |= stale.get(client, {})
        if setup.config.dp.level == "example" and client in by_client:
            steps = int(by_client[client].state[STEPS][0])
            counted["epsilon"] = epsilon_of_samples(setup.config, samples, steps)
        if setup.config.attack.name is not None:
            counted["attacker"] = int(client in setup.malicious)
        log.add(ClientRow(round=log.round, client_id=client, num_samples=samples, **counted))
    for name, value in (found.metrics or {}).items():
        log.add(ServerRow(round=log.round, name=name, value=value))
    if setup.config.evaluation.cosines and found.gram is not None and found.axes is not None:
        cosine = cosines(found.gram)
        for (i, a), (j, b) in combinations(enumerate(found.clients), 2):
            log.add(CosineRow(round=log.round, client_a=a, client_b=b, cosine=cosine[i, j]))
        for axis, share in enumerate(found.axes, start=1):
            log.add(SpectrumRow(round=log.round, axis=axis, share=share))
