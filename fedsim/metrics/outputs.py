"""A model's outputs on the samples of a part, reduced to what the scores need.

These are the logits where each sample has one label. Where every token has a label, the logits
(n, T, C) are too large to keep or to send, so the worker reduces each batch to scores per sample.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.core.errors import ContractError, DivergedError
from fedsim.core.types import I64, Array, Dataset
from fedsim.metrics.scores import SampleScores, Scores, joined, per_sample, score, score_tokens

Outputs = Array | SampleScores
"""(n, C) float32 logits of samples with one label; the scores of samples with one per token."""
_ROWS = 1024
"""Tokens whose logits are converted to float64 at a time."""


def token_scores(logits: Tensor, labels: Tensor, never_right: Sequence[int] = ()) -> SampleScores:
    """The scores of n samples from logits (n, T, C) and labels (n, T), -1 where none counts."""
    if logits.ndim != 3 or logits.shape[:2] != labels.shape:
        raise ContractError(
            "labels for every token need logits (n, T, C) and labels (n, T), got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    finite = logits.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        raise DivergedError(
            f"the logits of {int((~finite).sum())} of {len(finite)} evaluated samples are NaN or "
            "infinite"
        )
    rows = zip(logits.flatten(0, 1).split(_ROWS), labels.flatten().split(_ROWS), strict=True)
    losses = torch.cat(
        [F.cross_entropy(z.double(), y, ignore_index=-1, reduction="none") for z, y in rows]
    )
    predicted = logits.argmax(dim=2)
    wrong = torch.tensor(never_right, dtype=torch.int64, device=labels.device)
    right = (predicted == labels) & ~torch.isin(predicted, wrong)
    return SampleScores(
        losses.view(labels.shape).sum(dim=1).cpu().numpy(),
        right.sum(dim=1).cpu().numpy(),
        (labels >= 0).sum(dim=1).cpu().numpy(),
    )


def concatenated(parts: Sequence[Outputs]) -> Outputs:
    """Concatenates outputs along the samples."""
    scores = [part for part in parts if isinstance(part, SampleScores)]
    logits = [part for part in parts if not isinstance(part, SampleScores)]
    return joined(scores) if scores else np.concatenate(logits)


def split(outputs: Outputs, sizes: Sequence[int]) -> Sequence[Outputs]:
    """Splits outputs into runs of the given numbers of samples."""
    if isinstance(outputs, SampleScores):
        return outputs.split(sizes)
    return np.split(outputs, np.cumsum(sizes)[:-1])


def samples_of(outputs: Outputs, dataset: Dataset, index: I64) -> SampleScores:
    """The scores of each of the n samples ``index`` of a data set; errors as :func:`scores_of`."""
    if isinstance(outputs, SampleScores):
        return outputs
    return per_sample(outputs, dataset.y[index], dataset.never_right)


def scores_of(outputs: Outputs, dataset: Dataset, index: I64, groups: Mapping[str, I64]) -> Scores:
    """The scores of all the n samples ``index`` of a data set together, and of groups of them; a
    DivergedError where a logit is NaN or infinite."""
    if isinstance(outputs, SampleScores):
        return score_tokens(outputs, groups)
    return score(outputs, dataset.y[index], groups, dataset.never_right)
