"""FedDecorr: the decorrelation term in both forms, and training with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.algorithms.feddecorr import decorrelation
from tests.oracles import client_losses as oracle

from . import fullbatch
from .training import train, worker

EXAMPLE = [[1.0, 2.0, 0.0], [2.0, 1.0, 1.0], [4.0, 3.0, 1.0], [0.0, 1.0, 3.0]]
FORMS = ("code", "paper")
every_form = pytest.mark.parametrize("form", FORMS)


def features(b, d, seed=0):
    rng = np.random.default_rng([seed, b, d])
    return torch.from_numpy(rng.normal(size=(b, d)) @ rng.normal(size=(d, d)))


@pytest.mark.parametrize(("form", "value"), [("code", 0.7506151637), ("paper", 0.5557378294)])
def test_published_example(form, value):
    got = decorrelation(torch.tensor(EXAMPLE, dtype=torch.float64), form)
    assert got.item() == pytest.approx(value, rel=1.5e-9)


def test_by_hand():
    # Columns (0, 1) and (0, 1): rho = 1. code: (2 - 1)^2 / 2 * 1; paper: all four are 1.
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert decorrelation(x, "code").item() == pytest.approx(0.5, rel=1e-7)
    assert decorrelation(x, "paper").item() == pytest.approx(1.0, rel=1e-7)


@every_form
@pytest.mark.parametrize("b", [2, 5, 40])
@pytest.mark.parametrize("d", [2, 7])
def test_oracle(form, b, d):
    x = features(b, d).requires_grad_()
    got, expected = decorrelation(x, form), oracle.decorrelation(x, form)
    assert got.item() == pytest.approx(expected.item(), rel=1e-9)
    assert torch.autograd.grad(got, x)[0].abs().max() > 0


@every_form
def test_gradient(form):
    assert torch.autograd.gradcheck(
        lambda x: decorrelation(x, form), (features(6, 3, 1).requires_grad_(),)
    )


@every_form
def test_moving_and_stretching_a_feature_changes_nothing(form):
    x = features(20, 5)
    other = x * torch.tensor([1.0, 2.0, 30.0, 0.1, 5.0]) + torch.arange(5.0)
    assert decorrelation(other, form).item() == pytest.approx(
        decorrelation(x, form).item(), rel=1e-6
    )


@every_form
def test_one_sample_has_no_term(form):
    x = features(1, 5).requires_grad_()
    assert decorrelation(x, form).item() == 0


@every_form
def test_constant_features_have_correlation_zero_and_a_finite_gradient(form):
    x = features(6, 3).float()
    alone = decorrelation(x, form).item()
    dead = torch.cat([x, torch.zeros(6, 2)], dim=1).requires_grad_()
    term = decorrelation(dead, form)
    pairs = {"code": 3 * 2 / (5 * 4), "paper": 3 * 3 / (5 * 5)}[form]
    assert term.item() == pytest.approx(alone * pairs, rel=1e-5)
    assert torch.isfinite(torch.autograd.grad(term, dead)[0]).all()


@every_form
def test_training_follows_the_oracle(form):
    w = worker("feddecorr", model="mlp", training=fullbatch.TRAINING, beta=0.3, form=form)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=fullbatch.LR)
    x, _ = fullbatch.data(w, 0)
    plain = fullbatch.classification(w, 0)

    def objective(params):
        return plain(params) + 0.3 * oracle.decorrelation(oracle.network(params, x)[0], form)

    gradient = oracle.gradient_of(objective)
    # the penalty divides by the deviation of features over the batch, of which they are up to ten
    fullbatch.assert_update(w, deltas[0], start, gradient, growth=10)
    reported = fullbatch.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)


def test_beta_zero_is_fedavg_bit_for_bit():
    reports, deltas = train(worker("feddecorr", beta=0.0))
    expected_reports, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(deltas, expected)
    assert [r.train_loss for r in reports] == [r.train_loss for r in expected_reports]
    assert np.abs(train(worker("feddecorr"))[1] - expected).max() > 0
