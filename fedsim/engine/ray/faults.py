"""What can go wrong on Ray: which failures lose work that can be done again, and which are final.

Actors are never restarted by Ray (``max_restarts=0``): there is one way in which lost work is
done again, the driver's, whatever was lost.
"""

from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import exceptions as e

from fedsim.core.errors import FedsimError, WorkerError

FINAL = (
    e.RuntimeEnvSetupError,
    e.ActorUnschedulableError,
    e.LocalRayletDiedError,
    e.AuthenticationError,
)
"""Failures that would come again; doing the work again can cure the others of Ray."""

FATAL_CUDA_ERRORS = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")
"""Text of exceptions after which a process cannot use its GPU any more."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failed call."""

    error: str
    lost: bool  # whether doing the work again can cure it
    objects: bool = False  # whether what was sent may be gone too and must be sent anew
    alive: bool = False  # whether the actor itself can go on
    final: bool = False  # whether the run cannot go on, even without the client
    raised: FedsimError | None = None
    """The error of fedsim that the client's code raised on purpose, if any."""


def fault_of(error: e.RayError) -> Fault:
    """What a failed ``ray.get`` means."""
    text = one_line(error)
    if isinstance(error, e.RayTaskError):
        cause = error.cause
        usable = not any(text in str(cause) for text in FATAL_CUDA_ERRORS)
        if isinstance(cause, FedsimError):
            return Fault(error=str(cause), lost=False, alive=usable, raised=cause)
        if isinstance(cause, e.RayError):  # an argument of the call was lost
            return replace(fault_of(cause), objects=True, alive=True)
        return Fault(error=one_line(cause), lost=False, alive=usable)
    if "creation task" in text:  # its class cannot be imported there, say
        return Fault(error=f"a client actor cannot be created ({text})", lost=False, final=True)
    if isinstance(error, FINAL):
        return Fault(error=text, lost=False, final=True)
    died = isinstance(error, e.RayActorError | e.WorkerCrashedError)
    words = "its process died" if died else "its work was lost"
    objects = isinstance(error, e.ObjectLostError)
    return Fault(error=f"{words} ({text})", lost=True, objects=objects)


def put(value: Any) -> Any:
    """The value as an object; a WorkerError where Ray cannot take it."""
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
