"""Rounds of a run done again: the same rows and the same model, whichever checkpoint is nearest."""

import csv
import json

import pytest
import torch

import fedsim
from fedsim.audit.rerun import opened
from fedsim.core.errors import ConfigError
from tests.unit.identity.test_resume import config

ROUNDS = 7

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("rerun") / "run"
    made = config("scaffold", ROUNDS, keep_every=3, checkpoint_every=1)
    return fedsim.run(made, out).path


def models(run):
    with (run / "models.csv").open(newline="") as file:
        return [row["sha256"] for row in csv.DictReader(file)]


def test_every_round_comes_again(run):
    before = {p.name: p.stat().st_mtime_ns for p in run.iterdir()}
    with opened(run) as again:
        state = again.start
        for number in range(1, ROUNDS + 1):
            state, log = again.step(state, number)
            assert log.tables["models"][0].sha256 == models(run)[number - 1]
    assert {p.name: p.stat().st_mtime_ns for p in run.iterdir()} == before


def test_a_damaged_checkpoint_is_passed_over(run, caplog):
    path = run / "checkpoints" / "round-000003.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with opened(run) as again:
            assert again.nearest(5).rounds == 0
    finally:
        path.write_bytes(whole)
    assert "round-000003.json cannot be used" in caplog.text


@pytest.mark.parametrize("gpus_here", [0, 1])
def test_a_run_on_a_gpu_is_done_again_on_a_gpu_where_there_is_one(run, gpus_here, monkeypatch):
    path = run / "env.json"
    before = path.read_bytes()
    monkeypatch.setattr("fedsim.audit.rerun.num_gpus", lambda: gpus_here)
    path.write_text(json.dumps(json.loads(before) | {"device": "NVIDIA H100"}))
    try:
        if gpus_here and not torch.cuda.is_available():
            with pytest.raises(ConfigError, match="torch finds no GPU here"), opened(run):
                pass
        else:
            with opened(run) as again:
                assert again.setup.config.engine.gpus_per_client == gpus_here
    finally:
        path.write_bytes(before)
