"""One worker in this process: for tests, debugging and machines without Ray. Same bits as Ray."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, WorkerError
from fedsim.core.layout import as_tensor
from fedsim.core.types import Array, ClientTask, ClientUpdate, Vectors
from fedsim.engine.base import EvaluationTask, Incident, Measure, Models, T
from fedsim.engine.blocks import clients_of, in_calls, shared_out, tasks_per_call
from fedsim.engine.devices import Kind, client_device, record, server_device, torch_flags
from fedsim.engine.spec import WorkerSpec
from fedsim.engine.transfer import to_host
from fedsim.engine.worker import Worker, with_deltas
from fedsim.server.columns import Columns
from fedsim.server.device_columns import DeviceColumns


def make_executor(spec: WorkerSpec, engine: EngineConfig, **_: Any) -> SerialExecutor:
    """See :class:`fedsim.engine.registry.MakeExecutor`."""
    return SerialExecutor(spec, engine)


def check_settings(engine: EngineConfig) -> None:
    """Refuses a GPU where torch finds none, by a ConfigError."""
    gpus = engine.gpus_per_client or 0.0
    if gpus > 0 and not torch.cuda.is_available():
        raise ConfigError(f"--gpus-per-client {gpus:g}: torch finds no GPU here")


class SerialExecutor:
    """Trains the clients one after the other, on the first GPU if ``gpus_per_client`` > 0."""

    def __init__(self, spec: WorkerSpec, engine: EngineConfig | None = None) -> None:
        engine = engine or EngineConfig()
        check_settings(engine)
        self._device = client_device(bool(engine.gpus_per_client))
        self._drops = engine.on_client_failure == "drop"
        self._incidents: list[Incident] = []
        self._at_server = server_device(engine) == self._device
        self._kept: list[tuple[Array, Tensor]] = []
        self._sizes = [len(own) for own in spec.partition.train]
        self._restore = torch_flags()
        try:
            self._worker = Worker(replace(spec, local_images=None), self._device)
        except BaseException:
            self._restore()
            raise

    @property
    def description(self) -> str:
        """One line for the user."""
        return f"serial, one process on {Kind.of(self._device)}"

    @property
    def environment(self) -> Mapping[str, object]:
        """The device."""
        spec, kinds = self._worker.spec, [Kind.of(self._device)]
        device = record(kinds, spec.precision, spec.deterministic, [self._worker.findings])
        return {"engine": "serial", "device": device}

    def broadcast(self, models: Models) -> None:
        """See :class:`~fedsim.engine.base.Executor`; the models are here."""

    def run(
        self, tasks: Sequence[ClientTask], models: Models, states: Mapping[int, Vectors]
    ) -> list[ClientUpdate]:
        """See :class:`~fedsim.engine.base.Executor`."""
        updates, worker = [], self._worker
        self._kept = []
        size = torch.float32.itemsize * worker.flat.layout.size
        most = 1 if self._drops else tasks_per_call(size)
        for call in in_calls(worker.spec.blocks(tasks), most):
            try:
                trained, rows = worker.train(call, models, states)
                done = with_deltas(trained, to_host(rows))
            except WorkerError as error:
                if not self._drops:
                    raise
                where, (block,) = platform.node(), call
                self._incidents += [
                    Incident(client, 1, where, str(error)) for client in clients_of(block)
                ]
                continue
            updates += done
            if self._at_server and size * len(updates) <= worker.room:
                self._kept += [(u.delta, row) for u, row in zip(done, rows, strict=True)]
        return shared_out(updates, tasks, self._sizes)

    def prefetch(self, *_: Any) -> None:
        """See :class:`~fedsim.engine.base.Executor`; there is no idle worker."""

    def columns(self, updates: Sequence[ClientUpdate], *_: Any) -> Columns | None:
        """See :class:`~fedsim.engine.base.Executor`; the deltas are here, some on a GPU as well."""
        kept, self._kept = self._kept, []
        if not kept or not updates:
            return None
        on_gpu = {id(delta): row for delta, row in kept}
        deltas = [u.delta for u in sorted(updates, key=lambda update: update.client_id)]
        rows = [on_gpu[id(d)] if id(d) in on_gpu else as_tensor(d) for d in deltas]
        return DeviceColumns.on(self._device, deltas, rows)

    def evaluate(self, jobs: Sequence[EvaluationTask], measure: Measure[T]) -> list[T]:
        """See :class:`~fedsim.engine.base.Executor`."""
        self._kept = []  # after fine-tuning: nobody asks for them, and their memory is needed
        return [self._worker.evaluate(*model, part, measure) for model, part in jobs]

    def incidents(self) -> list[Incident]:
        """See :class:`~fedsim.engine.base.Executor`."""
        incidents, self._incidents = self._incidents, []
        return incidents

    def close(self) -> None:
        """Gives torch its threads and flags back."""
        self._restore()
