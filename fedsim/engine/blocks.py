"""Blocks of a round's clients; the clients of a block train as one stacked model.

A block is sent to an actor, retried after a crash and, with ``on_client_failure=drop``, dropped as
a whole. Blocks depend on the cohort alone, so that the bytes of a run depend neither on the number
of actors nor on crashes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Block = tuple[int, ...]
"""Ids of clients that train together; a single one where clients train one by one."""


@dataclass(frozen=True)
class Stacking:
    """How clients train together (``engine.client_batch`` above 1).

    Args:
        clients: the largest number of clients in a block.
        width: samples of a padded batch, the same in the whole run.
        batchnorm: whether the model has trained BatchNorm, which cannot take a single sample.
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
    """The block's name in messages: ``client 3`` or ``clients 3, 1, 4``."""
    return f"client{'s' * (len(block) > 1)} {', '.join(map(str, block))}"
