"""Client actors, and the connection to Ray that they live on.

An actor is a warm process: it has a run's model built and its data mapped, and holds a fraction of
a GPU and some CPUs.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.contracts import Array, RoundContext, Scores, Vector, Vectors
from fedsim.engine import gpu
from fedsim.engine.cluster import connect
from fedsim.engine.flags import keep_freed_memory
from fedsim.engine.serial import device_name
from fedsim.engine.worker import Report, Worker, WorkerSpec
from fedsim.errors import ConfigError
from fedsim.sections import EngineConfig

Options = tuple[tuple[str, float], ...]
"""What an actor holds, as Ray's options in a fixed order: actors of equal options are alike."""
CLEAR_TIMEOUT = 10.0
"""Seconds that an idle actor has to answer at the end of a run."""


@dataclass(frozen=True)
class Place:
    """Where an actor lives: device, machine, Ray's id of it, and the process there."""

    device: str
    node: str
    node_id: str
    pid: int


class ClientActor:
    """A process with a worker; one process serves the runs of a session one after the other.

    Questions about its progress are answered by a thread of their own, while a client trains.
    """

    _worker: Worker

    def build(self, spec: WorkerSpec) -> Place:
        """Builds the worker of a run; says where that is.

        Raises:
            ConfigError: the actor holds a GPU that torch cannot use.
        """
        held = ray.get_gpu_ids()
        if held and not torch.cuda.is_available():
            raise ConfigError(
                f"Ray gave a client actor GPU {held}, but torch {torch.__version__} on "
                f"{platform.node()} cannot use it; --gpus-per-client 0 trains on the CPU"
            )
        device = torch.device("cuda" if held else "cpu")
        share = ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)
        gpu.cap(device, share)
        keep_freed_memory()
        self._worker = Worker(spec, device, share)
        here = ray.get_runtime_context()
        return Place(
            device_name(self._worker.device),
            ray.util.get_node_ip_address(),
            here.get_node_id(),
            os.getpid(),
        )

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def progress(self) -> tuple[int | None, float]:
        """The client that is being trained, if any, and for how many seconds."""
        client, since = self._worker.progress
        return client, time.monotonic() - since

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
        self._disconnect = connect(engine)
        self._kinds: dict[Any, Options] = {}
        self._idle: dict[Options, list[Any]] = {}

    def prepare(self, kinds: Iterable[Options]) -> None:
        """Ends the idle actors of other kinds, which hold resources that a run may need."""
        for kind in set(self._idle) - set(kinds):
            self._end(self._idle.pop(kind))

    def acquire(self, kind: Options) -> Any:
        """An actor with these resources, warm if one is left from the run before."""
        if self._idle.get(kind):
            return self._idle[kind].pop()
        options = dict(kind) | {"max_restarts": 0, "max_task_retries": 0}
        made = ray.remote(concurrency_groups={"questions": 1}, **options)(ClientActor).remote()
        self._kinds[made] = kind
        return made

    def release(self, resting: Iterable[Any], others: Iterable[Any]) -> None:
        """Takes a run's idle actors back; ``others`` are busy or not up yet, and are ended."""
        self._end(others)
        cleared = {actor.clear.remote(): actor for actor in resting}
        if not cleared:
            return
        answered, silent = ray.wait(list(cleared), num_returns=len(cleared), timeout=CLEAR_TIMEOUT)
        self._end(cleared[ref] for ref in silent)
        for ref in answered:
            actor = cleared[ref]
            try:
                ray.get(ref)
            except RayError:  # it died while it was idle: nobody is waiting for it
                self._end([actor])
            else:
                self._idle.setdefault(self._kinds[actor], []).append(actor)

    def close(self) -> None:
        """Ends the actors, and Ray if it was started here."""
        self.prepare([])
        self._disconnect()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, actors: Iterable[Any]) -> None:
        for actor in actors:
            self._kinds.pop(actor, None)
            ray.kill(actor)


def end_process(place: Place) -> None:
    """Ends a process that does not listen (stopped, or stuck in a call), by its node.

    Ray's own way to end an actor begins with asking it.
    """
    if place.node_id == ray.get_runtime_context().get_node_id():
        _kill(place.pid)
    else:
        there = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
        ray.remote(num_cpus=0, scheduling_strategy=there)(_kill).remote(place.pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
