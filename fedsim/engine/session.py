"""Client actors, and the connection to Ray that they live on.

An actor is a warm process: it has a run's model built and its data mapped, and holds a fraction of
a GPU and some CPUs.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
import torch

from fedsim.contracts import Array, RoundContext, Scores, Vector, Vectors
from fedsim.engine.cluster import connect
from fedsim.engine.serial import device_name
from fedsim.engine.worker import Report, Worker, WorkerSpec
from fedsim.errors import ConfigError
from fedsim.sections import EngineConfig


class ClientActor:
    """A process with a worker; one process serves the runs of a session one after the other."""

    _worker: Worker

    def build(self, spec: WorkerSpec) -> str:
        """Builds the worker of a run; returns the device's name.

        Raises:
            ConfigError: the actor holds a GPU that torch cannot use.
        """
        held = ray.get_gpu_ids()
        if held and not torch.cuda.is_available():
            raise ConfigError(
                f"Ray gave a client actor GPU {held}, but torch {torch.__version__} on "
                f"{platform.node()} cannot use it; --gpus-per-client 0 trains on the CPU"
            )
        self._worker = Worker(spec, torch.device("cuda" if held else "cpu"))
        return device_name(self._worker.device)

    def clear(self) -> None:
        """Lets go of the run's data."""
        del self._worker

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def train(
        self,
        clients: Sequence[int],
        params: Vector,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
    ) -> tuple[list[Report], Array]:
        """See :meth:`Worker.train`; two objects, so that reports do not pin updates."""
        return self._worker.train(clients, params, downlink, states, ctx)

    def logits(self, params: Vector, state: Vectors, part: str, start: int, stop: int) -> Array:
        """See :meth:`Worker.logits`."""
        return self._worker.logits(params, state, part, start, stop)

    def scores(self, params: Vector, state: Vectors, part: str) -> Scores:
        """See :meth:`Worker.scores`."""
        return self._worker.scores(params, state, part)


class Session:
    """A connection to Ray and its idle client actors, for one run or for several in a row.

    Starts a quiet Ray on this machine, joins the cluster at ``engine.address``, or uses the
    connection that this process has.

    Raises:
        ConfigError: there is no cluster at the address.
    """

    def __init__(self, engine: EngineConfig) -> None:
        self._owned = connect(engine)
        self._options: dict[str, Any] = {}
        self._idle: list[Any] = []

    def acquire(self, options: dict[str, Any]) -> Any:
        """An actor with these resources, warm if one is left from the run before."""
        if options != self._options:
            self._end(self._idle)
            self._options, self._idle = options, []
        if self._idle:
            return self._idle.pop()
        return ray.remote(ClientActor).options(**options).remote()

    def release(self, actors: Iterable[Any], reusable: bool) -> None:
        """Takes a run's actors back; those of a failed run may be busy or dead, and are ended."""
        if reusable:
            kept = list(actors)
            ray.get([actor.clear.remote() for actor in kept])
            self._idle += kept
        else:
            self._end(actors)

    def close(self) -> None:
        """Ends the actors, and Ray if it was started here."""
        self._end(self._idle)
        self._idle = []
        if self._owned:
            ray.shutdown()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _end(actors: Iterable[Any]) -> None:
        for actor in actors:
            ray.kill(actor)
