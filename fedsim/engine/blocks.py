"""The clients of a round in blocks, each of which trains as one stacked model.

A block is handed to an actor, retried after a crash and, where failing clients are left out, lost
as a whole. The blocks follow from the cohort alone, so that the bytes of a run depend neither on
the number of actors nor on what was lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Block = tuple[int, ...]
"""Ids of the clients that train together; one where clients train one by one."""


@dataclass(frozen=True)
class Stacking:
    """How clients train together (``engine.client_batch`` above 1).

    Args:
        clients: of a block, at most.
        width: samples of a padded batch, one number for the whole run.
        batchnorm: whether the model has BatchNorm that is trained, which takes no single sample.
    """

    clients: int
    width: int
    batchnorm: bool

    def blocks(self, steps: Mapping[int, int]) -> list[Block]:
        """The clients with the most ``steps`` first, then by id, cut into blocks."""
        order = sorted(steps, key=lambda client: (-steps[client], client))
        return [
            tuple(order[start : start + self.clients])
            for start in range(0, len(order), self.clients)
        ]


def named(block: Block) -> str:
    """The block in messages: ``client 3`` or ``clients 3, 1, 4``."""
    return f"client{'s' * (len(block) > 1)} {', '.join(map(str, block))}"
