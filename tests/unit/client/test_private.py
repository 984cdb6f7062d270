"""DP-SGD on a client: against a loop over samples, its limits, and the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from scipy.stats import chi2

from fedsim.client import LocalRule
from fedsim.client.criterion import MarginControl
from fedsim.client.private import (
    STEPS,
    PrivateGradients,
    clipped,
    obstacle,
    poisson_batches,
    sample_gradients,
)
from fedsim.client.trainer import enter, train_local
from fedsim.core.layout import FlatModel
from fedsim.core.rng import torch_generator
from fedsim.core.types import PrivateSteps, Training
from tests.unit.client.test_trainer import Net, make_env, preprocess


def double(n=23, private=None, dropout=0.0, **training):
    torch.manual_seed(0)
    flat = FlatModel(Net(norm=False, dropout=dropout), torch.device("cpu"), torch.float64)
    settings = Training(private=private, **{"batch_size": 5, **training})
    env = make_env(n, training=settings, train=lambda x: preprocess(x).double())
    env.flat, env.start = flat, flat.flat.detach().clone()
    return env


def by_sample(env, clip, z):
    """The training of test_trainer's network as a loop over samples, with the same draws."""
    t, n = env.training, len(env.x)
    ids = env.ctx.seed, env.ctx.round, env.client_id
    order = torch_generator(ids[0], "shuffle", *ids[1:])
    noise = torch_generator(ids[0], "sample_noise", *ids[1:])
    net = Net(norm=False).double()
    torch.nn.utils.vector_to_parameters(env.start.clone(), net.parameters())
    params = list(net.parameters())
    optimizer = torch.optim.SGD(
        params, env.ctx.lr, momentum=t.momentum, weight_decay=t.weight_decay
    )
    for _ in range(t.local_epochs * math.ceil(n / t.batch_size)):
        q = min(1, t.batch_size / n)
        sums = [torch.zeros_like(p) for p in params]
        drawn = torch.rand(n, generator=order, dtype=torch.float64)
        for i in range(n):
            if drawn[i] < q:
                logits = net(env.train(env.x[i : i + 1]))
                own = torch.autograd.grad(
                    functional.cross_entropy(logits, env.y[i : i + 1]), params
                )
                norm = math.sqrt(sum(float((g**2).sum()) for g in own))
                sums = [s + g * min(1, clip / norm) for s, g in zip(sums, own, strict=True)]
        for p, s in zip(params, sums, strict=True):
            e = torch.randn(p.shape, generator=noise, dtype=torch.float64)
            p.grad = (s + z * clip * e) / min(t.batch_size, n)
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(params).detach()


@pytest.mark.parametrize(("n", "clip", "z"), [(23, 0.3, 0.7), (23, 2.0, 0.1), (3, 0.5, 1.0)])
def test_training_is_that_of_a_loop_over_samples(n, clip, z):
    env = double(n, PrivateSteps(clip, z), local_epochs=2)
    wanted = by_sample(env, clip, z)
    update = train_local(LocalRule(), env)
    np.testing.assert_allclose(env.flat.flat.detach(), wanted, rtol=1e-9, atol=1e-9)
    assert update.num_steps == 2 * math.ceil(n / 5)
    assert update.state[STEPS].tolist() == [update.num_steps]


def test_without_noise_and_clipping_a_full_batch_is_plain_sgd():
    plain, env = double(local_epochs=3, batch_size=23), double(
        private=PrivateSteps(math.inf, 0.0), local_epochs=3, batch_size=23
    )  # fmt: skip
    loss = train_local(LocalRule(), plain).train_loss
    assert train_local(LocalRule(), env).train_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(
        env.flat.flat.detach(), plain.flat.flat.detach(), rtol=1e-12, atol=1e-12
    )


def test_gradients_of_samples_are_clipped_over_all_parameters():
    own = [torch.tensor([[3.0], [0.3], [0.0]]), torch.tensor([[4.0], [0.4], [0.0]])]
    first, second = clipped(own, 1.0)
    assert first.flatten().tolist() == pytest.approx([0.6, 0.3, 0.0])
    assert second.flatten().tolist() == pytest.approx([0.8, 0.4, 0.0])


def test_dropout_draws_for_each_sample():
    env = double(dropout=0.5)
    enter(env, LocalRule().phases(env)[0])
    same = env.train(env.x[:1]).expand(8, -1, -1, -1)
    gradients, _ = sample_gradients(env, same, env.y[:1].expand(8))
    assert len(torch.unique(gradients[0].flatten(1), dim=0)) > 1


def test_the_noise_has_its_variance_without_any_sample():
    env = double()
    enter(env, LocalRule().phases(env)[0])
    gradients = PrivateGradients(env, PrivateSteps(0.5, 3.0))
    squares, count = 0.0, 0
    for _ in range(100):
        gradients(env.x[:0], env.y[:0])
        drawn = torch.cat([p.grad.flatten() for p in env.params]) * 5 / 1.5
        squares, count = squares + float(drawn.square().sum()), count + len(drawn)
    low, high = chi2.ppf([0.001, 0.999], count)
    assert low < squares < high


def test_batches_draw_each_sample_by_itself():
    env = double(20)
    sizes = [len(b) for b in poisson_batches(env, 500, torch.Generator().manual_seed(0))]
    assert len(sizes) == 500 * 4
    assert np.mean(sizes) == pytest.approx(5, abs=0.2)
    assert np.var(sizes) == pytest.approx(20 * 0.25 * 0.75, rel=0.15)
    whole = poisson_batches(double(4), 1, torch.Generator())
    assert [b.tolist() for b in whole] == [[0, 1, 2, 3]]


@pytest.mark.slow
def test_a_client_of_which_no_sample_was_drawn_has_a_loss():
    none = 0
    for client in range(40):
        env = double(2, PrivateSteps(1.0, 1.0), batch_size=1)
        env.client_id = client
        order = torch_generator(1, "shuffle", 2, client)
        none += not any(len(b) for b in poisson_batches(env, 1, order))
        assert math.isfinite(train_local(LocalRule(), env).train_loss)
    assert none


def test_gradients_of_few_samples_at_a_time_are_the_same(monkeypatch):
    whole, parts = double(private=PrivateSteps(0.5, 1.0)), double(private=PrivateSteps(0.5, 1.0))
    loss = train_local(LocalRule(), whole).train_loss
    enter(parts, LocalRule().phases(parts)[0])
    monkeypatch.setattr("fedsim.client.private.VALUES", 2 * sum(p.numel() for p in parts.params))
    assert train_local(LocalRule(), parts).train_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(
        parts.flat.flat.detach(), whole.flat.flat.detach(), rtol=1e-10, atol=1e-12
    )


def test_a_parameter_that_is_a_number_counts_in_the_norm_of_a_sample():
    # norms: sqrt(3^2 + 4^2) = 5 and 1; the first is halved to 2.5
    gradients = [torch.tensor([3.0, 1.0]), torch.tensor([[4.0], [0.0]])]
    number, row = clipped(gradients, 2.5)
    torch.testing.assert_close(number, torch.tensor([1.5, 1.0]))
    torch.testing.assert_close(row, torch.tensor([[2.0], [0.0]]))


class Counting(Net):
    def __init__(self):
        super().__init__(norm=False)
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        self.step = self.step + 1
        return super().forward(x)


def test_a_model_whose_buffers_change_has_no_gradients_by_sample():
    flat = FlatModel(Counting(), torch.device("cpu"))
    assert obstacle(flat, MarginControl(), torch.rand(2, 1, 2, 2)) == (
        "training changes step, by all samples together"
    )
