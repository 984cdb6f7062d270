"""Attacks that a malicious client does on its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedsim.attacks.backdoor import Backdoor
from fedsim.attacks.base import AttackedSamples, AttackedUpdates, Malicious, draw_malicious
from fedsim.attacks.gaussian import Gaussian
from fedsim.attacks.label_flip import LabelFlip
from fedsim.attacks.sign_flip import scaled
from fedsim.core.types import ClientTask, Layout, RoundContext, Slot, Triggered

CTX = RoundContext(round=2, num_rounds=5, num_clients=6, lr=0.1, seed=3)
LAYOUT = Layout(
    (
        Slot(name="a", shape=(2,), start=0, stop=2),
        Slot(name="head", shape=(1,), start=2, stop=3, head=True),
        Slot(name="mean", shape=(1,), start=3, stop=4, role="stat"),
    )
)
BAD = Malicious(frozenset([1, 4]), start=2)
DELTA = np.array([1.0, -2.0, 0.5, 7.0])


def task(client=1, round=2):
    return ClientTask(client=client, ctx=replace(CTX, round=round))


def shared(slot):
    return False


def test_sign_flip_by_hand():
    flip = AttackedUpdates(BAD, partial(scaled, factor=-3.0))
    np.testing.assert_array_equal(flip(DELTA, {}, task(), LAYOUT).delta, [-3, 6, -1.5, 7])
    for honest in (task(client=0), task(round=1)):
        np.testing.assert_array_equal(flip(DELTA, {}, honest, LAYOUT).delta, DELTA)


def test_gaussian_noise_takes_the_place_of_what_is_sent():
    noise = AttackedUpdates(BAD, Gaussian(lambda slot: slot.head, scale=2.0))
    delta = DELTA * [1, 1, 0, 1]
    first, again = (noise(delta, {}, task(), LAYOUT).delta for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first[2:].tolist() == [0, 7]
    others = [noise(delta, {}, other, LAYOUT).delta for other in (task(4), task(round=3))]
    assert all((other[:2] != first[:2]).all() for other in others)
    np.testing.assert_array_equal(noise(delta, {}, task(0), LAYOUT).delta, delta)


def test_gaussian_noise_has_its_standard_deviation():
    wide = Layout((Slot(name="a", shape=(4000,), start=0, stop=4000),))
    sent = Gaussian(shared, scale=0.3)(np.ones(4000), task(), wide)
    assert kstest(sent / 0.3, "norm").pvalue > 1e-3


def test_label_flip_by_hand():
    x, y = torch.zeros(4, 1), torch.tensor([0, 3, 9, -1])
    flip = LabelFlip(10)

    def flipped(flip, who):
        same, labels = AttackedSamples(BAD, flip)(x, y, who)
        assert same is x
        return labels

    assert flipped(flip, task()).tolist() == [9, 6, 0, -1]
    assert flipped(LabelFlip(10, source=3, target=8), task()).tolist() == [0, 8, 9, -1]
    assert flipped(LabelFlip(10, source=0, target=0), task()).tolist() == [0, 3, 9, -1]
    assert flipped(flip, task(client=2)) is y
    assert flipped(flip, task(round=1)) is y


def test_backdoor_by_hand():
    x = torch.arange(6 * 2 * 3 * 3, dtype=torch.uint8).view(6, 2, 3, 3)
    y = torch.tensor([0, 1, 2, 1, 0, 2])
    given = x.clone(), y.clone()
    door = AttackedSamples(BAD, Backdoor(Triggered(target=0, pixels=2), share=0.5))
    sent, labels = door(x, y, task())
    changed = (sent != x).flatten(1).any(dim=1)
    assert changed.sum() == 2  # of the four of another class
    assert (y[changed] != 0).all()
    assert torch.equal(labels, torch.where(changed, 0, y))
    assert (sent[changed][:, :, 1:, 1:] == 255).all()
    assert torch.equal(sent[changed][:, :, 0], x[changed][:, :, 0])
    assert torch.equal(sent[changed][:, :, :, 0], x[changed][:, :, :, 0])
    later = door(x, y, task(round=4))
    assert torch.equal(sent, later[0])
    assert torch.equal(labels, later[1])
    all_of_one = Backdoor(Triggered(target=0, source=2, pixels=1), share=1.0)
    assert all_of_one(x, y, task())[1].tolist() == [0, 1, 0, 1, 0, 0]
    for honest in (task(client=2), task(round=1)):
        same = door(x, y, honest)
        assert same[0] is x
        assert same[1] is y
    assert torch.equal(x, given[0])
    assert torch.equal(y, given[1])


def test_who_is_malicious():
    clients = [0, 2, 3, 5, 7, 8, 9, 11, 12, 14]
    drawn = {share: draw_malicious(clients, share, 5) for share in (0, 0.09, 0.2, 0.3, 0.7, 1)}
    assert [len(each) for each in drawn.values()] == [0, 0, 2, 3, 7, 10]
    assert set(drawn[0.2]) < set(drawn[0.3]) < set(drawn[0.7]) < set(drawn[1]) == set(clients)
    assert len({draw_malicious(clients, 0.3, seed) for seed in range(9)}) > 5
    counts = np.bincount([c for s in range(400) for c in draw_malicious(range(10), 0.3, s)])
    assert ((counts > 80) & (counts < 160)).all()


@pytest.mark.parametrize(("fraction", "clients", "n"), [(0.29, 100, 29), (0.1, 50, 5), (0.2, 5, 1)])
def test_fractions_are_rounded_down(fraction, clients, n):
    assert len(draw_malicious(range(clients), fraction, 0)) == n
