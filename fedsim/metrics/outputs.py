"""A model's outputs on the samples of a part, reduced to what the scores need.

These are the outputs where each sample has few of them. Where every token has a label, or every
pixel, they are too large to keep or to send, so the worker reduces each batch to what is needed of
each sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim import tasks
from fedsim.core.errors import ContractError, DivergedError
from fedsim.core.types import I64, Array, Dataset
from fedsim.metrics import samples
from fedsim.metrics.samples import Kept, Samples, SampleScores, joined, kept
from fedsim.metrics.scores import Scores, per_sample, score, score_kept, score_tokens

Outputs = Array | Samples
"""(n, C) float32 outputs of samples; what is needed of samples with many."""
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
    if isinstance(parts[0], SampleScores | Kept):
        reduced: Samples = joined(parts)
        return reduced
    return np.concatenate([np.asarray(part) for part in parts])


def split(outputs: Outputs, sizes: Sequence[int]) -> Sequence[Outputs]:
    """Splits outputs into runs of the given numbers of samples."""
    if isinstance(outputs, SampleScores | Kept):
        return samples.split(outputs, sizes)
    return np.split(outputs, np.cumsum(sizes)[:-1])


def samples_of(outputs: Outputs, dataset: Dataset, index: I64) -> Samples:
    """What is known of each of the n samples ``index`` of a data set; errors as
    :func:`scores_of`."""
    if isinstance(outputs, SampleScores | Kept):
        return outputs
    task, y = tasks.of(dataset), dataset.y[index]
    if not task.cross_entropy:
        return kept(task, outputs, y)
    scored = per_sample(outputs, y, dataset.never_right)
    return replace(scored, kept=kept(task, outputs, y)) if task.measures else scored


def scores_of(outputs: Outputs, dataset: Dataset, index: I64, groups: Mapping[str, I64]) -> Scores:
    """The scores of all the n samples ``index`` of a data set together, and of groups of them; a
    DivergedError where an output is NaN or infinite."""
    if isinstance(outputs, SampleScores):
        return score_tokens(outputs, groups)
    if not isinstance(outputs, Kept):
        task, y = tasks.of(dataset), dataset.y[index]
        if task.cross_entropy:
            scores = score(outputs, y, groups, dataset.never_right)
            if not task.measures:
                return scores
            more = kept(task, outputs, y)
            some = [replace(g, measures=more.at(groups[g.group]).values()) for g in scores.groups]
            return replace(scores, measures=more.values(), groups=tuple(some))
        outputs = kept(task, outputs, y)
    return score_kept(outputs, groups)
