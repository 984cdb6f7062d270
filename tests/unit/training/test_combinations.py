"""What cannot be combined: the table, and parts of the user's own that declare what fedsim's do."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from fedsim.core.errors import ConfigError
from fedsim.server import Received
from fedsim.server.optimizers import Multiply
from fedsim.testing.rounds import config
from fedsim.training.assemble import prepare
from fedsim.training.combinations import REFUSED, TRAITS, check, table

PRIVATE = {"dp": {"level": "user", "clip": 1.0, "max_samples": 9}}
SECURE = {"train": {"secure_aggregation": True}}
ASYNC = {"clock": {"mode": "async", "samples_per_second": "lognormal(100, 0.5)"}}
MIXED = ASYNC | {"async_": {"mixing": 0.5, "buffer": 1}}
COMPRESSED = {"compress": {"name": "top_k"}}


class Mine:
    """A cohort transform that says nothing of itself."""

    name: ClassVar[str] = "mine"
    needs_own_clients: ClassVar[bool] = False

    def __call__(self, cohort, state, ctx):
        return Received(cohort=cohort)


class Alone(Mine):
    """One that each client could do."""

    by_client: ClassVar[bool] = True


class Seeing(Multiply):
    blind: ClassVar[bool] = False


def answer(cohort, state, ctx):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("sections", "changes", "server", "reason"),
    [
        (COMPRESSED, {"needs_exact_updates": True}, {}, "keeps the sum of the updates"),
        (COMPRESSED, {}, {"needs_same_start": True}, "needs clients' exact models"),
        (MIXED, {"measures_progress": True}, {}, "measures what clients did"),
        (MIXED, {"needs_exact_updates": True}, {}, "sums of updates on both sides"),
        (PRIVATE, {}, {"receive": (Alone(),)}, "transforms of the cohort"),
        (PRIVATE, {}, {"optimizers": (Seeing(1.0),)}, "optimisers that see the cohort"),
        (PRIVATE, {}, {"exchange": answer, "sums": True}, "is neither clipped nor noised"),
        (SECURE, {}, {"receive": (Mine(),)}, "needs? single updates"),
        (SECURE, {}, {"receive": (Alone(),)}, None),
        (SECURE, {}, {"exchange": answer}, "needs what single clients send"),
        (SECURE, {}, {"exchange": answer, "sums": True}, None),
    ],
)
def test_parts_of_ones_own_are_refused_by_what_they_declare(sections, changes, server, reason):
    setup = prepare(config("fedavg", "mlp", **sections))
    # private servers are made after the check
    plain = prepare(config("fedavg", "mlp")).algorithm.server
    given = replace(setup.algorithm, server=replace(plain, **server), **changes)
    if reason is None:
        check(replace(setup, algorithm=given))
        return
    with pytest.raises(ConfigError, match=reason):
        check(replace(setup, algorithm=given))


def test_the_table_names_what_there_is():
    used = {name for one, other, _ in REFUSED for name in (one, other)}
    assert used == TRAITS.keys()
    assert len({(one, other) for one, other, _ in REFUSED}) == len(REFUSED)
    assert len(table().splitlines()) == len(REFUSED) + 2
