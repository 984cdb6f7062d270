"""Honest runs are verified wherever their work was done, and wherever it is done again."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.audit.verify import verify
from tests.engine.chaos import SHARE
from tests.unit.audit.test_verify import small

pytestmark = [pytest.mark.ray, pytest.mark.slow]

KEPT = {"checkpoint_every": 1, "keep_every": 2}


@pytest.mark.parametrize("name", ["scaffold", "fedbn"])
def test_a_run_on_actors(name, shared_ray, tmp_path):
    on_ray = small(name, engine={"kind": "ray", "actors": 2} | SHARE | KEPT)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified
    assert verify(run, rounds=2).verified


def test_a_run_of_stacked_clients_on_actors(shared_ray, tmp_path):
    on_ray = small("scaffold", engine={"kind": "ray", "client_batch": 2} | SHARE | KEPT)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified
