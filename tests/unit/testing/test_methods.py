"""What the contract of methods refuses: for each case a method that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from fedsim.algorithms import Algorithm
from fedsim.client import LocalRule, Uplink
from fedsim.core.errors import ContractError
from fedsim.server import Average, Server
from fedsim.testing import check_method

pytestmark = pytest.mark.integration


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


def test_a_hyperparameter_that_it_has_not():
    with pytest.raises(ContractError, match=r"case 'builds and pickles': .*unknown .* 'strenght'"):
        check_method(sound, strenght=2.0)
