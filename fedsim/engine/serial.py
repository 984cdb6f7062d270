"""One worker in this process: for tests, debugging and machines without Ray. Same bits as Ray."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, WorkerError
from fedsim.core.types import ClientUpdate, RoundContext, Scores, Vector, Vectors
from fedsim.engine.base import Incident, Job, Model
from fedsim.engine.devices import torch_flags
from fedsim.engine.worker import Worker, WorkerSpec, num_batches, with_deltas
from fedsim.metrics.outputs import Outputs
from fedsim.metrics.scores import SampleScores


class SerialExecutor:
    """Trains the clients one after the other, on the first GPU if ``gpus_per_client`` > 0."""

    def __init__(self, spec: WorkerSpec, engine: EngineConfig | None = None) -> None:
        engine = engine or EngineConfig()
        gpus = engine.gpus_per_client or 0.0
        if gpus > 0 and not torch.cuda.is_available():
            raise ConfigError(f"--gpus-per-client {gpus:g}: torch finds no GPU here")
        self._device = torch.device("cuda" if gpus > 0 else "cpu")
        self._drops = engine.on_client_failure == "drop"
        self._incidents: list[Incident] = []
        self._restore = torch_flags()
        try:
            self._worker = Worker(spec, self._device)
        except BaseException:
            self._restore()
            raise

    @property
    def description(self) -> str:
        """One line for the user."""
        return f"serial, one process on {self._device.type}"

    @property
    def environment(self) -> Mapping[str, object]:
        """The device."""
        return {"engine": "serial", "device": device_name(self._device)}

    def broadcast(self, params: Vector, downlink: Vectors) -> Any:
        """See :class:`~fedsim.engine.base.Executor`."""
        return params, downlink

    def train(
        self, clients: Sequence[int], shared: Any, states: Mapping[int, Vectors], ctx: RoundContext
    ) -> list[ClientUpdate]:
        """See :class:`~fedsim.engine.base.Executor`."""
        params, downlink = shared
        updates = []
        for client in sorted(clients):
            try:
                trained = self._worker.train([client], params, downlink, states, ctx)
                updates += with_deltas(*trained)
            except WorkerError as error:
                if not self._drops:
                    raise
                self._incidents.append(Incident(client, 1, platform.node(), str(error)))
        return updates

    def evaluate(self, models: Sequence[Model], part: str) -> list[Scores]:
        """See :class:`~fedsim.engine.base.Executor`."""
        return [self._worker.scores(params, state, part) for params, state in models]

    def samples(self, jobs: Sequence[Job]) -> list[SampleScores]:
        """See :class:`~fedsim.engine.base.Executor`."""
        spec = self._worker.spec
        return [
            self._worker.samples(*model, part, 0, num_batches(spec, part)) for model, part in jobs
        ]

    def outputs(self, jobs: Sequence[Job]) -> list[Outputs]:
        """See :class:`~fedsim.engine.base.Executor`."""
        spec = self._worker.spec
        return [
            self._worker.outputs(*model, part, 0, num_batches(spec, part)) for model, part in jobs
        ]

    def columns(
        self,
        updates: Sequence[ClientUpdate],
        shared: Any,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
    ) -> None:
        """See :class:`~fedsim.engine.base.Executor`; the updates are here."""

    def incidents(self) -> list[Incident]:
        """See :class:`~fedsim.engine.base.Executor`."""
        found, self._incidents = self._incidents, []
        return found

    def close(self) -> None:
        """Gives torch its threads and flags back."""
        self._restore()


def device_name(device: torch.device) -> str:
    """``cpu``, or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
