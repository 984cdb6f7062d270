"""The same work without a framework: plain PyTorch, in one process or several.

What a careful person would write for exactly this job: images normalised once and kept as float32,
the model's parameters as views of one flat vector, one optimiser (foreach), updates written into
one shared (m, D) matrix, the FedAvg mean as one matrix-vector product, and FedLD from the
eigenvectors of G G^T in float64.

Seeds are derived as fedsim derives them, so cohorts and orders of batches are the same, and so is
the result (tests/unit/test_benchmarks.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import multiprocessing as mp

from benchmarks import models
from fedsim.config.sections import TrainConfig
from fedsim.core.errors import ContractError, WorkerError
from fedsim.core.rng import torch_generator
from fedsim.core.types import Array, RoundContext
from fedsim.schedules.base import draw_cohort
from fedsim.training.setup import Setup

COLUMNS = 1 << 18
"""Columns of the updates that are converted to float64 together."""
MARGIN_WEIGHT, KEEP = 0.03, 0.8
"""FedLD's defaults: lambda of the margin control, share of the principal axes."""
PATIENCE = 600.0
"""Seconds after which a process gives up waiting for the others."""


@dataclass(frozen=True)
class Job:
    """The work as data for the processes.

    Args:
        method: ``fedavg`` or ``fedld``.
        model: a function of :mod:`benchmarks.models` and its three arguments.
        x: (N, channels, H, W) float32, normalised; y: (N,) labels.
        clients: (K, n) indices of the clients' samples.
        world: (D,) the global vector, shared by the processes.
        updates: (m, D) the round's updates, shared likewise.
        threads: torch threads of a process while clients are trained.
        server_threads: those of the server step.
    """

    method: str
    model: tuple[str, int, int, int]
    x: Tensor
    y: Tensor
    clients: Tensor
    world: Tensor
    updates: Tensor
    cohort: int
    seed: int
    train: TrainConfig
    threads: int
    server_threads: int


def job_of(setup: Setup, method: str, threads: int, server_threads: int) -> Job:
    """The job that does what a run of ``setup`` does; its clients all have as many samples."""
    data, pipeline = setup.dataset, setup.dataset.pipeline
    if pipeline is None:
        raise ContractError(f"the bare loop trains on images; {data.name} has {data.inputs}")
    channels = data.x.shape[1]
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (pipeline.mean, pipeline.std))
    x = torch.from_numpy(data.x).float().div_(255).sub_(mean).div_(std)
    name = setup.model.name.partition(":")[2]
    job = Job(
        method,
        (name, data.num_classes, channels, pipeline.size),
        x,
        torch.from_numpy(data.y),
        torch.from_numpy(np.stack(setup.partition.train)),
        torch.from_numpy(setup.initial.copy()),
        torch.empty(setup.cohort_size, setup.layout.size),
        setup.cohort_size,
        setup.config.seed,
        setup.config.train,
        threads,
        server_threads,
    )
    for tensor in (job.x, job.y, job.clients, job.world, job.updates):
        tensor.share_memory_()
    return job


class Bare:
    """Processes that work on a job, warm, and wait between calls of :meth:`rounds`."""

    def __init__(self, label: str, job: Job, processes: int) -> None:
        self.label = label
        self._job = job
        context = mp.get_context("spawn")
        self._barrier = context.Barrier(processes)  # kept: its semaphores go with it
        self._pipes, self._processes = [], []
        for rank in range(processes):
            here, there = context.Pipe()
            process = context.Process(
                target=_process, args=(rank, processes, job, there, self._barrier), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self.rounds(0, 0)  # returns when all of them are up

    def rounds(self, first: int, count: int) -> list[float]:
        """Runs the rounds ``first``, ``first + 1``, ...; the seconds of each.

        Raises:
            WorkerError: a process has ended.
        """
        try:
            for pipe in self._pipes:
                pipe.send((first, count))
            while not self._pipes[0].poll(1.0):
                if not all(process.is_alive() for process in self._processes):
                    raise EOFError
            seconds: list[float] = self._pipes[0].recv()
        except (EOFError, ConnectionError) as error:
            raise WorkerError(f"the bare loop ({self.label}): a process has ended") from error
        return seconds

    def world(self) -> Array:
        """(D,) a copy of the global vector."""
        return self._job.world.numpy().copy()

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            process.kill()


def _process(rank: int, processes: int, job: Job, pipe: Connection, barrier: Any) -> None:
    """Answers (first, count) with the seconds of the rounds until the other end closes."""
    torch.set_num_threads(job.threads)
    worker = _Client(job)
    while True:
        try:
            first, count = pipe.recv()
        except EOFError:
            return
        barrier.wait(PATIENCE)
        seconds = []
        for t in range(first, first + count):
            barrier.wait(PATIENCE)
            begun = time.perf_counter()
            ctx = RoundContext(
                round=t,
                num_rounds=t + 1,
                num_clients=len(job.clients),
                lr=job.train.lr,
                seed=job.seed,
            )
            cohort = draw_cohort(ctx, job.cohort)
            for row in range(rank, len(cohort), processes):
                worker.train(cohort[row], t, row)
            barrier.wait(PATIENCE)
            if rank == 0:
                worker.step()
            seconds.append(time.perf_counter() - begun)
        if rank == 0:
            pipe.send(seconds)


class _Client:
    """A model whose parameters and float buffers are views of ``flat``, and its optimiser."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.x, self.y, self.clients = job.x, job.y, job.clients
        self.world, self.updates = job.world, job.updates
        name, *sizes = job.model
        build: Callable[..., nn.Module] = getattr(models, name)
        self.model = build(*sizes)
        floats = [b for b in self.model.buffers() if b.is_floating_point()]
        tensors = [*self.model.parameters(), *floats]
        self.flat = torch.empty(len(self.world))
        for tensor, view in zip(
            tensors, self.flat.split([t.numel() for t in tensors]), strict=True
        ):
            tensor.data = view.view_as(tensor)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=job.train.lr,
            momentum=job.train.momentum,
            weight_decay=job.train.weight_decay,
            foreach=True,
        )
        self.shares = torch.full((job.cohort,), 1 / job.cohort, dtype=torch.float64)

    def train(self, client: int, t: int, row: int) -> None:
        """Local training of a client in round ``t``; its update becomes row ``row``."""
        self.flat.copy_(self.world)
        self.optimizer.state.clear()
        index = self.clients[client]
        order = torch_generator(self.job.seed, "shuffle", t, client)
        for _ in range(self.job.train.local_epochs):
            for batch in index[torch.randperm(len(index), generator=order)].split(
                self.job.train.batch_size
            ):
                logits = self.model(self.x[batch])
                loss = F.cross_entropy(logits, self.y[batch])
                if self.job.method == "fedld":
                    loss = loss + MARGIN_WEIGHT * torch.log1p(logits.square().sum(dim=1)).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
        torch.sub(self.flat, self.world, out=self.updates[row])

    def step(self) -> None:
        """The server step, on the threads of the server."""
        torch.set_num_threads(self.job.server_threads)
        c = self.shares if self.job.method == "fedavg" else principal(self.updates, self.shares)
        self.world += c.to(self.updates.dtype) @ self.updates
        torch.set_num_threads(self.job.threads)


def principal(updates: Tensor, shares: Tensor) -> Tensor:
    """(m,) the coefficients of FedLD's step for updates (m, D) and client weights (m,)."""
    m = len(updates)
    gram = torch.zeros(m, m, dtype=torch.float64)
    for block in updates.split(COLUMNS, dim=1):
        wide = block.double()
        gram += wide @ wide.T
    mu, axes = torch.linalg.eigh(gram)
    mu, axes = mu.flip(0), axes.flip(1)
    count = max(1, int(KEEP * m + 1e-9))
    mu, axes = mu[:count], axes[:, :count]
    a = (shares * gram.diagonal().sqrt()) @ axes.sign()
    return axes @ (mu / mu.norm() * a / mu.sqrt())
