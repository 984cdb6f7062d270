"""The same bytes on one kind of GPU, whatever the number of actors that share it."""

from __future__ import annotations

import pytest
import torch

import fedsim
from fedsim.config.run import RunConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ray,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FILES = ("rounds.csv", "clients.csv", "classes.csv", "partition.csv", "model.safetensors")
MODELS = {
    "cnn": {},
    "resnet18": {"image_size": 32, "augment": "crop_flip"},
    "cnn_reddi": {"image_size": 28},
}


def run(method, model, out, session=None, **engine):
    config = RunConfig(
        algorithm=method,
        data={"num_clients": 8, **MODELS[model]},
        model={"name": model},
        train={"rounds": 3, "sample_rate": 0.5},
        engine=engine,
    )
    store = fedsim.run(config, out, session=session)
    return {name: (store.path / name).read_bytes() for name in FILES}


@pytest.mark.parametrize(
    ("method", "model", "precision", "batch"),
    [
        ("fedld", "cnn", "float32", 1),
        ("fedbn", "resnet18", "float32", 1),
        ("fedpac", "cnn_reddi", "float32", 1),
        ("fedld", "resnet18", "tf32", 1),
        ("fedld", "cnn_reddi", "bf16", 1),
        ("fedavg", "cnn_reddi", "float32", 2),
        ("fedld", "cnn", "tf32", 2),
    ],
)
def test_same_bytes_for_any_number_of_actors(method, model, precision, batch, shared_ray, tmp_path):
    same = {"precision": precision, "client_batch": batch}
    serial = {"kind": "serial", "gpus_per_client": 1} | same
    reference = run(method, model, tmp_path / "serial", **serial)
    assert run(method, model, tmp_path / "again", **serial) == reference
    engines = {
        "default": {},
        "one": {"gpus_per_client": 1, "cpus_per_client": 0.1},
        "four": {"gpus_per_client": 0.25, "cpus_per_client": 0.1},
        "eight": {"gpus_per_client": 0.125, "cpus_per_client": 0.1},
        "small": {"gpus_per_client": 0.0625, "cpus_per_client": 0.1},
        "own": {"gpus_per_client": 0.125, "cpus_per_client": 0.1, "actors": "per-client"},
    }
    for name, engine in engines.items():
        got = run(method, model, tmp_path / name, shared_ray, **same, **engine)
        assert [f for f in FILES if got[f] != reference[f]] == [], f"serial and {name} differ"
