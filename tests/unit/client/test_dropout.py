"""Dropout by a counter: torch's arithmetic; numbers hang on client, step and call alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from fedsim.client.dropout import COUNTED, NO_DRAWS, active, count
from fedsim.core.errors import ContractError

CPU = torch.device("cpu")
SHAPES = {
    nn.Dropout: [(6, 5), (2, 3, 4)],
    nn.Dropout1d: [(6, 5, 4), (5, 4)],
    nn.Dropout2d: [(6, 5, 4, 3), (6, 5, 4)],
    nn.Dropout3d: [(6, 5, 4, 3, 2), (5, 4, 3, 2)],
}


def counted(*layers, clients=None):
    model = nn.Sequential(*layers)
    return model, count(model, CPU, clients)


def passed(model, draws, x, seed=3, step=1):
    draws.begin([seed], step)
    return model(x)


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "shape"), [(k, s) for k, each in SHAPES.items() for s in each])
def test_the_arithmetic_is_that_of_torch(kind, shape, dtype):
    """Ones pass through torch's layer and this one: what is kept has the same value and shape."""
    model, draws = counted(kind(0.3))
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    out = passed(model, draws, x)
    drops = [kind(0.3)(torch.ones(shape, dtype=dtype)) for _ in range(20)]
    values = torch.cat([d.flatten() for d in drops]).unique()
    assert torch.equal(out.detach().unique(), values)
    assert out.shape == x.shape
    assert out.dtype == dtype
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out.detach())
    if kind is not nn.Dropout:  # whole channels, of each sample by itself
        spread = out.reshape(*shape[: 1 if shape[0] == 5 else 2], -1)
        assert (spread == spread[..., :1]).all()
        assert len(spread.unique()) == 2


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_is_kept(p):
    model, draws = counted(nn.Dropout(p))
    n = 40_000
    kept = (passed(model, draws, torch.ones(n)) != 0).float().mean()
    assert kept == pytest.approx(1 - p, abs=6 * math.sqrt(p * (1 - p) / n))


def test_nothing_everything_and_evaluation():
    x = torch.randn(4, 5, requires_grad=True)
    model, draws = counted(nn.Dropout(0.0), nn.Dropout(1.0))
    draws.begin([3])
    assert model[0](x) is x
    assert draws.call == 0, "nothing is drawn"
    out = model[1](x)
    assert torch.equal(out, torch.zeros(4, 5))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.zeros(4, 5))
    model.eval()
    assert model(x) is x


def test_in_place():
    outs = []
    for inplace in (False, True):
        model, draws = counted(nn.Linear(5, 5), nn.Dropout(0.4, inplace=inplace))
        nn.init.eye_(model[0].weight)
        nn.init.ones_(model[0].bias)
        h = model[0](torch.ones(3, 5))
        draws.begin([3])
        out = model[1](h)
        assert (out is h) == inplace
        outs.append((out.detach(), *torch.autograd.grad(out.sum(), model.parameters())))
    assert all(map(torch.equal, *outs))


def test_numbers_hang_on_client_step_and_call_alone():
    model, draws = counted(nn.Dropout(0.5), nn.Dropout(0.5))
    x = torch.ones(64, 4)
    before = torch.random.get_rng_state()
    draws.begin([3], step=1)
    addresses = draws.keys.data_ptr(), draws.step.data_ptr()
    first = [layer(x) for layer in model]
    draws.advance()
    second = [layer(x) for layer in model]
    another = passed(model[0], draws, x, seed=4)
    large = passed(model[0], draws, x, seed=3 + (1 << 40))
    every = [*first, *second, another, large]
    assert not any(torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])
    draws.begin([3], step=2)
    assert torch.equal(model[0](x), second[0])
    assert torch.equal(model[0](x), second[1]), "the call counts, not the layer"
    assert torch.equal(passed(model[0], draws, x[:9]), first[0][:9])
    assert (draws.keys.data_ptr(), draws.step.data_ptr()) == addresses
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize(("kind", "shape"), [(kind, each[0]) for kind, each in SHAPES.items()])
def test_a_client_of_a_block_draws_as_alone(kind, shape, vmapped):
    alone, own = counted(kind(0.4), kind(0.2))
    block, draws = counted(kind(0.4), kind(0.2), clients=7)
    x = torch.randn(3, *shape)
    draws.begin([11, 12, 13])
    draws.advance()
    h = x
    for layer in block:
        h = vmap(layer)(h) if vmapped else layer.forward_clients(h)
    for client, samples in enumerate((6, 4, 1)):  # the others pad the batch
        wanted = passed(alone, own, x[client, :samples], seed=11 + client)
        assert torch.equal(h[client, :samples], wanted)


def test_samples_in_vmap_draw_as_a_batch():
    """As DP-SGD has it: gradients by sample, each with a batch dimension of one."""
    model, draws = counted(nn.Linear(5, 4), nn.Dropout(0.5), nn.Dropout1d(0.5))
    params, x = dict(model.named_parameters()), torch.randn(6, 5)

    def loss(params, x):
        return functional_call(model, params, (x[None, :, None].mT,)).square().sum()

    draws.begin([3])
    got = vmap(grad(loss), in_dims=(None, 0), randomness="different")(params, x)
    draws.begin([3])
    values = model(x[:, None]).square().sum((1, 2))
    for i, value in enumerate(values):
        wanted = torch.autograd.grad(value, [*params.values()], retain_graph=True)
        for one, other in zip(got.values(), wanted, strict=True):
            torch.testing.assert_close(one[i], other)


class Checkpointed(nn.Module):
    def __init__(self, reentrant, shared=False):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.4))
        self.second = nn.Sequential(nn.Linear(5, 5), self.first[1] if shared else nn.Dropout(0.4))

    def forward(self, x, whole=False):
        for part in (self.first, self.second):
            x = part(x) if whole else checkpoint(part, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_repeats_draws_again_what_it_drew(reentrant):
    model = Checkpointed(reentrant)
    draws, x = count(model, CPU), torch.randn(8, 5, requires_grad=True)
    gradients = []
    for whole in (False, True):
        draws.begin([3])
        for _ in range(2):  # two passes in a step, as FedSAM has them
            out = model(x, whole=whole).square().sum()
            gradients += torch.autograd.grad(out, [x]) if not reentrant else []
            if reentrant:  # which knows backward alone
                x.grad = None
                out.backward()
                gradients.append(x.grad)
    torch.testing.assert_close(gradients[:2], gradients[2:], rtol=0, atol=0)
    assert not torch.equal(gradients[0], gradients[1])


def test_checkpointing_of_a_layer_in_several_places_is_refused():
    model = Checkpointed(reentrant=False, shared=True)
    draws = count(model, CPU)
    draws.begin([3])
    with pytest.raises(ContractError, match="a dropout layer that a pass calls 2 times"):
        model(torch.randn(8, 5, requires_grad=True)).sum().backward()


class Own(nn.Dropout):
    """Of the user's, who may draw in another way."""


def test_which_layers_draw_so():
    model = nn.Sequential(*(kind(0.1) for kind in COUNTED), nn.AlphaDropout(0.1), Own(0.1))
    assert active(model)
    assert not active(model[4:])
    assert not active(nn.Sequential(nn.Dropout(0.0)))
    draws = count(model, CPU)
    assert [type(m) for m in model] == [*COUNTED.values(), nn.AlphaDropout, Own]
    assert [repr(m) for m in model[:2]] == [repr(nn.Dropout(0.1)), repr(nn.Dropout1d(0.1))]
    copied = copy.deepcopy(model)
    assert copied[0].draws is draws, "a copy takes the next numbers"
    assert count(copied, CPU, 3) is copied[0].draws is not draws
    assert model[0].draws is draws
    assert count(nn.Sequential(nn.ReLU()), CPU) is NO_DRAWS
