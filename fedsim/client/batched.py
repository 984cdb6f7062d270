"""Layers with a client dimension in front: inputs (A, W, ...) and parameters (A, *shape).

A is the number of clients, W that of the samples in a padded batch. A model of these layers alone
runs without ``torch.vmap``, whose overhead exceeds the arithmetic of a small model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.client.dropout import COUNTED, Counted


@dataclass
class Padding:
    """The padded batch, for layers that couple samples."""

    weights: Tensor  # (A, W), in vmap (W,): one over a client's samples, 0 for padding
    alone: Tensor  # (A,), in vmap (): a single sample in all; BatchNorm uses running statistics


def without_vmap(model: nn.Module) -> bool:
    """Whether every layer has a forward pass with a client dimension."""
    return all(_forward(m) is not None for m in model.modules())


def prepare(model: nn.Module, padding: Callable[[], Padding], vmapped: bool) -> None:
    """Gives the layers forward passes for a block of clients, in place."""
    for m in model.modules():
        forward: Callable[..., Tensor] | None
        if isinstance(m, _BatchNorm):
            forward = partial(_batch_norm, m, padding)
        else:
            forward = None if vmapped else _forward(m)
        if forward is not None:
            m.forward = forward


def _forward(m: nn.Module) -> Callable[..., Tensor] | None:
    """The forward pass of a layer with a client dimension, None where there is none."""
    if "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks:
        return None
    if "forward_clients" in vars(type(m)):
        forward: Callable[..., Tensor] = m.forward_clients  # type: ignore[assignment]
        return forward
    batched = BATCHED.get(type(m))
    if batched is None or any(getattr(m, name, value) != value for name, value in USUAL.items()):
        return None
    return partial(batched, m)


USUAL = {"padding_mode": "zeros", "start_dim": 1, "padding_idx": None, "max_norm": None,
         "sparse": False, "scale_grad_by_freq": False, "return_indices": False}  # fmt: skip
"""Settings of layers in :data:`BATCHED`; a layer with other values runs within vmap."""


def _linear(m: nn.Linear, x: Tensor) -> Tensor:
    """(A, W, ..., d) -> (A, W, ..., o)."""
    many, weight = x.flatten(1, -2), m.weight.transpose(1, 2)
    out = (
        torch.bmm(many, weight) if m.bias is None else torch.baddbmm(m.bias[:, None], many, weight)
    )
    return out.view(*x.shape[:-1], -1)


def _conv2d(m: nn.Conv2d, x: Tensor) -> Tensor:
    """One convolution with a group for each client; in memory the samples stay in front."""
    clients = len(x)
    out = F.conv2d(
        x.transpose(0, 1).flatten(1, 2), m.weight.flatten(0, 1), None, m.stride,
        m.padding, m.dilation, clients * m.groups,
    )  # fmt: skip
    out = out.unflatten(1, (clients, -1)).transpose(0, 1)
    # added here: the gradient of a convolution's own bias has bits that depend on A
    return out if m.bias is None else out + m.bias[:, None, :, None, None]


def _by_sample(m: nn.Module, x: Tensor) -> Tensor:
    """A layer without parameters that treats every sample alike."""
    out: Tensor = type(m).forward(m, x.transpose(0, 1).flatten(0, 1))
    return out.unflatten(0, (x.shape[1], -1)).transpose(0, 1)


def _group_norm(m: nn.GroupNorm, x: Tensor) -> Tensor:
    out = F.group_norm(x.transpose(0, 1).flatten(0, 1), m.num_groups, eps=m.eps)
    out = out.unflatten(0, (x.shape[1], -1)).transpose(0, 1)
    if not m.affine:
        return out
    shape = (len(x), 1, -1, *[1] * (x.ndim - 3))
    return out * m.weight.view(shape) + m.bias.view(shape)


def _layer_norm(m: nn.LayerNorm, x: Tensor) -> Tensor:
    out = F.layer_norm(x, m.normalized_shape, eps=m.eps)
    if not m.elementwise_affine:
        return out
    shape = (len(x), *[1] * (x.ndim - 1 - len(m.normalized_shape)), *m.normalized_shape)
    out = out * m.weight.view(shape)
    return out if m.bias is None else out + m.bias.view(shape)


def _embedding(m: nn.Embedding, x: Tensor) -> Tensor:
    """(A, W, T) -> (A, W, T, d) from one table of all clients' rows."""
    first = torch.arange(len(x), device=x.device) * m.weight.shape[1]
    return F.embedding(x + first.view(-1, *[1] * (x.ndim - 1)), m.weight.flatten(0, 1))


def _flatten(m: nn.Flatten, x: Tensor) -> Tensor:
    return x.flatten(2, m.end_dim if m.end_dim < 0 else m.end_dim + 1)


def _batch_norm(m: Any, padding: Callable[[], Padding], x: Tensor) -> Tensor:
    """BatchNorm whose statistics leave padding out: exactly each client's, running ones too.

    (A, W, C, ...), or (W, C, ...) within vmap.
    """
    p = padding()
    channel = p.weights.ndim
    ones = [1] * (x.ndim - channel - 1)
    dims = (channel - 1, *range(channel + 1, x.ndim))
    shape = (*x.shape[: channel - 1], 1, -1, *ones)
    stored = None if m.running_mean is None else (m.running_mean, m.running_var)
    batch = m.training or stored is None
    space = math.prod(x.shape[channel + 1 :])
    share = (p.weights / space).view(*p.weights.shape, 1, *ones)
    mean: Any
    var: Any
    with torch.no_grad():
        mean, var = (None, None) if stored is None else (v.clone().view(shape) for v in stored)
        alone = p.alone.view(*p.alone.shape, 1, 1, *ones)
        if batch:
            total = (share * x).sum(dims, keepdim=True)
            mean = total if mean is None else torch.where(alone, mean, total)
        centred = x - mean
        if batch:
            variance = (share * centred.square()).sum(dims, keepdim=True)
            if stored is not None:
                n = space / p.weights.amax(-1, keepdim=True)
                unbiased = variance.view_as(stored[1]) * (n / (n - 1).clamp(min=1))
                for v, new in zip(stored, (mean.view_as(stored[0]), unbiased), strict=True):
                    v.copy_(torch.where(p.alone.unsqueeze(-1), v, v.lerp(new, m.momentum)))
                share = share * ~alone
                variance = torch.where(alone, var, variance)
            var = variance
        scale = (var + m.eps).rsqrt()
    weight, bias = torch.ones_like(scale), torch.zeros_like(scale)
    if m.weight is not None:
        weight, bias = m.weight.view(shape), m.bias.view(shape)
    return _Normalised.apply(x, centred, scale, share if batch else 0 * share, weight, bias, dims)


class _Normalised(torch.autograd.Function):
    """``centred * scale * weight + bias``, whose mean and deviation by ``share`` depend on x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, centred: Tensor, scale: Tensor, share: Tensor, weight: Tensor, bias: Tensor,
        dims: tuple[int, ...],
    ) -> Tensor:  # fmt: skip
        """What BatchNorm returns."""
        return torch.addcmul(bias, centred, scale * weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Keeps all but x."""
        _, *tensors, _, ctx.dims = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """With z = centred scale: g weight scale minus its projections on 1 and on z by share."""
        centred, scale, share, weight = ctx.saved_tensors
        g = grads[0]
        to_bias = g.sum(ctx.dims, keepdim=True)
        to_weight = (g * centred).sum(ctx.dims, keepdim=True) * scale
        factor = weight * scale
        pull = torch.addcmul(factor * to_bias, centred, factor * scale * to_weight)
        return torch.addcmul(-share * pull, g, factor), None, None, None, to_weight, to_bias, None


def _unchanged(m: nn.Module, x: Tensor) -> Tensor:
    """An elementwise layer, or one that passes its input through its children."""
    out: Tensor = type(m).forward(m, x)
    return out


_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_ELEMENTWISE = (
    nn.Sequential, nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign,
)  # fmt: skip

BATCHED: Mapping[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.Flatten: _flatten,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, *COUNTED), _unchanged),  # replaced
    **dict.fromkeys(COUNTED.values(), Counted.forward_clients),
    **dict.fromkeys(_POOLS, _by_sample),
    **dict.fromkeys(_ELEMENTWISE, _unchanged),
}
"""The layers that take a client dimension. Your own module may have ``forward_clients``."""
