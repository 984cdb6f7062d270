"""What the contract of readers takes, and for each case a loader that breaks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim import data
from fedsim.core.errors import ContractError
from fedsim.core.types import Dataset, Pipeline
from fedsim.testing import check_reader
from tests.sites import SHORTCUT

pytestmark = pytest.mark.integration


def small(folder, *, shade: int = 100) -> Dataset:
    """Two classes of grey images, 60 of them for training."""
    y = np.arange(80) % 2
    x = (shade + 50 * y[:, None, None, None] * np.ones((1, 1, 6, 6), int)).astype(np.uint8)
    i = np.arange(80)
    return Dataset(
        name="small", x=x, y=y, class_names=("dark", "light"), train=i[:60], val=i[:0],
        test=i[60:], pipeline=Pipeline(size=6, mean=(0.5,), std=(0.5,)),
    )  # fmt: skip


def untyped(folder, *, shade=100) -> Dataset:
    return small(folder)


def greedy(folder, **anything) -> Dataset:
    return small(folder)


def drawing(folder) -> Dataset:
    made = small(folder)
    return replace(made, x=np.random.randint(0, 256, made.x.shape, np.uint8))  # noqa: NPY002


def unseeded(folder) -> Dataset:
    made = small(folder)
    return replace(made, x=made.x + np.random.default_rng().integers(0, 9, made.x.shape, np.uint8))


def other_size(folder, image_size=None) -> Dataset:
    return small(folder)


def moving(folder, val_fraction=0.0) -> Dataset:
    made = small(folder)
    if not val_fraction:
        return made
    return replace(made, train=made.train[:40], val=made.train[40:], test=made.test[1:])


def of_one_client(folder) -> Dataset:
    made = small(folder)
    return replace(made, train=made.train[:3])


def mislabelled(folder) -> Dataset:
    made = small(folder)
    return replace(made, y=made.y + 1)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_data_sets_that_keep_it(name):
    check_reader(name)


@pytest.mark.slow
def test_a_drawn_data_set_with_an_option():
    check_reader(SHORTCUT, sites=4, samples_per_site=8)


def test_a_loader_that_keeps_it():
    check_reader(small, shade=30)


def test_what_a_loader_draws_globally_is_seeded():
    check_reader(drawing, cases=["read again"])


@pytest.mark.parametrize(
    ("loader", "case", "said"),
    [
        (untyped, "options", "the parameters shade have no type"),
        (mislabelled, "arrays and labels", r".*labels outside the classes 0\.\.1"),
        (unseeded, "read again", "x is another one when read again"),
        (other_size, "another image size", "data.image_size 9 gives images of 6 pixels"),
        (moving, "a validation part", "data.val_fraction 0.3 changes the labels of the test part"),
        (of_one_client, "a round of training", ".*"),
    ],
)
def test_what_it_refuses(loader, case, said):
    message = f"^the reader breaks its contract, case '{case}': {said}"
    with pytest.raises(ContractError, match=message):
        check_reader(loader, cases=[case])


def test_declared_numbers_are_those_of_the_samples(monkeypatch):
    info = replace(data.find("digits"), num_classes=9)
    monkeypatch.setattr(data, "find", lambda name: info)
    message = "case 'arrays and labels': num_classes is declared as 9, read are 10"
    with pytest.raises(ContractError, match=message):
        check_reader("digits", cases=["arrays and labels"])
