"""Client actors: warm processes, kept between the runs of a session, and the slots of a run.

An actor has a run's model built and its data mapped, and holds a fraction of a GPU and some CPUs. A
slot of a run is starting, idle or busy. Work goes to idle slots alone, so an actor that stays
pending (resources taken, a node lost, an autoscaler that is slow) delays no work.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, FedsimError, WorkerError
from fedsim.core.types import Part, Vector, Vectors
from fedsim.engine import devices, footprint
from fedsim.engine.base import Incident, Measure
from fedsim.engine.blocks import Block
from fedsim.engine.ray.cluster import connect, machines
from fedsim.engine.ray.faults import failure, fault_of
from fedsim.engine.ray.placement import Node, Share
from fedsim.engine.ray.several import Reservation
from fedsim.engine.ray.sharded import split
from fedsim.engine.spec import WorkerSpec
from fedsim.engine.worker import Worker

ANSWER_TIMEOUT = 10.0
"""Seconds that an idle actor has to answer."""
START_TIMEOUT = 600.0
"""Seconds after which a run gives up where no actor is ready."""


class ClientActor:
    """A process with a worker; one process serves the runs of a session one after the other.

    Questions about its progress are answered by a thread of their own, while a client trains.
    """

    _worker: Worker

    def build(self, spec: WorkerSpec) -> tuple[devices.Kind, str]:
        """Builds the worker of a run; the kind of its device, and its machine."""
        held = ray.get_gpu_ids()
        if held and not torch.cuda.is_available():
            raise ConfigError(
                f"Ray gave a client actor GPU {held}, but torch {torch.__version__} on "
                f"{platform.node()} cannot use it; --gpus-per-client 0 trains on the CPU"
            )
        device = devices.client_device(bool(held))
        fraction = ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)
        devices.limit_memory(device, fraction)
        devices.keep_freed_memory()
        try:
            self._worker = Worker(spec, device, fraction)
        except ConfigError as error:  # the driver could build the model
            raise WorkerError(f"a client actor failed to start: {error}") from error
        except FedsimError:
            raise
        except Exception as error:
            why = devices.reason(error, fraction, device)
            raise WorkerError(f"a client actor failed to start: {why}") from error
        if device.type == "cuda" and fraction < 1:
            footprint.check_worker(self._worker)
        return devices.Kind.of(device), ray.util.get_node_ip_address()

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def progress(self) -> tuple[Block, float] | None:
        """The block that is being trained, if any, and for how many seconds; None at rest."""
        worker = getattr(self, "_worker", None)
        doing = None if worker is None else worker.progress
        return None if doing is None else (doing[0], time.monotonic() - doing[1])

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def findings(self) -> devices.Findings:
        """See :attr:`Worker.findings`."""
        return self._worker.findings

    def clear(self) -> None:
        """Lets go of the run's data."""
        del self._worker

    def run(
        self,
        work: tuple[Sequence[Block], Mapping[int, Vectors], Sequence[int], Sequence[slice]],
        *sent: Any,
    ) -> tuple[Any, ...]:
        """See :meth:`Worker.run`; ``work`` is blocks, states, versions and ranges of the deltas.

        The versions' vectors and downlinks follow in turn. The deltas, or those of each range, are
        objects of their own, so that the small parts of the updates do not pin them.
        """
        blocks, states, versions, ranges = work
        models = dict(zip(versions, zip(sent[::2], sent[1::2], strict=True), strict=True))
        updates, deltas = self._worker.run(blocks, models, states)
        return updates, *(split(deltas, ranges) or (deltas,))

    def evaluate(
        self,
        tasks: Sequence[tuple[int, Vectors, Part, Measure[Any], tuple[int, int]]],
        *params: Vector,
    ) -> list[Any]:
        """See :meth:`Worker.evaluate`, for each task: which of ``params`` and what state make the
        model, the part, what is wanted of the outputs, and for which batches."""
        return [
            self._worker.evaluate(params[i], state, part, measure, batches)
            for i, state, part, measure, batches in tasks
        ]


class Session:
    """A connection to Ray and its idle client actors, for one run or for several in a row.

    Starts a quiet Ray on this machine, joins the cluster at ``engine.address``, or uses the
    connection that this process has. ``reservation`` is what a run may have of it, None:
    everything; ``share`` is what the actors of the present run hold.
    """

    def __init__(self, engine: EngineConfig, reservation: Reservation | None = None) -> None:
        self._disconnect = connect(engine)
        self._reservation = reservation
        self.share: Share | None = None
        self._idle: list[Any] = []

    def machines(self) -> list[Node]:
        """Where the actors of a run can be."""
        return self._reservation.machines() if self._reservation else machines()

    def prepare(self, share: Share | None) -> None:
        """Sets what actors hold from now on; ends idle ones that hold something else, or are lost,
        and would keep resources that the next run may need."""
        if share != self.share:
            self.end(self._idle)
            self._idle = []
        self.share = share
        self._idle = self._answering({actor: actor.progress.remote() for actor in self._idle})

    def acquire(self) -> Any:
        """An actor, warm if one is left from the run before."""
        if self._idle:
            return self._idle.pop()
        share = self.share or Share()
        made = ray.remote(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={"questions": 1},
        )(ClientActor)
        return made.remote()

    def release(self, resting: Iterable[Any], others: Iterable[Any]) -> None:
        """Takes a run's idle actors back; ``others`` are busy or not up yet, and are ended."""
        self.end(others)
        self._idle += self._answering({actor: actor.clear.remote() for actor in resting})

    def _answering(self, calls: Mapping[Any, Any]) -> list[Any]:
        """The actors whose answer comes; the others are ended."""
        alive = list(answers(calls))
        self.end(set(calls) - set(alive))
        return alive

    def close(self) -> None:
        """Ends the actors, and Ray if it was started here."""
        self.prepare(None)
        self._disconnect()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self, actors: Iterable[Any]) -> None:
        """Ends actors, whatever they do."""
        for actor in actors:
            ray.kill(actor)


def answers(calls: Mapping[Any, Any]) -> dict[Any, Any]:
    """What the calls gave that idle actors answered in time, by the same key."""
    options = {"num_returns": len(calls), "timeout": ANSWER_TIMEOUT}
    ready = set(ray.wait(list(calls.values()), **options)[0]) if calls else set()
    values = {}
    for key, ref in calls.items():
        if ref in ready:
            with contextlib.suppress(RayError):  # it died while it was idle, so no work is lost
                values[key] = ray.get(ref)
    return values


class ActorPool:
    """The actors of a run by slot, which is given up once its actor failed to start more than
    ``max_retries`` times; ``allow_mixed``: on devices of several kinds."""

    def __init__(self, session: Session, *, max_retries: int, allow_mixed: bool) -> None:
        self.idle: set[int] = set()
        self.starting: dict[Any, int] = {}
        self.incidents: list[Incident] = []
        self.kinds: set[devices.Kind] = set()  # of device, seen so far
        self._session = session
        self._max_retries = max_retries
        self._allow_mixed = allow_mixed
        self._handles: dict[int, Any] = {}
        self._machines: dict[int, str] = {}
        self._seen: set[str] = set()
        self._failures: Counter[int] = Counter()
        self._last_failure = ""
        self._alive = time.monotonic()

    @property
    def slots(self) -> set[int]:
        """The slots that have an actor, or are to get one."""
        return set(self._handles)

    @property
    def busy(self) -> set[int]:
        """The slots whose actor is at work."""
        return self.slots - self.idle - set(self.starting.values())

    def findings(self) -> list[devices.Findings]:
        """What showed in the work of the actors that answer."""
        asked = {slot: self._handles[slot].findings.remote() for slot in sorted(self.idle)}
        return list(answers(asked).values())

    @property
    def nodes(self) -> list[str]:
        """The machines on which actors came up."""
        return sorted(self._seen)

    def start(self, slots: Iterable[int], spec: Any) -> None:
        """Takes an actor for each slot that has none; one that never came up is given up."""
        for slot in sorted(set(slots) - self.slots):
            if self._failures[slot] <= self._max_retries:
                self._handles[slot] = self._session.acquire()
                self.starting[self._handles[slot].build.remote(spec)] = slot

    def reset_failures(self) -> None:
        """Slots that were given up get another chance: the cluster has changed."""
        self._failures.clear()

    def came_up(self, ref: Any) -> bool:
        """Takes the answer of a starting actor; whether what was sent to it must be sent anew."""
        slot = self.starting.pop(ref)
        try:
            kind, machine = ray.get(ref)
        except RayError as error:
            fault = fault_of(error)
            self._failures[slot] += 1
            self._last_failure = fault.error
            self.incidents.append(Incident(None, self._failures[slot], "", fault.error))
            if not fault.lost:
                raise failure("a client actor failed to start", fault) from error
            self.lose(slot)
            return fault.objects
        self._machines[slot] = machine
        self.kinds |= {kind}
        if len(self.kinds) > 1 and not self._allow_mixed:
            names = ", ".join(sorted(map(str, self.kinds)))
            raise ConfigError(
                f"the cluster mixes devices ({names}), so results depend on who trains where; "
                "--set engine.allow_mixed_devices=true accepts that"
            )
        self._seen.add(machine)
        self._failures[slot] = 0
        self.done(slot)
        return False

    def done(self, slot: int) -> None:
        """The slot's actor is idle, which also shows that it lives."""
        self.idle.add(slot)
        self.reset_clock()

    def take(self, slot: int) -> Any:
        """The actor of an idle slot, which is busy from now on."""
        self.idle.discard(slot)
        return self._handles[slot]

    def node(self, slot: int) -> str:
        """The machine of a slot's actor, empty where it never came up."""
        return self._machines.get(slot, "")

    def lose(self, slot: int) -> None:
        """Ends a slot's actor."""
        self._session.end([self._handles.pop(slot)])
        self._machines.pop(slot, None)
        self.idle.discard(slot)
        self.starting = {ref: s for ref, s in self.starting.items() if s != slot}

    def reset_clock(self) -> None:
        """Actors that do not come up are waited for from now on: something happened or begins."""
        self._alive = time.monotonic()

    def check(self) -> None:
        """Gives up where work waits, no actor is at work and none has come up for too long, by a
        WorkerError with what actors ask for, or why the last one failed."""
        if not self.starting:
            raise WorkerError(f"no client actor comes up: {self._last_failure}")
        if time.monotonic() - self._alive > START_TIMEOUT:
            free = ray.available_resources()
            raise WorkerError(
                f"no client actor came up in {START_TIMEOUT:.0f} s; an actor asks for "
                f"{self._session.share}, "
                f"free are {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU"
            )

    def close(self) -> None:
        """Gives the idle actors back and ends the others."""
        resting = [self._handles.pop(slot) for slot in sorted(self.idle)]
        self._session.release(resting, self._handles.values())
        self._handles, self._machines, self.idle, self.starting = {}, {}, set(), {}
