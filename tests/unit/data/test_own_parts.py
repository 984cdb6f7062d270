"""The clients' own validation and test parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Partition
from fedsim.data import partitions, splits
from fedsim.data.holdout import fewest_samples, hold_out, stratified
from fedsim.training import loading
from tests.sites import SHORTCUT

DIGITS = data.load("digits")
FRACTIONS = {"val_fraction": 0.1, "test_fraction": 0.25}


def split(**options: object) -> Partition:
    return partitions.make(DIGITS, "dirichlet", num_clients=20, alpha=0.3, min_samples=4, **options)


def held(**options: object) -> Partition:
    return hold_out(DIGITS, split(), **{**FRACTIONS, **options})


def test_every_sample_stays_with_its_client_in_one_part():
    made = held()
    whole = split()
    for client in range(20):
        parts = [made.train[client], made.val[client], made.test[client]]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(whole.train[client]))
        kept = whole.train[client][np.isin(whole.train[client], parts[0])]
        assert np.array_equal(parts[0], kept)  # the order of training stays
        n = len(whole.train[client])
        assert [len(p) for p in parts[1:]] == [max(1, round(f * n)) for f in (0.1, 0.25)]


@pytest.mark.parametrize("counts", [[40, 40, 20], [10, 1, 1], [3, 5, 7], [1], [100, 1]])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_each_class_gives_its_share_rounded_down_or_up(counts, share):
    labels = np.repeat(np.arange(len(counts)), counts)
    count = max(1, round(share * len(labels)))
    for seed in range(20):
        taken = stratified(labels, count, np.random.default_rng(seed))
        assert len(np.unique(taken)) == len(taken) == count
        wanted = np.array(counts) * count / len(labels)
        got = np.bincount(labels[taken], minlength=len(counts))
        assert (np.abs(got - wanted) < 1).all()


def test_every_sample_is_as_likely_as_any_other():
    # 4 of 12, of whom one is alone in its class: each is taken in a third of the draws
    labels = np.repeat([0, 1, 2], [7, 4, 1])
    drawn = [stratified(labels, 4, np.random.default_rng(seed)) for seed in range(3000)]
    share = np.bincount(np.concatenate(drawn), minlength=12) / 3000
    assert np.abs(share - 1 / 3).max() < 5 * np.sqrt(1 / 3 * 2 / 3 / 3000)


def test_the_draw_is_of_the_seed_and_the_client_not_of_the_order():
    made, again, other = held(), held(), held(seed=1)
    assert all(map(np.array_equal, made.test, again.test))
    assert any(not np.array_equal(a, b) for a, b in zip(made.test, other.test, strict=True))
    turned = Partition(train=tuple(own[::-1] for own in split().train))
    for a, b in zip(hold_out(DIGITS, turned, **FRACTIONS).test, made.test, strict=True):
        assert set(a.tolist()) == set(b.tolist())
    without = held(val_fraction=0.0)
    assert without.val == ()
    assert all(map(np.array_equal, made.test, without.test))


def test_a_client_that_cannot_give_is_named():
    whole = Partition(train=(DIGITS.train[:40], DIGITS.train[40:43]))
    with pytest.raises(
        DataError,
        match=r"digits: client 1 has 3 samples; data.client_val_fraction 0.1 and "
        r"data.client_test_fraction 0.25 leave it 1, data.min_samples is 2",
    ):
        hold_out(DIGITS, whole, min_samples=2, **FRACTIONS)
    assert len(hold_out(DIGITS, whole, **FRACTIONS).train[1]) == 1
    with pytest.raises(DataError, match=r"client 0 has 1 samples; .* leave it 0"):
        hold_out(DIGITS, Partition(train=(DIGITS.train[:1],)), **FRACTIONS)


@pytest.mark.parametrize(("val", "test"), [(0.6, 0.5), (-0.1, 0.5), (0.5, 0.5)])
def test_impossible_fractions_are_refused(val, test):
    with pytest.raises(ConfigError, match=r"^data\.client_(val|test)_fraction: "):
        RunConfig(data={"client_val_fraction": val, "client_test_fraction": test})


def test_a_written_split_holds_the_same_samples_out_again(tmp_path: Path):
    made = held()
    positions = np.argsort(np.argsort(DIGITS.train))  # the older form counts in the training part
    number = dict(zip(DIGITS.train.tolist(), positions.tolist(), strict=True))
    whole = split()
    lines = [f"{k},{number[i]}" for k, own in enumerate(whole.train) for i in own.tolist()]
    (tmp_path / "split.csv").write_text("\n".join(["client,index", *lines]))
    same, read = splits.read(DIGITS, tmp_path / "split.csv")
    again = hold_out(same, read, **FRACTIONS)
    for part in ("train", "val", "test"):
        assert all(map(np.array_equal, getattr(made, part), getattr(again, part)))


@pytest.mark.slow
def test_clients_of_sites_own_their_images_of_the_common_test_part():
    shortcut = data.load(SHORTCUT, sites=6, samples_per_site=8, val_fraction=0.9)
    made = partitions.make(shortcut, "by_site")
    for common, own in ((shortcut.test, made.test), (shortcut.val, made.val)):
        assert np.array_equal(np.sort(np.concatenate(own)), common)
        for client, indices in enumerate(own):
            assert set(shortcut.site[indices].tolist()) == {client}
    # a site without a test image: nobody owns test data, and the table has none
    many = data.load(SHORTCUT, sites=300, samples_per_site=2)
    assert partitions.make(many, "by_site").test == ()


@pytest.mark.parametrize("fractions", [(0, 0), (0.1, 0), (0, 0.2), (0.3, 0.3), (0.49, 0.5)])
@pytest.mark.parametrize("min_samples", [1, 2, 10])
def test_the_fewest_samples_of_which_enough_are_left(fractions, min_samples):
    count = fewest_samples(min_samples, *fractions)
    left = [n - sum(max(1, round(f * n)) for f in fractions if f) for n in range(count + 1)]
    assert left[count] >= min_samples
    assert max(left[:count], default=0) < min_samples


def test_a_skewed_draw_is_repeated_until_the_held_out_parts_fit():
    for seed in range(5):
        data = {"alpha": 0.1, "seed": seed, "client_test_fraction": 0.2}
        _, partition, _ = loading.load(RunConfig(data=data))
        assert min(map(len, partition.train)) >= 2
        assert min(map(len, partition.test)) >= 1
