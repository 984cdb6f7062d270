"""Client actors on Ray, embedded or on an existing cluster.

An actor is a warm process in a slot: it has the model built and the data mapped, and holds a
fraction of a GPU and some CPUs. With as many slots as clients, client i lives in slot i; otherwise
any idle actor takes the next call. The global vector is put once per round; data and model recipe
once per run, so that each node holds one copy in shared memory.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError

from fedsim.contracts import Array, RoundContext, Scores, Vector, Vectors
from fedsim.engine import Model, Result
from fedsim.engine.placement import Node, Plan, plan
from fedsim.engine.serial import collect, device_name, failed
from fedsim.engine.worker import Report, Worker, WorkerSpec, num_batches, score_part
from fedsim.errors import ConfigError, FedsimError, WorkerError

SMALL = 4 << 20
"""Updates of at most this many bytes travel several to a call; larger ones one by one."""
START_TIMEOUT = 120.0
"""Seconds after which a run gives up on actors that do not come up."""


@dataclass(frozen=True)
class Cluster:
    """How a run gets its actors (section ``engine`` of the configuration).

    Args:
        address: of an existing cluster; None starts one in this process's machine.
        num_gpus: logical GPUs of an embedded Ray; None for those that are there.
    """

    actors: str | int = "auto"
    cpus_per_client: float = 1.0
    gpus_per_client: float | None = None
    address: str | None = None
    working_dir: str | None = None
    allow_mixed_devices: bool = False
    num_cpus: float | None = None
    num_gpus: int | None = None


class ClientActor:
    """A worker in a process of its own."""

    def __init__(self, spec: WorkerSpec) -> None:
        cuda = bool(ray.get_gpu_ids()) and torch.cuda.is_available()
        self._worker = Worker(spec, torch.device("cuda" if cuda else "cpu"))

    def ready(self) -> str:
        """The device's name, once the worker is built."""
        return device_name(self._worker.device)

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


@dataclass(frozen=True)
class Call:
    """One remote call: a method with its arguments; ``slot`` None means any idle actor."""

    method: str
    args: tuple[Any, ...]
    slot: int | None = None
    clients: tuple[int, ...] = ()


@dataclass
class _Slots:
    """The actors by slot; a call is handed only to one that has answered and is idle."""

    handles: dict[int, Any] = field(default_factory=dict)
    starting: dict[Any, int] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)


class RayExecutor:
    """See :class:`~fedsim.engine.Executor`. Actors are started when they are first needed.

    Args:
        spec: what the workers are made of.
        cluster: where the actors come from.
        update_bytes: size of one client's update.
    """

    def __init__(self, spec: WorkerSpec, cluster: Cluster, update_bytes: int) -> None:
        self._spec = spec
        self._update_bytes = update_bytes
        self._cluster = cluster
        if cluster.address is None and not ray.is_initialized():
            plan_for(cluster, [local_node(cluster)], spec.partition.num_clients)
        self._owned = connect(cluster)
        try:
            self._plan = plan_for(cluster, nodes(), spec.partition.num_clients)
            self._spec_ref = ray.put(spec)
        except BaseException:
            self._disconnect()
            raise
        self._slots = _Slots()
        self._remote = ray.remote(ClientActor)

    @property
    def description(self) -> str:
        """One line for the user."""
        return f"ray, {self._plan.describe()}"

    @property
    def environment(self) -> Mapping[str, object]:
        """Resources, devices seen so far and the placement plan."""
        return {
            "engine": "ray",
            "device": ", ".join(sorted(self._slots.devices)) or "not started",
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
        return ray.put(params), ray.put(dict(downlink))

    def train(
        self, clients: Sequence[int], shared: Any, states: Mapping[int, Vectors], ctx: RoundContext
    ) -> list[Result]:
        """See :class:`~fedsim.engine.Executor`."""
        calls = []
        for slot, group in self._groups(clients):
            own = {c: states[c] for c in group if c in states}
            calls.append(Call("train", (group, *shared, own, ctx), slot, group))
        results: list[Result] = []
        for reports, deltas in self._run(calls, lambda call, e: failed(ctx, call.clients, e)):
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
        puts = {id(params): ray.put(params) for params, _ in models}
        actors = max(1, len(self._slots.handles))

        def explain(_: Call, error: BaseException) -> str:
            return f"evaluation on the {part} part: {type(error).__name__}: {error}"

        if len(models) >= actors:
            calls = [Call("scores", (puts[id(p)], state, part)) for p, state in models]
            return self._run(calls, explain)
        batches = num_batches(self._spec, part)
        cuts = [batches * i // actors for i in range(actors + 1)]
        ranges = [(a, b) for a, b in pairwise(cuts) if a < b]
        calls = [Call("logits", (puts[id(p)], s, part, a, b)) for p, s in models for a, b in ranges]
        outputs = self._run(calls, explain)
        whole = [outputs[i : i + len(ranges)] for i in range(0, len(outputs), len(ranges))]
        return [score_part(np.concatenate(parts), self._spec, part) for parts in whole]

    def close(self) -> None:
        """Ends the actors, and Ray if it was started here."""
        for handle in self._slots.handles.values():
            ray.kill(handle)
        self._slots = _Slots()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._owned:
            ray.shutdown()

    def _run(
        self, calls: Sequence[Call], explain: Callable[[Call, BaseException], str]
    ) -> list[Any]:
        """Runs all calls; the results are in the order of the calls."""
        self._start(calls)
        results: list[Any] = [None] * len(calls)
        waiting = deque(range(len(calls)))
        running: dict[Any, tuple[int, int, list[Any]]] = {}
        alive = time.monotonic()
        while waiting or running:
            self._hand_out(calls, waiting, running)
            pending = [*running, *self._slots.starting]
            ready, _ = ray.wait(pending, num_returns=1, timeout=1.0)
            for ref in ready:
                alive = time.monotonic()
                if ref in self._slots.starting:
                    self._started(ref)
                    continue
                number, slot, refs = running.pop(ref)
                try:
                    results[number] = ray.get(refs if len(refs) > 1 else refs[0])
                except RayTaskError as error:
                    cause = error.cause
                    if isinstance(cause, FedsimError):
                        raise cause from error
                    raise WorkerError(explain(calls[number], cause)) from error
                except RayError as error:
                    raise WorkerError(explain(calls[number], error)) from error
                self._slots.idle.add(slot)
            if not running and time.monotonic() - alive > START_TIMEOUT:
                raise WorkerError(
                    f"no client actor came up in {START_TIMEOUT:.0f} s; an actor asks for "
                    f"{self._options()}, the cluster has {ray.available_resources()} free"
                )
        return results

    def _hand_out(
        self,
        calls: Sequence[Call],
        waiting: deque[int],
        running: dict[Any, tuple[int, int, list[Any]]],
    ) -> None:
        """Gives waiting calls to idle actors, in order; a call with a slot waits for its own."""
        for number in list(waiting):
            call = calls[number]
            slot = min(self._slots.idle, default=None) if call.slot is None else call.slot
            if slot not in self._slots.idle:
                continue
            waiting.remove(number)
            self._slots.idle.discard(slot)
            remote = getattr(self._slots.handles[slot], call.method)
            refs = remote.remote(*call.args)
            refs = refs if isinstance(refs, list) else [refs]
            running[refs[0]] = (number, slot, refs)

    def _start(self, calls: Sequence[Call]) -> None:
        """Starts the actors that the calls need and that are not there yet."""
        bound = {call.slot for call in calls if call.slot is not None}
        taken = bound | set(self._slots.handles)
        anywhere = min(self._plan.actors, sum(call.slot is None for call in calls))
        free = [slot for slot in range(self._plan.actors) if slot not in taken]
        wanted = bound | set(free[: max(0, anywhere - len(taken))])
        for slot in sorted(wanted - set(self._slots.handles)):
            handle = self._remote.options(**self._options()).remote(self._spec_ref)
            self._slots.handles[slot] = handle
            self._slots.starting[handle.ready.remote()] = slot

    def _started(self, ref: Any) -> None:
        slot = self._slots.starting.pop(ref)
        try:
            self._slots.devices.add(ray.get(ref))
        except RayTaskError as error:
            raise WorkerError(f"a client actor failed to start: {error.cause}") from error
        except RayError as error:
            raise WorkerError(f"a client actor failed to start: {error}") from error
        if len(self._slots.devices) > 1 and not self._cluster.allow_mixed_devices:
            kinds = ", ".join(sorted(self._slots.devices))
            raise ConfigError(
                f"the cluster mixes devices ({kinds}), so results depend on who trains where; "
                "--set engine.allow_mixed_devices=true accepts that"
            )
        self._slots.idle.add(slot)

    def _options(self) -> dict[str, Any]:
        return {
            "num_cpus": self._plan.cpus_per_client,
            "num_gpus": self._plan.gpus_per_client,
            "max_restarts": 0,
            "max_task_retries": 0,
        }


@contextmanager
def session(cluster: Cluster) -> Iterator[None]:
    """One Ray for several runs of this process, such as those of a sweep."""
    owned = connect(cluster)
    try:
        yield
    finally:
        if owned:
            ray.shutdown()


def connect(cluster: Cluster) -> bool:
    """Starts Ray for this process, quietly, or joins the cluster at the address.

    Returns:
        Whether the connection is the caller's to end; False where the process already had one.

    Raises:
        ConfigError: the cluster cannot be reached.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.working_dir is not None:
        quiet["runtime_env"] = {"working_dir": cluster.working_dir}
    if ray.is_initialized():
        return False
    if cluster.address is None:
        here = local_node(cluster)
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=int(here.cpus),
            num_gpus=int(here.gpus),
            **quiet,
        )
        return True
    try:
        ray.init(address=cluster.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--address {cluster.address}: no Ray cluster there ({error})") from error
    return True


def local_node(cluster: Cluster) -> Node:
    """This machine, as an embedded Ray will see it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = torch.cuda.device_count() if cluster.num_gpus is None else cluster.num_gpus
    return Node(cluster.num_cpus or cpus or 1, gpus)


def nodes() -> list[Node]:
    """The machines of the connected cluster that are alive."""
    return [
        Node(
            n["Resources"].get("CPU", 0.0), n["Resources"].get("GPU", 0.0), n["NodeManagerAddress"]
        )
        for n in ray.nodes()
        if n["Alive"]
    ]


def plan_for(cluster: Cluster, machines: Sequence[Node], num_clients: int) -> Plan:
    """The placement on the given machines.

    Without ``gpus_per_client`` an actor takes half a GPU where there are GPUs.
    """
    gpus = cluster.gpus_per_client
    if gpus is None:
        gpus = 0.5 if any(n.gpus >= 1 for n in machines) else 0.0
    return plan(machines, num_clients, cluster.cpus_per_client, gpus, cluster.actors)
