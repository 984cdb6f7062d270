"""The work of one process: a model, the data, and the tasks of clients. Plain Python, no Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedsim import models
from fedsim.contracts import (
    Array,
    Dataset,
    ModelSpec,
    Partition,
    RoundContext,
    Scores,
    Training,
    Vector,
    Vectors,
)
from fedsim.data.transforms import Transforms
from fedsim.errors import FedsimError, WorkerError
from fedsim.local import LocalEnv, train_local
from fedsim.metrics import score
from fedsim.plugin import Algorithm
from fedsim.rng import seed_for, torch_scope
from fedsim.vectors import FlatModel, as_tensor, select


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker is made of; travels once per node.

    Args:
        seed: of the run, for the start weights.
        threads: torch threads on the CPU; part of the result's bits.
        batch_size: images per forward pass of an evaluation.
        fast: TF32 and autotuned kernels, whose bits may differ between runs.
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


@dataclass(frozen=True)
class Report:
    """The small part of a client's result; extras and state travel as arrays beside it."""

    client_id: int
    num_samples: int
    num_steps: int
    train_loss: float
    extras: Vectors = field(default_factory=dict)
    state: Vectors = field(default_factory=dict)


class Worker:
    """A model on a device and the data; keeps nothing between tasks that could change a result."""

    def __init__(self, spec: WorkerSpec, device: torch.device) -> None:
        _configure(spec, device)
        self.spec = spec
        self.device = device
        shape = replace(spec.model, pretrained=False, weights=None)
        self.flat = FlatModel(models.build(shape, spec.seed), device)
        personal = select(self.flat.layout, spec.algorithm.personal)
        self.personal = torch.from_numpy(np.flatnonzero(personal)).to(device)
        self.transforms = Transforms(spec.dataset.pipeline, device)
        self.images = as_tensor(spec.dataset.x)
        self.labels = as_tensor(spec.dataset.y)

    def train(
        self,
        clients: Sequence[int],
        params: Vector,
        downlink: Vectors,
        states: Mapping[int, Vectors],
        ctx: RoundContext,
    ) -> tuple[list[Report], Array]:
        """Trains the clients one after the other: their reports, and their deltas (k, D)."""
        deltas = np.empty((len(clients), self.flat.layout.size), dtype=np.float32)
        reports = []
        for client, row in zip(clients, deltas, strict=True):
            with named(f"round {ctx.round + 1}, client {client}"):
                own = states.get(client, {})
                reports.append(self._train(client, params, downlink, own, ctx, row))
        return reports, deltas

    def _train(
        self,
        client: int,
        params: Vector,
        downlink: Vectors,
        state: Vectors,
        ctx: RoundContext,
        delta: Array,
    ) -> Report:
        index = torch.from_numpy(self.spec.partition.train[client])
        start = self._load(params, state)
        env = LocalEnv(
            flat=self.flat,
            start=start,
            x=self.images[index].to(self.device),
            y=self.labels[index].to(self.device),
            train=self.transforms.train,
            test=self.transforms.test,
            criterion=self.spec.algorithm.criterion,
            num_classes=self.spec.dataset.num_classes,
            training=self.spec.training,
            ctx=ctx,
            client_id=client,
            downlink=downlink,
            state=state,
        )
        with torch_scope(seed_for(ctx.seed, "client", ctx.round, client), self.device):
            trained = train_local(self.spec.algorithm.local, env)
        kept = dict(trained.uplink.state)
        with torch.no_grad():
            if len(self.personal):
                kept["personal"] = self.flat.flat[self.personal].cpu().numpy()
            self.flat.flat.sub_(start)
            self.flat.flat[self.personal] = 0.0
            torch.from_numpy(delta).copy_(self.flat.flat)
        return Report(
            client, len(index), trained.num_steps, trained.train_loss, trained.uplink.extras, kept
        )

    def logits(self, params: Vector, state: Vectors, part: str, start: int, stop: int) -> Array:
        """(n, C) float32 logits for the batches start..stop of a common part."""
        with named(f"evaluation on the {part} part"), torch.no_grad():
            return self._logits(params, state, part, start, stop)

    def _logits(self, params: Vector, state: Vectors, part: str, start: int, stop: int) -> Array:
        self._load(params, state)
        self.flat.model.eval()
        size = self.spec.batch_size
        index = torch.from_numpy(getattr(self.spec.dataset, part)[start * size : stop * size])
        outputs = [
            self.flat.model(self.transforms.test(self.images[batch].to(self.device)))
            for batch in index.split(size)
        ]
        return torch.cat(outputs).float().cpu().numpy()

    def scores(self, params: Vector, state: Vectors, part: str) -> Scores:
        """The scores of one model on a whole common part."""
        logits = self.logits(params, state, part, 0, num_batches(self.spec, part))
        return score_part(logits, self.spec, part)

    def _load(self, params: Vector, state: Vectors) -> torch.Tensor:
        """Loads the global vector with the client's own slots; returns what was loaded (D,)."""
        start = as_tensor(params).to(self.device)
        if "personal" in state:
            start = start.clone()
            start[self.personal] = as_tensor(state["personal"]).to(self.device)
        self.flat.load(start)
        return start


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turns an exception into a WorkerError that says what was going on.

    Raises:
        WorkerError: from the exception; errors of fedsim pass as they are.
    """
    try:
        yield
    except FedsimError:
        raise
    except Exception as error:
        raise WorkerError(f"{what}: {type(error).__name__}: {error}") from error


def num_batches(spec: WorkerSpec, part: str) -> int:
    """Batches of fixed size in a common part."""
    return -(-len(getattr(spec.dataset, part)) // spec.batch_size)


def score_part(logits: Array, spec: WorkerSpec, part: str) -> Scores:
    """The scores of the logits (N, C) of a whole common part."""
    return score(logits, spec.dataset.y[getattr(spec.dataset, part)])


def _configure(spec: WorkerSpec, device: torch.device) -> None:
    """Fixes what changes bits: threads on the CPU; TF32, autotuning and atomics on a GPU."""
    torch.set_num_threads(spec.threads)
    if device.type == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cuda.matmul.allow_tf32 = spec.fast
        torch.backends.cudnn.allow_tf32 = spec.fast
        torch.backends.cudnn.benchmark = spec.fast
        torch.use_deterministic_algorithms(not spec.fast, warn_only=True)


def torch_flags() -> Callable[[], None]:
    """Remembers what a worker changes in this process; the result restores it."""
    threads = torch.get_num_threads()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()

    def restore() -> None:
        torch.set_num_threads(threads)
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)

    return restore
