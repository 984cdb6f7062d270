"""Time until an event, or until a sample was last seen without it: Cox's partial likelihood.

A sample's output is its risk score, the logarithm of its hazard relative to the others. The loss is
that of a batch, since the risk set of an event is the rest of its batch (Cox, 1972).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedsim.core.task import Measure, TargetError, Task, mean
from fedsim.core.types import F64, I64, Array

if TYPE_CHECKING:
    from torch import Tensor

Ties = Literal["efron", "breslow", "order"]


def check(y: Array) -> None:
    """(N, 2) float32: a time of at least 0, and 1 where the event happened then, else 0."""
    if y.dtype != np.float32 or y.ndim != 2 or y.shape[1] != 2:
        raise TargetError(f"y is {y.dtype} {y.shape}, needed is float32 (N, 2): time and event")
    odd = ~(np.isfinite(y[:, 0]) & (y[:, 0] >= 0))
    if odd.any():
        row = int(odd.argmax())
        raise TargetError(f"the time is {y[row, 0]:g}; it is at least 0, and finite", row)
    odd = (y[:, 1] != 0) & (y[:, 1] != 1)
    if odd.any():
        row = int(odd.argmax())
        raise TargetError(f"the event is {y[row, 1]:g}; it is 0 or 1", row)


def width(_y: Array) -> int:
    """A risk score."""
    return 1


def loss(ties: Ties, outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) minus the logarithm of each event's factor of the partial likelihood, 0 of a censored
    sample; their mean is the loss of the batch, 0 where it has no event.

    With scores s and risk set R_t of those seen until t or longer, an event i at t adds
    ``log sum_{j in R_t} exp(s_j) - s_i`` (Breslow, 1974). Efron (1977) takes from the sum k / d of
    that of the d events at t, for the k-th of them, k from 0. With ``order``, of samples with the
    same time the later ones of the batch are in the risk sets of the earlier ones no more.
    """
    import torch

    order = torch.argsort(y[:, 0], descending=True, stable=True)
    scores, event = outputs[order, 0], y[order, 1].to(outputs)
    earlier = -y[order, 0].contiguous()
    risk = scores.logcumsumexp(dim=0)
    if ties != "order":
        last = torch.searchsorted(earlier, earlier, right=True) - 1
        risk = risk[last]
    if ties == "efron":
        first = torch.searchsorted(earlier, earlier)
        share = torch.zeros_like(scores).index_add(0, first, event * (scores - risk).exp())[first]
        count = event.cumsum(dim=0)
        before = count[first] - event[first]
        tied = (count[last] - before).clamp(min=1)
        left_out = (count - 1 - before).clamp(min=0) / tied
        risk = risk + torch.log1p(-left_out * share)
    return (event * (risk - scores))[order.argsort()]


def predict(outputs: Array) -> Mapping[str, Array]:
    """The risk score."""
    return {"risk": outputs[:, 0]}


def prints(y: Array) -> Sequence[str]:
    """The time, with a plus where the event was not seen until then."""
    return [str(time) + ("" if event else "+") for time, event in y]


def events(y: Array) -> I64:
    """Samples with the event and those without it are the strata."""
    return y[:, 1].astype(np.int64)


def concordant(outputs: Array, y: Array) -> F64:
    """The concordant pairs, equal scores counted half, and those that can be compared: an event,
    and a sample seen for longer, or as long without the event (Harrell et al., 1982)."""
    (time, event), risk = y.T, outputs[:, 0]
    pairs = np.zeros(2)
    for i in np.flatnonzero(event):
        others = risk[(time > time[i]) | ((time == time[i]) & (event == 0))]
        pairs += (others < risk[i]).sum() + (others == risk[i]).sum() / 2, len(others)
    return pairs


def collapsed(measures: Mapping[str, float | None]) -> bool:
    """Orders samples no better than chance."""
    c_index = measures["c_index"]
    return c_index is not None and c_index <= 0.5


def build(ties: Ties = "efron") -> Task:
    """The task.

    Args:
        ties: how events at the same time are treated: by Efron's or Breslow's approximation, or
            (order) as FLamby's loss does, by their order in the batch.
    """
    return Task(
        name="survival",
        title="time until an event",
        target="survival",
        check=check,
        width=width,
        loss=partial(loss, ties),
        measures=(Measure(name="c_index", title="C-index", of=concordant, value=mean, whole=True),),
        primary="c_index",
        stratum=events,
        predict=predict,
        prints=prints,
        collapsed=collapsed,
        additive=False,
        margin="its outputs are risk scores, no logits",
    )
