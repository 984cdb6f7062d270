"""Compressed updates and what clients keep of them do not depend on the engine."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.testing.rounds import config, results
from tests.engine.chaos import SHARE

pytestmark = pytest.mark.ray
TRAIN = {"rounds": 3, "sample_rate": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "compress",
    [
        {"name": "top_k", "error_feedback": "ef21"},
        {"name": "random_k", "error_feedback": "ef14"},
        {"name": "qsgd"},
        {"name": "power_sgd"},
    ],
    ids=lambda compress: compress["name"],
)
def test_serial_and_two_actors(compress, shared_ray, tmp_path):
    given = {"compress": compress, "train": TRAIN}
    reference = results(fedsim.run(config("fedbn", **given), tmp_path / "serial"))
    on_ray = config("fedbn", **given, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
