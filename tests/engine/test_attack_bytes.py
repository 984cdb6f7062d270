"""With malicious clients, too, bytes do not depend on the engine."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.testing.rounds import config, results
from fedsim.training.assemble import prepare
from fedsim.training.setup import needs_whole_updates
from tests.engine.chaos import SHARE

pytestmark = pytest.mark.ray
TRAIN = {"rounds": 2, "sample_rate": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "backdoor", "alie", "min_max"])
def test_serial_and_two_actors(name, shared_ray, tmp_path):
    attack = {"name": name, "fraction": 0.5}
    reference = results(
        fedsim.run(config("fedavg", attack=attack, train=TRAIN), tmp_path / "serial")
    )
    on_ray = config(
        "fedavg", attack=attack, train=TRAIN, engine={"kind": "ray", "actors": 2} | SHARE
    )
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


@pytest.mark.parametrize(("name", "said"), [("alie", "attack.name=alie"), ("min_max", None)])
def test_attacks_by_coordinate_leave_no_update_on_the_nodes(name, said):
    assert needs_whole_updates(prepare(config("fedavg", attack={"name": name}))) == said
