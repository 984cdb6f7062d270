"""Compression of what clients send, with error feedback: section ``compress``.

Of a client's update the d parameters that are sent are compressed: not those that stay on the
client (personal slots), which are zero and cost nothing, and not running statistics of BatchNorm,
which are sent as they are (4 bytes each), since a rounded variance may be negative. What a method
sends beside its update (control variates, prototypes) is not compressed either.

Bytes are those of a message without a header: 4 for each floating-point number, indices, signs and
levels packed with the fewest whole bits that tell them apart, rounded up to a byte once. Shapes,
and what is drawn from (seed, round, client), the server knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from fedsim.client.transform import Coded
from fedsim.core.rng import generator
from fedsim.core.types import Array, ClientTask, Layout, RoundContext, Slot, Vector, Vectors

Feedback = Literal["none", "ef14", "ef21"]
FLOAT_BYTES = 4


class Message(NamedTuple):
    """A vector (d,) float32 as the server decodes it, of so many ``floats`` and other ``bits``;
    ``memory`` is what the compressor keeps for its next message."""

    vector: Vector
    floats: int
    bits: int = 0
    memory: Vector | None = None

    @property
    def bytes(self) -> int:
        """Size of the message."""
        return FLOAT_BYTES * self.floats + -(-self.bits // 8)


class Operator(Protocol):
    """A compression operator C.

    One with a method ``resume(shapes, memory)`` is replaced by what that returns for tensors of
    these shapes, with the memory of the last message.
    """

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        """C(x) of x (d,), whose tensors are given; random numbers are from ``draw``."""


@dataclass(frozen=True)
class Compressor:
    """What ``build`` returns: C, and what becomes of its error.

    A biased C needs error feedback to converge in general.
    """

    operator: Operator
    feedback: Feedback = "none"


def entries(fraction: float, k: int | None, d: int) -> int:
    """How many of d entries are sent: k, else max(1, floor(fraction d))."""
    return min(d, max(1, math.floor(fraction * d + 1e-9)) if k is None else k)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """A client transform: what a client sends is compressed.

    ``ef14`` (Seide et al., 2014; Karimireddy et al., 2019, arXiv:1901.09847, Algorithm 2): a client
    sends C(p), ``p = delta + e``, and keeps ``e <- p - C(p)`` for its next participation.

    ``ef21`` (Richtarik et al., NeurIPS 2021, arXiv:2106.05203): client and server both keep h, at
    first 0; the client sends ``C(delta - h)``, and both set ``h <- h + C(delta - h)``, which is the
    update that the server combines; the paper's server combines the h of all clients, here it is
    those of the cohort. Slots that are ``personal`` stay on the client.
    """

    compressor: Compressor
    personal: Callable[[Slot], bool]
    name: ClassVar[str] = "compress"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Keeps (d,) ``residual``, e of ef14, or ``h`` of ef21; and ``memory`` of the operator."""
        shared = [slot for slot in layout.slots if not self.personal(slot)]
        slots = [slot for slot in shared if slot.role == "param"]
        statistics = sum(slot.stop - slot.start for slot in shared if slot.role == "stat")
        tensors, feedback = _ranges(slots), self.compressor.feedback
        x = np.concatenate([delta[slot.where] for slot in slots])
        draw = generator(task.ctx.seed, self.name, task.key, task.client)
        kept: dict[str, Array] = {}
        compress = self.compressor.operator
        if resume := getattr(compress, "resume", None):
            compress = resume([slot.shape for slot in slots], state.get("memory"))
        if feedback == "ef21":
            h = state.get("h", np.zeros_like(x))
            message = compress(x - h, tensors, draw)
            decoded = kept["h"] = h + message.vector
        else:
            if feedback == "ef14":
                x += state.get("residual", np.float32(0))
            message = compress(x, tensors, draw)
            decoded = message.vector
            if feedback == "ef14":
                kept["residual"] = x - decoded
        if message.memory is not None:
            kept["memory"] = message.memory
        sent: Array = delta.copy()
        for slot, part in zip(slots, tensors, strict=True):
            sent[slot.where] = decoded[part]
        return Coded(sent, kept, message.bytes + FLOAT_BYTES * statistics)

    def size(self, layout: Layout) -> int:
        """Bytes of a client's update; they follow from the model alone, not from its values."""
        ctx = RoundContext(round=0, num_rounds=1, num_clients=1, lr=0.0, seed=0)
        nothing = np.zeros(layout.size, np.float32)
        return self(nothing, {}, ClientTask(client=0, ctx=ctx), layout).wire_bytes or 0


def _ranges(slots: Sequence[Slot]) -> list[slice]:
    """Where the tensors stand in the vector of all of them."""
    ends = np.cumsum([slot.stop - slot.start for slot in slots]).tolist()
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
