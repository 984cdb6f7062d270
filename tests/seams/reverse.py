"""The clients of a round are trained from the last to the first, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.config.sections import EngineConfig
from fedsim.core.types import ClientTask, ClientUpdate, Vectors
from fedsim.engine.base import Models
from fedsim.engine.serial import SerialExecutor
from fedsim.engine.spec import WorkerSpec


class ReverseExecutor(SerialExecutor):
    """Shows that no result depends on the order in which clients are trained."""

    def __init__(self, spec: WorkerSpec, engine: EngineConfig) -> None:
        super().__init__(spec, engine)
        self._spec = spec

    def run(
        self, tasks: Sequence[ClientTask], models: Models, states: Mapping[int, Vectors]
    ) -> list[ClientUpdate]:
        """See :class:`~fedsim.engine.base.Executor`."""
        updates = []
        for block in reversed(self._spec.blocks(tasks)):
            updates += super().run(block, models, states)
        return sorted(updates, key=lambda update: update.client_id)


def make_executor(spec: WorkerSpec, engine: EngineConfig, **_: Any) -> ReverseExecutor:
    """See :class:`fedsim.engine.registry.MakeExecutor`."""
    return ReverseExecutor(spec, engine)
