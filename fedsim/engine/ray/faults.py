"""What can go wrong on Ray: which failures lose work that can be done again, and which are final.

Actors are never restarted by Ray (``max_restarts=0``): there is one way in which lost work is
done again, the driver's, whatever was lost.
"""

from dataclasses import dataclass
from typing import Any

import ray
from ray import exceptions as e

from fedsim.core.errors import FedsimError, WorkerError

LOST: tuple[tuple[type[e.RayError], str], ...] = (
    (e.ActorUnavailableError, "its process cannot be reached"),
    (e.RayActorError, "its process died"),
    (e.WorkerCrashedError, "its process crashed"),
    (e.OutOfMemoryError, "killed because its node ran out of memory"),
    (e.NodeDiedError, "its node died"),
    (e.ObjectLostError, "an object was lost"),
    (e.ObjectStoreFullError, "the object store is full"),
    (e.OutOfDiskError, "the disk for spilled objects is full"),
)
"""Failures that doing the work again can cure, as others of Ray can, in words."""

FINAL: tuple[tuple[type[e.RayError], str], ...] = (
    (e.RuntimeEnvSetupError, "the environment of the actors cannot be set up"),
    (e.ActorUnschedulableError, "no node can ever hold such an actor"),
    (e.LocalRayletDiedError, "Ray died on this machine"),
    (e.AuthenticationError, "the cluster does not accept this driver's token"),
)
"""Failures that would come again."""

FATAL_CUDA_ERRORS = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")
"""Text of exceptions after which a process cannot use its GPU any more."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failed call.

    Args:
        error: in one line.
        lost: whether doing the work again can cure it.
        objects: whether what was sent may be gone too and must be sent anew.
        alive: whether the actor itself can go on.
        hung: whether its process no longer listens.
        final: whether the run cannot go on, even without the client.
        raised: the error of fedsim that the client's code raised on purpose, if any.
    """

    error: str
    lost: bool
    objects: bool = False
    alive: bool = False
    hung: bool = False
    final: bool = False
    raised: FedsimError | None = None


def fault_of(error: e.RayError) -> Fault:
    """What a failed ``ray.get`` means."""
    if isinstance(error, e.RayTaskError):
        cause = error.cause
        usable = not any(text in str(cause) for text in FATAL_CUDA_ERRORS)
        if isinstance(cause, FedsimError):
            return Fault(error=str(cause), lost=False, alive=usable, raised=cause)
        if isinstance(cause, e.RayError):  # an argument of the call was lost
            fault = fault_of(cause)
            return Fault(error=fault.error, lost=fault.lost, objects=True, alive=True)
        return Fault(error=one_line(cause), lost=False, alive=usable)
    text = one_line(error)
    if "creation task" in text:  # its class cannot be imported there, say
        return Fault(error=f"a client actor cannot be created ({text})", lost=False, final=True)
    for kind, words in FINAL:
        if isinstance(error, kind):
            return Fault(error=f"{words} ({text})", lost=False, final=True)
    words = next((w for kind, w in LOST if isinstance(error, kind)), "its work was lost")
    gone = isinstance(error, e.ObjectLostError)
    return Fault(error=f"{words} ({text})", lost=True, objects=gone)


def put(value: Any) -> Any:
    """The value as an object.

    Raises:
        WorkerError: Ray cannot take it.
    """
    try:
        return ray.put(value)
    except e.RayError as error:
        raise failure("sending to the client actors failed", fault_of(error)) from error


def one_line(error: BaseException, most: int = 400) -> str:
    """``Type: text`` with blanks for line ends, cut where Ray writes an essay."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= most else f"{text[:most]} ..."


def failure(doing: str, fault: Fault) -> FedsimError:
    """The error that ends a run; what the client's code raised on purpose passes as it is."""
    return fault.raised or WorkerError(f"{doing}: {fault.error}")
