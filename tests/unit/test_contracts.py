"""The contract tests for users' parts: what they take, and for each case a part that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from fedsim.algorithms import Algorithm
from fedsim.client import LocalRule, Uplink
from fedsim.core.errors import ContractError
from fedsim.core.types import Dataset, Pipeline
from fedsim.server import Average, Server
from fedsim.testing import check_method, check_reader
from tests.sites import SHORTCUT

pytestmark = pytest.mark.integration


# methods


@dataclass(frozen=True)
class Counts(LocalRule):
    """Keeps how often each client took part, as it should."""

    stackable = True

    def finish(self, env, s):
        return Uplink(state={"times": env.state.get("times", np.zeros(1)) + 1})


def sound(strength: float = 1.0) -> Algorithm:
    return Algorithm(local=Counts())


@dataclass(frozen=True)
class Identity(LocalRule):
    """A rule with a function that cannot be pickled."""

    function: Callable = field(compare=False, default=lambda: 0)


def unpicklable() -> Algorithm:
    return Algorithm(local=Identity())


class Different(LocalRule):
    def __init__(self):
        self.stamp = object()


def unequal() -> Algorithm:
    return Algorithm(local=Different())


@dataclass(frozen=True)
class Stands:
    """A server optimiser that does not move."""

    def __call__(self, step, state, cohort, ctx):
        return 0 * step, state


def still() -> Algorithm:
    return Algorithm(server=Server(Average(), optimizers=(Stands(),)))


LOG: list[int] = []


@dataclass(frozen=True)
class Remembers(LocalRule):
    """Keeps a list outside of any state: the gradients shrink with its length."""

    def begin(self, env):
        LOG.append(env.client_id)

    def adjust_grads(self, env, s):
        for gradient in env.grads():
            gradient *= 0.999 ** len(LOG)


def remembering() -> Algorithm:
    return Algorithm(local=Remembers())


@dataclass(frozen=True)
class Deviation:
    """A server optimiser that divides as a sample variance does."""

    def __call__(self, step, state, cohort, ctx):
        return step / (np.float64(len(cohort.updates)) - 1), state


def alone() -> Algorithm:
    return Algorithm(server=Server(Average(), optimizers=(Deviation(),)))


@dataclass(frozen=True)
class Rescaled(LocalRule):
    """Divides by the learning rate."""

    def finish(self, env, s):
        return Uplink(state={"gradient": (env.moved / env.ctx.lr).cpu().numpy()})


def rescaled() -> Algorithm:
    return Algorithm(local=Rescaled())


@dataclass(frozen=True)
class Normed:
    """A server optimiser that divides by the smallest norm of an update."""

    def __call__(self, step, state, cohort, ctx):
        return step / min(np.linalg.norm(update.delta) for update in cohort.updates), state


def normed() -> Algorithm:
    return Algorithm(server=Server(Average(), optimizers=(Normed(),)))


@dataclass(frozen=True)
class Mixed(LocalRule):
    """Scales by a norm over whatever is stacked: another one in a block than alone."""

    stackable = True

    def adjust_grads(self, env, s):
        for gradient in env.grads():
            gradient /= 1 + torch.linalg.vector_norm(gradient)


def mixed() -> Algorithm:
    return Algorithm(local=Mixed())


@pytest.mark.slow
def test_a_method_that_keeps_it():
    check_method(sound, strength=2.0)


@pytest.mark.parametrize(
    ("build", "case", "said"),
    [
        (unpicklable, "builds and pickles", "its local cannot be pickled"),
        (unequal, "builds and pickles", "two builds have a different local"),
        (still, "a model without BatchNorm", "no model has moved"),
        (remembering, "another process", "round 3, clients.csv, row 1, client .* is not that"),
        (remembering, "stopped and resumed", r"\w+\.\w+ of a run that was stopped after two"),
        (alone, "one client", "round 2, client 0: .* NaN or infinite"),
        (rescaled, "a learning rate of zero", "round 1, client 0: .*own gradient is NaN"),
        (normed, "an update of zero", "round 2, client 1: .* NaN or infinite"),
        (mixed, "blocks of clients", "the update of client 0 in a block is off by"),
    ],
)
def test_what_it_refuses(build, case, said):
    message = f"^the method breaks its contract, case '{case}': {said}"
    with np.errstate(all="ignore"), pytest.raises(ContractError, match=message):
        check_method(build, cases=[case])


# readers


def small_images(folder, *, shade: int = 100) -> Dataset:
    """Two classes of grey images, 60 of them for training."""
    y = np.arange(80) % 2
    x = (shade + 50 * y[:, None, None, None] * np.ones((1, 1, 6, 6), int)).astype(np.uint8)
    i = np.arange(80)
    return Dataset(
        name="small", x=x, y=y, class_names=("dark", "light"), train=i[:60], val=i[:0],
        test=i[60:], pipeline=Pipeline(size=6, mean=(0.5,), std=(0.5,)),
    )  # fmt: skip


def untyped(folder, *, shade=100) -> Dataset:
    return small_images(folder)


def greedy(folder, **anything) -> Dataset:
    return small_images(folder)


def unseeded(folder) -> Dataset:
    made = small_images(folder)
    return replace(made, x=made.x + np.random.default_rng().integers(0, 9, made.x.shape, np.uint8))


def other_size(folder, image_size=None) -> Dataset:
    return small_images(folder)


def moving(folder, val_fraction=0.0) -> Dataset:
    made = small_images(folder)
    if not val_fraction:
        return made
    return replace(made, train=made.train[:40], val=made.train[40:], test=made.test[1:])


def of_one_client(folder) -> Dataset:
    made = small_images(folder)
    return replace(made, train=made.train[:3])


def mislabelled(folder) -> Dataset:
    made = small_images(folder)
    return replace(made, y=made.y + 1)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_data_sets_that_keep_it(name):
    check_reader(name)


@pytest.mark.slow
def test_a_drawn_data_set_with_an_option():
    check_reader(SHORTCUT, sites=4, samples_per_site=8)


def test_a_loader_that_keeps_it():
    check_reader(small_images, shade=30)


@pytest.mark.parametrize(
    ("loader", "case", "said"),
    [
        (untyped, "options", "the parameters shade have no type"),
        (mislabelled, "arrays and labels", r".*labels outside the classes 0\.\.1"),
        (unseeded, "read again", "x is another one when read again"),
        (other_size, "other settings", "data.image_size 9 gives images of 6 pixels"),
        (moving, "other settings", "data.val_fraction 0.3 changes the labels of the test part"),
        (of_one_client, "a round of training", ".*"),
    ],
)
def test_what_readers_are_refused(loader, case, said):
    message = f"^the reader breaks its contract, case '{case}': {said}"
    with pytest.raises(ContractError, match=message):
        check_reader(loader, cases=[case])
