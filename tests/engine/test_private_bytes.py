"""Private rounds, and the bytes of the noise, do not depend on the engine."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.testing.rounds import config, results
from tests.engine.chaos import SHARE

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TRAIN = {"rounds": 3, "sample_rate": 0.25, "cohort": "poisson"}


def test_noise_of_samples_on_serial_and_two_actors(shared_ray, tmp_path):
    dp = {"level": "example", "clip": 1.0, "accountant": "rdp"}
    given = {"dp": dp, "train": TRAIN | {"cohort": "fixed"}}
    reference = results(fedsim.run(config("scaffold", "mlp", **given), tmp_path / "serial"))
    on_ray = config("scaffold", "mlp", **given, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


def test_serial_and_two_actors(shared_ray, tmp_path):
    dp = {"level": "user", "quantile": 0.5, "count_noise": 2.0, "clip_control": 5.0}
    given = {"dp": dp, "train": TRAIN}
    reference = results(fedsim.run(config("scaffold", "mlp", **given), tmp_path / "serial"))
    on_ray = config("scaffold", "mlp", **given, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
