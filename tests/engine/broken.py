"""What a Ray worker must be able to import: a method that fails, and somebody else's actor."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import ray
import torch
from torch import Tensor, nn

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule


@dataclass(frozen=True)
class Broken(LocalRule):
    stackable: ClassVar[bool | str] = True

    def begin(self, env: LocalEnv) -> None:
        if env.ctx.round == 1 and env.client_id == 2:
            raise ValueError("on purpose")


def build() -> Algorithm:
    return Algorithm(local=Broken())


class Putting(nn.Linear):
    """Calls an operation that has no deterministic kernel, of which torch is told to warn."""

    def forward(self, x: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True, warn_only=True)
        x.new_zeros(2).put_(torch.tensor([0]), x.new_ones(1))
        torch.use_deterministic_algorithms(False)
        return super().forward(x.flatten(1))


def putting(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    return Putting(in_channels * image_size**2, num_classes)


class Ending(BaseException):
    """No Exception, as what libraries end threads with."""


@dataclass(frozen=True)
class Leaving(LocalRule):
    """Ends its process in order, or tries to."""

    by_exit: bool

    def begin(self, env: LocalEnv) -> None:
        if env.ctx.round == 1 and env.client_id == 2:
            raise SystemExit(0) if self.by_exit else Ending("on purpose")


def build_leaving(by_exit: bool = True) -> Algorithm:
    return Algorithm(local=Leaving(by_exit))


@dataclass(frozen=True)
class BrokenLate(LocalRule):
    """Fails when the gradients are there, and leaves them behind."""

    def adjust_grads(self, env: LocalEnv, s: None) -> None:
        if env.ctx.round == 1 and env.client_id == 2:
            raise ValueError("on purpose")


def build_late() -> Algorithm:
    return Algorithm(local=BrokenLate())


@dataclass(frozen=True)
class Deadly(LocalRule):
    """Ends its process wherever client 2 of the second round is trained."""

    def begin(self, env: LocalEnv) -> None:
        if env.ctx.round == 1 and env.client_id == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def build_deadly() -> Algorithm:
    return Algorithm(local=Deadly())


class Holder:
    """Holds resources of a Ray that others use too."""

    def ping(self) -> bool:
        return True


class Owner:
    """Owns an object, which is lost with it."""

    def put(self, value: object) -> list[object]:
        return [ray.put(value)]
