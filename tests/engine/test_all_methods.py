"""Every method has the same bytes in one process and on Ray."""

from __future__ import annotations

import pytest

import fedsim
from fedsim import algorithms
from fedsim.testing.rounds import config, results
from fedsim.training.assemble import prepare
from fedsim.training.setup import needs_whole_updates
from tests.engine.chaos import SHARE
from tests.sampling import marked_beside

pytestmark = pytest.mark.ray


SHAPES = {
    "fedld": "stateless",
    "scaffold": "client state",
    "fedbn": "personal slots",
    "fediir": "probe",
    "fedpac": "phases and private answers",
    "fedsr": "adapt",
    "fedadam": "server of its own",
    "pfedla": "models kept by the server",
    "centralized": "a cohort trained as one client",
}
"""A method of each structural shape; the others are slow."""


@pytest.mark.parametrize("name", marked_beside(SHAPES, algorithms.names()))
def test_serial_and_two_actors(name, shared_ray, tmp_path):
    reference = results(fedsim.run(config(name), tmp_path / "serial"))
    on_ray = config(name, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


@pytest.mark.parametrize(("name", "server"), [("robfedavg", None), ("fedprox", "robfedavg")])
def test_rules_that_read_whole_updates_leave_none_on_the_nodes(name, server):
    setup = prepare(config(name).model_copy(update={"server": server}))
    said = f"server={server}" if server else f"algorithm={name}"
    assert needs_whole_updates(setup) == said
