"""Calls on actors: handed out, waited for, timed out, and made again where they are lost."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import ray
from ray.exceptions import RayError

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import WorkerError
from fedsim.engine.base import Incident
from fedsim.engine.blocks import Block
from fedsim.engine.ray.calls import Call, TaskCall
from fedsim.engine.ray.faults import Fault, failure, fault_of, put
from fedsim.engine.ray.pool import ActorPool

MIN_TIMEOUT = 60.0
"""Seconds that any work may take, and a process may be silent, where no timeout was given."""
MARGIN = 10.0
"""Beyond :data:`MIN_TIMEOUT`: times the slowest pace of such work so far."""
INLINE = 64 << 10
"""Vectors of at most this many bytes are sent with a call instead of as an object."""
PROGRESS_INTERVAL = 5.0
"""Seconds after which a working actor is asked for its progress."""

Wanted = Callable[[Iterable[Call], int], Iterable[int]]
"""The slots that should have an actor, for the calls that wait and the number at work."""


@dataclass(kw_only=True)
class Work:
    """A call that an actor is busy with."""

    call: Call
    slot: int
    actor: Any
    refs: list[Any]
    begun: float  # when it was handed out
    heard: float  # when it began, or last answered a question for its progress
    question: Any = None  # the object of the answer that it owes, since ``asked_at``
    asked_at: float = 0.0


class ObjectCache:
    """The objects of values that were sent.

    Those that tasks need (:meth:`keep`) stay until they are needed no more. Of the others
    :meth:`trim` leaves the last one, since the model that a round evaluates is the one that the
    next round sends.
    """

    def __init__(self) -> None:
        self._objects: dict[int, tuple[Any, Any]] = {}  # by id, with the value, which keeps the id
        self._needed: set[int] = set()

    def __call__(self, value: Any) -> Any:
        """A vector, or named vectors, as an object where that is worth it."""
        arrays = value.values() if isinstance(value, Mapping) else (value,)
        if sum(array.nbytes for array in arrays) <= INLINE:
            return value
        pair = self._objects.pop(id(value), None) or (value, put(value))
        self._objects[id(value)] = pair  # now the last one
        return pair[1]

    def keep(self, values: Sequence[Any]) -> None:
        """Sends the values that tasks need, and lets go of those that they needed before."""
        self._needed = set(map(id, values))
        self.trim()
        for value in values:
            self(value)

    def trim(self) -> None:
        """Lets go of all that no task needs but the one that was sent last."""
        kept = self._needed | set([key for key in self._objects if key not in self._needed][-1:])
        self._objects = {key: pair for key, pair in self._objects.items() if key in kept}

    def forget(self) -> None:
        """Everything is sent anew."""
        self._objects = {}


class Dispatcher:
    """Runs calls on the actors of a pool.

    Calls of later rounds (:meth:`prefetch`) go to actors that nothing else needs. What fails of
    them is forgotten and done again in its round, so that no result depends on them. ``spec`` makes
    the object that actors are built from, again where that was lost.
    """

    def __init__(
        self, pool: ActorPool, engine: EngineConfig, *, wanted: Wanted, spec: Callable[[], Any]
    ) -> None:
        self.sent = ObjectCache()
        self._pool = pool
        self._engine = engine
        self._wanted = wanted
        self._make_spec = spec
        self._spec: Any = None
        self._interval = min(PROGRESS_INTERVAL, engine.client_timeout or PROGRESS_INTERVAL)
        self._paces: dict[str, float] = {}  # by kind of work the most seconds for a size of 1
        self._running: dict[Any, Work] = {}
        self._early: dict[Block, TaskCall] = {}
        self._done: dict[Call, list[Any]] = {}

    def prefetch(self, call: TaskCall) -> None:
        """Has a call of one block done early, if an actor has nothing else to do."""
        block = call.blocks[0]
        if not self._is_begun(self._early.get(block)):
            self._early[block] = call

    def early(self, block: Block) -> TaskCall | None:
        """The call of a block that was told before and is running or done, else None."""
        call = self._early.pop(block, None)
        return call if self._is_begun(call) else None

    def _is_begun(self, call: Call | None) -> bool:
        return call in self._done or any(work.call is call for work in self._running.values())

    def run(self, calls: Sequence[Call], doing: str) -> Iterator[tuple[Call, Any]]:
        """Runs all calls, lost ones again; gives each result with its call as it arrives.

        Of calls of :meth:`early` among them those that are done come first, and those that are
        running go on.
        """
        waiting = deque(call for call in calls if not self._is_begun(call))
        begun_early = set(calls) - set(waiting)
        wanted = set(calls)
        self._pool.reset_clock()
        self._spec = self._spec or self._make_spec()
        for call in [call for call in calls if call in self._done]:
            try:
                answer = call.fetch(self._done.pop(call))
            except RayError:  # lost since; as if it had not been done early
                waiting.append(call)
                continue
            wanted.discard(call)
            yield call, answer
        while wanted:
            early = deque(call for call in self._early.values() if not self._is_begun(call))
            slots = self._wanted([*waiting, *early], len(self._running))
            self._pool.start(slots, self._spec)
            self._hand_out(waiting)
            self._hand_out(early)
            if not self._running:
                self._pool.check()
            ready, _ = ray.wait([*self._running, *self._pool.starting], num_returns=1, timeout=1.0)
            for ref in ready:
                if ref in self._pool.starting:
                    if self._pool.came_up(ref):
                        self._spec = self._make_spec()
                    continue
                work = self._running.pop(ref)
                try:
                    if work.call not in wanted:
                        ray.get(ref)
                        if any(call is work.call for call in self._early.values()):
                            self._done[work.call] = work.refs
                        self._pool.done(work.slot)
                        continue
                    value = work.call.fetch(work.refs)
                except RayError as error:
                    self._lost(work, fault_of(error), doing, wanted, waiting)
                    continue
                if work.call not in begun_early:  # it may have waited to be taken
                    self._learn(work)
                self._pool.done(work.slot)
                wanted.discard(work.call)
                yield work.call, value
            for work, fault in self._overdue():
                del self._running[work.refs[0]]
                self._lost(work, fault, doing, wanted, waiting)

    def _lost(
        self, work: Work, fault: Fault, doing: str, wanted: set[Call], waiting: deque[Call]
    ) -> None:
        """Has a failed call done again if it is wanted now; raises what ends the run."""
        if work.call in wanted:
            wanted.discard(work.call)
            again = self._failed(work, fault, doing)
            wanted.update(again)
            waiting.extendleft(again)
            return
        self._early = {block: call for block, call in self._early.items() if call is not work.call}
        if fault.lost:  # an error, if it is one, comes again in its round
            self._record(work.call, self._pool.node(work.slot), fault.error)
        self._free(work, fault)

    def _hand_out(self, waiting: deque[Any]) -> None:
        """Gives waiting calls to idle actors, in order.

        A call waits while the actor of its home works, but not while that is still to come up:
        where others use the cluster too, it may not for long.
        """
        for call in list(waiting):
            if not self._pool.idle:
                return
            if call.home in self._pool.busy:
                continue
            slot = call.home if call.home in self._pool.idle else min(self._pool.idle)
            waiting.remove(call)
            actor = self._pool.take(slot)
            refs = call.begin(actor, self.sent)
            now = time.monotonic()
            work = Work(call=call, slot=slot, actor=actor, refs=refs, begun=now, heard=now)
            self._running[refs[0]] = work

    def _failed(self, work: Work, fault: Fault, doing: str) -> list[Call]:
        """What is to be done again of a failed call; raises what ends the run."""
        call = work.call
        node = self._pool.node(work.slot)
        self._free(work, fault)
        blamed = not fault.final and isinstance(fault.raised, WorkerError | NoneType)
        drop = self._engine.on_client_failure == "drop" and bool(call.clients) and blamed
        several = len(call.blocks) > 1
        if (fault.lost and (several or call.attempt <= self._engine.max_retries)) or (
            drop and several
        ):
            if fault.lost:
                self._record(call, node, fault.error)
            return list(call.again(fault.lost))
        if fault.lost or not several:
            self._record(call, node, fault.error)
        else:  # the error itself says who it was
            self._pool.incidents.append(Incident(None, call.attempt, node, fault.error))
        if drop:
            return []
        task = f"{doing}, {call}" if doing else str(call)
        again = f" lost {call.attempt} times, the last time" if fault.lost else ""
        raise failure(task + again, fault)

    def _free(self, work: Work, fault: Fault) -> None:
        """Takes back the actor of a failed call, if it can go on."""
        if fault.objects:
            self.sent.forget()
        if fault.alive:
            self._pool.done(work.slot)
        else:
            self._pool.lose(work.slot)

    def _record(self, call: Call, node: str, error: str) -> None:
        self._pool.incidents += [
            Incident(client, call.attempt, node, error) for client in call.clients or (None,)
        ]

    def _learn(self, work: Work) -> None:
        """Takes note of how long a call took."""
        pace = (time.monotonic() - work.begun) / max(work.call.size(), 1.0)
        self._paces[work.call.kind] = max(pace, self._paces.get(work.call.kind, 0.0))

    def _limit(self, call: Call, block: Block = ()) -> float:
        """Seconds that a block of a call, or all of it, may take; infinite while nothing is known.

        Without ``client_timeout`` these are ten times what the slowest such work took by its size.
        """
        if self._engine.client_timeout is not None and call.kind != "evaluate":
            return self._engine.client_timeout
        pace = self._paces.get(call.kind, math.inf)
        return max(MIN_TIMEOUT, MARGIN * pace * max(call.size(block), 1.0))

    def _overdue(self) -> list[tuple[Work, Fault]]:
        """Asks actors that have worked for long for their progress; returns those that are beyond
        the timeout, or do not answer."""
        now = time.monotonic()
        late = []
        for work in self._running.values():
            if work.question is None and now - work.heard >= self._interval:
                work.question, work.asked_at = work.actor.progress.remote(), now
            if work.question is None:
                continue
            if not ray.wait([work.question], timeout=0)[0]:
                silent = now - work.asked_at
                if silent > min(MIN_TIMEOUT, self._limit(work.call)):
                    text = f"its process has not answered for {silent:.0f} s"
                    late.append((work, Fault(error=text, lost=True)))
                continue
            doing = None
            with contextlib.suppress(RayError):  # the call itself will say what has happened
                doing = ray.get(work.question)
            work.question, work.heard = None, now
            if doing is None:  # its arguments or its results are on their way
                continue
            block, seconds = doing
            if seconds > self._limit(work.call, block):
                text = f"no result after {seconds:.0f} s, which is beyond the client timeout"
                late.append((work, Fault(error=text, lost=True)))
        return late
