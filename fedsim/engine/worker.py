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
from fedsim.client import LocalEnv
from fedsim.client.trainer import train_local
from fedsim.core.errors import DataError, FedsimError, WorkerError
from fedsim.core.layout import FlatModel, as_tensor, not_finite, select, subtract
from fedsim.core.rng import seed_for, seed_torch, torch_scope
from fedsim.core.types import (
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
from fedsim.metrics.outputs import Outputs, token_scores
from fedsim.metrics.scores import joined
from fedsim.metrics.splits import count, indices, name
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

    def to_send(self) -> WorkerSpec:
        """What has to travel: without names, and without the images where nodes read them."""
        bare = replace(self.dataset, patient=None, patient_names=(), files=())
        if self.local_images is not None:
            bare = replace(bare, x=bare.x[:0])
        return replace(self, dataset=bare)


def array_sha256(array: Array) -> str:
    """The SHA-256 of an array's bytes, in hex."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


class Worker:
    """A model on a device and the data; keeps nothing between tasks that could change a result.

    Args:
        gpu_fraction: of the GPU that is its own, for what is suggested where memory runs out.

    ``progress`` is the client being trained (None in an evaluation) and when that began; None
    between tasks.
    """

    def __init__(self, spec: WorkerSpec, device: torch.device, gpu_fraction: float = 1.0) -> None:
        devices.configure(spec.threads, spec.fast, device)
        self.spec = spec
        self.device = device
        self.gpu_fraction = gpu_fraction
        shape = replace(spec.model, pretrained=False, weights=None)
        self.flat = FlatModel(models.build(shape, spec.seed, spec.algorithm.adapt), device)
        personal = select(self.flat.layout, spec.algorithm.personal)
        self.personal = torch.from_numpy(np.flatnonzero(personal)).to(device)
        self.precision, layout = devices.precision(spec.fast, device)
        self.transforms = transforms(spec.dataset.pipeline, device, layout)
        images = spec.dataset.x if spec.local_images is None else spec.local_images()
        self.images = as_tensor(images)
        self.labels = as_tensor(spec.dataset.y)
        # many models in a row see the same part, whose draw can take longer than their passes
        self.indices = lru_cache(maxsize=2)(partial(indices, spec))
        self.mean_size = fmean(map(len, spec.partition.train))
        self.progress: tuple[int | None, float] | None = None

    def train(
        self,
        clients: Sequence[int],
        params: Vector,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
    ) -> tuple[list[ClientUpdate], Array]:
        """Trains the clients one after the other: their updates, and beside them the deltas (k, D).

        The other arguments, such as ``params`` (D,), are those of
        :class:`~fedsim.engine.base.Executor`. A probe leaves the model as it is; its deltas are
        (k, 0).

        Raises:
            WorkerError: a client's work failed; the message names round and client.
        """
        size = 0 if ctx.probe else self.flat.layout.size
        deltas = np.empty((len(clients), size), dtype=np.float32)
        common = as_tensor(params).to(self.device)
        updates = []
        with torch_scope(ctx.seed, self.device):
            for client, row in zip(clients, deltas, strict=True):
                with self._named(f"round {ctx.round + 1}, client {client}", client):
                    own = states.get(client, {})
                    updates.append(self._train(client, common, downlink, own, ctx, row))
        return updates, deltas

    def _train(
        self,
        client: int,
        params: Tensor,
        downlink: Vectors,
        state: Vectors,
        ctx: RoundContext,
        delta: Array,
    ) -> ClientUpdate:
        index = torch.from_numpy(self.spec.partition.train[client])
        # a probe is done as a whole
        part = None if ctx.probe else self.spec.clock.participation(ctx.round, client, len(index))
        start = self._load(params, state)
        env = LocalEnv(
            flat=self.flat,
            start=start,
            x=self.images.index_select(0, index).to(self.device),
            y=self.labels.index_select(0, index).to(self.device),
            train=self.transforms.train,
            test=self.transforms.test,
            criterion=self.spec.algorithm.criterion,
            num_classes=self.spec.dataset.num_classes,
            training=self.spec.training,
            ctx=ctx,
            client_id=client,
            downlink=downlink,
            state=state,
            precision=self.precision,
            relative_size=len(index) / self.mean_size,
            max_steps=part.max_steps if part else None,
        )
        seed_torch(seed_for(ctx.seed, "client", ctx.round, client), self.device)
        algorithm = self.spec.algorithm
        rule = algorithm.probe.local if ctx.probe and algorithm.probe else algorithm.local
        update = train_local(rule, env)
        if ctx.probe:
            update = replace(update, state={})
            bad = _diverged(update, delta, self.flat.layout)
            return replace(update, num_steps=0, diverged=bad)
        state = dict(update.state)
        if len(self.personal):
            state["personal"] = self.flat.flat[self.personal].cpu().numpy()
            self.flat.flat[self.personal] = start[self.personal]  # so that their delta is zero
        subtract(self.flat.flat, start, torch.from_numpy(delta))
        update = replace(update, state=state)
        return replace(update, diverged=_diverged(update, delta, self.flat.layout))

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
    def _named(self, what: str, client: int | None = None) -> Iterator[None]:
        """Shows the work in ``progress``; turns an exception into a WorkerError that names it."""
        self.progress = client, time.monotonic()
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
        if "personal" in state:
            start = start.clone()
            start[self.personal] = as_tensor(state["personal"]).to(self.device)
        self.flat.load(start)
        return start


def num_batches(spec: WorkerSpec, part: Part) -> int:
    """Batches of fixed size in a part."""
    return -(-count(spec, part) // spec.batch_size)


def with_deltas(updates: Sequence[ClientUpdate], deltas: Array) -> list[ClientUpdate]:
    """The updates of a call of :meth:`Worker.train` with their deltas, which stay views."""
    return [replace(u, delta=delta) for u, delta in zip(updates, deltas, strict=True)]


def _diverged(update: ClientUpdate, delta: Array, layout: Layout) -> str | None:
    """What is NaN or infinite: the first such array, and the training loss.

    Looked for here, where the arrays are in the cache.
    """
    arrays = {f"upload {name}": a for name, a in update.extras.items()}
    arrays |= {f"own {name}": a for name, a in update.state.items()}
    bad = [name for name, a in arrays.items() if not np.isfinite(a).all()]
    bad += not_finite(delta, layout)
    found = [f"tensor {name}" for name in bad[:1]]
    if update.num_steps and not math.isfinite(update.train_loss):
        found.append("the training loss")
    return " and ".join(found) or None
