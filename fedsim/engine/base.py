"""Where clients' work is done: one interface, the same bits behind it.

An executor is stateless between calls: global vector, client states and round context go in,
updates and new states come out. It alone may import ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedsim.core.types import ClientUpdate, Part, RoundContext, Scores, Vector, Vectors

if TYPE_CHECKING:
    from fedsim.metrics.outputs import Outputs
    from fedsim.metrics.scores import SampleScores
    from fedsim.server.linalg import Columns

Model = tuple[Vector, Vectors]
"""A model to evaluate: the global vector (D,), and the state of the client it belongs to or {}."""

Job = tuple[Model, Part]
"""A model and the samples it is to be evaluated on."""


@dataclass(frozen=True)
class Incident:
    """Work that was lost or failed: a row of errors.csv.

    ``client_id`` is None where no client's training was concerned, ``node`` empty where unknown.
    """

    client_id: int | None
    attempt: int
    node: str
    error: str


class Executor(Protocol):
    """Does the clients' work of one run.

    Lost work is done again; what was lost can be asked for with :meth:`incidents`.
    """

    @property
    def description(self) -> str:
        """One line for the user, such as ``ray, 2 actors, 1 CPU each``."""

    @property
    def environment(self) -> Mapping[str, object]:
        """For env.json: resources, device and placement plan."""

    def broadcast(self, params: Vector, downlink: Vectors) -> Any:
        """Makes the global vector (D,) and what goes with it known; :meth:`train` takes it."""

    def train(
        self, clients: Sequence[int], shared: Any, states: Mapping[int, Vectors], ctx: RoundContext
    ) -> list[ClientUpdate]:
        """Trains the clients from what was broadcast; the updates are sorted by client id.

        Where ``engine.on_client_failure`` is ``drop``, clients that failed are missing.

        Raises:
            WorkerError: a client's work failed; the message names round and client.
        """

    def columns(
        self,
        updates: Sequence[ClientUpdate],
        shared: Any,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
    ) -> Columns | None:
        """The deltas of some updates of :meth:`train` where they are on the nodes, else None.

        What follows the updates is what :meth:`train` was given: deltas that are lost with their
        node while they are summed up are computed again.
        """

    def incidents(self) -> list[Incident]:
        """What was lost or failed since the last call."""

    def evaluate(self, models: Sequence[Model], part: str) -> list[Scores]:
        """The scores of each model on the common part ``"val"`` or ``"test"``."""

    def samples(self, jobs: Sequence[Job]) -> list[SampleScores]:
        """The scores of every sample of each job's part, in the part's order."""

    def outputs(self, jobs: Sequence[Job]) -> list[Outputs]:
        """What each job's model puts out for every sample of its part, in the part's order."""

    def close(self) -> None:
        """Ends whatever the executor started."""
