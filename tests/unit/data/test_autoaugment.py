"""AutoAugment: each operation against torchvision's own, the odds of the draws, no side effects."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from fedsim.core.rng import torch_scope
from fedsim.data import autoaugment as ours

NAMES = ("cifar10", "imagenet")
USED = sorted(
    {(op, level or 0) for name in NAMES for pair in ours.published(name) for op, _, level in pair}
)


def pictures(n: int, channels: int = 3, size: int = 32) -> torch.Tensor:
    """Noise that does not use the whole range, so that stretching the contrast changes it."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(20, 200, (n, channels, size, size), generator=generator).byte()


@pytest.mark.parametrize("name", NAMES)
def test_the_policies_are_those_of_torchvisions_v2(name):
    expected = v2.AutoAugment(v2.AutoAugmentPolicy(name))._policies
    assert len(ours.published(name)) == 25
    assert list(ours.published(name)) == list(expected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "level"), USED)
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28), (3, 64)])
def test_operations_on_a_batch_are_torchvisions_on_each_image(name, level, sign, channels, size):
    oracle = v2.AutoAugment()
    magnitudes, signed = oracle._AUGMENTATION_SPACE[name]
    assert signed == (name in ours._SIGNED)
    if sign < 0 and not signed:
        return
    values = magnitudes(10, size, size)
    strength = sign * (0.0 if values is None else float(values[level]))
    x = pictures(3, channels, size)
    expected = [
        oracle._apply_image_or_video_transform(image, name, strength, "nearest", {type(x): None})
        for image in x
    ]
    got = ours._operations()[name](x, sign * level / 9)
    assert got.dtype == torch.uint8
    # torchvision's factors are float32: 0.4 x may be cut to the grey below where it is whole
    assert (got.int() - torch.stack(expected).int()).abs().max() <= 1


def test_odds_of_an_operation_and_of_its_sign():
    x = torch.zeros(2000, 1, 16, 16, dtype=torch.uint8)
    x[:, :, 8, 8] = 255
    with torch_scope(0):
        out = ours.autoaugment(x, ((("TranslateX", 0.3, 3), ("Invert", 0.0, 0)),))
    # 150 / 331 * 16 * 3 / 9 = 2.4 pixels, cut to 2
    columns = out[:, 0, 8].nonzero()[:, 1].bincount(minlength=16)
    assert columns.nonzero().view(-1).tolist() == [6, 8, 10]
    # 0.15, 0.7 and 0.15 of 2000; five standard deviations are 80 and 102
    assert 220 < columns[6] < 380
    assert 220 < columns[10] < 380


def test_the_second_step_works_on_the_first_ones_result():
    x = torch.tensor([0, 100, 200, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    policy = ((("Invert", 1.0, 0), ("Posterize", 1.0, 9)),)
    # 255 - x = 255, 155, 55, 0; the upper 4 of 8 bits of each: 240, 144, 48, 0
    assert ours.autoaugment(x, policy).view(-1).tolist() == [240, 144, 48, 0]
    assert x.view(-1).tolist() == [0, 100, 200, 255]


def test_each_sample_draws_its_own_pair():
    plain, inverse = ("Invert", 0.0, 0), ("Invert", 1.0, 0)
    x = torch.zeros(400, 1, 2, 2, dtype=torch.uint8)
    with torch_scope(3):
        out = ours.autoaugment(x, ((plain, plain), (plain, inverse)))
    # 400 fair coins: five standard deviations are 50
    assert 150 < int((out[:, 0, 0, 0] == 255).sum()) < 250
