"""Plain PyTorch loops of federated averaging on one device: what it can do without a simulator.

Images are resident on the device, a round's sample numbers are sent at once, models are summed
where they were trained, and nothing is read back. Clients all have as many samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import models
from benchmarks.workloads import Workload
from fedsim.config.sections import TrainConfig
from fedsim.core.settings import Arithmetic
from fedsim.engine.devices import configure, torch_flags

LEAST, MOST = 3, 100
"""Calls that are timed."""


@contextmanager
def arithmetic(precision: Arithmetic, device: torch.device) -> Iterator[None]:
    """Deterministic kernels of a precision, as in fedsim; the flags are put back."""
    restore = torch_flags()
    configure(torch.get_num_threads(), precision, deterministic=True, device=device)
    try:
        yield
    finally:
        restore()


def autocast(precision: Arithmetic, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward passes."""
    on = precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=on, cache_enabled=False)


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The work as a CUDA graph, captured after three warm-up calls; on a CPU the work itself."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


def images(workload: Workload, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N, channels, side, side) normal numbers and (N,) labels, the first samples of client 0."""
    count = workload.clients * workload.samples
    generator = torch.Generator(device).manual_seed(0)
    shape = (count, workload.channels, workload.side, workload.side)
    x = torch.randn(shape, generator=generator, device=device)
    return x, torch.randint(workload.num_classes, (count,), generator=generator, device=device)


class Loop:
    """Clients one by one, with SGD: an eager loop, or one CUDA graph per step.

    Args:
        workload: the federation and its network.
        train: batch size, learning rate, momentum and weight decay; one local epoch.
        x, y: :func:`images` on the device.
        precision: of forward passes; flags are the caller's, see :func:`arithmetic`.
        graph: capture the step, which momentum excludes; the batch size divides the samples then.
    """

    def __init__(
        self,
        workload: Workload,
        train: TrainConfig,
        x: Tensor,
        y: Tensor,
        precision: Arithmetic = "float32",
        *,
        graph: bool = False,
    ) -> None:
        self.workload, self.sgd, self.x, self.y = workload, train, x, y
        self.device, self.precision = x.device, precision
        build: Callable[..., nn.Module] = getattr(models, workload.model)
        self.net = build(workload.num_classes, workload.channels, workload.side).to(self.device)
        if precision == "bf16":
            self.net.to(memory_format=torch.channels_last)
        floats = [b for b in self.net.buffers() if b.is_floating_point()]
        self.state = [t.detach() for t in (*self.net.parameters(), *floats)]
        self.world = [t.clone() for t in self.state]
        self.sum = [torch.zeros_like(t) for t in self.state]
        self.step: Callable[[Tensor], None] = self._step
        self.prepare(graph)

    def prepare(self, graph: bool) -> None:
        """Makes the optimiser, and captures the step."""
        sgd = self.sgd
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay, foreach=True
        )
        if graph:
            self.step = self.replayed(sgd.batch_size)

    def replayed(self, *shape: int) -> Callable[[Tensor], None]:
        """The step as a CUDA graph, for numbers of samples of this shape."""
        batch = torch.zeros(shape, dtype=torch.long, device=self.device)
        replay = captured(partial(self._step, batch), self.device)

        def step(numbers: Tensor) -> None:
            batch.copy_(numbers)
            replay()

        return step

    def round(self, t: int) -> None:
        """Round ``t``: ``cohort`` clients, whose mean is the next global model."""
        w, draws = self.workload, torch.Generator().manual_seed(t)
        clients = torch.randperm(w.clients, generator=draws)[: w.cohort]
        orders = torch.rand(w.cohort, w.samples, generator=draws).argsort(1)
        self.train((clients[:, None] * w.samples + orders).to(self.device))
        torch._foreach_copy_(self.world, self.sum)
        torch._foreach_div_(self.world, w.cohort)

    def train(self, numbers: Tensor) -> None:
        """Local epochs on the samples (m, n); ``sum`` is then that of the models."""
        torch._foreach_zero_(self.sum)
        for client in numbers:
            torch._foreach_copy_(self.state, self.world)
            self.optimizer.state.clear()
            for batch in client.split(self.sgd.batch_size):
                self.step(batch)
            torch._foreach_add_(self.sum, self.state)

    def _step(self, numbers: Tensor) -> None:
        x = self.x.index_select(0, numbers)
        if self.precision == "bf16":
            x = x.to(memory_format=torch.channels_last)
        with autocast(self.precision, self.device):
            loss = F.cross_entropy(self.net(x), self.y.index_select(0, numbers))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> Tensor:
        """(2,) mean loss and accuracy of the global model, in one batch, on the CPU."""
        torch._foreach_copy_(self.state, self.world)
        self.net.eval()
        with autocast(self.precision, self.device):
            logits = self.net(x).float()
        self.net.train()
        return torch.stack(
            [F.cross_entropy(logits, y), (logits.argmax(1) == y).float().mean()]
        ).cpu()


class StackedLoop(Loop):
    """The whole cohort as one model by ``torch.func.vmap``; plain SGD, and no buffers."""

    def prepare(self, graph: bool) -> None:
        """Makes the stacked parameters (m, ...), and captures the step of all clients."""
        m = self.workload.cohort
        self.names = [name for name, _ in self.net.named_parameters()]
        self.stack = [w.new_empty((m, *w.shape)) for w in self.world]
        self.grads = torch.func.vmap(torch.func.grad(self._loss), randomness="different")
        self._load()  # numbers, not what was in memory before, for the warm-up
        if graph:
            self.step = self.replayed(m, self.sgd.batch_size)

    def train(self, numbers: Tensor) -> None:
        """See :meth:`Loop.train`."""
        self._load()
        for batch in numbers.split(self.sgd.batch_size, 1):
            self.step(batch)
        for total, stacked in zip(self.sum, self.stack, strict=True):
            torch.sum(stacked, 0, out=total)

    def _load(self) -> None:
        for stacked, w in zip(self.stack, self.world, strict=True):
            stacked.copy_(w.expand_as(stacked))

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            logits = torch.func.functional_call(self.net, parameters, (x,))
        return F.cross_entropy(logits, y)

    def _step(self, numbers: Tensor) -> None:
        flat = numbers.flatten()
        x = self.x.index_select(0, flat).unflatten(0, numbers.shape)
        y = self.y.index_select(0, flat).unflatten(0, numbers.shape)
        gradients = self.grads(dict(zip(self.names, self.stack, strict=True)), x, y)
        torch._foreach_add_(self.stack, [gradients[n] for n in self.names], alpha=-self.sgd.lr)


def grouped(x: Tensor, weight: Tensor) -> Tensor:
    """(A, B, O, h, w): a convolution of A clients (A, B, I, H, W) as one with A groups.

    ``weight``: (A, O, I, k, k). This is what ``torch.func.vmap`` makes of a convolution.
    """
    a = len(x)
    together = x.transpose(0, 1).flatten(1, 2)
    out = F.conv2d(together, weight.flatten(0, 1), groups=a)
    return out.unflatten(1, (a, -1)).transpose(0, 1)


def unfolded(x: Tensor, weight: Tensor) -> Tensor:
    """The same as a product of matrices for each client, with the patches of its images."""
    a, b, _, height, width = x.shape
    k = weight.shape[-1]
    patches = F.unfold(x.flatten(0, 1), k).unflatten(0, (a, b))
    out = torch.einsum("aok,abkl->abol", weight.flatten(2), patches)
    return out.unflatten(3, (height - k + 1, width - k + 1))


def convolution(form: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> None:
    """One pass of a convolution forward and backward; ``x`` and ``weight`` need gradients."""
    out = form(x, weight)
    torch.autograd.grad(out, (x, weight), torch.ones_like(out))


def seconds_of(
    work: Callable[[int], object], device: torch.device, budget: float, warm: int = 2
) -> list[float]:
    """Seconds of the calls of ``work(0), work(1), ...`` after the warm ones.

    Args:
        work: is called with the number of the call.
        device: is waited for before the clock is read.
        budget: seconds after which no further call begins, but for the :data:`LEAST`.
        warm: first calls, which do not count.
    """
    for call in range(warm):
        work(call)
    end = _clock(device) + budget
    seconds: list[float] = []
    while len(seconds) < LEAST or (len(seconds) < MOST and time.perf_counter() < end):
        begun = _clock(device)
        work(warm + len(seconds))
        seconds.append(_clock(device) - begun)
    return seconds


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
