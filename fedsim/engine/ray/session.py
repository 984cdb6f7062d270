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
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, FedsimError, WorkerError
from fedsim.core.types import Array, ClientUpdate, RoundContext, Vector, Vectors
from fedsim.engine import devices
from fedsim.engine.devices import keep_freed_memory
from fedsim.engine.ray.cluster import connect
from fedsim.engine.ray.sharded import split
from fedsim.engine.serial import device_name
from fedsim.engine.worker import Worker, WorkerSpec

Options = tuple[tuple[str, float], ...]
"""What an actor holds, as Ray's options in a fixed order: actors of equal options are alike."""
ANSWER = 10.0
"""Seconds that an idle actor has to answer."""


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
        devices.cap(device, share)
        keep_freed_memory()
        try:
            self._worker = Worker(spec, device, share)
        except FedsimError:
            raise
        except Exception as error:
            why = devices.reason(error, share, device)
            raise WorkerError(f"a client actor failed to start: {why}") from error
        here = ray.get_runtime_context()
        return Place(
            device_name(self._worker.device),
            ray.util.get_node_ip_address(),
            here.get_node_id(),
            os.getpid(),
        )

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def progress(self) -> tuple[int | None, float] | None:
        """The client that is being trained, if any, and for how many seconds; None at rest."""
        worker = getattr(self, "_worker", None)
        doing = None if worker is None else worker.progress
        return None if doing is None else (doing[0], time.monotonic() - doing[1])

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
    ) -> tuple[list[ClientUpdate], Array]:
        """See :meth:`Worker.train`; two objects, so that the small parts do not pin the deltas."""
        return self._worker.train(clients, params, downlink, states, ctx)

    def train_split(
        self, ranges: Sequence[slice], *args: Any
    ) -> tuple[list[ClientUpdate] | Array, ...]:
        """As :meth:`train`, with the updates cut into ranges: the rest, and an object per range."""
        updates, deltas = self._worker.train(*args)
        return updates, *split(deltas, ranges)

    def evaluate(
        self, tasks: Sequence[tuple[str, int, Vectors, Sequence[Any]]], *params: Vector
    ) -> list[Any]:
        """What the worker says to each task: a method of its, which of ``params`` and what state
        make the model, and the method's further arguments."""
        return [getattr(self._worker, ask)(params[i], own, *args) for ask, i, own, args in tasks]


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
        """Ends the idle actors of other kinds, which hold resources that a run may need, and those
        that were lost since."""
        for kind in set(self._idle) - set(kinds):
            self.end(self._idle.pop(kind))
        for kind, actors in self._idle.items():
            self._idle[kind] = self._answering({a: a.progress.remote() for a in actors})

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
        self.end(others)
        for actor in self._answering({actor: actor.clear.remote() for actor in resting}):
            self._idle.setdefault(self._kinds[actor], []).append(actor)

    def _answering(self, asked: Mapping[Any, Any]) -> list[Any]:
        """The actors whose answer comes; the others are ended."""
        refs = list(asked.values())
        answered = set(ray.wait(refs, num_returns=len(refs), timeout=ANSWER)[0]) if refs else set()
        alive = []
        for actor, ref in asked.items():
            try:
                if ref in answered:
                    ray.get(ref)
                    alive.append(actor)
            except RayError:  # it died while it was idle: nobody is waiting for it
                answered.discard(ref)
        self.end(set(asked) - set(alive))
        return alive

    def close(self) -> None:
        """Ends the actors, and Ray if it was started here."""
        self.prepare([])
        self._disconnect()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self, actors: Iterable[Any]) -> None:
        """Ends actors, whatever they do."""
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
    with contextlib.suppress(OSError):  # it has ended meanwhile
        if Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::"):
            os.kill(pid, signal.SIGKILL)
