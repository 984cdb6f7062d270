"""Values that the runs of a driver have in common."""

import torch
from torch import nn

from fedsim import models
from fedsim.core import reuse
from fedsim.core.types import ModelSpec

MLP = ModelSpec(name="mlp", num_classes=3, in_channels=1, image_size=8)


class Maker:
    """Counts how often it makes a list."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> list[int]:
        self.made += 1
        return [self.made]


def test_a_single_run_keeps_nothing() -> None:
    make = Maker()
    assert reuse.once("data", 1, make) == [1]
    assert reuse.once("data", 1, make) == [2]
    assert reuse.copied("model", 1, make) == [3]


def test_runs_of_a_driver_share_a_value_until_the_driver_ends() -> None:
    make = Maker()
    with reuse.across_runs():
        first = reuse.once("data", 1, make)
        assert reuse.once("data", 1, make) is first
        assert reuse.once("features", 1, make) is not first
    assert reuse.once("data", 1, make) == [3]


def test_the_value_used_longest_ago_goes_before_another_is_made() -> None:
    make = Maker()
    with reuse.across_runs():
        for key in range(reuse.MOST["features"]):
            reuse.once("features", key, make)
        reuse.once("features", 0, make)  # used again: 1 is the oldest now
        reuse.once("features", "new", make)
        made = make.made
        reuse.once("features", 0, make)
        assert make.made == made
        reuse.once("features", 1, make)
        assert make.made == made + 1


def test_a_copy_can_be_changed() -> None:
    make = Maker()
    with reuse.across_runs():
        reuse.copied("model", 1, make).append(7)
        assert reuse.copied("model", 1, make) == [1]
    assert make.made == 1


def test_what_cannot_be_pickled_is_made_anew() -> None:
    made = []

    def make() -> nn.Module:
        model = nn.Linear(1, 1)
        model.register_forward_hook(lambda *_: made.append(model))  # of this very module
        return model

    with reuse.across_runs():
        first, second = (reuse.copied("model", 1, make) for _ in range(2))
        second(torch.zeros(1, 1))
    assert made == [second]
    assert first is not second


def test_a_network_has_the_weights_of_one_that_is_built_now() -> None:
    now = models.build(MLP, 3).state_dict()
    with reuse.across_runs():
        first = models.build(MLP, 3)
        for parameter in first.parameters():
            nn.init.zeros_(parameter)
        again, other = models.build(MLP, 3).state_dict(), models.build(MLP, 4).state_dict()
    assert all(torch.equal(now[name], again[name]) for name in now)
    assert not all(torch.equal(now[name], other[name]) for name in now)
