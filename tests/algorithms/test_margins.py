"""Margin control, its forms by hand and against an independent computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim.client.criterion import MarginControl, margins
from tests.oracles import losses

LOGITS = [[2.0, -1.0, 0.5], [0.0, 1.0, 0.0]]
LABELS = [0, 2]
THRESHOLDS = {
    "none": 0.0,
    "marg_log": 0.0,
    "softmax_frob": 0.0,
    "spectral": 0.0,
    "sigma_damp": 2.0,
    "sigma_damp_kappa": 1.0,
    "sigma_stitch": 1.0,
    "logit_hinge": 1.0,
}
"""The forms, and the default threshold of those that have one."""
ADDED = ("marg_log", "softmax_frob", "spectral", "logit_hinge")
every_form = pytest.mark.parametrize("form", THRESHOLDS)


def batch(rows, classes, seed=0, scale=3.0):
    rng = np.random.default_rng([seed, rows, classes])
    logits = torch.tensor(rng.normal(scale=scale, size=(rows, classes)), dtype=torch.float64)
    return logits, torch.tensor(rng.integers(0, classes, size=rows))


def pair(margin):
    """One sample of two classes with that margin, label 0."""
    zero = torch.zeros_like(margin)
    return torch.stack([margin, zero]).unsqueeze(0), torch.tensor([0])


def test_by_hand():
    # Logits (3, 4) and (0, 0), label 0, two classes: margins -1 and 0;
    # CE = (log(1 + e) + log 2) / 2. Squared lengths 25 and 0, lambda = 0.1.
    logits = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    ce = (math.log(1 + math.e) + math.log(2)) / 2
    damped = -1 / (1 + math.exp(-0.5))  # m * sigmoid(-m / 2) at m = -1
    expected = {
        "none": ce,
        "marg_log": ce + 0.1 * math.log(26) / 2,
        "spectral": ce + 0.1 * 25 / 2,
        "logit_hinge": ce + 0.1 * (5 - 1) ** 2 / 2,
        "sigma_damp": (math.log(1 + math.exp(-damped)) + math.log(2)) / 2,
        "sigma_stitch": ce,
    }
    assert margins(logits, labels).tolist() == pytest.approx([-1.0, 0.0], abs=1e-15)
    for form, value in expected.items():
        assert MarginControl(form, 0.1)(logits, labels).item() == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("none", 0.8963780053),
        ("marg_log", 1.022664438),
        ("softmax_frob", 0.9691892911),
        ("spectral", 1.208878005),
        ("sigma_damp", 0.855604171),
        ("sigma_damp_kappa", 1.100880046),
        ("sigma_stitch", 0.9770810206),
        ("logit_hinge", 0.9797492205),
    ],
)
def test_published_example(form, expected):
    loss = MarginControl(form, 0.1)(torch.tensor(LOGITS, dtype=torch.float64), torch.tensor(LABELS))
    assert loss.item() == pytest.approx(expected, rel=1.5e-9)


def test_published_margins():
    got = margins(torch.tensor(LOGITS, dtype=torch.float64), torch.tensor(LABELS))
    assert got.tolist() == pytest.approx([1.298586722, -1.313261688], rel=1.5e-9)
    ce = functional.softplus(-got)
    assert ce.tolist() == pytest.approx([0.2413112967, 1.551444714], rel=1.5e-9)


@every_form
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_oracle(form, classes, rows):
    logits, labels = batch(rows, classes)
    default = MarginControl(form)(logits, labels)
    expected = losses.margin_control(form, logits, labels, 0.03, THRESHOLDS[form])
    assert default.shape == ()
    assert default.item() == pytest.approx(expected, rel=1e-12)
    other = MarginControl(form, 0.7, 1.7)(logits, labels)
    expected = losses.margin_control(form, logits, labels, 0.7, 1.7)
    assert other.item() == pytest.approx(expected, rel=1e-12)
    single = MarginControl(form)(logits.float(), labels)
    expected = losses.margin_control(form, logits.float(), labels, 0.03, THRESHOLDS[form])
    assert single.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_cross_entropy_is_softplus_of_the_negative_margin(classes):
    logits, labels = batch(20, classes)
    got = functional.softplus(-margins(logits, labels))
    expected = functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", ADDED)
def test_weight_zero_is_cross_entropy(form):
    logits, labels = batch(20, 4)
    got = MarginControl(form, 0.0)(logits, labels)
    assert torch.equal(got, functional.cross_entropy(logits, labels))


def test_a_flat_damping_is_cross_entropy_of_half_the_margin():
    # tau -> infinity: z = m * sigmoid(0) = m / 2, so CE of logits that are half as large (C = 2).
    logits, labels = batch(20, 2)
    got = MarginControl("sigma_damp", threshold=1e9)(logits, labels).item()
    expected = functional.cross_entropy(logits / 2, labels).item()
    assert got == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_released_term_lies_between_its_bounds(scale, classes):
    # Each softmax has a squared length between 1/C (uniform) and 1 (one-hot); B = 50.
    logits, labels = batch(50, classes, scale=scale)
    ce = functional.cross_entropy(logits, labels)
    term = (MarginControl("softmax_frob", 1.0)(logits, labels) - ce).item()
    assert math.log(1 + 50 / classes) - 1e-9 <= term <= math.log(51) + 1e-9


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_damped_margins_are_largest_at_kappa_tau(tau):
    # The loss softplus(-z) is least where z is largest: z = tau * (kappa - 1) at m = kappa * tau.
    def loss(m):
        value = torch.tensor(m, dtype=torch.float64)
        return MarginControl("sigma_damp", threshold=tau)(*pair(value)).item()

    best = losses.KAPPA * tau
    assert loss(best) == pytest.approx(losses.softplus(-tau * (losses.KAPPA - 1)), rel=1e-12)
    assert loss(best - 0.01) > loss(best) < loss(best + 0.01)


@every_form
@pytest.mark.parametrize("classes", [2, 3])
def test_gradients(form, classes):
    logits, labels = batch(6, classes)
    logits.requires_grad_()
    loss = MarginControl(form, 0.4)
    assert torch.autograd.gradcheck(lambda f: loss(f, labels), (logits,))


def test_the_gradient_of_the_published_form():
    # d/df of lambda * mean log(1 + |f|^2) is lambda * 2 f / (1 + |f|^2) / B.
    logits, labels = batch(5, 3)
    logits.requires_grad_()
    ce = torch.autograd.grad(functional.cross_entropy(logits, labels), logits)[0]
    full = torch.autograd.grad(MarginControl("marg_log", 0.2)(logits, labels), logits)[0]
    expected = 0.2 * 2 * logits / (1 + logits.square().sum(-1, keepdim=True)) / 5
    torch.testing.assert_close(full - ce, expected, rtol=1e-12, atol=1e-14)


@every_form
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("classes", [2, 4])
def test_extreme_logits_have_finite_losses_and_gradients(form, size, classes):
    labels = torch.arange(classes)
    logits = torch.zeros(classes, classes)
    logits[:, 0] = size
    logits.requires_grad_()
    loss = MarginControl(form, 0.1)(logits, labels)
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert torch.all(torch.isfinite(logits.grad))


@every_form
def test_half_precision_is_computed_in_single(form):
    logits, labels = batch(20, 4)
    half = logits.to(torch.bfloat16)
    got = MarginControl(form, 0.3)(half, labels)
    expected = MarginControl(form, 0.3)(half.float(), labels)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=0)
