"""A selection by losses does not depend on the engine."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.testing.rounds import config, results
from tests.engine.chaos import SHARE

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.parametrize(
    ("method", "selection"),
    [("fedbn", "power_of_choice"), ("scaffold", "power_of_choice"), ("fedavg", "oort")],
)
def test_serial_and_two_actors(method, selection, shared_ray, tmp_path):
    given = {"train": {"selection": selection}, "clock": {"download_mb_s": 1}}
    reference = results(fedsim.run(config(method, **given), tmp_path / "serial"))
    on_ray = config(method, **given, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
