"""Philox4x32-10 as one kernel of Triton, which comes with torch for NVIDIA GPUs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit(do_not_specialize=["call", "n", "bound"])  # type: ignore
def _below(out, keys, step, call, n, bound, BLOCK: tl.constexpr):  # type: ignore # noqa
    """Program (i, a): the next ``4 BLOCK`` elements of client a."""
    client = tl.program_id(1).to(tl.int64)
    low, high = tl.load(keys + 2 * client), tl.load(keys + 2 * client + 1)
    counter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    now = tl.load(step).to(tl.int32)
    # key and counter as in philox.below: tl.philox takes the key as one number, low word first
    a, b, c, d = tl.philox(high << 32 | low, counter, call.to(tl.int32), now, 0)
    first = 4 * counter.to(tl.int64)
    place = out + client * n + first
    tl.store(place, (a.to(tl.int64) < bound).to(tl.int8), mask=first < n)
    tl.store(place + 1, (b.to(tl.int64) < bound).to(tl.int8), mask=first + 1 < n)
    tl.store(place + 2, (c.to(tl.int64) < bound).to(tl.int8), mask=first + 2 < n)
    tl.store(place + 3, (d.to(tl.int64) < bound).to(tl.int8), mask=first + 3 < n)


def below(keys: Tensor, step: Tensor, call: int, n: int, bound: int) -> Tensor:
    """See :func:`fedsim.core.philox.below`."""
    out = torch.empty((len(keys), n), dtype=torch.int8, device=keys.device)
    grid = (triton.cdiv(n, 4 * BLOCK), len(keys))
    _below[grid](out, keys, step, call, n, bound, BLOCK=BLOCK)
    return out.view(torch.bool)
