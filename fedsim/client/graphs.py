"""Training steps on tensors that stay where they are: a GPU records one and replays it.

A client's step on a GPU takes the CPU longer to launch, kernel by kernel, than the GPU to compute.
So a step of one kind, of batches of one shape, is recorded as a CUDA graph, which launches the same
kernels on the same addresses for every client: the bits are the same. On a CPU a recorded step is
the Python code of the client with which it was recorded, called for all others.

Graphs share one pool of memory. That asks for graphs that run one after the other and none of which
reads what another one left there: all that a step reads or leaves lies in tensors from outside
(:meth:`Steps.tensor`, the model), and everything runs in one stream.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedsim.client.context import LocalEnv
from fedsim.client.optimizer import Optimizer, groups
from fedsim.client.probe import kept, other
from fedsim.core.errors import FedsimError, described
from fedsim.core.layout import FlatModel, Pristine
from fedsim.core.rng import draws, remembered
from fedsim.core.types import GIB

if TYPE_CHECKING:
    from fedsim.client.rule import LocalRule

Step = Callable[..., Tensor]
"""A step on the tensors of a batch; returns the cross-entropy, (), or (A,) of A clients."""

MOST = 512
"""Recorded steps of a worker, so that numbers which differ by client do not fill its memory."""


class Uncaptured(FedsimError):
    """A step cannot be recorded; the message says why."""


class Steps:
    """The recorded steps of a worker, and the tensors that they are made of.

    Args:
        flat: the worker's model.

    ``uncaptured`` says why steps run one kernel after the other, by the name of the rule that
    declares it, or of the model with which it was found.
    """

    def __init__(self, flat: FlatModel) -> None:
        self.flat = flat
        self.uncaptured: dict[str, str] = {}
        cuda = flat.flat.is_cuda
        self._device = flat.flat.device
        self._graphs = _Graphs(self._device) if cuda else None
        self._tensors: dict[Hashable, Tensor] = {}
        self._optimizers: dict[Hashable, Optimizer] = {}
        self._kept: dict[int, object] = {}
        self._refused: set[Hashable] = set()
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded] = {}

    def tensor(self, name: Hashable, like: Tensor) -> Tensor:
        """The tensor of this name, with the values of ``like``; one for each shape."""
        key = name, like.shape, _strides(like), like.dtype, like.device
        if key not in self._tensors:
            self._tensors[key] = torch.empty_like(like, requires_grad=False)
        with torch.no_grad():
            return self._tensors[key].copy_(like)

    def fixed(self, rule: LocalRule, env: LocalEnv, state: Any) -> Fixed | None:
        """A client's steps, or a block's, on fixed tensors; None where they may not be recorded.

        Args:
            rule: the client part of the method.
            env: of the client, or of any of the block.
            state: what ``begin`` returned.
        """
        for each in (rule, env.criterion):
            self._kept[id(each)] = each  # so that the number stays its own
        work = id(rule), id(env.criterion), env.training
        if work in self._refused:
            return None
        leaves, spec = tree_flatten(state)
        others = [v for v in leaves if not isinstance(v, Tensor | bool | int | float | str | None)]
        why = rule.capturable
        if env.training.private is not None:
            why = "steps of DP-SGD draw on the CPU"
        elif others:
            why = f"begin returns a {type(others[0]).__name__}, which is no tensor"
        if why is not True:
            self.refuse(work, type(rule).__name__, str(why))
            return None
        rest = [v.shape if isinstance(v, Tensor) else (type(v), v) for v in leaves]
        leaves = [
            self.tensor(("state", i), v) if isinstance(v, Tensor) else v
            for i, v in enumerate(leaves)
        ]
        key = work, str(spec), tuple(rest)
        return Fixed(self, key, tree_unflatten(leaves, spec))

    def refuse(self, work: Hashable, name: str, why: str) -> None:
        """Steps of this work are not recorded any more."""
        self._refused.add(work)
        self.uncaptured[name] = why

    def optimizer(self, env: LocalEnv, lr: float) -> Optimizer:
        """That of a phase, as new."""
        slots = env.slots()
        rates = [rate for _, rate in groups(env.training, slots, lr)]
        key = env.training, tuple(slot.name for slot in slots), len(rates)
        if key not in self._optimizers:
            self._optimizers[key] = Optimizer(env.training, slots, lr, env.params)
        self._optimizers[key].restart(rates)
        return self._optimizers[key]

    def run(
        self,
        key: tuple[Any, ...],
        step: Step,
        batch: Sequence[Tensor],
        written: Sequence[Tensor],
        optimizer: Optimizer | None,
    ) -> Tensor:
        """See :meth:`Fixed.run`; ``key`` begins with the kind of work."""
        shapes = tuple((v.shape, _strides(v), v.dtype) for v in batch)
        whole = *key, shapes, None if optimizer is None else optimizer.begun
        work = key[0]
        # what comes once is not worth it
        if whole not in self._recorded and (whole not in self._seen or work in self._refused):
            self._seen.add(whole)
            return step(*batch).clone()
        inputs = [self._input(i, v, work[2].batch_size) for i, v in enumerate(batch)]
        if whole not in self._recorded:
            self._record(whole, step, inputs, written, optimizer)
        recorded = self._recorded.get(whole)
        if recorded is None:
            return step(*inputs).clone()
        recorded.replay()
        if optimizer is not None:
            optimizer.begun = recorded.begun
            self.flat.changing()
        return recorded.loss.clone()

    def _input(self, i: int, value: Tensor, most: int) -> Tensor:
        """The value in the first rows of a tensor for batches of ``most`` samples."""
        rows, strides = max(most, len(value)), _strides(value)
        key = "batch", i, rows, value.shape[1:], strides, value.dtype
        if key not in self._tensors:
            self._tensors[key] = torch.empty_strided(
                (rows, *value.shape[1:]), strides, dtype=value.dtype, device=value.device
            )
        with torch.no_grad():
            return self._tensors[key][: len(value)].copy_(value)

    def _record(
        self,
        key: tuple[Any, ...],
        step: Step,
        inputs: list[Tensor],
        written: Sequence[Tensor],
        optimizer: Optimizer | None,
    ) -> None:
        try:
            if len(self._recorded) >= MOST:
                raise Uncaptured(f"there are more than {MOST} kinds of steps")
            written = [*inputs, *written]
            self._recorded[key] = self._tried(step, written, inputs, optimizer)
        except (RuntimeError, Uncaptured) as error:
            if self._graphs is not None:
                torch.cuda.synchronize(self._device)
            why = str(error) if isinstance(error, Uncaptured) else described(error)
            self.refuse(key[0], type(self.flat.model).__name__, why)

    def _tried(
        self, step: Step, written: list[Tensor], inputs: list[Tensor], optimizer: Optimizer | None
    ) -> _Recorded:
        """The recorded step, whose first replay gave the bits of a usual one; leaves no trace.

        Raises:
            Uncaptured: it gave others, or the step does what a replay does not repeat.
            RuntimeError: torch cannot record it.
        """
        flat, graphs = self.flat, self._graphs
        model, begun = None, frozenset[int]()
        if optimizer is not None:
            written, begun = [*written, flat.flat, *optimizer.tensors], optimizer.begun
            model = Pristine(flat.model, [*flat.model.parameters(), *flat.tensors.values()])
        before, generators = [v.detach().clone() for v in written], remembered(self._device)

        def restore() -> None:
            generators()
            for _, p in flat.params:
                p.grad = None
            if optimizer is not None and model is not None:
                model.restore()
                optimizer.begun = begun
            for v, value in zip(written, before, strict=True):
                v.detach().copy_(value)

        def body() -> None:
            loss.copy_(step(*inputs))

        try:
            with nullcontext() if graphs is None else graphs.stream():
                with (
                    _repeatable(flat.model, attributes=model is not None, gpu=graphs is not None),
                    nullcontext() if graphs is None else graphs.checked_room(),
                ):
                    loss = step(*inputs).clone()
                after = frozenset[int]() if optimizer is None else optimizer.begun
                restore()
                with nullcontext() if graphs is None else graphs.strict():
                    body()
                usual = [v.detach().clone() for v in (*written, loss)]
                restore()
                replay = body if graphs is None else graphs.captured(body)
            restore()
            replay()
            repeats = graphs is None or torch.are_deterministic_algorithms_enabled()
            if repeats and not all(map(_same, usual, (*written, loss))):
                raise Uncaptured("a replayed step has other bits than one launched as usual")
        finally:
            restore()
        return _Recorded(replay, loss, after)


@dataclass(frozen=True)
class Fixed:
    """The steps of a client or block: ``state`` is the rule's, with tensors that stay in place.

    Args:
        steps: of the worker.
        key: the kind of work, and what the state is beside its tensors.
        state: what ``begin`` returned.
    """

    steps: Steps
    key: tuple[Hashable, ...]
    state: Any

    def run(
        self,
        step: Step,
        key: tuple[Hashable, ...],
        written: Sequence[Tensor],
        optimizer: Optimizer | None,
        *batch: Tensor,
    ) -> Tensor:
        """Does a step, by a recorded one where there is one; what it returns is the caller's own.

        Args:
            step: made of fixed tensors.
            key: all that decides what the step launches, beside the shapes of ``batch``.
            written: what it changes beside the state.
            optimizer: of a client alone, whose step also changes it and the model.
            batch: copied to fixed tensors, with which the step is called.
        """
        tensors = [v for v in tree_flatten(self.state)[0] if isinstance(v, Tensor)]
        written = [*tensors, *written]
        return self.steps.run((*self.key, *key), step, batch, written, optimizer)

    def released(self) -> Any:
        """The state as the steps left it, in memory of its own."""
        return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, self.state)


@dataclass(frozen=True)
class _Recorded:
    replay: Callable[[], None]
    loss: Tensor
    begun: frozenset[int]


class _Graphs:
    """CUDA graphs of one pool and one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)
        with warnings.catch_warnings():  # torch says once per process that it is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode(torch.cuda.get_sync_debug_mode())

    @contextmanager
    def checked_room(self) -> Iterator[None]:
        """Refuses to record the step inside if that leaves less for steps that are not recorded.

        Raises:
            Uncaptured: the process's share of the GPU does not hold both.
        """
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        yield
        size = torch.cuda.max_memory_allocated(self._device) - before
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        share = total * torch.cuda.get_per_process_memory_fraction(self._device) - reserved
        left = min(free, share) + reserved - torch.cuda.memory_allocated(self._device)
        if left < 2 * size:
            raise Uncaptured(
                f"a recorded step keeps {size / GIB:.2g} GiB beside those that are not recorded, "
                f"and {left / GIB:.2g} GiB are left of this process's share"
            )

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Inside, work is launched where graphs are recorded."""
        usual = torch.cuda.current_stream()
        self._side.wait_stream(usual)
        try:
            with torch.cuda.stream(self._side):
                yield
        finally:
            usual.wait_stream(self._side)

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Inside, whatever waits for the GPU raises a RuntimeError: what no graph can hold.

        A recording that fails midway could leave generators and allocator in the middle of one.
        """
        mode = torch.cuda.get_sync_debug_mode()
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def captured(self, body: Callable[[], None]) -> Callable[[], None]:
        """Records what ``body`` launches, which does not run; the result launches it."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._side,
                capture_error_mode="thread_local",  # others may free memory meanwhile
            ):
                body()
        except BaseException:
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return graph.replay


@contextmanager
def _repeatable(model: nn.Module, *, attributes: bool, gpu: bool) -> Iterator[None]:
    """Refuses a step inside that does what a replay does not repeat.

    Args:
        model: whose buffers must stay in their places.
        attributes: whether what else its modules keep is looked at, too.
        gpu: whether torch's generator of the CPU is one that a replay does not reach.

    Raises:
        Uncaptured: says what the step does.
    """
    memory, drawn = kept(model) if attributes else {}, draws()
    buffers = dict(model.named_buffers())
    generator = torch.default_generator.get_state()
    yield
    if attributes and (name := other(memory, kept(model))) is not None:
        raise Uncaptured(f"forward keeps something in {name} that is no tensor")
    for name, buffer in model.named_buffers():
        if buffers.get(name) is not buffer:
            raise Uncaptured(f"forward puts another tensor in the place of {name}")
    if gpu and not torch.equal(generator, torch.default_generator.get_state()):
        raise Uncaptured("a step draws from torch's generator of the CPU")
    if draws() != drawn:
        raise Uncaptured("a step draws from Python's or NumPy's generator")


def _strides(value: Tensor) -> tuple[int, ...]:
    """Those of a tensor of this shape and memory format, closed up where the values have gaps."""
    return torch.empty_like(value, device="meta").stride()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    return torch.equal(a.flatten().view(torch.uint8), b.detach().flatten().view(torch.uint8))
