"""The executor on Ray: hands clients' work to actors and collects what they return.

With as many slots as clients, client i lives in slot i; otherwise any idle actor takes the next
call. The global vector is put once per round; data and model recipe once per run, so that each
node holds one copy in shared memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from fedsim.contracts import RoundContext, Scores, Vector, Vectors
from fedsim.engine import Incident, Model, Result
from fedsim.engine.cluster import machines, plan_for, refuse_mixed
from fedsim.engine.serial import collect
from fedsim.engine.session import Session
from fedsim.engine.worker import WorkerSpec, num_batches, score_part
from fedsim.errors import FedsimError, WorkerError
from fedsim.sections import EngineConfig

SMALL = 4 << 20
"""Updates of at most this many bytes travel several to a call; larger ones one by one."""
START_TIMEOUT = 120.0
"""Seconds after which a run gives up on actors that do not come up."""

Running = dict[Any, tuple[int, int, list[Any]]]
"""By the first object of a call: the call's number, its slot, its objects."""


@dataclass(frozen=True)
class Call:
    """One remote call: a method with its arguments; ``slot`` None means any idle actor."""

    method: str
    args: tuple[Any, ...]
    slot: int | None = None
    clients: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Who was lost with the call."""
        return f"clients {list(self.clients)}" if self.clients else self.method


class RayExecutor:
    """See :class:`~fedsim.engine.Executor`. Actors are taken when they are first needed.

    A call is handed only to an actor that has answered and is idle.

    Args:
        spec: what the workers are made of.
        engine: section ``engine`` of the configuration.
        update_bytes: size of one client's update.
        session: where the actors come from; None for one of its own.

    Raises:
        ConfigError: the placement does not fit, or there is no cluster at the address.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        engine: EngineConfig,
        update_bytes: int,
        session: Session | None = None,
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._update_bytes = update_bytes
        if engine.address is None:  # refused before anything starts
            plan_for(engine, machines(), spec.partition.num_clients)
        self._session = session or Session(engine)
        self._shares_session = session is not None
        self._handles: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}
        self._idle: set[int] = set()
        self._devices: set[str] = set()
        self._incidents: list[Incident] = []
        self._newest: tuple[Vector, Any] | None = None
        try:
            self._plan = plan_for(engine, machines(), spec.partition.num_clients)
            self._spec_ref = ray.put(spec)
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> str:
        """One line for the user."""
        return f"ray, {self._plan.describe()}"

    @property
    def environment(self) -> Mapping[str, object]:
        """Resources, devices seen so far and the placement plan."""
        return {
            "engine": "ray",
            "device": ", ".join(sorted(self._devices)) or "not started",
            "ray_resources": {k: v for k, v in ray.cluster_resources().items() if "node:" not in k},
            "placement": {
                "slots": self._plan.slots,
                "actors": self._plan.actors,
                "cpus_per_client": self._plan.cpus_per_client,
                "gpus_per_client": self._plan.gpus_per_client,
            },
        }

    def broadcast(self, params: Vector, downlink: Vectors) -> Any:
        """See :class:`~fedsim.engine.Executor`; one object each, whatever the number of actors."""
        return self._put(params), ray.put(dict(downlink))

    def _put(self, params: Vector) -> Any:
        """The vector as an object; the newest is kept, since rounds evaluate what they send on."""
        if self._newest is None or self._newest[0] is not params:
            self._newest = params, ray.put(params)
        return self._newest[1]

    def train(
        self, clients: Sequence[int], shared: Any, states: Mapping[int, Vectors], ctx: RoundContext
    ) -> list[Result]:
        """See :class:`~fedsim.engine.Executor`."""
        calls = []
        for slot, group in self._groups(clients):
            own = {c: states[c] for c in group if c in states}
            calls.append(Call("train", (group, *shared, own, ctx), slot, group))
        results: list[Result] = []
        for reports, deltas in self._run(calls, f"round {ctx.round + 1}"):
            results += collect(reports, deltas)
        return sorted(results, key=lambda r: r.update.client_id)

    def _groups(self, clients: Sequence[int]) -> list[tuple[int | None, tuple[int, ...]]]:
        """Which clients go into one call: own slot each, or longest first over the actors."""
        if not self._plan.shared:
            return [(c, (c,)) for c in clients]
        sizes = {c: len(self._spec.partition.train[c]) for c in clients}
        longest_first = sorted(clients, key=lambda c: (-sizes[c], c))
        if self._update_bytes > SMALL:
            return [(None, (c,)) for c in longest_first]
        groups: list[list[int]] = [[] for _ in range(min(self._plan.actors, len(clients)))]
        for client in longest_first:
            min(groups, key=lambda g: sum(sizes[c] for c in g)).append(client)
        return [(None, tuple(group)) for group in groups]

    def evaluate(self, models: Sequence[Model], part: str) -> list[Scores]:
        """See :class:`~fedsim.engine.Executor`; few models are cut into ranges of batches."""
        unique = {id(params): params for params, _ in models}
        puts = {key: self._put(params) for key, params in unique.items()}
        actors = max(1, len(self._handles))
        doing = f"evaluation on the {part} part"
        if len(models) >= actors:
            calls = [Call("scores", (puts[id(p)], state, part)) for p, state in models]
            return self._run(calls, doing)
        batches = num_batches(self._spec, part)
        cuts = [batches * i // actors for i in range(actors + 1)]
        ranges = [(a, b) for a, b in pairwise(cuts) if a < b]
        calls = [Call("logits", (puts[id(p)], s, part, a, b)) for p, s in models for a, b in ranges]
        outputs = self._run(calls, doing)
        whole = [outputs[i : i + len(ranges)] for i in range(0, len(outputs), len(ranges))]
        return [score_part(np.concatenate(parts), self._spec, part) for parts in whole]

    def incidents(self) -> list[Incident]:
        """See :class:`~fedsim.engine.Executor`."""
        found, self._incidents = self._incidents, []
        return found

    def close(self) -> None:
        """Gives the actors back, and ends the session if it is the executor's own."""
        self._session.release(self._handles.values(), reusable=set(self._handles) == self._idle)
        self._handles, self._idle = {}, set()
        if not self._shares_session:
            self._session.close()

    def _run(self, calls: Sequence[Call], doing: str) -> list[Any]:
        """Runs all calls; the results are in the order of the calls."""
        self._start(calls)
        results: list[Any] = [None] * len(calls)
        waiting = deque(range(len(calls)))
        running: Running = {}
        alive = time.monotonic()
        while waiting or running:
            self._hand_out(calls, waiting, running)
            ready, _ = ray.wait([*running, *self._starting], num_returns=1, timeout=1.0)
            for ref in ready:
                alive = time.monotonic()
                if ref in self._starting:
                    self._started(ref)
                    continue
                number, slot, refs = running.pop(ref)
                results[number] = fetch(refs, f"{doing}, {calls[number]}")
                self._idle.add(slot)
            if not running and time.monotonic() - alive > START_TIMEOUT:
                free = ray.available_resources()
                raise WorkerError(
                    f"no client actor came up in {START_TIMEOUT:.0f} s; an actor asks for "
                    f"{self._plan.cpus_per_client:g} CPU and {self._plan.gpus_per_client:g} GPU, "
                    f"free are {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU"
                )
        return results

    def _hand_out(self, calls: Sequence[Call], waiting: deque[int], running: Running) -> None:
        """Gives waiting calls to idle actors, in order.

        A call with a slot waits while its own actor works, but not while that is still to come up:
        where others use the cluster too, it may not for long.
        """
        coming = set(self._starting.values())
        for number in list(waiting):
            call = calls[number]
            anywhere = call.slot is None or call.slot in coming
            slot = min(self._idle, default=None) if anywhere else call.slot
            if slot not in self._idle:
                continue
            waiting.remove(number)
            self._idle.discard(slot)
            refs = getattr(self._handles[slot], call.method).remote(*call.args)
            refs = refs if isinstance(refs, list) else [refs]
            running[refs[0]] = (number, slot, refs)

    def _start(self, calls: Sequence[Call]) -> None:
        """Takes the actors that the calls need and that are not there yet."""
        bound = {call.slot for call in calls if call.slot is not None}
        taken = bound | set(self._handles)
        anywhere = min(self._plan.actors, sum(call.slot is None for call in calls))
        free = [slot for slot in range(self._plan.actors) if slot not in taken]
        wanted = bound | set(free[: max(0, anywhere - len(taken))])
        for slot in sorted(wanted - set(self._handles)):
            self._handles[slot] = self._session.acquire(self._options())
            self._starting[self._handles[slot].build.remote(self._spec_ref)] = slot

    def _started(self, ref: Any) -> None:
        slot = self._starting.pop(ref)
        self._devices.add(fetch([ref], "a client actor failed to start"))
        if len(self._devices) > 1 and not self._engine.allow_mixed_devices:
            refuse_mixed(self._devices)
        self._idle.add(slot)

    def _options(self) -> dict[str, Any]:
        return {
            "num_cpus": self._plan.cpus_per_client,
            "num_gpus": self._plan.gpus_per_client,
            "max_restarts": 0,
            "max_task_retries": 0,
        }


def fetch(refs: list[Any], doing: str) -> Any:
    """The value of an object, or the list of values of several.

    Raises:
        WorkerError: the call failed; the message begins with what was going on.
        FedsimError: raised on purpose inside the call.
    """
    try:
        return ray.get(refs if len(refs) > 1 else refs[0])
    except RayTaskError as error:
        if isinstance(error.cause, FedsimError):
            raise error.cause from error
        raise WorkerError(f"{doing}: {type(error.cause).__name__}: {error.cause}") from error
    except RayError as error:
        raise WorkerError(f"{doing}: {type(error).__name__}: {error}") from error
