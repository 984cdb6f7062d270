"""Accuracies by client in the last evaluation, and the part of the data that they are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from . import series
from .runs import Group
from .units import COLUMNS

PARTS: Mapping[str, str] = {
    "own_test": "its own test part", "own_val": "its own validation part",
    "own_train": "its own training part", "test": "the common test part",
}  # fmt: skip
"""Parts that clients are evaluated on, the preferred one first, and their names."""


def last_accuracies(groups: Sequence[Group]) -> dict[str, dict[str, pd.DataFrame]]:
    """By part of :data:`PARTS` and label each run's ``accuracy`` in its last rows of that part.

    Of a client with a model of its own, evaluations.csv has rows with the split ``test``. Where
    the common test part belongs to clients (sites, users), they are on the client's own samples:
    such a run's are values of ``own_test``, unless it has rows with that split too.

    Returns:
        Frames indexed by (*:data:`analysis.units.COLUMNS`, client_id), as of
        :func:`analysis.series.by_run`; labels without any value of a part are left out.
    """
    columns = ["accuracy", "num_samples"]
    found = {
        part: series.by_run(
            groups, "evaluations", columns, "client_id", {"split": part}, take="last"
        )
        for part in PARTS
    }
    own = _own_samples(groups) if found["test"] else {}
    for label, frame in list(found["test"].items()):
        run = list(COLUMNS[groups[0].unit])
        samples = frame.index.map(own.get(label, pd.Series(dtype=float)).to_dict())
        owned = (frame["num_samples"] == samples).groupby(level=run).transform("all")
        known = found["own_test"].get(label, frame[:0])
        runs = known.reset_index("client_id").index
        new = owned & ~frame.reset_index("client_id").index.isin(runs)
        found["test"][label] = frame[~owned]
        found["own_test"][label] = pd.concat([known, frame[new]])
    return {
        part: {label: frame[["accuracy"]] for label, frame in of.items() if len(frame)}
        for part, of in found.items()
    }


def _own_samples(groups: Sequence[Group]) -> dict[str, pd.Series[float]]:
    """How many test samples each client owns, by label, indexed as :func:`last_accuracies`."""
    found: dict[str, list[pd.DataFrame]] = {}
    for part in series.each(groups, "partition", ["client_id", "test_samples"]):
        by_client = part.frame.groupby("client_id", as_index=False).sum().assign(**part.run)
        found.setdefault(part.label, []).append(by_client)
    keys = [*COLUMNS[groups[0].unit], "client_id"]
    return {label: pd.concat(of).set_index(keys)["test_samples"] for label, of in found.items()}


def heldout_parts(groups: Sequence[Group]) -> dict[str, pd.Series[str]]:
    """The part on which each run's held-out clients are scored: ``own_test`` or ``own_train``.

    Returns:
        By label, indexed by :data:`analysis.units.COLUMNS`, of the runs with such clients.
    """
    found: dict[str, list[pd.DataFrame]] = {}
    for part in series.each(groups, "final_clients", ["split"], {"held_out": 1}):
        found.setdefault(part.label, []).append(part.frame[:1].assign(**part.run))
    keys = list(COLUMNS[groups[0].unit]) if groups else []
    return {label: pd.concat(of).set_index(keys)["split"] for label, of in found.items()}
