"""The executor on Ray: hands clients' work to actors and collects what they return.

With as many slots as clients, client i lives in slot i; otherwise any idle actor takes the next
call. Each version of the global vector is put once; data and model recipe once per run, so that
each node holds one copy in shared memory. Client work is a pure function, so what a lost actor,
object or node takes with it is done again elsewhere, with the same bits.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import ray

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import ClientTask, ClientUpdate, Part, Vectors
from fedsim.engine.base import OUTPUTS, EvaluationTask, Incident, Measure, Models, T
from fedsim.engine.blocks import Block, clients_of, num_calls, shared_out
from fedsim.engine.devices import record
from fedsim.engine.ray.calls import Call, EvaluationCall, TaskCall, balanced, deal
from fedsim.engine.ray.cluster import alive_nodes, machines, plan_for
from fedsim.engine.ray.dispatch import Dispatcher
from fedsim.engine.ray.faults import put
from fedsim.engine.ray.placement import Node, Placement
from fedsim.engine.ray.pool import ActorPool, Session
from fedsim.engine.ray.sharded import Aggregators, Sharded, allowed_shards, held_of, plan_shards
from fedsim.engine.spec import WorkerSpec
from fedsim.engine.worker import num_batches
from fedsim.metrics.outputs import concatenated
from fedsim.metrics.splits import indices
from fedsim.server.columns import Columns

SMALL_UPDATE = 4 << 20
"""Several actors on CPUs get clients with larger updates one by one, when they are idle: training
takes long beside a call then. GPUs and a single actor get as many as a call carries."""
FLOAT = np.dtype(np.float32).itemsize
"""Bytes of an entry of an update."""
REPLAN_INTERVAL = 10.0
"""Seconds after which a round looks whether machines joined or left."""


class RayExecutor:
    """See :class:`~fedsim.engine.base.Executor` and, of the arguments,
    :class:`~fedsim.engine.registry.MakeExecutor`. Actors are taken when they are first needed."""

    def __init__(
        self,
        spec: WorkerSpec,
        engine: EngineConfig,
        update_bytes: int,
        *,
        session: Session | None = None,
        whole: str | None = None,
    ) -> None:
        self._shards = allowed_shards(engine.aggregation_shards, whole)
        self._spec = spec
        self._engine = engine
        self._update_bytes = update_bytes
        self._sizes = [len(own) for own in spec.partition.train]
        if session is None and engine.address is None:  # refused before anything starts
            self._plan_for(machines())
        self._session = session or Session(engine)
        self._shares_session = session is not None
        self._pool = ActorPool(
            self._session, max_retries=engine.max_retries, allow_mixed=engine.allow_mixed_devices
        )
        self._aggregators = Aggregators(())
        try:
            self._nodes = self._session.machines()
            self._plan = self._plan_for(self._nodes)
            self._planned = time.monotonic()
            # machines that join do not change what an actor holds
            share = {"gpus_per_client": self._plan.share.gpus}
            self._engine = engine.model_copy(update=share)
            self._session.prepare(self._plan.share)
            nodes = len(alive_nodes())
            self._aggregators = Aggregators(plan_shards(update_bytes // FLOAT, self._shards, nodes))
            self._dispatcher = Dispatcher(
                self._pool, engine, wanted=self._wanted, spec=lambda: put(spec.to_send())
            )
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> str:
        """One line for the user."""
        gpus = self._plan.gpu_types
        return f"ray, {self._plan}" + (f" ({gpus})" if gpus else "")

    @property
    def environment(self) -> Mapping[str, object]:
        """Resources, devices and nodes seen so far and the placement plan."""
        spec = self._spec
        return {
            "engine": "ray",
            "device": record(
                self._pool.kinds, spec.precision, spec.deterministic, self._pool.findings()
            ),
            "nodes": self._pool.nodes,
            "ray_resources": {k: v for k, v in ray.cluster_resources().items() if "node:" not in k},
            "placement": self._plan.record(),
        }

    def broadcast(self, models: Models) -> None:
        """See :class:`~fedsim.engine.base.Executor`; one object each, for any number of actors."""
        self._dispatcher.sent.keep([part for sent in models.values() for part in sent])

    def run(
        self, tasks: Sequence[ClientTask], models: Models, states: Mapping[int, Vectors]
    ) -> list[ClientUpdate]:
        """See :class:`~fedsim.engine.base.Executor`."""
        self._replan()
        return self._run(self._spec.blocks(tasks), models, states)

    def prefetch(
        self, rounds: Sequence[Sequence[ClientTask]], models: Models, states: Mapping[int, Vectors]
    ) -> None:
        """See :class:`~fedsim.engine.base.Executor`; nothing is sent before :meth:`run`."""
        for tasks in rounds:
            for block in self._spec.blocks(tasks):
                self._dispatcher.prefetch(self._call((block,), models, states))

    def _run(
        self, blocks: Sequence[Block], models: Models, states: Mapping[int, Vectors]
    ) -> list[ClientUpdate]:
        if not blocks:
            return []
        early: list[TaskCall] = []
        others: list[Block] = []
        for block in blocks:
            call = self._dispatcher.early(block)
            if call is None:
                others.append(block)
            else:
                early.append(call)
        calls = [*early, *self._calls(others, models, states)]
        updates: list[ClientUpdate] = []
        for _, answer in self._dispatcher.run(calls, blocks[0][0].title):
            updates += answer
        return shared_out(updates, list(chain.from_iterable(blocks)), self._sizes)

    def columns(
        self, updates: Sequence[ClientUpdate], models: Models, states: Mapping[int, Vectors]
    ) -> Columns | None:
        """See :class:`~fedsim.engine.base.Executor`."""

        def again(incident: Incident) -> list[ClientUpdate]:
            self._pool.incidents.append(incident)
            blocks = dict.fromkeys(where.block for where in held.values())
            updates = self._run(list(blocks), models, states)
            return [update for update in updates if update.client_id in held]

        held, retries = held_of(updates), self._engine.max_retries
        if not held:
            return None
        return Sharded(aggregators=self._aggregators, held=held, again=again, max_retries=retries)

    def _calls(
        self, blocks: Sequence[Block], models: Models, states: Mapping[int, Vectors]
    ) -> list[TaskCall]:
        """Where blocks share actors they share calls, equally many for each actor."""
        most, plan = len(blocks), self._plan
        several = plan.actors > 1 and not plan.share.gpus
        if not plan.per_client and not (several and self._update_bytes > SMALL_UPDATE):
            most = num_calls(sum(map(len, blocks)), self._update_bytes, plan.actors)
        work = {block: float(sum(self._sizes[c] for c in clients_of(block))) for block in blocks}
        return [self._call(group, models, states) for group in balanced(work, most)]

    def _call(
        self, blocks: tuple[Block, ...], models: Models, states: Mapping[int, Vectors]
    ) -> TaskCall:
        aggregated = self._spec.works[blocks[0][0].work].aggregated
        ranges = self._aggregators.ranges if aggregated else ()
        return TaskCall(
            blocks=blocks,
            models=models,
            states=states,
            sizes=self._sizes,
            ranges=ranges,
            home=self._plan.home(blocks[0][0].client),
        )

    def evaluate(self, jobs: Sequence[EvaluationTask], measure: Measure[T]) -> list[T]:
        """See :class:`~fedsim.engine.base.Executor`.

        The batches of all jobs are dealt out in order, one call per actor. A job that is cut, where
        the measure needs it whole, comes back as outputs.
        """
        if not jobs:
            return []
        sizes = [num_batches(self._spec, part) for _, part in jobs]
        dealt = deal(sizes, max(1, len(self._pool.slots)))
        partial = OUTPUTS if measure.join is None else measure
        calls = []
        for position, runs in enumerate(dealt):
            tasks = tuple(
                (*jobs[job], measure if batches == (0, sizes[job]) else partial, batches)
                for job, batches in runs
            )
            calls.append(EvaluationCall(position=position, tasks=tasks))
        try:
            run = self._dispatcher.run(calls, "")
            answers = {cast(EvaluationCall, call).position: answer for call, answer in run}
        finally:
            self._dispatcher.sent.trim()
        collected: list[list[Any]] = [[] for _ in jobs]
        for position, runs in enumerate(dealt):
            for (job, _), answer in zip(runs, answers[position], strict=True):
                collected[job].append(answer)
        return [
            self._whole(parts, part, measure)
            for parts, (_, part) in zip(collected, jobs, strict=True)
        ]

    def _whole(self, parts: list[Any], part: Part, measure: Measure[T]) -> T:
        """The answer for a whole part, from those for runs of its batches."""
        if len(parts) == 1:
            return cast(T, parts[0])
        if measure.join is not None:
            return measure.join(parts)
        return measure.compute(concatenated(parts), self._spec, part, indices(self._spec, part))

    def incidents(self) -> list[Incident]:
        """See :class:`~fedsim.engine.base.Executor`."""
        incidents, self._pool.incidents = self._pool.incidents, []
        return incidents

    def close(self) -> None:
        """Gives the actors back, and ends the session if it is the executor's own."""
        try:
            self._pool.close()
            self._aggregators.close()
        finally:
            if not self._shares_session:
                self._session.close()

    def _wanted(self, waiting: Iterable[Call], at_work: int) -> set[int]:
        homes = {call.home for call in waiting if call.home is not None}
        anywhere = sum(call.home is None for call in waiting)
        taken = homes | self._pool.slots
        more = min(self._plan.actors, at_work + anywhere) - len(taken)
        free = [slot for slot in range(self._plan.actors) if slot not in taken]
        return homes | set(free[: max(0, more)])

    def _replan(self) -> None:
        """Looks for machines that joined or left; where they cannot hold the clients, the plan
        stays."""
        if time.monotonic() - self._planned < REPLAN_INTERVAL:
            return
        self._planned = time.monotonic()
        nodes = self._session.machines()
        if nodes == self._nodes:
            return
        self._nodes = nodes
        self._pool.reset_failures()
        with contextlib.suppress(ConfigError):
            self._plan = self._plan_for(nodes)

    def _plan_for(self, nodes: Sequence[Node]) -> Placement:
        sizes = self._update_bytes, self._spec.frozen_bytes
        return plan_for(self._engine, nodes, len(self._sizes), *sizes)
