"""Images: decoded, transformed, augmented, and shifted from client to client."""

from __future__ import annotations

import io
import math
import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.rng import torch_scope
from fedsim.core.types import Array, Dataset, Partition, Pipeline
from fedsim.data import partitions
from fedsim.data import transforms as ours
from fedsim.data.holdout import hold_out
from fedsim.data.images import FORMATS, decode, sides
from fedsim.data.shifts import KINDS, changed, owners, shifted
from fedsim.data.transforms import AUGMENTS, Transforms, at_once, one_by_one
from tests.sites import SHORTCUT

PIXELS = np.arange(6 * 6 * 3, dtype=np.uint8).reshape(6, 6, 3) * 2
UPRIGHT = {
    1: PIXELS,
    2: PIXELS[:, ::-1],
    3: PIXELS[::-1, ::-1],
    4: PIXELS[::-1],
    5: PIXELS.transpose(1, 0, 2),
    6: np.rot90(PIXELS, -1),
    7: np.rot90(PIXELS, 2).transpose(1, 0, 2),
    8: np.rot90(PIXELS),
}
"""The EXIF standard: 6 is shown after a turn by 90 degrees clockwise, 8 anticlockwise."""


def content(form: str, orientation: int | None = None, pixels=PIXELS, exif=None) -> bytes:
    """An image file; ``exif`` are EXIF data as bytes, by default those with the orientation."""
    file = io.BytesIO()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x112] = orientation
    more = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})
    more |= {} if exif is None else {"exif": exif}
    Image.fromarray(pixels).save(file, form, **more)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", [None, *UPRIGHT, 0, 9, 65535])
def test_images_are_turned_as_their_exif_orientation_says(form, orientation, tmp_path: Path):
    path = tmp_path / "x.png"
    path.write_bytes(content(form, orientation))
    wanted = UPRIGHT.get(orientation, PIXELS).transpose(2, 0, 1).astype(int)
    assert np.abs(decode(path, 6).astype(int) - wanted).max() <= (3 if form == "JPEG" else 0)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["x", "x.png", "x.eps", "x.jpg"])
def test_a_format_that_is_documented_is_read_whatever_the_name(form, name, tmp_path: Path):
    (tmp_path / name).write_bytes(content(form))
    assert decode(tmp_path / name, 6).shape == (3, 6, 6)
    assert sides(tmp_path / name) == (6, 6)


OTHERS = {
    "GIF": lambda: content("GIF"),
    "EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\n%%EOF\n",
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="6" height="6"/>',
    "text": lambda: b"no image",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats_are_refused_whatever_the_name(kind, tmp_path: Path, monkeypatch):
    """An EPS file would have Pillow look for Ghostscript, and run it."""
    monkeypatch.setattr(shutil, "which", lambda name, *_: pytest.fail(f"looked for {name}"))
    path = tmp_path / "x.png"
    path.write_bytes(OTHERS[kind]())
    with pytest.raises(DataError, match=r"x\.png: .* not an image of a known format, PNG, JPEG"):
        decode(path, 6)


def png(depth: int, colours: int) -> bytes:
    """A PNG file of 6 x 6 pixels by its standard."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colours]
    row = b"\0" + bytes(6 * channels * depth // 8)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 6, 6, depth, colours, 0, 0, 0))]
    chunks += [(b"IDAT", zlib.compress(6 * row)), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pages(form: str) -> bytes:
    """Two different images in one file."""
    file = io.BytesIO()
    frames = [Image.fromarray(np.full((6, 6, 3), value, np.uint8)) for value in (0, 200)]
    frames[0].save(file, form, save_all=True, append_images=frames[1:])
    return file.getvalue()


KINDS_OF_FILES = {  # None: read, else what the message says
    **{f"png {colours}": (lambda c=colours: png(8, c), None) for colours in (0, 2, 4, 6)},
    **{f"png {c} 16": (lambda c=c: png(16, c), "16 bits a channel") for c in (0, 2, 4, 6)},
    "tiff grey": (lambda: content("TIFF", pixels=PIXELS[..., 0]), None),
    "tiff 16": (lambda: content("TIFF", pixels=np.zeros((6, 6), np.uint16)), "16 bits a channel"),
    "tiff float": (lambda: content("TIFF", pixels=np.zeros((6, 6), "f4")), "32 bits a channel"),
    "tiff stack": (lambda: pages("TIFF"), "2 pages or frames, needed is a file for each image"),
    "apng": (lambda: pages("PNG"), "2 pages or frames"),
    "jpeg with previews": (lambda: pages("MPO"), None),
}


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_an_image_is_read_whole_or_refused(kind, tmp_path: Path):
    """Pillow cuts 16-bit colours to their high bytes, and reads the first page alone."""
    (made, message), path = KINDS_OF_FILES[kind], tmp_path / "x.png"
    path.write_bytes(made())
    if message is None:
        assert decode(path, 6).shape == decode(path.read_bytes(), 6).shape == (3, 6, 6)
        return
    for source in (path, path.read_bytes()):
        with pytest.raises(DataError, match=rf"x\.png: {message}"):
            decode(source, 6, "" if source is path else "x.png")


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
    out = ours.resized_crops(x, 2, torch.tensor([[0, 0, 4, 4]]))
    left = (3 * 0 + 3 * 80 + 1 * 160) / 7
    assert out[0, 0].tolist() == [[round(left), round(240 - left)]] * 2
    whole = ours.resized_crops(x, 4, torch.tensor([[0, 0, 4, 4]]))
    assert torch.equal(whole, x)
    part = ours.resized_crops(x, 2, torch.tensor([[1, 2, 2, 2]]))
    assert part[0, 0].tolist() == [[160, 240]] * 2


def test_a_rotation_by_hand():
    x = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    quarter = ours.rotated(x, torch.tensor([90.0], dtype=torch.float64))
    assert torch.equal(quarter, x.rot90(1, (2, 3)))
    eighth = ours.rotated(x, torch.tensor([45.0], dtype=torch.float64))[0, 0]
    assert eighth[2, 2] == 13
    assert eighth[1, 1] == 8, "what was above the centre"
    assert eighth[0, 0] == 0, "it was outside"


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


NAMES = ("cifar10", "imagenet")
USED = sorted(
    {(op, level or 0) for name in NAMES for pair in ours.published(name) for op, _, level in pair}
)


def unsaturated(n: int, channels: int = 3, size: int = 32) -> torch.Tensor:
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
    x = unsaturated(3, channels, size)
    expected = [
        oracle._apply_image_or_video_transform(image, name, strength, "nearest", {type(x): None})
        for image in x
    ]
    got = ours.operations()[name](x, sign * level / 9)
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


EYES = replace(
    data.load(SHORTCUT, sites=6, samples_per_site=20), site=None, site_names=(), groups={}
)
SPLIT = hold_out(
    EYES, partitions.make(EYES, "iid", num_clients=6), val_fraction=0.1, test_fraction=0.2
)


def shift(kind: str, strength: float = 1.0, seed: int = 0, test: str = "mixed") -> Dataset:
    return shifted(EYES, SPLIT, kind, strength, seed, test)


def own(client: int) -> np.ndarray:
    return np.concatenate([part[client] for part in (SPLIT.train, SPLIT.val, SPLIT.test)])


def change(x: Array, kind: str, strength: float, client: int = 1) -> Array:
    """One client's change of some images."""
    noise = np.random.default_rng(0)
    return changed(torch.from_numpy(x), kind, strength, client, noise).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_client_keeps_its_images_and_the_others_change_all_of_theirs(kind):
    made = shift(kind)
    assert np.array_equal(made.x[own(0)], EYES.x[own(0)])
    for client in range(1, 6):
        changed = (made.x[own(client)] != EYES.x[own(client)]).any(axis=(1, 2, 3))
        assert changed.all()
    assert (made.x.dtype, made.x.shape) == (EYES.x.dtype, EYES.x.shape)
    assert made.x is not EYES.x


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_belong_to_the_seed(kind):
    made = shift(kind)
    assert made.x.tobytes() == shift(kind).x.tobytes()
    other = shift(kind, seed=1)
    trained = np.concatenate(SPLIT.train)
    assert np.array_equal(made.x[trained], other.x[trained]) == (kind != "noise")
    assert not np.array_equal(made.x[EYES.test], other.x[EYES.test])


def angle(x: Array) -> float:
    """Where the optic disc's side went, in degrees counter-clockwise, of a bar to the right."""
    y, at = np.nonzero(x[0, 0] > 100)
    return math.degrees(
        math.atan2(x.shape[2] / 2 - 0.5 - y.mean(), at.mean() - x.shape[3] / 2 + 0.5)
    )


def test_rotation_turns_counter_clockwise_by_up_to_a_right_angle():
    bar = np.zeros((1, 3, 33, 33), dtype=np.uint8)
    bar[:, :, 15:18, 22:28] = 200
    for strength in (0.25, 0.5, 1.0):
        assert angle(change(bar, "rotation", strength)) == pytest.approx(90 * strength, abs=1.5)


def test_contrast_and_intensity_by_hand():
    x = np.full((1, 3, 2, 2), 100, dtype=np.uint8)
    x[..., 0] = 200
    # brightness 1 - 0.6; contrast 1 - 0.75 around the mean grey level 150
    assert np.unique(change(x, "intensity", 1.0)).tolist() == [40, 80]
    assert change(x, "contrast", 1.0)[0, 0, 0].tolist() == pytest.approx([162, 137], abs=1)


def test_a_cast_is_the_clients_own():
    x = np.full((1, 3, 4, 4), 100, dtype=np.uint8)
    casts = {tuple(change(x, "colour", 1.0, client)[0, :, 0, 0].tolist()) for client in range(50)}
    assert len(casts) > 40
    hue = 2 * (math.sqrt(5) - 1) / 2
    wanted = [round(100 * (1 + 0.5 * math.cos(2 * math.pi * (hue + c / 3)))) for c in range(3)]
    assert change(x, "colour", 1.0, client=2)[0, :, 0, 0].tolist() == wanted


def test_noise_has_the_standard_deviation_that_is_said():
    x = np.full((200, 1, 16, 16), 128, dtype=np.uint8)
    spread = (change(x, "noise", 0.5).astype(float) - 128).std()
    # 32 grey levels, hardly ever cut off, from 51,200 draws
    assert spread == pytest.approx(32, rel=5 / math.sqrt(2 * x.size))


def test_common_images_have_the_shift_of_clients_by_their_sizes():
    sizes = [100, 300, 600]
    cuts = np.split(np.arange(1000), np.cumsum(sizes)[:-1])
    many = Dataset(
        name="toy",
        x=np.zeros((9000, 1, 2, 2), dtype=np.uint8),
        y=np.zeros(9000, dtype=np.int64),
        class_names=("a", "b"),
        train=np.arange(1000),
        val=np.arange(1000, 5000),
        test=np.arange(5000, 9000),
        pipeline=EYES.pipeline,
    )
    owner = owners(many, Partition(train=tuple(cuts)), 0, "mixed")
    for part in (many.val, many.test):
        share = np.bincount(owner[part]) / 4000
        assert np.abs(share - [0.1, 0.3, 0.6]).max() < 5 * np.sqrt(0.6 * 0.4 / 4000)
    assert not np.array_equal(owner[many.val], owner[many.test])
    assert [owner[cut].tolist() for cut in cuts] == [[k] * n for k, n in enumerate(sizes)]


def test_images_of_a_site_have_the_shift_of_the_client_that_owns_the_site():
    sites = data.load(SHORTCUT, sites=6, samples_per_site=20)
    by_site = partitions.make(sites, "by_site")
    owner = owners(sites, by_site, 0, "mixed")
    assert np.array_equal(owner, sites.site)
    for client, part in enumerate(by_site.test):
        assert (owner[part] == client).all()
    assert (owners(sites, by_site, 0, "clean")[sites.test] == -1).all()
    # where several clients share every site, the images are drawn as without sites
    shared = partitions.make(sites, "iid", num_clients=6)
    without = replace(sites, site=None)
    assert np.array_equal(owners(sites, shared, 0, "mixed"), owners(without, shared, 0, "mixed"))


def test_impossible_shifts_are_refused():
    digits = data.load("digits")
    split = partitions.make(digits, "iid", num_clients=2)
    with pytest.raises(ConfigError, match=r"'colour' needs images of three channels, digits has 1"):
        shifted(digits, split, "colour", 1.0, 0, "mixed")
    with pytest.raises(ConfigError, match=r"'blurr' given; must be .*did you mean 'blur'"):
        RunConfig(data={"feature_shift": "blurr"})
    assert RunConfig(data={"feature_shift": "blur"}).data.feature_shift in KINDS
