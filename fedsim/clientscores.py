"""How well models do on the clients' own data: rows of evaluations.csv, a client each."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Literal

from fedsim.contracts import GroupScore, Owned
from fedsim.engine import Executor
from fedsim.engine.parts import by_owner, having
from fedsim.evaluation import batches, own_model
from fedsim.metrics import group_score
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState

SPLITS: tuple[Literal["train", "val", "test"], ...] = ("train", "val", "test")


def write(setup: Setup, executor: Executor, state: ServerState, log: RoundLog) -> None:
    """Adds a row per client and part that it owns: ``own_train``, ``own_val``, ``own_test``.

    Of the global model, in personalised methods of the client's own. The unweighted mean over the
    clients' test parts goes to ``client_test_accuracy`` of rounds.csv; clients without one have no
    such row and do not count.

    Raises:
        DivergedError: a model's outputs are not finite.
    """
    for split in SPLITS:
        found = scores(setup, executor, state, split)
        for client, score in found.items():
            values = {key: value for key, value in asdict(score).items() if key != "group"}
            log.add("evaluations", client_id=client, split=score.group, **values)
        if split == "test" and found:
            mean = math.fsum(score.accuracy for score in found.values()) / len(found)
            log.tables["rounds"] = [{**log.tables["rounds"][0], "client_test_accuracy": mean}]


def scores(
    setup: Setup, executor: Executor, state: ServerState, split: Literal["train", "val", "test"]
) -> dict[int, GroupScore]:
    """Of each client that owns any samples of a part, on these."""
    owners = having(setup.partition, split)
    if not owners:
        return {}
    if not setup.personalised:
        part = Owned(split, owners)
        (together,) = executor.samples([((state.params, {}), part)])
        samples = by_owner(together, setup.partition, part)
    else:
        samples = []
        for some in batches({c: own_model(state, c) for c in owners}):
            samples += executor.samples([(m, Owned(split, (c,))) for c, m in some.items()])
    return {c: group_score(f"own_{split}", own) for c, own in zip(owners, samples, strict=True)}
