"""The rows that a round adds to the tables, from what the server made of its updates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from fedsim.client.private import STEPS
from fedsim.core.rows import (
    ClientRow,
    CosineRow,
    ErrorRow,
    RoundRow,
    Row,
    ServerRow,
    SpectrumRow,
    TimingRow,
)
from fedsim.core.types import F64, ClientUpdate, RoundContext, Vectors
from fedsim.engine.base import Incident
from fedsim.server.gram import conflict_ratio, cosines
from fedsim.storage.checkpoint import ServerState
from fedsim.systems.clock import Participation
from fedsim.systems.costs import Costs
from fedsim.training.privacy import epsilon_of_samples
from fedsim.training.setup import Setup


@dataclass
class RoundLog:
    """The rows that a round adds to the tables; ``round`` counts from 1."""

    round: int
    tables: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, *rows: Row) -> None:
        """Adds rows to their tables."""
        for row in rows:
            self.tables.setdefault(row.table, []).append(row)

    def error(self, client_id: int | None, error: str, *, attempt: int, node: str = "") -> None:
        """Adds a row of errors.csv."""
        row = ErrorRow(
            round=self.round, client_id=client_id, attempt=attempt, node=node, error=error
        )
        self.add(row)

    def incidents(self, lost: Iterable[Incident]) -> None:
        """Adds a row of errors.csv for each piece of work that an executor lost."""
        for i in lost:
            self.error(i.client_id, i.error, attempt=i.attempt, node=i.node)

    @contextmanager
    def timed(self, phase: str) -> Iterator[dict[str, int]]:
        """Times a phase; the block may set ``bytes``."""
        begun, extra = time.perf_counter(), {"bytes": 0}
        yield extra
        seconds = time.perf_counter() - begun
        self.add(TimingRow(round=self.round, phase=phase, seconds=seconds, **extra))


@dataclass(frozen=True, kw_only=True)
class Aggregated:
    """What the server made of a round's updates, over the parameters."""

    state: ServerState
    private: Mapping[int, Vectors] = field(default_factory=dict)  # sent at the end of the round
    clients: tuple[int, ...] = ()  # ids of the m that count; without any the rest is empty
    norms: F64 | None = None  # (m,) 2-norms of their updates
    gram: F64 | None = None  # (m, m) Gram matrix of their updates, where conflicts are due
    axes: F64 | None = None  # (m,) spectrum of gram
    gradient_diversity: float | None = None
    update_norm: float | None = None
    metrics: Mapping[str, float] | None = None


def round_row(
    ctx: RoundContext,
    participation: Mapping[int, Participation],
    updates: Sequence[ClientUpdate],
    aggregated: Aggregated,
    costs: Costs,
    scores: Mapping[str, Any],
    measures: Sequence[str] = (),
) -> RoundRow:
    """The row of rounds.csv; ``scores`` are its columns of the evaluation, some of which are those
    of ``measures``."""
    return RoundRow(
        round=ctx.round + 1,
        lr=ctx.lr,
        cohort_size=len(participation),
        dropped=len(participation) - len(updates),
        train_loss=_train_loss(updates),
        conflict_ratio=None if aggregated.gram is None else conflict_ratio(aggregated.gram),
        update_norm=aggregated.update_norm,
        gradient_diversity=aggregated.gradient_diversity,
        top_axis_share=None if aggregated.axes is None else aggregated.axes[0],
        **costs.row,
        **{column: value for column, value in scores.items() if column not in measures},
        extra={column: scores.get(column) for column in measures},
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
    aggregated: Aggregated,
    costs: Costs,
    log: RoundLog,
    stale: Mapping[int, Mapping[str, int]],
) -> None:
    """The rows of clients.csv, server.csv, cosines.csv and spectrum.csv.

    ``stale`` has ``staleness`` and ``version`` of clients, empty in synchronous schedules.
    """
    by_client = {u.client_id: u for u in updates}
    position = {client: i for i, client in enumerate(aggregated.clients)}
    for client in participation:
        samples = len(setup.partition.train[client])
        counted: dict[str, Any] = {"status": "dropped"}
        if client in by_client and aggregated.norms is not None:
            i, update = position[client], by_client[client]
            counted = {
                "status": "ok",
                "num_steps": update.num_steps,
                "train_loss": update.train_loss,
                "update_norm": float(aggregated.norms[i]),
                "simulated_seconds": costs.seconds.get(client),
            }
        counted |= stale.get(client, {})
        if setup.config.dp.level == "example" and client in by_client:
            steps = int(by_client[client].state[STEPS][0])
            counted["epsilon"] = epsilon_of_samples(setup.config, samples, steps)
        if setup.config.attack.name is not None:
            counted["attacker"] = int(client in setup.malicious)
        log.add(ClientRow(round=log.round, client_id=client, num_samples=samples, **counted))
    for name, value in (aggregated.metrics or {}).items():
        log.add(ServerRow(round=log.round, name=name, value=value))
    axes = aggregated.axes
    if setup.config.evaluation.cosines and aggregated.gram is not None and axes is not None:
        cosine = cosines(aggregated.gram)
        for (i, a), (j, b) in combinations(enumerate(aggregated.clients), 2):
            log.add(CosineRow(round=log.round, client_a=a, client_b=b, cosine=cosine[i, j]))
        for axis, share in enumerate(axes, start=1):
            log.add(SpectrumRow(round=log.round, axis=axis, share=share))
