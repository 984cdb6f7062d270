"""Where the server computes, and that a run there is the same up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedsim
from fedsim.config.run import RunConfig
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
