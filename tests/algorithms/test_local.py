"""Local: K separate trainings; nothing is averaged, nothing is sent."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.core.errors import ConfigError, ContractError
from fedsim.testing.rounds import NUM_CLIENTS, config, rounds, small


@pytest.fixture(scope="module")
def settings():
    """Full batches, so that the order of samples is only a matter of rounding."""
    train = {"rounds": 3, "sample_rate": 1.0, "batch_size": 50, "local_epochs": 2, "lr": 0.1}
    return {"model": "cnn", "train": train | {"momentum": 0.9}}


@pytest.mark.integration
def test_it_equals_separate_runs(settings, tmp_path):
    together = fedsim.run(config("local", **settings), tmp_path / "local")
    split = together.read("split")
    for client in (0, 3, NUM_CLIENTS - 1):
        file = tmp_path / f"{client}.csv"
        own = (split["part"] != "train") | (split["client_id"] == client)
        split[own].assign(client_id=split["client_id"].where(split["part"] != "train", 0)).to_csv(
            file, index=False, float_format="%.0f"
        )
        data = {"partition_file": str(file), "num_clients": 1}
        alone = fedsim.run(config("fedavg", data=data, **settings), tmp_path / str(client))
        found = fedsim.load_model(together.path, client=client).state_dict()
        wanted = fedsim.load_model(alone.path).state_dict()
        for name, tensor in wanted.items():
            np.testing.assert_allclose(found[name], tensor, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.integration
def test_a_client_trains_only_when_it_is_drawn_and_keeps_its_model():
    first, second, third = rounds(small("local"))
    size = first.before.params.size
    for r in (first, second, third):
        np.testing.assert_array_equal(r.after.params, first.before.params)
        assert r.row["update_norm"] == r.row["uplink_bytes"] == r.row["downlink_bytes"] == 0
        changed = {
            c
            for c in r.after.clients
            if c not in r.before.clients
            or (r.after.clients[c]["personal"] != r.before.clients[c]["personal"]).any()
        }
        assert changed == set(r.clients)
        assert all(r.after.clients[c]["personal"].size == size for c in r.clients)


@pytest.mark.integration
def test_every_client_is_scored_with_its_own_model():
    *_, last = rounds(small("local"))
    rows = [r for r in last.tables["evaluations"] if r["split"] == "test"]
    assert [r["client_id"] for r in rows] == list(range(NUM_CLIENTS))
    assert np.mean([r["accuracy"] for r in rows]) == pytest.approx(last.row["test_accuracy"])


def test_it_takes_no_server_and_serves_no_others():
    with pytest.raises(ConfigError, match="cannot serve local, which trains every client alone"):
        rounds(small("local").model_copy(update={"server": "fedadam"}))
    with pytest.raises(ContractError, match="local trains every client alone"):
        fedsim.aggregate(np.ones((2, 3)), [1, 1], "local")
