"""Rounds in memory are those of a run."""

from __future__ import annotations

import pytest

from fedsim.testing.rounds import rounds, small
from fedsim.training.assemble import prepare

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("selection", ["uniform", "round_robin"])
def test_clients_that_are_held_out_take_no_part(selection):
    given = {"data": {"heldout_clients": 3}, "train": {"rounds": 2, "selection": selection}}
    config = small("fedavg", "mlp", **given)
    out = prepare(config).partition.held_out
    assert len(out) == 3
    first, second = rounds(config)
    for made in (first, second):
        assert made.clients == [row["client_id"] for row in made.tables["clients"]]
        assert len(made.clients) == 2  # half of the five that take part
        assert not set(made.clients) & set(out)
    if selection == "round_robin":
        assert not set(first.clients) & set(second.clients)
