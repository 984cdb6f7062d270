"""Where the server computes, and that a run there is the same up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.devices import server_device
from fedsim.server.device_columns import DeviceColumns
from fedsim.training import assemble as module
from fedsim.training import round as rounds


def run(out, server, monkeypatch, device=None):
    monkeypatch.setattr(module, "server_device", lambda engine: device)
    config = RunConfig(
        algorithm="fedavg",
        server=server,
        data={"num_clients": 6},
        train={"rounds": 2, "sample_rate": 1.0, "batch_size": 30},
        engine={"kind": "serial"},
    )
    store = fedsim.run(config, out)
    return load_file(store.path / "model.safetensors"), store.read("clients")


@pytest.mark.integration
@pytest.mark.parametrize("server", ["fedavg", "fedld", "fedgh", "nnm,krum", "trimmed_mean"])
def test_a_run_is_the_same_up_to_rounding(server, tmp_path, monkeypatch):
    made = []
    on = DeviceColumns.on
    monkeypatch.setattr(rounds.DeviceColumns, "on", lambda *given: made.append(given) or on(*given))
    model, clients = run(tmp_path / "here", server, monkeypatch)
    assert not made
    other, others = run(tmp_path / "there", server, monkeypatch, torch.device("cpu"))
    assert len(made) == 2, "a matrix for each round"
    for name, tensor in model.items():
        # a step is rounded once to float32 on either side
        np.testing.assert_allclose(other[name], tensor, rtol=0, atol=2e-6)
    np.testing.assert_allclose(others["update_norm"], clients["update_norm"], rtol=1e-5)


@pytest.mark.parametrize(
    ("engine", "gpu_here", "device"),
    [
        ({}, True, "cuda:0"),
        ({}, False, None),
        ({"gpus_per_client": 0}, True, None),
        ({"gpus_per_client": 0.5}, True, "cuda:0"),
        ({"kind": "serial"}, True, None),
        ({"kind": "serial", "gpus_per_client": 1}, True, "cuda:0"),
        ({"server_device": "cpu"}, True, None),
        ({"server_device": "gpu", "gpus_per_client": 0}, True, "cuda:0"),
    ],
)
def test_which_device(engine, gpu_here, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_here)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    found = server_device(EngineConfig(**engine))
    assert (found and str(found)) == device


def test_a_gpu_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^engine\.server_device=gpu: torch finds no GPU here$"):
        server_device(EngineConfig(server_device="gpu"))
