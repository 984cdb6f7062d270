"""The samples that models are evaluated on: a common part, or those that clients own."""

from typing import Literal, Protocol

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import I64, Dataset, Owned, Part, Partition, Triggered


class Samples(Protocol):
    """The samples of a run, who owns them, and the seed by which some of them are drawn."""

    @property
    def dataset(self) -> Dataset:
        """All samples."""

    @property
    def partition(self) -> Partition:
        """Which of them each client owns."""

    @property
    def seed(self) -> int:
        """Of the run."""


def name(part: Part) -> str:
    """The name of a part in messages."""
    if isinstance(part, Triggered):
        return "triggered test"
    return part if isinstance(part, str) else f"clients' own {part.split}"


def indices(spec: Samples, part: Part) -> I64:
    """(n,) indices into ``Dataset.x`` of a part, in its order."""
    if isinstance(part, str):
        common: I64 = getattr(spec.dataset, part)
        return common
    if isinstance(part, Triggered):
        test = spec.dataset.test
        return test[part.concerns(spec.dataset.y[test])]
    return np.concatenate([drawn(spec.partition, spec.seed, part, c) for c in part.owners])


def drawn(partition: Partition, seed: int, part: Owned, client: int) -> I64:
    """(n,) indices of one client's samples in a part: the same in every round of a run."""
    everything: I64 = getattr(partition, part.split)[client]
    if part.most is None or len(everything) <= part.most:
        return everything
    rng = generator(seed, f"decompose.{part.split}", client)
    return everything[np.sort(rng.choice(len(everything), part.most, replace=False))]


def count(spec: Samples, part: Part) -> int:
    """n, the samples in a part; draws nothing."""
    if isinstance(part, str):
        return len(getattr(spec.dataset, part))
    if isinstance(part, Triggered):
        return len(indices(spec, part))
    return sum(counts(spec.partition, part))


def counts(partition: Partition, part: Owned) -> list[int]:
    """The samples of each owner of a part."""
    everything = getattr(partition, part.split)
    sizes = [len(everything[c]) for c in part.owners]
    return [min(size, part.most or size) for size in sizes]


def clients_with(
    partition: Partition, name: Literal["train", "val", "test"], *, held_out: bool = False
) -> tuple[int, ...]:
    """The clients that own any samples of a part, with or without those held out from training."""
    out = () if held_out else set(partition.held_out)
    owned = enumerate(getattr(partition, name))
    return tuple(c for c, indices in owned if len(indices) and c not in out)


def num_labels(dataset: Dataset, index: I64) -> int:
    """The number of labels of some samples: one each, or those of their tokens."""
    return int((dataset.y[index] >= 0).sum()) if dataset.per_token else len(index)


def group_positions(dataset: Dataset, index: I64) -> dict[str, I64]:
    """Positions of the data set's groups among some samples, without empty groups."""
    groups = {name: np.flatnonzero(np.isin(index, group)) for name, group in dataset.groups.items()}
    return {name: positions for name, positions in groups.items() if len(positions)}
