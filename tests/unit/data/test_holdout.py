"""Held-out parts: shares of every stratum, whole patients, one seed."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.core.errors import DataError
from fedsim.data.holdout import held_out


def test_every_class_gives_its_share():
    # 20 % of 10, 20, 50 and 3: 2, 4, 10 and 0.6 -> 1
    y = np.repeat([0, 1, 2, 3], [10, 20, 50, 3])
    out = held_out(y, None, 0.2, 0, "test", "toy")
    assert np.bincount(y[out]).tolist() == [2, 4, 10, 1]
    assert (np.diff(out) > 0).all()


@pytest.mark.parametrize("fraction", [0.1, 0.25, 1 / 3, 0.9])
def test_a_sample_without_a_patient_is_a_patient_of_its_own(fraction):
    y = np.random.default_rng(0).choice(12, size=500)
    alone = held_out(y, np.arange(500), fraction, 0, "test", "toy")
    assert held_out(y, None, fraction, 0, "test", "toy").tolist() == alone.tolist()


def test_no_patient_is_on_both_sides_and_the_classes_keep_their_share():
    generator = np.random.default_rng(0)
    group = generator.integers(0, 150, size=600)
    y = generator.choice(3, size=600, p=[0.6, 0.3, 0.1])
    for seed in range(5):
        out = held_out(y, group, 0.2, seed, "test", "toy")
        rest = np.setdiff1d(np.arange(600), out)
        assert not set(group[out]) & set(group[rest])
        share = np.bincount(y[out]) / np.bincount(y)
        # a patient has four images on average: the share is met to about a patient
        assert np.abs(share - 0.2).max() < 0.05


def test_big_patients_are_on_both_sides():
    # one patient in ten has 10 images, the others 1: the held-out part is not made of one kind
    group = np.repeat(np.arange(200), np.where(np.arange(200) % 10 == 0, 10, 1))
    out = held_out(np.zeros(len(group), dtype=np.int64), group, 0.2, 0, "test", "toy")
    sizes = np.bincount(group[out])
    assert 1 <= (sizes == 10).sum() <= 10
    assert (sizes == 1).sum() >= 10


@pytest.mark.parametrize("group", [None, np.zeros(4, dtype=np.int64)])
def test_too_few_images_are_refused(group):
    with pytest.raises(DataError, match=r"toy: 4 samples( of 1 patients)? are too few"):
        held_out(np.array([0, 0, 1, 1]), group, 0.1, 0, "test", "toy")
