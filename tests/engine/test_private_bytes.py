"""Private rounds, and the bytes of the noise, do not depend on the engine or on interruptions."""

from __future__ import annotations

import shutil

import pytest

import fedsim
from fedsim.testing.methods import StopAfter
from fedsim.testing.rounds import config, results
from fedsim.training import driver
from tests.engine.chaos import SHARE

TRAIN = {"rounds": 3, "sample_rate": 0.25, "cohort": "poisson"}
BANDED = {
    "train": {"rounds": 5, "sample_rate": 0.25, "selection": "round_robin"},
    "dp": {"level": "user", "clip": 1.0, "clip_control": 5.0, "mechanism": "banded", "bands": 3},
}


class CopyAfter(fedsim.Callback):
    """Keeps the files as a kill after some round would leave them."""

    def __init__(self, run, kept, round):
        self.run, self.kept, self.round = run, kept, round

    def on_round_end(self, round, rows):
        if round == self.round:
            shutil.copytree(self.run, self.kept)


def banded(**sections):
    return config("scaffold", "mlp", **BANDED, **sections)


@pytest.mark.integration
def test_banded_noise_goes_on_after_a_kill(tmp_path):
    """Its last two rows are in the checkpoint, which is that of a round before the kill."""
    given, run = banded(engine={"checkpoint_every": 2}), tmp_path / "through"
    through = results(fedsim.run(given, run, callbacks=[CopyAfter(run, tmp_path / "killed", 4)]))
    assert results(fedsim.resume(tmp_path / "killed")) == through


@pytest.mark.ray
@pytest.mark.slow
def test_banded_noise_on_serial_and_two_actors_interrupted_or_not(shared_ray, tmp_path):
    reference = results(fedsim.run(banded(), tmp_path / "serial"))
    on_ray = banded(engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
    with pytest.raises(KeyboardInterrupt):
        driver.run(on_ray, tmp_path / "stopped", [StopAfter()], session=shared_ray)
    assert results(fedsim.resume(tmp_path / "stopped", session=shared_ray)) == reference


@pytest.mark.ray
@pytest.mark.slow
def test_noise_of_samples_on_serial_and_two_actors(shared_ray, tmp_path):
    dp = {"level": "example", "clip": 1.0, "accountant": "rdp"}
    given = {"dp": dp, "train": TRAIN | {"cohort": "fixed"}}
    reference = results(fedsim.run(config("scaffold", "mlp", **given), tmp_path / "serial"))
    on_ray = config("scaffold", "mlp", **given, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


@pytest.mark.ray
@pytest.mark.slow
def test_serial_and_two_actors(shared_ray, tmp_path):
    dp = {"level": "user", "quantile": 0.5, "count_noise": 2.0, "clip_control": 5.0}
    given = {"dp": dp, "train": TRAIN}
    reference = results(fedsim.run(config("scaffold", "mlp", **given), tmp_path / "serial"))
    on_ray = config("scaffold", "mlp", **given, engine={"kind": "ray", "actors": 2} | SHARE)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
