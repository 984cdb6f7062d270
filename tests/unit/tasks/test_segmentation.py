"""Segmentation: loss and measures against plain NumPy and brute-force distances, whole runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist

from fedsim import data
from fedsim.client.criterion import MarginControl, criterion_of
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.task import TargetError
from fedsim.metrics.samples import joined, kept, streamed
from fedsim.tasks import segmentation, with_more

TASK = with_more(segmentation.build(), ["hausdorff95"])
MEASURES = {m.name: m for m in TASK.measures}


def blobs(rng, n: int, c: int, h: int, w: int) -> np.ndarray:
    """(n, c, h, w) smooth outputs."""
    noise = rng.standard_normal((n, c, h, w))
    return np.stack([gaussian_filter(one, (0, *2 * [rng.uniform(0.5, 2.5)])) for one in noise])


def a_case(rng) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and masks; some without a class, all background, of one pixel, or not counted."""
    n, c, h, w = rng.integers(1, 4), rng.integers(2, 5), rng.integers(1, 16), rng.integers(1, 16)
    outputs = 5 * blobs(rng, n, c, h, w)
    y = blobs(rng, n, c, h, w).argmax(axis=1).astype(np.uint8)
    if rng.random() < 0.3:
        y[0] = 0
    if rng.random() < 0.2:
        outputs[:, 0] += 100
    if rng.random() < 0.3:
        y.reshape(n, -1)[:, 1:][rng.random((n, h * w - 1)) < 0.2] = 255
    return outputs, y


def edge(mask: np.ndarray) -> np.ndarray:
    """(k, 2) pixels of the mask with a neighbour outside, beside, above or below."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(mask & ~inner)


def of_an_image(name: str, predicted: np.ndarray, true: np.ndarray) -> float | None:
    """A measure of two masks (H, W) bool, None where it is undefined."""
    both, p, t = (predicted & true).sum(), predicted.sum(), true.sum()
    if name == "dice":
        return 2 * both / (p + t) if p + t else None
    if name == "iou":
        return both / (predicted | true).sum() if p + t else None
    if not (p and t):
        return None
    distances = cdist(edge(predicted), edge(true))
    return max(np.percentile(distances.min(axis=axis), 95) for axis in (0, 1))


def by_class(name: str, outputs: np.ndarray, y: np.ndarray) -> list[float | None]:
    """The measure of each class by its definition."""
    values = []
    counted, predicted = y != 255, outputs.argmax(axis=1)
    for k in range(outputs.shape[1]):
        a, b = (predicted == k) & counted, (y == k) & counted
        if k == 0 and name == "hausdorff95":  # pixels that do not count are background there
            a, b = a | ~counted, b | ~counted
        if name.endswith("_pooled"):
            one = of_an_image(name.removesuffix("_pooled"), a, b)
            values.append(one)
            continue
        each = [of_an_image(name, *pair) for pair in zip(a, b, strict=True)]
        defined = [value for value in each if value is not None]
        values.append(np.mean(defined) if defined else None)
    return values


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_those_of_their_definitions(name):
    rng, measure = np.random.default_rng(5), MEASURES[name]
    for _ in range(200):
        outputs, y = a_case(rng)
        wanted, sums = by_class(name, outputs, y), measure.of(outputs, y)
        assert measure.by_class(sums) == pytest.approx(wanted, abs=1e-12)
        defined = [value for value in wanted[1:] if value is not None]
        value = measure.value(sums)
        assert value == (pytest.approx(np.mean(defined), abs=1e-12) if defined else None)


def test_means_over_images_and_over_pixels_by_hand():
    """Image 1: 1 of 4 pixels found; 2: all of 12; 3: nothing there, one pixel said; 4: nothing."""
    y = np.zeros((4, 4, 4), np.uint8)
    y[0, :2, :2] = y[1, :3] = 1
    said = np.zeros_like(y)
    said[0, 0, 0] = said[2, 0, 0] = 1
    said[1] = y[1]
    outputs = np.stack([1 - said, said], axis=1).astype(float)
    values = {name: m.of_samples(outputs, y) for name, m in MEASURES.items()}
    assert values["dice"] == pytest.approx((2 / 5 + 1 + 0) / 3)
    assert values["iou"] == pytest.approx((1 / 4 + 1 + 0) / 3)
    assert values["dice_pooled"] == pytest.approx(2 * 13 / (14 + 16))
    assert values["iou_pooled"] == pytest.approx(13 / 17)
    assert values["hausdorff95"] == pytest.approx((np.percentile([0, 1, 1, 2**0.5], 95) + 0) / 2)


def test_sums_by_batch_are_those_of_all_images_at_once():
    rng = np.random.default_rng(1)
    outputs = blobs(rng, 7, 3, 9, 9)
    y = blobs(rng, 7, 3, 9, 9).argmax(axis=1).astype(np.uint8)
    whole = kept(TASK, outputs, y)
    parts = joined([streamed(TASK, outputs[at], y[at]) for at in (slice(3), slice(3, 7))])
    assert parts.loss() == pytest.approx(whole.loss(), abs=1e-12)
    assert parts.values() == pytest.approx(whole.values(), abs=1e-12)
    some = np.array([5, 0])
    assert parts.at(some).values() == pytest.approx(whole.at(some).values(), abs=1e-12)


def test_the_loss_is_cross_entropy_and_soft_dice_of_pixels_that_count():
    rng = np.random.default_rng(2)
    for _ in range(50):
        outputs, y = a_case(rng)
        chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        got = segmentation.loss(torch.from_numpy(outputs), torch.from_numpy(y))
        for i, mask in enumerate(y):
            counted = mask != 255
            p, true = chances[i][:, counted], np.eye(outputs.shape[1])[mask[counted]].T
            entropy = -np.log((p * true).sum(axis=0)).mean()
            dice = (2 * (p * true).sum(1) + 1) / (p.sum(1) + true.sum(1) + 1)
            assert float(got[i]) == pytest.approx(entropy + 1 - dice[1:].mean(), abs=1e-9)


def test_margin_control_is_the_mean_over_pixels():
    """A penalty of ||logits||^2 at each pixel; the forms that need margins are refused."""
    dataset = data.load("discs", samples=4, test_fraction=0.25)
    rng = np.random.default_rng(3)
    logits, y = torch.from_numpy(rng.standard_normal((2, 2, 64, 64))), dataset.y[:2]
    criterion = criterion_of(MarginControl("spectral", 0.1), dataset)
    loss, plain = criterion.with_cross_entropy(logits, torch.from_numpy(y))
    assert float(loss - plain) == pytest.approx(0.1 * float(logits.square().sum(1).mean()))
    with pytest.raises(ConfigError, match=r"sigma_stitch.*no margins of classes"):
        criterion_of(MarginControl("sigma_stitch"), dataset)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((2, 3), np.uint8), "needed are masks"),
        (np.zeros((2, 3, 3), np.int64), "needed are masks"),
        (np.full((1, 2, 2), 255, np.uint8), "all pixels of a mask are 255"),
    ],
)
def test_targets_that_are_no_masks(y, message):
    with pytest.raises(TargetError, match=message):
        segmentation.check(y)


def save(path: Path, array: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)


def write_folder(root: Path, height: int = 20, width: int = 30, values=(0, 255)) -> Path:
    """Ten images whose bright rectangle is the mask."""
    rows = []
    for i in range(10):
        mask = np.full((height, width), values[0], np.uint8)
        mask[4 + i % 3 : 14, 8 + i % 4 : 20] = values[1 + i % (len(values) - 1)]
        save(root / "images" / f"{i}.png", np.where(mask > 0, 200, 20).astype(np.uint8))
        save(root / "masks" / f"{i}.png", mask)
        rows.append(f"{i}.png,{'ab'[i % 2]},p{i // 2}")
    (root / "labels.csv").write_text("\n".join(["filename,site,patient", *rows]))
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


def load(root: Path, **given):
    return data.load("folder", root, **{"task": "segmentation", "image_size": 20} | given)


@pytest.mark.parametrize("size", [20, 13, 32])
def test_masks_are_resized_as_their_images(tmp_path, size):
    """Away from its edge the bright rectangle is the mask, and its edge is one pixel wide."""
    loaded = load(write_folder(tmp_path), image_size=size)
    bright = loaded.x[:, 0] > 110
    assert loaded.y.shape == (10, size, size)
    assert loaded.y.dtype == np.uint8
    assert set(np.unique(loaded.y)) == {0, 1}
    assert (bright != loaded.y).mean() < 0.02
    if size == 20:
        np.testing.assert_array_equal(bright, loaded.y)
    assert loaded.class_names == ("background", "foreground")
    assert loaded.site_names == ("a", "b")
    assert len(loaded.patient_names) == 5


def test_classes_of_masks_by_number_and_by_name(tmp_path):
    root = write_folder(tmp_path, values=(0, 1, 2, 255))
    loaded = load(root)
    assert loaded.class_names == ("background", "1", "2")
    assert set(np.unique(loaded.y)) == {0, 1, 2, 255}
    (root / "labels.csv").unlink()
    (root / "classes.txt").write_text("nothing\nliver\nkidney\ntumour\n")
    named = load(root)
    assert named.class_names == ("nothing", "liver", "kidney", "tumour")
    assert named.site is None
    np.testing.assert_array_equal(np.sort(named.y, axis=0), np.sort(loaded.y, axis=0))


def test_an_image_that_its_camera_turned_fits_its_upright_mask(tmp_path):
    """And masks without any foreground still have two classes."""
    bright = np.full((20, 30), 20, np.uint8)
    bright[3:10, 4:16] = 200
    turned = Image.fromarray(np.ascontiguousarray(np.rot90(bright)))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned clockwise
    for name, mask in (("a", bright > 100), ("b", np.zeros((20, 30)))):
        save(tmp_path / "masks" / f"{name}.png", (255 * mask).astype(np.uint8))
        (tmp_path / "images").mkdir(exist_ok=True)
        turned.save(tmp_path / "images" / f"{name}.png", exif=exif)
    loaded = load(tmp_path, test_fraction=0.5)
    np.testing.assert_array_equal(loaded.y[0], loaded.x[0, 0] > 110)
    (tmp_path / "masks" / "a.png").write_bytes((tmp_path / "masks" / "b.png").read_bytes())
    assert load(tmp_path, test_fraction=0.5).class_names == ("background", "foreground")


@pytest.mark.parametrize(
    ("mask", "given", "message"),
    [
        (np.zeros((20, 29)), {}, r"masks/3\.png: 29 x 20 pixels, its image has 30 x 20"),
        (np.zeros((20, 30, 3)), {}, r"masks/3\.png: mode RGB; a mask has one channel"),
        (None, {}, r"1 of 10 images have no mask .*: masks/3\.png \(row 5\)"),
        (np.full((20, 30), 7), {}, r"masks/3\.png: class 7; .* without a gap.*classes\.txt"),
        (np.full((20, 30), 2), {"names": True}, r"class 2; allowed are 0\.\.1 of background, disc"),
        (np.full((20, 30), 255), {}, r"sample 3 \(images/3\.png\): all pixels of a mask are 255"),
        (np.zeros((20, 30)), {"augment": "flip"}, "'flip': moves pixels, and masks would stay"),
        (np.zeros((20, 30)), {"task": None}, "needed are the columns filename, label"),
    ],
)
def test_folders_that_are_refused(tmp_path, mask, given, message):
    root = write_folder(tmp_path)
    (root / "masks" / "3.png").unlink()
    save(root / "masks" / "4.png", np.ones((20, 30), np.uint8))
    if mask is not None:
        save(root / "masks" / "3.png", mask.astype(np.uint8))
    if "names" in given:
        (root / "classes.txt").write_text("background\ndisc\n")
    with pytest.raises(DataError, match=message):
        load(root, **{key: value for key, value in given.items() if key != "names"})


def test_arrays_with_masks(tmp_path):
    rng = np.random.default_rng(0)
    images, masks = rng.integers(0, 256, (6, 8, 8), np.uint8), rng.integers(0, 3, (6, 8, 8))
    arrays = {"images": images, "masks": masks.astype(np.uint8), "sites": np.arange(6) % 2}
    np.savez(tmp_path / "a.npz", **arrays)
    loaded = data.load("npz", tmp_path, task="segmentation", image_size=4)
    np.testing.assert_array_equal(loaded.y, masks[:, 1::2, 1::2])
    assert loaded.site_names == ("0", "1")
    np.savez(tmp_path / "a.npz", **arrays | {"masks": masks[:, 1:].astype(np.uint8)})
    with pytest.raises(DataError, match=r"a\.npz, masks: uint8 \(6, 7, 8\), needed are"):
        data.load("npz", tmp_path, task="segmentation")


def test_discs_differ_by_site_and_follow_from_the_seed():
    one, again, other = (data.load("discs", samples=30, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.x, again.x)
    assert not np.array_equal(one.y, other.y)
    shares = [one.y[one.site == site].mean() for site in range(3)]
    assert shares[1] > shares[0] > shares[2]
    rings = data.load("discs", samples=30, rings=True)
    assert set(np.unique(rings.y)) == {0, 1, 2}
