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


def run(method, model, out, **engine):
    config = RunConfig(
        algorithm=method,
        data={"num_clients": 8, **MODELS[model]},
        model={"name": model},
        train={"rounds": 3, "sample_rate": 0.5},
        engine=engine,
    )
    store = fedsim.run(config, out)
    return {name: (store.path / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("method", "precision"),
    [*((m, "float32") for m in ("fedld", "fedbn", "fedpac")), ("fedld", "tf32"), ("fedld", "bf16")],
)
def test_same_bytes_for_any_number_of_actors(method, precision, model, tmp_path):
    serial = {"kind": "serial", "gpus_per_client": 1}
    reference = run(method, model, tmp_path / "serial", precision=precision, **serial)
    engines = {
        "default": {},
        "one": {"gpus_per_client": 1, "cpus_per_client": 0.1},
        "two": {"gpus_per_client": 0.5, "cpus_per_client": 0.1},
        "small": {"gpus_per_client": 0.0625, "cpus_per_client": 0.1},
        "own": {"gpus_per_client": 0.125, "cpus_per_client": 0.1, "actors": "per-client"},
    }
    for name, engine in engines.items():
        got = run(method, model, tmp_path / name, precision=precision, **engine)
        assert [f for f in FILES if got[f] != reference[f]] == [], f"serial and {name} differ"
