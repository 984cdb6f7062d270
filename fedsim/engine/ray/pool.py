"""The client actors of a run: taken when they are needed, replaced when they are lost.

A slot is starting, idle or busy. Work goes to idle slots alone, so an actor that stays pending
(resources taken, a node lost, an autoscaler that is slow) delays nobody.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from fedsim.core.errors import WorkerError
from fedsim.engine.base import Incident
from fedsim.engine.ray.cluster import refuse_mixed
from fedsim.engine.ray.faults import failure, fault_of
from fedsim.engine.ray.session import Options, Place, Session, end_process

START_TIMEOUT = 120.0
"""Seconds after which a run gives up on actors that have no place to start in."""
BUILD_TIMEOUT = 1800.0
"""Seconds after which it gives up on actors that are there, but not ready."""


class ActorPool:
    """The actors of a run by slot.

    Args:
        session: where the actors come from.
        max_retries: how often a slot's actor may fail to start before the slot is given up.
        allow_mixed: whether actors may sit on devices of several kinds.
    """

    def __init__(self, session: Session, max_retries: int, allow_mixed: bool) -> None:
        self.idle: set[int] = set()
        self.starting: dict[Any, int] = {}
        self.incidents: list[Incident] = []
        self._session = session
        self._max_retries = max_retries
        self._allow_mixed = allow_mixed
        self._handles: dict[int, Any] = {}
        self._places: dict[int, Place] = {}
        self._devices: set[str] = set()
        self._nodes: set[str] = set()
        self._failures: Counter[int] = Counter()
        self._last_failure = ""
        self._asked: dict[int, Options] = {}
        self._signs: dict[int, Any] = {}
        self._settled = False
        self._alive = time.monotonic()

    @property
    def slots(self) -> set[int]:
        """The slots that have an actor, or are to get one."""
        return set(self._handles)

    @property
    def busy(self) -> set[int]:
        """The slots whose actor is at work."""
        return self.slots - self.idle - set(self.starting.values())

    @property
    def devices(self) -> str:
        """The devices seen so far."""
        return ", ".join(sorted(self._devices)) or "not started"

    @property
    def nodes(self) -> list[str]:
        """The machines on which actors came up."""
        return sorted(self._nodes)

    def start(self, options: Mapping[int, Options], spec: Any) -> None:
        """Takes an actor for each slot that has none; one that never came up is given up."""
        for slot in sorted(set(options) - self.slots):
            if self._failures[slot] <= self._max_retries:
                self._asked[slot] = options[slot]
                handle = self._session.acquire(options[slot])
                self._handles[slot] = handle
                self.starting[handle.build.remote(spec)] = slot
                self._signs[slot] = handle.progress.remote()  # answered while it builds

    def forgive(self) -> None:
        """Gives slots that were given up another chance: the cluster has changed."""
        self._failures.clear()

    def came_up(self, ref: Any) -> bool:
        """Takes the answer of a starting actor; whether what was sent to it must be sent anew.

        Raises:
            FedsimError: it can never start.
        """
        slot = self.starting.pop(ref)
        try:
            place: Place = ray.get(ref)
        except RayError as error:
            fault = fault_of(error)
            self._failures[slot] += 1
            self._last_failure = fault.error
            self.incidents.append(Incident(None, self._failures[slot], "", fault.error))
            if not fault.lost:
                raise failure("a client actor failed to start", fault) from error
            self.lose(slot)
            return fault.objects
        self._places[slot] = place
        devices = self._devices | {place.device}
        if len(devices) > 1 and not self._allow_mixed:
            if not self._settled:
                refuse_mixed(devices)
            self._last_failure = f"its device, {place.device}, is not that of the run"
            self.incidents.append(Incident(None, 1, place.node, self._last_failure))
            self._failures[slot] = self._max_retries + 1  # until the cluster changes
            self.lose(slot)
            return False
        self._devices = devices
        self._nodes.add(place.node)
        self._failures[slot] = 0
        self.done(slot)
        return False

    def done(self, slot: int) -> None:
        """The slot's actor is idle, which also shows that it lives."""
        self.idle.add(slot)
        self.sign()

    def take(self, slot: int) -> Any:
        """The actor of an idle slot, which is busy from now on."""
        self.idle.discard(slot)
        return self._handles[slot]

    def node(self, slot: int) -> str:
        """The machine of a slot's actor, empty where it never came up."""
        return self._places[slot].node if slot in self._places else ""

    def lose(self, slot: int, hung: bool = False) -> None:
        """Ends a slot's actor; a process that no longer listens is ended by its node."""
        self._session.end([self._handles.pop(slot)])
        place = self._places.pop(slot, None)
        if hung and place is not None:
            end_process(place)
        self.idle.discard(slot)
        self.starting = {ref: s for ref, s in self.starting.items() if s != slot}

    def settle(self) -> None:
        """The kind of device of the run is fixed: actors elsewhere are given up from now on."""
        self._settled = True

    def sign(self) -> None:
        """Something has happened, or begins: what does not come up is waited for from now on."""
        self._alive = time.monotonic()

    def check(self) -> None:
        """Gives up where work waits, no actor is at work and none has come up for too long.

        Raises:
            WorkerError: with what actors ask for, or why the last one failed.
        """
        if not self.starting:
            raise WorkerError(f"no client actor comes up: {self._last_failure}")
        waited = time.monotonic() - self._alive
        if waited <= START_TIMEOUT:
            return
        signs = [self._signs[slot] for slot in self.starting.values()]
        if not ray.wait(signs, timeout=0)[0]:
            free = ray.available_resources()
            asked = " or ".join(sorted({_resources(kind) for kind in self._asked.values()}))
            raise WorkerError(
                f"no client actor came up in {START_TIMEOUT:.0f} s; an actor asks for {asked}, "
                f"free are {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU"
            )
        if waited > BUILD_TIMEOUT:
            raise WorkerError(
                f"client actors have loaded data and built the model for {waited:.0f} s "
                "and are not ready"
            )

    def close(self) -> None:
        """Gives the idle actors back and ends the others."""
        resting = {slot: self._handles.pop(slot) for slot in sorted(self.idle)}
        self._session.release(resting.values(), self._handles.values())
        self._handles, self._places, self.idle, self.starting = {}, {}, set(), {}


def _resources(options: Options) -> str:
    held = dict(options)
    return f"{held['num_cpus']:g} CPU and {held['num_gpus']:g} GPU"
