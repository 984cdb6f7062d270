"""Philox4x64-10 as one kernel of Triton, which comes with torch for NVIDIA GPUs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit(do_not_specialize=["call", "n", "bound"])  # type: ignore
def _below(out, keys, step, call, n, bound, BLOCK: tl.constexpr):  # type: ignore # noqa
    """Program (i, a): the next ``8 BLOCK`` elements of client a, see :func:`philox.words`."""
    client = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    same = tl.zeros_like(block)
    now, key = same + tl.load(step), tl.load(keys + client)
    numbers = tl.philox(key, block + 1, same + call, now, same)
    for j in tl.static_range(4):
        low = numbers[j] & 0xFFFFFFFF
        high = numbers[j] >> 32
        element = 8 * block + 2 * j
        place = out + client * n + element
        tl.store(place, (low.to(tl.int64) < bound).to(tl.int8), mask=element < n)
        tl.store(place + 1, (high.to(tl.int64) < bound).to(tl.int8), mask=element + 1 < n)


def below(keys: Tensor, step: Tensor, call: int, n: int, bound: int) -> Tensor:
    """See :func:`fedsim.core.philox.below`."""
    out = torch.empty((len(keys), n), dtype=torch.int8, device=keys.device)
    grid = (triton.cdiv(n, 8 * BLOCK), len(keys))
    _below[grid](out, keys, step, call, n, bound, BLOCK=BLOCK)
    return out.view(torch.bool)
