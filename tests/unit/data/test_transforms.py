"""Transforms: normalisation by hand, per-sample randomness, the published pipelines."""

from __future__ import annotations

import pytest
import torch

from fedsim.core.errors import ConfigError
from fedsim.core.rng import torch_scope
from fedsim.core.types import Pipeline
from fedsim.data.transforms import (
    AUGMENTS,
    Transforms,
    at_once,
    one_by_one,
    resized_crops,
    rotated,
)

CPU = torch.device("cpu")


def pictures(n: int, channels: int = 3, size: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


def test_normalisation_by_hand():
    # 51 / 255 = 0.2: (0.2 - 0.5) / 0.25 = -1.2; 255: (1 - 0.5) / 0.25 = 2; 0: -2
    x = torch.tensor([51, 255, 0, 0], dtype=torch.uint8).view(1, 1, 2, 2)
    made = Transforms(Pipeline(size=2, mean=(0.5,), std=(0.25,)), CPU)
    for out in (made.train(x), made.test(x)):
        assert out.dtype == torch.float32
        torch.testing.assert_close(out.view(-1), torch.tensor([-1.2, 2.0, -2.0, -2.0]))
    assert x.view(-1).tolist() == [51, 255, 0, 0]  # the stored images stay as they are


@pytest.mark.parametrize("augment", list(AUGMENTS))
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [16, 12, 20])
def test_same_seed_same_batch_of_the_right_shape(augment, channels, size):
    made = Transforms(
        Pipeline(size=size, mean=(0.5,) * channels, std=(0.5,) * channels, augment=augment), CPU
    )
    x = pictures(6, channels)
    outs = []
    for seed in (7, 7, 8):
        with torch_scope(seed):
            outs.append(made.train(x))
    assert outs[0].shape == (6, channels, size, size)
    assert outs[0].dtype == torch.float32
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2]) == (augment == "none")
    assert outs[0].min() >= -1
    assert outs[0].max() <= 1


@pytest.mark.parametrize("augment", [name for name in AUGMENTS if name != "none"])
def test_every_sample_has_its_own_parameters(augment):
    x = pictures(1).expand(32, -1, -1, -1)
    with torch_scope(0):
        out = Transforms(
            Pipeline(size=16, mean=(0.5,) * 3, std=(0.5,) * 3, augment=augment), CPU
        ).train(x)
    different = torch.unique(out.flatten(1), dim=0)
    assert len(different) == 2 if augment == "flip" else len(different) > 16


def test_flip_mirrors_about_half_of_the_samples():
    x = pictures(400, 1, 4)
    made = Transforms(Pipeline(size=4, mean=(0.0,), std=(1 / 255,), augment="flip"), CPU)
    with torch_scope(0):
        out = made.train(x)
    mirrored = (out == x.flip(-1)).flatten(1).all(1)
    kept = (out == x).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    # 400 fair coins: five standard deviations are 50
    assert 150 < int(mirrored.sum()) < 250


def test_crop_flip_moves_a_bright_pixel_by_at_most_four():
    x = torch.zeros(300, 1, 12, 12, dtype=torch.uint8)
    x[:, :, 5, 6] = 255
    with torch_scope(0):
        out = Transforms(
            Pipeline(size=12, mean=(0.0,), std=(1.0,), augment="crop_flip"), CPU
        ).train(x)
    assert torch.equal(out.sum((1, 2, 3)), torch.ones(300))
    rows, columns = out[:, 0].nonzero()[:, 1], out[:, 0].nonzero()[:, 2]
    assert set(rows.tolist()) == set(range(1, 10))  # 5 - 4 .. 5 + 4
    # from 6, or from 5 if mirrored
    assert set(columns.tolist()) == set(range(1, 11))


def test_another_stored_size_is_resized():
    # a left half black, a right half white, at half the size: the same halves
    x = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    x[..., 4:] = 255
    out = Transforms(Pipeline(size=4, mean=(0.0,), std=(1.0,)), CPU).test(x)
    assert out[0, 0, :, 0].tolist() == [0.0] * 4
    assert out[0, 0, :, 3].tolist() == [1.0] * 4


@pytest.mark.parametrize("scale", [(0.6, 1.0), (0.8, 1.2)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [12, 16, 23])
def test_a_batch_at_once_is_the_images_one_by_one(scale, channels, size):
    results = []
    for augment in (one_by_one, at_once):
        with torch_scope(3):
            results.append(augment(pictures(20, channels, 17), size, scale).int())
    assert (results[0] - results[1]).abs().max() <= 1


def test_a_crop_by_hand():
    # 4 columns to 2: weights 1, 3, 3, 1 of 8 about each pair's centre, cut off at the box's edge
    x = torch.tensor([[[[0, 80, 160, 240]] * 4]], dtype=torch.uint8)
    out = resized_crops(x, 2, torch.tensor([[0, 0, 4, 4]]))
    left = (3 * 0 + 3 * 80 + 1 * 160) / 7
    assert out[0, 0].tolist() == [[round(left), round(240 - left)]] * 2
    whole = resized_crops(x, 4, torch.tensor([[0, 0, 4, 4]]))
    assert torch.equal(whole, x)
    part = resized_crops(x, 2, torch.tensor([[1, 2, 2, 2]]))
    assert part[0, 0].tolist() == [[160, 240]] * 2


def test_a_rotation_by_hand():
    x = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    quarter = rotated(x, torch.tensor([90.0], dtype=torch.float64))
    assert torch.equal(quarter, x.rot90(1, (2, 3)))
    eighth = rotated(x, torch.tensor([45.0], dtype=torch.float64))[0, 0]
    assert eighth[2, 2] == 13
    assert eighth[1, 1] == 8, "what was above the centre"
    assert eighth[0, 0] == 0, "it was outside"


def test_unknown_augmentation_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'crop_flop' is unknown .*did you mean 'crop_flip'"):
        Transforms(Pipeline(size=4, mean=(0.5,), std=(0.5,), augment="crop_flop"), CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", list(AUGMENTS))
def test_the_device_does_not_change_the_parameters(augment):
    pipeline, outs = Pipeline(size=12, mean=(0.5,) * 3, std=(0.5,) * 3, augment=augment), []
    for device in (CPU, torch.device("cuda")):
        with torch_scope(3, device):
            outs.append(Transforms(pipeline, device).train(pictures(16)).cpu())
    # an interpolated pixel may round to the neighbour: 1 / 255 / 0.5 = 0.0078; a pixel at the
    # border of the rotated square may fall on the other side
    assert ((outs[0] - outs[1]).abs() < 0.0079).float().mean() > 0.99
