"""The work of one process: a model, the data, and the tasks of clients. Plain Python, no Ray."""

from __future__ import annotations

import hashlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from fedsim import models
from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, MarginControl
from fedsim.client.block import Stack, num_steps, train_block
from fedsim.client.trainer import train_local
from fedsim.core.errors import DataError, FedsimError, WorkerError
from fedsim.core.layout import FlatModel, as_tensor, not_finite, select, subtract
from fedsim.core.rng import seed_for, seed_torch, torch_scope
from fedsim.core.types import (
    I64,
    Array,
    ClientUpdate,
    Dataset,
    Layout,
    ModelSpec,
    Part,
    Partition,
    RoundContext,
    Training,
    Vector,
    Vectors,
)
from fedsim.data.transforms import transforms
from fedsim.engine import devices
from fedsim.engine.base import Measure, T
from fedsim.engine.blocks import Block, Stacking, named
from fedsim.metrics.outputs import Outputs, token_scores
from fedsim.metrics.scores import joined
from fedsim.metrics.splits import count, indices, name
from fedsim.models.frozen import cut
from fedsim.systems.clock import Clock


@dataclass(frozen=True)
class LocalImages:
    """Images that each node reads itself, instead of getting them from the driver.

    Args:
        read: gives (N, channels, H, W) uint8, on whatever machine it is called; its argument says
            whether the machine's cache is checked, and mended, first.
        sha256: of the driver's.
    """

    read: Callable[[bool], Array]
    sha256: str

    def __call__(self) -> Array:
        """The images of this machine.

        Raises:
            DataError: they are not the driver's.
        """
        found = self.read(False)
        if array_sha256(found) != self.sha256:
            found = self.read(True)
        if array_sha256(found) != self.sha256:
            raise DataError(
                f"engine.data_from=node: {platform.node()} reads other images than the driver; "
                "data.dir must hold the same files on every machine, and data.feature_shift may "
                "give other pixels on another kind of processor"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Everything a worker is made of; travels once per node.

    Args:
        local_images: how a node gets the images itself; None where ``dataset`` brings them.
        seed: of the run, for the start weights.
        threads: torch threads on the CPU; part of the result's bits.
        batch_size: images per forward pass of an evaluation.
        fast: on a GPU bfloat16 forward passes, TF32, autotuned kernels and images with channels
            last; bits may differ between runs and from those of an exact run.
        clock: says after how many steps a client stops.
        stacking: how clients train together; None where they train one by one.
        frozen: by name the tensors of the model that do not train; once per node.
        cut: the frozen module, by name, whose outputs the samples of ``dataset`` are, so that
            workers leave it out; None where the samples are the model's input.
    """

    dataset: Dataset
    partition: Partition
    model: ModelSpec
    algorithm: Algorithm
    training: Training
    seed: int
    threads: int
    batch_size: int
    fast: bool
    local_images: LocalImages | None = None
    clock: Clock = field(default_factory=Clock)
    stacking: Stacking | None = None
    frozen: Vectors = field(default_factory=dict)
    cut: str | None = None

    @property
    def frozen_bytes(self) -> int:
        """Size of the frozen tensors."""
        return sum(array.nbytes for array in self.frozen.values())

    def pools(self, ctx: RoundContext) -> bool:
        """Whether the clients of a round are one block, trained on their pooled samples."""
        return self.algorithm.pooled and ctx.local_training

    def blocks(self, clients: Sequence[int], ctx: RoundContext) -> list[Block]:
        """The clients of a round in blocks; outside of local training they go one by one."""
        if self.pools(ctx) and clients:
            return [tuple(sorted(clients))]
        if self.stacking is None or not ctx.local_training:
            return [(client,) for client in sorted(clients)]
        steps = {}
        for client in clients:
            n = len(self.partition.train[client])
            most = self.clock.participation(ctx.round, client, n).max_steps
            steps[client] = num_steps(n, self.training, self.stacking.batchnorm, most)
        return self.stacking.blocks(steps)

    def to_send(self) -> WorkerSpec:
        """What has to travel: no names and lists of clients, no images where nodes read them."""
        bare = replace(self.dataset, clients=None, patient=None, patient_names=(), files=())
        if self.local_images is not None:
            bare = replace(bare, x=bare.x[:0])
        return replace(self, dataset=bare)


def array_sha256(array: Array) -> str:
    """The SHA-256 of an array's bytes, in hex."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


class Worker:
    """A model on a device and the data; keeps nothing between tasks that could change a result.

    It is for one thread. Workers of several threads train in turns, as a process has one generator
    that augmentation and dropout draw from.

    Args:
        gpu_fraction: of the GPU that is its own, for what is suggested where memory runs out.

    ``progress`` is the block being trained (() in an evaluation) and when that began; None between
    tasks.
    """

    def __init__(self, spec: WorkerSpec, device: torch.device, gpu_fraction: float = 1.0) -> None:
        devices.configure(spec.threads, spec.fast, device)
        self.spec = spec
        self.device = device
        self.gpu_fraction = gpu_fraction
        model = models.build(spec.model.without_weights, spec.seed, spec.algorithm.adapt)
        if spec.cut is not None:
            cut(model, spec.cut)
        self.flat = FlatModel(model, device, frozen=spec.frozen)
        self.stack = None if spec.stacking is None else self._stack()
        personal = select(self.flat.layout, spec.algorithm.personal)
        self.personal = torch.from_numpy(np.flatnonzero(personal)).to(device)
        self.precision, layout = devices.precision(spec.fast, device)
        self.transforms = transforms(spec.dataset.pipeline, device, layout)
        images = spec.dataset.x if spec.local_images is None else spec.local_images()
        self.images = as_tensor(images)
        self.labels = as_tensor(spec.dataset.y)
        # many models in a row see the same part, whose draw can take longer than their passes
        self.indices = lru_cache(maxsize=2)(partial(indices, spec))
        train = spec.partition.train
        self.mean_size = fmean(len(train[client]) for client in spec.partition.participants)
        self.progress: tuple[Block, float] | None = None

    def train(
        self,
        blocks: Sequence[Block],
        params: Vector,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
    ) -> tuple[list[ClientUpdate], Array]:
        """Trains blocks of clients one after the other: updates, and beside them deltas (k, D).

        Both are in the order of the clients in ``blocks``, which are those of
        :meth:`WorkerSpec.blocks`. The other arguments, such as ``params`` (D,), are those of
        :class:`~fedsim.engine.base.Executor`. A probe leaves the model as it is; its deltas are
        (k, 0). Where the clients' samples are pooled, all k updates have one delta (1, D).

        Raises:
            WorkerError: a block's work failed; the message names round and clients.
        """
        size = 0 if ctx.probe else self.flat.layout.size
        pooled = self.spec.pools(ctx)
        num_deltas = 1 if pooled else sum(map(len, blocks))
        deltas = np.empty((num_deltas, size), dtype=np.float32)
        common = as_tensor(params).to(self.device)
        updates: list[ClientUpdate] = []
        with torch_scope(ctx.seed, self.device):
            for block in blocks:
                with self._named(f"{ctx.title}, {named(block)}", block):
                    if pooled:
                        assert len(blocks) == 1  # noqa: S101
                        updates += self._train_pooled(block, common, downlink, ctx, deltas[0])
                        continue
                    rows = deltas[len(updates) : len(updates) + len(block)]
                    if ctx.local_training and self.stack is not None:
                        given = block, common, downlink, states, ctx, rows
                        updates += self._train_stacked(self.stack, *given)
                        continue
                    for client, row in zip(block, rows, strict=True):
                        own = states.get(client, {})
                        updates.append(self._train_alone(client, common, downlink, own, ctx, row))
        return updates, deltas

    def _stack(self) -> Stack:
        pipeline = self.spec.dataset.pipeline
        augments = pipeline is not None and pipeline.augment != "none"
        return Stack(self.flat.model, self.spec.algorithm.local, draws=augments)

    def _train_alone(
        self,
        client: int,
        params: Tensor,
        downlink: Vectors,
        state: Vectors,
        ctx: RoundContext,
        delta: Array,
        owned: I64 | None = None,
    ) -> ClientUpdate:
        """Trains on the samples ``owned``, by default the client's; ``delta`` (D,) is written."""
        index = torch.from_numpy(self.spec.partition.train[client] if owned is None else owned)
        start = self._load(params, state)
        x = self.images.index_select(0, index).to(self.device)
        y = self.labels.index_select(0, index).to(self.device)
        env = self._env(client, start, x, y, downlink, state, ctx)
        seed_torch(seed_for(ctx.seed, "client", ctx.round, client), self.device)
        algorithm = self.spec.algorithm
        rule = algorithm.probe.local if ctx.probe and algorithm.probe else algorithm.local
        if ctx.finetune_epochs:
            rule = LocalRule()
        update = train_local(rule, env)
        if ctx.probe:
            update = replace(update, state={})
            bad = _diverged(update, delta, self.flat.layout)
            return replace(update, num_steps=0, diverged=bad)
        if len(self.personal):
            own = self.flat.flat[self.personal].cpu().numpy()
            update = replace(update, state={**update.state, "personal": own})
            self.flat.flat[self.personal] = start[self.personal]  # so that their delta is zero
        subtract(self.flat.flat, start, torch.from_numpy(delta))
        bad = _diverged(update, delta, self.flat.layout)
        return update if bad is None else replace(update, diverged=bad)

    def _train_pooled(
        self, block: Block, params: Tensor, downlink: Vectors, ctx: RoundContext, delta: Array
    ) -> list[ClientUpdate]:
        """Trains on the samples of all clients of the block as its first client would on its own.

        ``delta`` (D,), which the clients have in common, is written.
        """
        train, first = self.spec.partition.train, block[0]
        owned = np.concatenate([train[client] for client in block])
        update = self._train_alone(first, params, downlink, {}, ctx, delta, owned)
        return [replace(update, client_id=c, num_samples=len(train[c])) for c in block]

    def _train_stacked(
        self,
        stack: Stack,
        block: Block,
        params: Tensor,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
        deltas: Array,
    ) -> list[ClientUpdate]:
        """Trains a block as one model; ``deltas`` (k, D) are written."""
        assert self.spec.stacking is not None  # noqa: S101
        owned = [self.spec.partition.train[client] for client in block]
        index, sizes = torch.from_numpy(np.concatenate(owned)), [len(own) for own in owned]
        x = self.images.index_select(0, index).to(self.device).split(sizes)
        y = self.labels.index_select(0, index).to(self.device).split(sizes)
        own = [states.get(client, {}) for client in block]
        starts = [self._start(params, state) for state in own]
        envs = [
            self._env(client, start, x_k, y_k, downlink, state, ctx)
            for client, start, x_k, y_k, state in zip(block, starts, x, y, own, strict=True)
        ]
        width = self.spec.stacking.width
        updates, rows = train_block(self.spec.algorithm.local, envs, stack, width)
        if len(self.personal):
            kept = rows[:, self.personal].cpu().numpy()
            pairs = zip(updates, kept, strict=True)
            updates = [replace(u, state={**u.state, "personal": k.copy()}) for u, k in pairs]
            rows[:, self.personal] = params[self.personal]  # so that their deltas are zero
        subtract(rows, params, torch.from_numpy(deltas))
        layout = self.flat.layout
        return [
            replace(update, diverged=_diverged(update, delta, layout))
            for update, delta in zip(updates, deltas, strict=True)
        ]

    def _env(
        self,
        client: int,
        start: Tensor,
        x: Tensor,
        y: Tensor,
        downlink: Vectors,
        state: Vectors,
        ctx: RoundContext,
    ) -> LocalEnv:
        spec, part = self.spec, None
        criterion, training = spec.algorithm.criterion, spec.training
        if ctx.local_training:  # everything else is done as a whole
            part = spec.clock.participation(ctx.round, client, len(x))
        if ctx.finetune_epochs:
            criterion = MarginControl()
            training = replace(training, local_epochs=ctx.finetune_epochs)
        return LocalEnv(
            flat=self.flat,
            start=start,
            x=x,
            y=y,
            train=self.transforms.train,
            test=self.transforms.test,
            criterion=criterion,
            num_classes=spec.dataset.num_classes,
            training=training,
            ctx=ctx,
            client_id=client,
            downlink=downlink,
            state=state,
            precision=self.precision,
            relative_size=len(x) / self.mean_size,
            max_steps=part.max_steps if part else None,
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
        if batches is not None:
            index = index[batches[0] * size : batches[1] * size]
        with self._named(f"evaluation on the {name(part)} part"), torch.no_grad():
            outputs = self._outputs(params, state, torch.from_numpy(index).split(size))
        return measure.compute(outputs, self.spec, part, index)

    def _outputs(self, params: Vector, state: Vectors, batches: Sequence[Tensor]) -> Outputs:
        """The logits of some samples; where every token has a label, each batch's scores."""
        self._load(as_tensor(params).to(self.device), state)
        self.flat.mode(train=False)
        with self.precision():
            logits = (
                self.flat.model(self.transforms.test(self.images[batch].to(self.device)))
                for batch in batches
            )
            if self.spec.dataset.per_token:
                labels = (self.labels[batch].to(self.device) for batch in batches)
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

    def _load(self, start: Tensor, state: Vectors) -> Tensor:
        """Loads the global vector with the client's own slots; returns what was loaded (D,)."""
        start = self._start(start, state)
        self.flat.load(start)
        return start

    def _start(self, params: Tensor, state: Vectors) -> Tensor:
        """The global vector (D,) with the client's own slots."""
        if "personal" not in state:
            return params
        start = params.clone()
        start[self.personal] = as_tensor(state["personal"]).to(self.device)
        return start


def num_batches(spec: WorkerSpec, part: Part) -> int:
    """Batches of fixed size in a part."""
    return -(-count(spec, part) // spec.batch_size)


def with_deltas(
    updates: Sequence[ClientUpdate], deltas: Array, *, pooled: bool = False
) -> list[ClientUpdate]:
    """The updates of a call of :meth:`Worker.train` with their deltas, which stay views.

    With ``pooled``, :meth:`WorkerSpec.pools`, the one delta (1, D) is that of every update.
    """
    if pooled:
        deltas = np.broadcast_to(deltas, (len(updates), deltas.shape[1]))
    return [replace(u, delta=delta) for u, delta in zip(updates, deltas, strict=True)]


def _diverged(update: ClientUpdate, delta: Array, layout: Layout) -> str | None:
    """What is NaN or infinite: the first such array, and the training loss.

    Looked for here, where the arrays are in the cache.
    """
    bad = [f"upload {name}" for name, a in update.extras.items() if not np.isfinite(a).all()]
    bad += [f"own {name}" for name, a in update.state.items() if not np.isfinite(a).all()]
    bad += not_finite(delta, layout)
    found = [f"tensor {name}" for name in bad[:1]]
    if update.num_steps and not math.isfinite(update.train_loss):
        found.append("the training loss")
    return " and ".join(found) or None
