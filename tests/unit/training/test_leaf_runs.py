"""Whole runs on LEAF's own files: every user a client, its accuracy and that of all together."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedsim
from fedsim.config.run import RunConfig

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("name", "folder", "model"),
    [
        ("synthetic", "leaf-synthetic/synthetic_1_1", "leaf_synthetic"),
        pytest.param("shakespeare", "leaf-shakespeare", "leaf_sent140", marks=pytest.mark.slow),
    ],
)
def test_a_round_over_real_users(name, folder, model, shared_data, tmp_path):
    config = RunConfig(
        algorithm="fedgh",
        data={"name": name, "dir": str(shared_data / folder)},
        model={"name": model},
        train={"rounds": 1, "sample_rate": 0.1, "batch_size": 64, "lr": 0.3},
        engine={"kind": "serial"},
    )
    store = fedsim.run(config, tmp_path / "run")
    (row,) = store.read("rounds").to_dict("records")
    assert np.isfinite([row["train_loss"], row["test_loss"]]).all()
    assert 0 < row["test_accuracy"] <= 1
    assert 0 < row["client_test_accuracy"] <= 1
    owned = store.read("partition").groupby("name", sort=False)[["train_samples", "test_samples"]]
    samples = owned.sum()
    assert list(samples.index) == sorted(samples.index)
    files = sorted((shared_data / folder).rglob("*.json"))
    users = [u for f in files for u in json.loads(f.read_text())["user_data"].items()]
    labels = {user: 0 for user, _ in users}
    for user, content in users:
        labels[user] += len(content["y"])
    assert samples.sum(axis=1).to_dict() == {u: labels[u] for u in samples.index}
