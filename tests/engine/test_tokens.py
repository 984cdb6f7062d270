"""Texts and features: a run's bytes do not depend on the engine or the number of actors."""

from __future__ import annotations

import pytest

import fedsim
from tests import texts

pytestmark = pytest.mark.ray

TABLES = (
    *("rounds.csv", "clients.csv", "evaluations.csv", "decomposition.csv", "loss_matrix.csv"),
    *("partition.csv", "model.safetensors"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "method", "split"),
    [
        ("phrases", "fedbn", "train"),
        ("moods", "fedpac", "test"),
        ("phrases", "fedavg", "test"),
        ("numbers", "fedld", "train"),
    ],
)
def test_serial_and_ray_with_one_and_several_actors(data, method, split, shared_ray, tmp_path):
    def bytes_of(out, session=None, **engine):
        evaluation = {
            "decompose_every": 1,
            "decompose_split": split,
            "decompose_scope": "population",
            "loss_matrix": True,
            "clients_every": 1,
        }
        settings = texts.config(data, method, evaluation, engine=engine)
        store = fedsim.run(settings, tmp_path / out, session=session)
        return {name: (store.path / name).read_bytes() for name in TABLES}

    reference = bytes_of("serial", kind="serial")
    for actors, source in ((1, "object_store"), (3, "node")):
        engine = {"actors": actors, "cpus_per_client": 0.25, "data_from": source}
        got = bytes_of(str(actors), shared_ray, **engine)
        for file, content in reference.items():
            assert got[file] == content, f"{file} differs between serial and {actors} actors"
