"""Centralized: one model, trained on the pooled data of the round's clients (baseline).

In each round the training samples of the clients drawn form one data set, on which one learner
trains as a client would: ``train.local_epochs`` epochs of shuffled batches, with an optimiser that
starts anew. A round then sees as many samples as one of a federated method. At a sample rate of 1
this is training on all data.

:client: plain SGD on the samples of all clients of the round
:server: none, the trained model is the next one
:state: none
:sends: nothing is counted; the data themselves would be sent
:public code: none
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalRule
from fedsim.server import Average, Server


@dataclass(frozen=True)
class PooledSGD(LocalRule):
    """SGD on the samples of a whole cohort, which the worker puts together."""

    stackable: ClassVar[bool | str] = "the round's clients are one data set"
    capturable: ClassVar[bool | str] = True


def together(clients: Sequence[int]) -> list[tuple[int, ...]]:
    """The samples of all clients of a round, in one task."""
    return [tuple(clients)]


def build() -> Algorithm:
    """Centralized training."""
    pooled = "trains on pooled data, so that there is nothing to aggregate"
    server = Server(Average(), incompatible_reason=pooled)
    return Algorithm(local=PooledSGD(), server=server, assign=together)
