"""What may stand between a client's training and its upload: compression, noise, an attack.

A transform changes the update where the client is, alike for a client alone and in a block. The
first runs right after training, the next on what the one before made of it.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedsim.core.types import ClientTask, Layout, Vector, Vectors


class Coded(NamedTuple):
    """An update as the server receives it.

    Args:
        delta: (D,) float32.
        state: what the client keeps for the transform's next call.
        wire_bytes: of the delta in a message; None: as before the transform.
    """

    delta: Vector
    state: Vectors = MappingProxyType({})
    wire_bytes: int | None = None


class ClientTransform(Protocol):
    """Changes a trained client's update before it is sent.

    ``name`` is the prefix of its entries in the client's state, ``<name>.<key>``, which the
    method's rule does not see. Random numbers come from ``generator(seed, name, task.key,
    task.client)``.
    """

    name: ClassVar[str]

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """The update that is sent.

        Args:
            delta: (D,) local - global, finite; must not be written to. Running statistics are
                changed only by a transform that is about them.
            state: what the transform kept at the client's last participation, or {}.
            task: the client's work.
            layout: of the vector.
        """


class SampleTransform(Protocol):
    """Changes the samples that a client trains on."""

    @property
    def changes_x(self) -> bool:
        """Whether more than labels change."""

    def __call__(self, x: Tensor, y: Tensor, task: ClientTask) -> tuple[Tensor, Tensor]:
        """What takes the place of samples (n, ...) and labels, which must not be written to."""


def own_entries(state: Vectors, name: str) -> Vectors:
    """The entries of a transform in a client's state, by its own keys."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): a for key, a in state.items() if key.startswith(prefix)}


def without_entries(state: Vectors, transforms: Sequence[ClientTransform]) -> Vectors:
    """A client's state as its rule sees it: without the transforms' entries."""
    if not transforms:
        return state
    prefixes = tuple(f"{transform.name}." for transform in transforms)
    return {key: array for key, array in state.items() if not key.startswith(prefixes)}
