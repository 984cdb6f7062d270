"""The example of a generated data set: what is drawn, and marks free of labels in test."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from fedsim import data
from fedsim.core.errors import DataError
from fedsim.core.types import Dataset
from fedsim.data import partitions
from fedsim.data.dataset import check
from tests.sites import SHORTCUT

shortcut = sys.modules[data.registry.reader(SHORTCUT).__module__]
_balanced, _training, correlations = shortcut._balanced, shortcut._training, shortcut.correlations


def load(**options: object) -> Dataset:
    return data.load(SHORTCUT, **{"sites": 6, "samples_per_site": 40, **options})


@pytest.mark.slow
def test_sizes_parts_and_sites():
    made = load(val_fraction=0.1)
    assert made.x.shape == (240 + 24 + 1000, 3, 32, 32)
    assert (len(made.train), len(made.val), len(made.test)) == (240, 24, 1000)
    assert made.class_names == ("healthy", "diseased")
    assert np.bincount(made.site[made.train]).tolist() == [40] * 6
    assert made.site_names[:4] == ("colour_0", "ring_1", "text_2", "colour_3")
    for site in range(6):
        own = made.train[made.site[made.train] == site]
        assert np.bincount(made.y[own]).tolist() == [20, 20]
    split = partitions.make(made, partitions.default_kind(made))
    assert [len(own) for own in split.train] == [40] * 6
    assert load(image_size=48).x.shape[1:] == (3, 48, 48)
    assert load(image_size=48).pipeline.size == 48


@pytest.mark.slow
def test_the_bytes_belong_to_the_seed():
    made, again, other = load(seed=3), load(seed=3), load(seed=4)
    assert made.x.tobytes() == again.x.tobytes()
    assert not np.array_equal(made.x, other.x)
    assert np.array_equal(made.y, other.y)
    # more training images change none of the test images
    assert np.array_equal(load(seed=3, samples_per_site=10).x[-1000:], made.x[-1000:])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 1.0])
def test_marks_go_with_the_disease_as_often_as_asked(correlation):
    n = 4000
    rho = correlations(4, correlation)
    site, y, mark = _training(0, rho, n)
    for k in range(4):
        for label, chance in ((1, (1 + rho[k]) / 2), (0, (1 - rho[k]) / 2)):
            got = mark[(site == k) & (y == label)].mean()
            assert abs(got - chance) <= 5 * np.sqrt(chance * (1 - chance) / (n / 2))


def test_correlations_spread_around_the_one_that_is_asked():
    assert correlations(3, 0.5) == pytest.approx([0.4, 0.5, 0.6])
    assert correlations(1, 0.7) == pytest.approx([0.7])
    assert correlations(3, 0.95) == pytest.approx([0.85, 0.95, 1.0])
    assert correlations(3, 0.0) == pytest.approx([0.0, 0.0, 0.1])


@pytest.mark.parametrize("sites", [1, 7, 50])
def test_mark_label_and_site_are_independent_in_the_test_part(sites):
    site, y, mark = _balanced(1000, sites)
    assert np.bincount(2 * y + mark).tolist() == [250] * 4
    for k in range(sites):
        assert len(set(np.bincount((2 * y + mark)[site == k], minlength=4).tolist())) == 1
    assert np.ptp(np.bincount(site)) <= 4


@pytest.mark.slow
def test_groups_are_the_test_part_by_whether_the_mark_tells_the_truth(monkeypatch):
    made = load()
    aligned, conflicting = made.groups["aligned"], made.groups["conflicting"]
    assert np.array_equal(np.sort(np.concatenate([aligned, conflicting])), made.test)
    assert len(aligned) == len(conflicting) == 500
    # what has a mark is what looks different where no marks are drawn
    monkeypatch.setattr(shortcut, "_marked", lambda image, *_: image)
    mark = (load().x != made.x).any(axis=(1, 2, 3))[made.test]
    assert np.array_equal(np.isin(made.test, aligned), mark == (made.y[made.test] == 1))


@pytest.mark.parametrize("kind", range(3))
def test_each_mark_is_the_only_difference_that_it_makes(kind):
    # the same eyes and the same noise, without and with the mark
    eyes = shortcut.draw_eyes(np.zeros(20, dtype=bool), np.random.default_rng(0))
    plain, with_mark = (
        shortcut.render(eyes, np.full(20, m), 32, np.random.default_rng(1)).astype(int)
        for m in (-1, kind)
    )
    changed = (with_mark != plain).any(axis=(0, 1))
    if shortcut.MARKS[kind] == "colour":
        assert (with_mark - plain).mean(axis=(0, 2, 3))[2] > 3
        assert (with_mark - plain).mean(axis=(0, 2, 3))[0] < 0
    if shortcut.MARKS[kind] == "ring":
        assert not changed[8:24, 8:24].any()
        assert (with_mark >= plain).all()
    if shortcut.MARKS[kind] == "text":
        assert changed.sum() == 10  # the pixels of an R in 5 x 3
        assert changed[:8, :8].sum() == 10


def test_a_diseased_eye_has_lesions_and_most_healthy_ones_have_none():
    diseased = np.arange(4000) % 2 == 1
    eyes = shortcut.draw_eyes(diseased, np.random.default_rng(0))
    count = (eyes.lesion_colour != 0).any(axis=2).sum(axis=1)
    assert (count[diseased].min(), count[diseased].max()) == (1, 5)
    assert set(count[~diseased].tolist()) == {0, 1}
    # one in four; 0.6^4 of the diseased have a single one: nobody can beat 1 - 0.1296 / 2 by them
    assert abs(count[~diseased].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 2000)
    assert abs((count[diseased] == 1).mean() - 0.6**4) < 5 * np.sqrt(0.1296 * 0.8704 / 2000)


@pytest.mark.slow
def test_groups_outside_the_test_part_are_refused():
    made = load()
    wrong = replace(made, groups={"aligned": made.train[:1]})
    with pytest.raises(DataError, match="groups are empty or name samples outside the test part"):
        check(wrong, "toy")
