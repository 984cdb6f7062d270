"""DP-SGD (Abadi et al., CCS 2016, Algorithm 1): steps that protect each sample of a client.

Each step draws every one of the client's n samples by itself with q = min(1, B / n) and takes

    g = (sum_i g_i min(1, C / ||g_i||) + N(0, z^2 C^2)) / min(B, n)

where g_i is the gradient of sample i over all parameters that are trained. Without a sample only
the noise is left. The number of steps and the divisor do not depend on what is drawn.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedsim.client.context import LocalEnv, Precision
from fedsim.client.criterion import MarginControl
from fedsim.core.layout import FlatModel, changed, values
from fedsim.core.rng import torch_generator, torch_scope
from fedsim.core.types import PrivateSteps

STEPS = "private_steps"
"""Of a client's state: (1,) int64, its steps of DP-SGD in all rounds."""
VALUES = 1 << 25
"""Numbers in the gradients of samples that are computed together, at most."""


def poisson_batches(env: LocalEnv, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    """Indices of the samples of each step, on the client's device: as many steps as epochs have."""
    n, size = len(env.x), env.training.batch_size
    for _ in range(epochs * -(-n // size)):
        drawn = torch.rand(n, generator=order, dtype=torch.float64) < size / n
        yield drawn.nonzero().squeeze(1).to(env.x.device, non_blocking=True)


class PrivateGradients:
    """The gradients of a client's steps."""

    def __init__(self, env: LocalEnv, private: PrivateSteps) -> None:
        self._env, self._private = env, private
        self._noise = torch_generator(env.ctx.seed, "sample_noise", env.key, env.client_id)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Writes ``p.grad`` of ``env.params``; returns the sum of the samples' cross-entropies."""
        env, private = self._env, self._private
        named = dict(zip([slot.name for slot in env.slots()], env.params, strict=True))
        sums = [torch.zeros_like(p) for p in env.params]
        total = env.start.new_zeros(())
        if len(x):
            chunk = max(VALUES // max(sum(p.numel() for p in env.params), 1), 1)
            inputs = env.train(x)
            for some, labels in zip(inputs.split(chunk), y.split(chunk), strict=True):
                gradients, ce = sample_gradients(
                    env.model, named, env.criterion, some, labels, env.precision
                )
                for into, gradient in zip(sums, clipped(gradients, private.clip), strict=True):
                    into += gradient.sum(0)
                total = total + ce.sum()
        expected = min(env.training.batch_size, len(env.x))
        scale = private.noise_multiplier * private.clip
        for p, gradient in zip(env.params, sums, strict=True):
            if private.noise_multiplier > 0:
                drawn = torch.randn(p.shape, generator=self._noise, dtype=p.dtype)
                gradient.add_(drawn.to(p.device), alpha=scale)
            p.grad = gradient.div_(expected)
        return total


def sample_gradients(
    model: nn.Module,
    named: Mapping[str, Tensor],
    criterion: MarginControl,
    x: Tensor,
    y: Tensor,
    precision: Precision = nullcontext,
) -> tuple[list[Tensor], Tensor]:
    """The gradients (b, *shape) of the parameters ``named`` by sample, and cross-entropies (b,)."""

    def loss(params: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with precision():
            tensors = dict(zip(named, params, strict=True))
            logits = functional_call(model, tensors, (x.unsqueeze(0),))
            return criterion.with_cross_entropy(logits, y.unsqueeze(0))

    by_sample = vmap(
        grad_and_value(loss, has_aux=True), in_dims=(None, 0, 0), randomness="different"
    )
    gradients, (_, ce) = by_sample([p.detach() for p in named.values()], x, y)
    return gradients, ce.detach()


def obstacle(flat: FlatModel, criterion: MarginControl, x: Tensor) -> str | None:
    """Why a model has no gradients by sample: what torch said; None where it has them."""
    named = {slot.name: p for slot, p in flat.params}
    with torch_scope(0):
        try:
            before = values(flat.model)
            with torch.no_grad():
                y = criterion.example(flat.model(x))
            sample_gradients(flat.model, named, criterion, x, y)
            if others := changed(before, values(flat.model)):
                return f"training changes {others[0]}, by all samples together"
        except Exception as error:  # noqa: BLE001 a model may raise anything
            return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    return None


def clipped(gradients: list[Tensor], clip: float) -> list[Tensor]:
    """Gradients (b, *shape), those of each sample together of norm ``clip`` at most."""
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0)
    factors = (clip / squares.sqrt()).clamp(max=1.0)
    return [g * factors.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
