"""One copy of the data for several runs: large arrays are objects in Ray's store, shared by runs.

Each run's process reads its data itself. An actor, the register, knows which arrays are in the
object store already. It owns the objects, so that they outlive the process that sent them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.core.types import Array

if TYPE_CHECKING:
    from fedsim.engine.spec import WorkerSpec  # imports torch, which the actor does not need

SMALL = 1 << 20
"""Bytes below which an array is not shared, but sent with the rest."""
KEPT = 4
"""Number of arrays that are kept for later runs."""


class Register:
    """The objects of arrays by digest; the most recently used ones are kept."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    def find(self, digest: str) -> list[Any]:
        """The object in a list, which is empty where nobody has sent it."""
        if digest in self._objects:
            self._objects[digest] = self._objects.pop(digest)
        return [self._objects[digest]] if digest in self._objects else []

    def keep(self, digest: str, array: Array) -> list[Any]:
        """Puts the array into the object store, unless it is there; the object in a list."""
        if digest not in self._objects:
            self._objects[digest] = ray.put(array)
            for oldest in list(self._objects)[:-KEPT]:
                del self._objects[oldest]
        return self.find(digest)


def start_register() -> Any:
    """Starts the register, on the machine of this process."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=here)(Register).remote()


def end_register(register: Any) -> None:
    """Ends the register, if there is one; objects that are in use stay until they are not."""
    if register is not None:
        ray.kill(register)


def without_samples(spec: WorkerSpec, register: Any) -> WorkerSpec:
    """The spec to send, in which a reference to a shared object replaces large samples."""
    bare = spec.to_send()
    if bare.dataset.x.nbytes < SMALL:
        return bare
    try:
        samples = _object_of(bare.dataset.x, register)
    except RayError:  # the actor is gone; the run needs it no more than a run alone
        return bare
    return replace(bare, dataset=replace(bare.dataset, x=samples))


def _object_of(array: Array, register: Any) -> Any:
    from fedsim.engine.spec import array_sha256  # imports torch, which the register does not need

    digest = f"{array_sha256(array)} {array.shape} {array.dtype}"
    known = ray.get(register.find.remote(digest))
    return (known or ray.get(register.keep.remote(digest, array)))[0]


def with_samples(spec: WorkerSpec) -> WorkerSpec:
    """The inverse of :func:`without_samples`, on the node of an actor.

    Raises:
        RayError: the object was lost.
    """
    x: Any = spec.dataset.x
    if not isinstance(x, ray.ObjectRef):
        return spec
    return replace(spec, dataset=replace(spec.dataset, x=ray.get(x)))
