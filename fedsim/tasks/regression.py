"""Numbers: squared, absolute or Huber's error; RMSE, MAE and R2 over all samples."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedsim.core.settings import Positive
from fedsim.core.task import Measure, TargetError, Task, mean
from fedsim.core.types import F64, Array

if TYPE_CHECKING:
    from torch import Tensor


def check(y: Array) -> None:
    """(N,) or (N, w) float32, finite."""
    if y.dtype != np.float32 or y.ndim not in (1, 2):
        raise TargetError(f"y is {y.dtype} {y.shape}, needed is float32 (N,) or (N, w)")
    odd = ~np.isfinite(y.reshape(len(y), -1)).all(axis=1)
    if odd.any():
        raise TargetError("a target is not finite", int(odd.argmax()))


def width(y: Array) -> int:
    """An output for each number."""
    return 1 if y.ndim == 1 else y.shape[1]


def errors(outputs: Array, y: Array) -> F64:
    """(N, w) predictions minus targets."""
    return np.asarray(outputs - y.reshape(len(y), -1), np.float64)


def squared(outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) squared errors, the mean over the numbers of a sample."""
    return (outputs - y.reshape(outputs.shape)).square().mean(dim=1)


def absolute(outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) absolute errors, the mean over the numbers of a sample."""
    return (outputs - y.reshape(outputs.shape)).abs().mean(dim=1)


def huber(delta: float, outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) half the squared errors up to delta, ``delta (|e| - delta / 2)`` beyond (Huber, 1964),
    the mean over the numbers of a sample."""
    error = (outputs - y.reshape(outputs.shape)).abs()
    within = error.clamp(max=delta)
    return (within * (error - within / 2)).mean(dim=1)


def predict(outputs: Array) -> Mapping[str, Array]:
    """The number, or each of them."""
    if outputs.shape[1] == 1:
        return {"prediction": outputs[:, 0]}
    return {f"prediction_{k}": outputs[:, k] for k in range(outputs.shape[1])}


def prints(y: Array) -> Sequence[str]:
    """The numbers."""
    return [" ".join(map(str, row)) for row in y.reshape(len(y), -1)]


def _squares(outputs: Array, y: Array) -> F64:
    return np.array([np.square(errors(outputs, y)).sum(), y.size])


def _absolute(outputs: Array, y: Array) -> F64:
    return np.array([np.abs(errors(outputs, y)).sum(), y.size])


def _root(sums: F64) -> float | None:
    squared = mean(sums)
    return None if squared is None else float(np.sqrt(squared))


def _residuals(outputs: Array, y: Array) -> F64:
    """Of each number the squared errors, and the squared distances from the mean target."""
    targets = y.reshape(len(y), -1).astype(np.float64)
    spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    return np.array([np.square(errors(outputs, y)).sum(axis=0), spread]).ravel()


def _r2(sums: F64) -> float | None:
    """The mean of R2 over the numbers; None where a target is the same in all samples."""
    residual, spread = sums.reshape(2, -1)
    return float(np.mean(1 - residual / spread)) if (spread > 0).all() else None


def collapsed(measures: Mapping[str, float | None]) -> bool:
    """No better than the mean target."""
    r2 = measures["r2"]
    return r2 is not None and r2 <= 0


def build(loss: Literal["mse", "mae", "huber"] = "mse", delta: Positive = 1.0) -> Task:
    """The task.

    Args:
        loss: squared error, absolute error, or Huber's.
        delta: error from which on Huber's grows linearly.
    """
    return Task(
        name="regression",
        title="numbers",
        target="value",
        check=check,
        width=width,
        loss={"mse": squared, "mae": absolute}.get(loss, partial(huber, delta)),
        measures=(
            Measure(name="rmse", title="RMSE", of=_squares, value=_root, better="down"),
            Measure(name="mae", title="MAE", of=_absolute, better="down"),
            Measure(name="r2", title="R2", of=_residuals, value=_r2, whole=True),
        ),
        primary="rmse",
        predict=predict,
        prints=prints,
        collapsed=collapsed,
        margin="its outputs are numbers, no logits",
    )
