"""The work of one process: a model, the data, and the tasks of clients. Plain Python, no Ray."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count as count_from
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from fedsim import models, tasks
from fedsim.algorithms.base import Work
from fedsim.attacks.backdoor import marked
from fedsim.client import LocalEnv, LocalRule, dropout
from fedsim.client.block import Stack, train_block
from fedsim.client.criterion import criterion_of
from fedsim.client.graphs import Steps
from fedsim.client.order import steps_before, with_steps
from fedsim.client.trainer import Losses, trained
from fedsim.client.transform import own_entries, without_entries
from fedsim.core.errors import ContractError, FedsimError, WorkerError
from fedsim.core.layout import FlatModel, as_tensor, select, subtract
from fedsim.core.rng import seed_for, seed_torch, torch_scope
from fedsim.core.types import (
    I64,
    Array,
    ClientTask,
    ClientUpdate,
    Part,
    Sent,
    Triggered,
    Vector,
    Vectors,
)
from fedsim.data.transforms import transforms
from fedsim.engine import devices, transfer
from fedsim.engine.base import Measure, T
from fedsim.engine.blocks import Block, clients_of, named
from fedsim.engine.results import judged, read
from fedsim.engine.spec import WorkerSpec
from fedsim.metrics.outputs import Outputs, token_scores
from fedsim.metrics.samples import joined, predicted, streamed
from fedsim.metrics.splits import count, indices, name
from fedsim.models.frozen import cut


class Worker:
    """A model on a device and the data; keeps nothing between tasks that could change a result.

    It is for one thread. Workers of several threads train in turns, as a process has one generator
    that augmentation and dropout draw from.

    Args:
        gpu_fraction: of the GPU that is its own, for what is suggested where memory runs out.
        apart: whether the device's memory is another than the host's, so that samples, models and
            deltas stay there; None: unless it is the CPU. Bits do not depend on it.
        static: whether training steps are recorded and replayed; None: on a GPU.

    ``progress`` is the block being trained (() in an evaluation) and when that began; None between
    tasks.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        device: torch.device,
        gpu_fraction: float = 1.0,
        apart: bool | None = None,
        static: bool | None = None,
    ) -> None:
        devices.configure(spec.threads, spec.precision, spec.deterministic, device)
        self.spec = spec
        self.device = device
        self.gpu_fraction = gpu_fraction
        model = models.build(spec.model.without_weights, spec.seed, spec.algorithm.adapt)
        model = model if spec.cut is None else cut(model, spec.cut)
        self.draws = dropout.count(model, device)
        self.flat = FlatModel(model, device, frozen=spec.frozen)
        self.steps = (
            Steps(self.flat) if static or (static is None and self.flat.flat.is_cuda) else None
        )
        self.stack = self._stack(spec.algorithm.local)
        self.stack_beside = self._stack(spec.algorithm.beside)
        personal = select(self.flat.layout, spec.algorithm.owned)
        self.personal = torch.from_numpy(np.flatnonzero(personal)).to(device)
        self.precision, layout = devices.forward_passes(spec.precision, device)
        self.transforms = transforms(spec.dataset.pipeline, device, layout)
        self.apart = device.type != "cpu" if apart is None else apart
        total = devices.total_memory() if device.type == "cuda" else None
        self.room = transfer.room(total or sys.maxsize, gpu_fraction)
        images = spec.dataset.x if spec.local_images is None else spec.local_images()
        self.samples = transfer.Samples(
            as_tensor(images),
            as_tensor(spec.dataset.y),
            device,
            self.room if self.apart else None,
        )
        self._on_device = transfer.Vectors(device, self.apart)
        # many models in a row see the same part, whose draw can take longer than their passes
        self.indices = lru_cache(maxsize=2)(partial(indices, spec))
        train = spec.partition.train
        self.task = tasks.of(spec.dataset)
        self.mean_size = fmean(len(train[client]) for client in spec.partition.participants)
        self.sizes = [len(own) for own in train]
        self.criterion = lru_cache(partial(criterion_of, dataset=spec.dataset))
        self.progress: tuple[Block, float] | None = None
        self._nondeterministic: set[str] = set()

    def run(
        self, blocks: Sequence[Block], models: Mapping[int, Sent], states: Mapping[int, Vectors]
    ) -> tuple[list[ClientUpdate], Array]:
        """Does blocks of tasks of one kind: updates, and beside them deltas (k, D).

        Both are in the order of the tasks. Work that does not train leaves the model as it is; its
        deltas are (k, 0).

        Args:
            blocks: of :meth:`WorkerSpec.blocks`.
            models: by version those that the tasks start from.
            states: by client what it kept, where it kept something.

        Raises:
            WorkerError: a block's work failed; the message names round and clients.
        """
        updates, rows = self.train(blocks, models, states)
        return updates, transfer.to_host(rows)

    def train(
        self, blocks: Sequence[Block], models: Mapping[int, Sent], states: Mapping[int, Vectors]
    ) -> tuple[list[ClientUpdate], Tensor]:
        """:meth:`run`, but the deltas are where they were computed: on the device if they fit."""
        first = blocks[0][0]
        work = self.spec.works[first.work]
        shape = sum(map(len, blocks)), self.flat.layout.size if work.trains else 0
        fits = torch.float32.itemsize * math.prod(shape) <= self.room
        stay = self.apart and work.trains and not work.transforms and fits
        if stay:
            rows = torch.empty(shape, dtype=torch.float32, device=self.device)
        else:
            rows = torch.from_numpy(np.empty(shape, dtype=np.float32))
        stack = None if self.spec.stacking_of(first) is None else self.stack
        versions = {block[0].version for block in blocks}
        starts = {v: self._on_device(models[v][0]) for v in versions}
        updates: list[ClientUpdate] = []
        losses: list[Losses | None] = []
        seed = first.ctx.seed
        with torch_scope(seed, self.device), devices.collected(self._nondeterministic):
            for block in blocks:
                version = block[0].version
                given = work, starts[version], models[version][1], states, stay
                who = "" if block[0].work == "root" else f", {named(clients_of(block))}"
                with self._named(f"{block[0].title}{who}", block):
                    if stack is not None:
                        chosen = rows[len(updates) : len(updates) + len(block)]
                        updates += self._train_stacked(stack, block, *given, chosen)
                        losses += [None] * len(block)
                        continue
                    for task in block:
                        update, unread = self._train_alone(task, *given, rows[len(updates)])
                        updates.append(update)
                        losses.append(unread)
            if stay:
                with self._named(first.title):
                    updates = read(updates, losses, rows, self.flat.layout)
        return updates, rows

    @property
    def findings(self) -> devices.Findings:
        """What showed so far; may be asked for by another thread."""
        uncaptured = {} if self.steps is None else self.steps.uncaptured
        return devices.Findings(frozenset(self._nondeterministic), dict(uncaptured))

    def _stack(self, rule: LocalRule | None) -> Stack | None:
        """What trains blocks by a rule, where clients train in blocks."""
        if rule is None or self.spec.stacking is None:
            return None
        pipeline = self.spec.dataset.pipeline
        augments = pipeline is not None and pipeline.augment != "none"
        return Stack(self.flat.model, rule, self.spec.stacking.clients, augments)

    def _samples(self, task: ClientTask) -> I64:
        """The training samples that a task sees."""
        if task.work == "root":
            return self.spec.root
        own = [self.spec.partition.train[client] for client in task.clients]
        return own[0] if len(own) == 1 else np.concatenate(own)

    def _train_alone(
        self,
        task: ClientTask,
        work: Work,
        params: Tensor,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        stay: bool,
        row: Tensor,
    ) -> tuple[ClientUpdate, Losses]:
        """Does a task on its own; ``row`` (D,) is written.

        Where deltas ``stay``, the update's own loss is still to be read, and is to be judged.
        """
        index = torch.from_numpy(self._samples(task))
        # pooled samples are nobody's: their learner has no state of its own
        kept = {} if task.owners else states.get(task.client, {})
        start = self._start(params, kept) if work.own else params
        x, y = self.samples(index)
        if work.poison is not None:
            x, y = work.poison(x, y, task)

        def train(rule: LocalRule, start: Tensor) -> tuple[ClientUpdate, Losses]:
            self.flat.load(start)
            env = self._env(task, work, start, params, x, y, downlink, kept)
            seed_torch(seed_for(task.ctx.seed, "client", task.key, task.client), self.device)
            return trained(rule, env, self.steps, read=not stay)

        update, losses = train(work.rule, start)
        if not work.trains:
            update = replace(update, num_steps=0, state={})
            return judged(update, row.numpy(), self.flat.layout), losses
        if len(self.personal) and work.own:
            own = self.flat.flat[self.personal].cpu().numpy()
            update = replace(update, state={**update.state, "personal": own})
            self.flat.flat[self.personal] = start[self.personal]  # so that their delta is zero
        subtract(self.flat.flat, start, row)
        if work.beside is not None:
            own_update, _ = train(work.beside, self._start(params, kept))
            own = self.flat.vector()
            update = replace(update, state={**update.state, **own_update.state, "personal": own})
        return self._sent(update, task, work, kept, stay, row), losses

    def _train_stacked(
        self,
        stack: Stack,
        block: Block,
        work: Work,
        params: Tensor,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        stay: bool,
        deltas: Tensor,
    ) -> list[ClientUpdate]:
        """Trains a block as one model; ``deltas`` (k, D) are written."""
        assert self.spec.stacking is not None  # noqa: S101
        owned = [self._samples(task) for task in block]
        index, sizes = torch.from_numpy(np.concatenate(owned)), [len(own) for own in owned]
        x, y = (each.split(sizes) for each in self.samples(index))
        if work.poison is not None:
            given = zip(x, y, block, strict=True)
            x, y = zip(*(work.poison(x_k, y_k, task) for x_k, y_k, task in given), strict=True)
        kept = [states.get(task.client, {}) for task in block]

        width = self.spec.stacking.width

        def train(rule: LocalRule, on: Stack, own: bool) -> tuple[list[ClientUpdate], Tensor]:
            starts = [self._start(params, state) if own else params for state in kept]
            envs = [
                self._env(task, work, start, params, x_k, y_k, downlink, state)
                for task, start, x_k, y_k, state in zip(block, starts, x, y, kept, strict=True)
            ]
            return train_block(rule, envs, on, width, self.steps)

        updates, rows = train(work.rule, stack, work.own)
        if len(self.personal) and work.own:
            updates = with_own(updates, rows[:, self.personal])
            rows[:, self.personal] = params[self.personal]  # so that their deltas are zero
        subtract(rows, params, deltas)
        if work.beside is not None:
            assert self.stack_beside is not None  # noqa: S101
            others, rows = train(work.beside, self.stack_beside, True)
            pairs = zip(updates, others, strict=True)
            updates = with_own([replace(u, state={**u.state, **o.state}) for u, o in pairs], rows)
        each = zip(updates, block, kept, deltas, strict=True)
        return [self._sent(u, task, work, state, stay, row) for u, task, state, row in each]

    def _sent(
        self,
        update: ClientUpdate,
        task: ClientTask,
        work: Work,
        kept: Vectors,
        stay: bool,
        row: Tensor,
    ) -> ClientUpdate:
        """The update as it is sent: checked, transformed, checked again.

        The client had ``kept`` some state before; transforms change the delta ``row`` (D,). Where
        deltas ``stay``, there are none, and it is checked with the others of the call.
        """
        update = with_steps(update, task, work.training, kept)
        if stay:
            return update
        layout, delta = self.flat.layout, row.numpy()
        update = judged(update, delta, layout)
        if update.diverged is not None or not work.transforms:
            return update
        state, wire_bytes = dict(update.state), update.wire_bytes
        for transform in work.transforms:
            given = delta.view()
            given.flags.writeable = False
            coded = transform(given, own_entries(kept, transform.name), task, layout)
            own = {f"{transform.name}.{key}": np.array(a) for key, a in coded.state.items()}
            if own.keys() & state.keys():
                raise ContractError(f"the rule keeps {sorted(own)} too; call {transform.name} else")
            state |= own
            delta[:] = coded.delta
            wire_bytes = wire_bytes if coded.wire_bytes is None else coded.wire_bytes
        return judged(replace(update, state=state, wire_bytes=wire_bytes), delta, layout)

    def _env(
        self,
        task: ClientTask,
        work: Work,
        start: Tensor,
        sent: Tensor,
        x: Tensor,
        y: Tensor,
        downlink: Vectors,
        state: Vectors,
    ) -> LocalEnv:
        return LocalEnv(
            flat=self.flat,
            start=start,
            x=x,
            y=y,
            train=self.transforms.train,
            test=self.transforms.test,
            criterion=self.criterion(work.criterion),
            num_classes=self.spec.dataset.num_classes,
            training=work.training,
            ctx=task.ctx,
            client_id=task.client,
            downlink=downlink,
            state=without_entries(state, self.spec.algorithm.transforms),
            precision=self.precision,
            relative_size=x.shape[0] / self.mean_size,
            max_steps=task.max_steps,
            stream=task.stream,
            done=steps_before(task, work.training, state),
            sizes=self.sizes,
            sent=sent,
            draws=self.draws,
        )

    def evaluate(
        self,
        params: Vector,
        state: Vectors,
        part: Part,
        measure: Measure[T],
        batches: tuple[int, int] | None = None,
    ) -> T:
        """What is made of a model's outputs on a part; ``params`` (D,) and ``state`` are the model.

        ``batches`` are the first, and the one after the last; None for the whole part.

        Raises:
            WorkerError: the evaluation failed.
        """
        size = self.spec.batch_size
        index = self.indices(part)
        batches = batches or (0, len(index))
        index = index[batches[0] * size : batches[1] * size]
        mark = partial(marked, pixels=part.pixels) if isinstance(part, Triggered) else None
        what, numbers = f"evaluation on the {name(part)} part", count_from(batches[0])
        seeds = (seed_for(self.spec.seed, what, number) for number in numbers)
        with (
            self._named(what),
            torch.no_grad(),
            torch_scope(self.spec.seed, self.device),
            devices.collected(self._nondeterministic),
        ):
            split = torch.from_numpy(index).to(self.samples.x.device).split(size)
            outputs = self._outputs(params, state, split, seeds, mark, measure.predicted)
        return measure.compute(outputs, self.spec, part, index)

    def _outputs(
        self,
        params: Vector,
        state: Vectors,
        batches: Sequence[Tensor],
        seeds: Iterator[int],
        mark: Callable[[Tensor], Tensor] | None = None,
        predictions: bool = False,
    ) -> Outputs:
        """The logits of some samples, as ``mark`` changes them; a batch's do not depend on others.

        Where every token has a label, each batch's scores.
        """
        start, predict = self._start(self._on_device(params), state), self.spec.algorithm.predict
        model, own = self.flat.model, {} if predict is None else state
        kept = {name: as_tensor(array).to(self.device) for name, array in own.items()}

        def passed(batch: Tensor, seed: int) -> Tensor:
            self.flat.load(start)
            self.flat.mode(train=False)
            seed_torch(seed, self.device)
            self.draws.begin([seed_for(seed, "dropout")])
            x = self.samples.inputs(batch)
            x = self.transforms.test(x if mark is None else mark(x))
            logits: Tensor = model(x) if predict is None else predict(model, kept, x)
            return logits

        with self.precision():
            logits = map(passed, batches, seeds)
            if predictions:
                return np.concatenate(
                    [predicted(self.task, z.float().cpu().numpy()) for z in logits]
                )
            if self.task.streams:
                targets = (np.asarray(self.samples.labels(b).cpu()) for b in batches)
                several = zip(logits, targets, strict=True)
                return joined([streamed(self.task, z.float().cpu().numpy(), y) for z, y in several])
            if self.spec.dataset.per_token:
                labels = map(self.samples.labels, batches)
                wrong = self.spec.dataset.never_right
                pairs = zip(logits, labels, strict=True)
                return joined([token_scores(z, y, wrong) for z, y in pairs])
            return torch.cat(list(logits)).float().cpu().numpy()

    @contextmanager
    def _named(self, what: str, block: Block = ()) -> Iterator[None]:
        """Shows the work in ``progress``; turns an exception into a WorkerError that names it."""
        self.progress = block, time.monotonic()
        try:
            yield
        except (FedsimError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a method or model may also call sys.exit()
            if hasattr(error, "ray_terminate_msg"):  # with this SystemExit Ray ends a process
                raise
            why = devices.reason(error, self.gpu_fraction, self.device)
            raise WorkerError(f"{what}: {why}") from error
        finally:
            self.progress = None

    def _start(self, params: Tensor, state: Vectors) -> Tensor:
        """The global vector (D,) with the client's own slots."""
        if "personal" not in state:
            return params
        start = params.clone()
        start[self.personal] = as_tensor(state["personal"]).to(self.device)
        return start


def with_own(updates: Sequence[ClientUpdate], rows: Tensor) -> list[ClientUpdate]:
    """The updates of a block with the clients' own values, the rows (k, ...), in their states."""
    pairs = zip(updates, rows.cpu().numpy(), strict=True)
    return [replace(u, state={**u.state, "personal": own.copy()}) for u, own in pairs]


def num_batches(spec: WorkerSpec, part: Part) -> int:
    """Batches of fixed size in a part."""
    return -(-count(spec, part) // spec.batch_size)


def with_deltas(updates: Sequence[ClientUpdate], deltas: Array) -> list[ClientUpdate]:
    """The updates of a call of :meth:`Worker.run` with their deltas, which stay views."""
    return [replace(u, delta=delta) for u, delta in zip(updates, deltas, strict=True)]
