"""Run drivers as Ray actors, for runs on GPUs or on a cluster.

A driver reserves no CPU, since its own client actors might wait for that CPU forever.
All drivers are on the machine of the process that controls them, where the run directories are.
Each run has a placement group, see :mod:`fedsim.engine.ray.groups`; driver, group and client actors
are kept from one run to the next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, EngineLostError, WorkerError
from fedsim.core.machine import cores
from fedsim.engine.drivers import (
    ENDINGS,
    Event,
    Execute,
    Failed,
    Job,
    Lost,
    Orders,
    Stopped,
    forward_log,
)
from fedsim.engine.ray import groups
from fedsim.engine.ray.cluster import LOCAL, connect, local_node
from fedsim.engine.ray.faults import fault_of
from fedsim.engine.ray.groups import Group, Need, Pending, Shape, plan_runs
from fedsim.engine.ray.head import Head, own_processes
from fedsim.engine.ray.placement import Node, listed
from fedsim.engine.ray.pool import Session
from fedsim.engine.ray.shared import start_register

logger = logging.getLogger("fedsim")
POLL = 0.25
"""The longest that the controller waits for events, in seconds."""
PATIENCE = 5.0
"""Seconds after which a driver without events answers with an empty list."""
PLACE_TIMEOUT = 30.0
"""The longest wait, in seconds, for groups that fit by the resources of the machines."""
LOST_TIMEOUT = 180.0
"""Seconds after which a run fails that no machine has room for, and a sweep ends that has no place
for any run; Ray may need a minute to notice that a machine is gone."""
CHECK_INTERVAL = 5.0
"""Seconds between two checks whether a group fits that did not."""


class Driver:
    """Executes runs one after the other; questions and orders are answered during a run.

    Args:
        execute: executes a job.
        folder: the controller's current directory, to which paths in settings are relative.
        register: see :mod:`fedsim.engine.ray.shared`.
    """

    def __init__(self, execute: Execute, folder: str, register: Any) -> None:
        os.chdir(folder)
        self._register = register
        self._execute = execute
        self._news: SimpleQueue[Event] = SimpleQueue()
        self._session: Session | None = None
        self._doing = ""
        self._orders = Orders()
        self._halting = False
        forward_log(self._news.put)

    def run(self, job: Job, group: Group) -> None:
        """Executes a job, with the client actors in a group; the last event is how it ended."""
        self._doing, self._orders = job.name, Orders(stop=self._halting)
        try:
            session = self._in(group) if job.config.engine.kind == "ray" else None
            self._news.put(self._execute(job, self._orders, self._news.put, session))
        except EngineLostError as error:
            self._news.put(Lost(str(error)))

    def _in(self, group: Group) -> Session:
        """The session of a group, with the actors of the run before."""
        if self._session is None or self._session.group != group:
            self.leave()
            self._session = Session(EngineConfig(), group, self._register)
        return self._session

    def leave(self) -> None:
        """Ends the client actors."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def told(self) -> list[Event]:
        """The events since the last call; waits for one, at most :data:`PATIENCE` seconds."""
        found = []
        with contextlib.suppress(Empty):
            found.append(self._news.get(timeout=PATIENCE))
            while True:
                found.append(self._news.get_nowait())
        return found

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def stop(self, name: str | None) -> None:
        """Orders the run of a job to stop; None: the current run and all later ones."""
        self._halting = self._halting or name is None
        if name in (None, self._doing):
            self._orders.stop = True

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def end(self, name: str) -> None:
        """Orders the run of a job to finish after its round."""
        if name == self._doing:
            self._orders.end = True

    @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
    def pid(self) -> int:
        """Its process."""
        return os.getpid()


@dataclass(eq=False)
class _Seat:
    """A driver, its group, and what it is doing.

    Args:
        group: that is ready; None while ``pending`` is asked for, or nothing fits.
        told: the answer that the driver owes.
        slot: of the run; None: it has none.
        ran: the object that says that the driver's call is over.
    """

    driver: Any
    told: Any
    group: Group | None = None
    pending: Pending | None = None
    slot: int | None = None
    job: Job | None = None
    ran: Any = None

    def settle(self, timeout: float = 0.0) -> None:
        """Takes the group that is pending once it is ready; waits at most so many seconds."""
        if self.pending and (group := self.pending.group(timeout)):
            self.group, self.pending = group, None

    def give_up(self) -> None:
        """Removes the group, and with it the client actors."""
        held = self.pending or self.group
        self.group, self.pending = None, None
        if held is not None:
            held.remove()


class RayDrivers:
    """Run drivers on Ray, as many as fit; see :class:`fedsim.engine.drivers.Drivers`.

    A slot is not bound to a driver. Where a machine is lost, fewer runs may take place than there
    are slots; those of the others wait until one ends, or a machine comes.

    Args:
        execute: with which a driver does a job.
        engine: says where Ray is; it is started, or joined, unless this process is connected.
        needs: of the runs that are known.
        need_of: gives the need of a run.
        parallel: how many runs at once.

    Raises:
        ConfigError: so many do not fit, or Ray cannot be started or joined.
    """

    def __init__(
        self,
        execute: Execute,
        engine: EngineConfig,
        needs: Sequence[Need],
        need_of: Callable[[RunConfig], Need],
        parallel: Literal["auto"] | int = "auto",
    ) -> None:
        if (engine.address or "").startswith("ray://"):
            raise ConfigError(
                f"--address {engine.address}: the runs of a sweep are driven from a machine of the "
                "cluster; start the sweep on one of them, with --address auto"
            )
        if engine.address in (None, LOCAL) and not ray.is_initialized():
            plan_runs(needs, [local_node()], parallel, cores=cores())  # refused before Ray starts
        self._execute, self._need_of = execute, need_of
        self._disconnect = connect(engine)
        self._head = Head(own_processes())
        self._head.watch(lambda reason: logger.error("%s; the same command goes on", reason))
        self._closed = False
        self._halting = False
        self._waiting: deque[tuple[int, Job]] = deque()
        self._seats: list[_Seat] = []
        self._register: Any = None
        try:
            self._nodes, here = groups.reachable()
            self.plan = plan_runs(needs, self._nodes, parallel, cores=cores(), here=here)
            own = ray.get_runtime_context().get_node_id()
            self._here = NodeAffinitySchedulingStrategy(own, soft=False)
            self._register = start_register(scheduling_strategy=self._here)
            self._usual = self._shape(needs[0])
            self._seats = [self._seat() for _ in range(self.plan.count)]
            self._wait_for_groups(parallel)
        except BaseException:
            self.close(at_once=True)
            raise
        self._placed = self._looked = time.monotonic()
        self._no_room: dict[Shape, float] = {}  # that no machine has room for, and since when
        self.slots = tuple(range(len(self._seats)))

    @property
    def place(self) -> str:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        return f"with {self._usual} each"

    def _shape(self, need: Need) -> Shape:
        return need.shape(self._nodes, self.plan.actors)

    def _seat(self) -> _Seat:
        driver = self._driver()
        return _Seat(driver, driver.told.remote(), pending=Pending(self._usual))

    def _driver(self) -> Any:
        made = ray.remote(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._here,
            concurrency_groups={"questions": 2},  # one of them waits for news
        )(Driver)
        return made.remote(self._execute, os.getcwd(), self._register)

    def _wait_for_groups(self, parallel: Literal["auto"] | int) -> None:
        """Waits for the groups, since the plan does not know what other programs reserve."""
        until = time.monotonic() + PLACE_TIMEOUT
        for seat in self._seats:
            seat.settle(max(0.0, until - time.monotonic()))
        ready = [seat for seat in self._seats if seat.group]
        if not ready or (parallel != "auto" and len(ready) < len(self._seats)):
            raise ConfigError(
                f"--parallel {parallel}: only {len(ready)} of {len(self._seats)} runs found a "
                f"place in {PLACE_TIMEOUT:.0f} s; others use the cluster too"
            )
        for seat in set(self._seats) - set(ready):
            seat.give_up()
            ray.kill(seat.driver)
        self._seats = ready

    def pid(self, slot: int) -> int:
        """The process that drives the run of a slot.

        Raises:
            StopIteration: it has none at the moment.
        """
        seat = next(seat for seat in self._seats if seat.slot == slot)
        return int(ray.get(seat.driver.pid.remote()))

    def submit(self, slot: int, job: Job) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        self._waiting.append((slot, job))
        self._place()

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`.

        Raises:
            EngineLostError: Ray on this machine died; it was said when it happened.
            WorkerError: no machine has room for a run any more.
        """
        with self._head.guard():
            self._place()
            self._check_room(tell)
            owed = [ref for s in self._seats for ref in (s.told, s.ran) if ref is not None]
            owed += [seat.pending.ready for seat in self._seats if seat.pending]
            if not owed:
                time.sleep(POLL)
            ready = set(ray.wait(owed, num_returns=1, timeout=POLL)[0]) if owed else set()
            for seat in self._seats:
                self._hear(seat, ready, tell)
        while self._halting and self._waiting:
            tell(self._waiting.popleft()[0], Stopped())

    def _place(self) -> None:
        """Gives waiting jobs to drivers that have none, in groups of the right shape."""
        for seat in self._seats:
            seat.settle()
        for slot, job, shape in self._waiting_shapes():
            if shape in self._no_room or self._halting:
                continue
            free = [seat for seat in self._seats if seat.slot is None]
            right = [seat for seat in free if seat.group and seat.group.shape == shape]
            if not right:
                self._reshape(free, shape)
                return
            self._waiting.remove((slot, job))
            seat = right[0]
            seat.slot, seat.job = slot, job
            seat.ran = seat.driver.run.remote(job, seat.group)

    def _waiting_shapes(self) -> list[tuple[int, Job, Shape]]:
        return [(slot, job, self._shape(self._need_of(job.config))) for slot, job in self._waiting]

    def _reshape(self, free: Sequence[_Seat], shape: Shape) -> None:
        """Makes one of the groups anew, in another shape; or one that no machine has room for."""
        others = [seat for seat in free if seat.group]
        others += [seat for seat in free if seat.pending and seat.pending.shape in self._no_room]
        if others and not any(s.pending and s.pending.shape == shape for s in free):
            others[0].give_up()
            others[0].pending = Pending(shape)

    def _hear(self, seat: _Seat, ready: Set[Any], tell: Callable[[int, Event], None]) -> None:
        """Tells what a driver has told; makes it anew where it is lost."""
        try:
            if seat.ran in ready:
                ray.get(seat.ran)
                seat.ran = None
            told = ray.get(seat.told) if seat.told in ready else None
        except RayError as error:
            ray.kill(seat.driver)
            self._free(seat, Lost(fault_of(error).error), tell)
            if not self._halting:
                seat.driver = self._driver()
            seat.told = None if self._halting else seat.driver.told.remote()
            return
        if told is None:
            return
        seat.told = seat.driver.told.remote()
        for event in sorted(told, key=lambda event: isinstance(event, ENDINGS)):
            if isinstance(event, ENDINGS):
                self._free(seat, event, tell)
            elif seat.slot is not None:
                tell(seat.slot, event)

    def _free(self, seat: _Seat, event: Event, tell: Callable[[int, Event], None]) -> None:
        """The run of a driver is over; a group that has lost a machine is given up."""
        slot, seat.slot, seat.job, seat.ran = seat.slot, None, None, None
        if isinstance(event, Lost) and seat.group and seat.group.lost():
            seat.give_up()
        if slot is not None:
            tell(slot, event)

    def _check_room(self, tell: Callable[[int, Event], None]) -> None:
        """Looks which shapes the machines still have room for; makes groups that were lost anew."""
        now = time.monotonic()
        if any(seat.group for seat in self._seats):
            self._placed = now
        elif now - self._placed > LOST_TIMEOUT:
            raise WorkerError(
                f"no machine of the cluster has had room for a run in {LOST_TIMEOUT:.0f} s"
            )
        complete = all(seat.group or seat.pending for seat in self._seats)
        if self._halting or now - self._looked < CHECK_INTERVAL or (complete and not self._waiting):
            return
        self._looked = now
        nodes, here = groups.reachable()
        waiting = self._waiting_shapes()
        known = {*self._no_room, self._usual, *(shape for *_, shape in waiting)}
        self._no_room = {s: self._no_room.get(s, now) for s in known if not s.fits(nodes)}
        fitting = [shape for *_, shape in waiting if shape not in self._no_room]
        idle = all(seat.slot is None for seat in self._seats)
        for seat in self._seats:
            if seat.group and idle and fitting:  # it may take the room that the runs need
                seat.give_up()
        without = [seat for seat in self._seats if not (seat.group or seat.pending)]
        held = len(self._seats) - len(without)
        room = self.plan.fitting(nodes, here, len(self._seats)) - held
        fitting += [shape for shape in [self._usual] if shape not in self._no_room]
        for seat in without[: max(room, 0 if held else 1)] if fitting else []:
            seat.pending = Pending(fitting[0])  # perhaps smaller than the plan's
        self._fail(waiting, now, nodes, tell)

    def _fail(
        self,
        waiting: Sequence[tuple[int, Job, Shape]],
        now: float,
        nodes: Sequence[Node],
        tell: Callable[[int, Event], None],
    ) -> None:
        """Ends the waiting jobs for whose shape no machine has had room for too long.

        They are not begun again: that would take as long each time.
        """
        for slot, job, shape in waiting:
            if now - self._no_room.get(shape, now) > LOST_TIMEOUT:
                self._waiting.remove((slot, job))
                reason = f"no machine of the cluster has had room for {shape} in"
                tell(slot, Failed(f"{reason} {LOST_TIMEOUT:.0f} s ({listed(nodes)})"))

    def stop(self, slot: int | None = None) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        self._halting = self._halting or slot is None
        for seat in self._seats:
            if seat.job is not None and slot in (None, seat.slot):
                seat.driver.stop.remote(None if slot is None else seat.job.name)

    def end(self, slot: int) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        for seat in self._seats:
            if seat.slot == slot and seat.job is not None:
                seat.driver.end.remote(seat.job.name)

    def close(self, at_once: bool = False) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        if self._closed:
            return
        if not (at_once or self._head.reason):
            self.stop()
            while any(seat.slot is not None for seat in self._seats):
                self.events(lambda *_: None)
        self._closed = True
        self._head.close()
        if not self._head.reason:
            for seat in self._seats:
                ray.kill(seat.driver)
                seat.give_up()
            if self._register is not None:
                ray.kill(self._register)
        self._seats = []
        self._disconnect()
