"""Feature shift: graded, deterministic, and on the right images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import Array, Dataset, Partition
from fedsim.data import partitions, shifts
from fedsim.data.holdout import hold_out
from fedsim.data.shifts import KINDS, owners, shifted, strengths
from fedsim.training import assemble
from tests.sites import SHORTCUT

EYES = replace(
    data.load(SHORTCUT, sites=6, samples_per_site=20), site=None, site_names=(), groups={}
)
SPLIT = hold_out(
    EYES,
    partitions.make(EYES, "iid", num_clients=6),
    val_fraction=0.1,
    test_fraction=0.2,
)


def shift(kind: str, strength: float = 1.0, seed: int = 0, test: str = "mixed") -> Dataset:
    return shifted(EYES, SPLIT, kind, strength, seed, test)


def own(client: int) -> np.ndarray:
    return np.concatenate([part[client] for part in (SPLIT.train, SPLIT.val, SPLIT.test)])


def change(x: Array, kind: str, strength: float, client: int = 1) -> Array:
    """One client's change of some images."""
    noise = np.random.default_rng(0)
    return KINDS[kind](torch.from_numpy(x), shifts.Shift(client, strength, noise)).numpy()


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


def test_strengths_by_hand():
    assert strengths(5, 0.8) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert strengths(1, 1.0).tolist() == [0.0]


def total_variation(x: Array) -> float:
    return float(np.abs(np.diff(x.astype(float), axis=-1)).mean())


def angle(x: Array) -> float:
    """Where the optic disc's side went, in degrees counter-clockwise, of a bar to the right."""
    y, at = np.nonzero(x[0, 0] > 100)
    return math.degrees(
        math.atan2(x.shape[2] / 2 - 0.5 - y.mean(), at.mean() - x.shape[3] / 2 + 0.5)
    )


STATISTICS = {
    "blur": lambda x, before: -total_variation(x),
    "noise": lambda x, before: float((x.astype(float) - before).std()),
    "contrast": lambda x, before: -float(x.std(axis=(2, 3)).mean()),
    "colour": lambda x, before: float(np.abs(channel_shares(x) - channel_shares(before)).max()),
    "intensity": lambda x, before: -float(x.mean()),
}


def channel_shares(x: Array) -> np.ndarray:
    means = x.mean(axis=(0, 2, 3))
    return means / means.sum()


@pytest.mark.parametrize("kind", STATISTICS)
def test_more_strength_changes_more(kind):
    x = EYES.x[EYES.train[:40]]
    values = [STATISTICS[kind](change(x, kind, s), x) for s in (0.15, 0.25, 0.5, 0.75, 1.0)]
    assert (np.diff([STATISTICS[kind](x, x), *values]) > 0).all()


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


def test_clean_common_parts_stay_as_they_are():
    made = shift("intensity", test="clean")
    assert np.array_equal(made.x[EYES.test], EYES.x[EYES.test])
    assert np.array_equal(made.x[own(5)], shift("intensity").x[own(5)])


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_nodes_that_read_images_themselves_have_the_drivers(kind):
    config = RunConfig(
        data={
            "name": SHORTCUT,
            "feature_shift": kind,
            "feature_strength": 0.6,
            "client_test_fraction": 0.2,
        },
        engine={"data_from": "node"},
        **{SHORTCUT: {"sites": 10, "samples_per_site": 10}},
    )
    ready = assemble.prepare(config)
    images = ready.spec.local_images
    assert images is not None
    assert np.array_equal(images(), ready.dataset.x)
    assert ready.partition.num_clients == 10
    assert len(ready.partition.test[0]) == 2
