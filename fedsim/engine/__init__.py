"""Where clients' work is done: one interface, the same bits behind it.

An executor is stateless between calls: global vector, client states and round context go in,
updates and new states come out. It alone may import ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedsim.contracts import ClientUpdate, RoundContext, Scores, Vector, Vectors

Model = tuple[Vector, Vectors]
"""A model to evaluate: the global vector (D,), and the state of the client it belongs to or {}."""


@dataclass(frozen=True)
class Result:
    """What a client's training gives: its update and its state for the next participation."""

    update: ClientUpdate
    state: Vectors


class Executor(Protocol):
    """Does the clients' work of one run."""

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
    ) -> list[Result]:
        """Trains the clients from what was broadcast; the results are sorted by client id.

        Raises:
            WorkerError: a client's work failed; the message names round and client.
        """

    def evaluate(self, models: Sequence[Model], part: str) -> list[Scores]:
        """The scores of each model on the common part ``"val"`` or ``"test"``."""

    def close(self) -> None:
        """Ends whatever the executor started."""
