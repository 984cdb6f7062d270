"""What is refused before Ray starts, and the secret that it starts with."""

from __future__ import annotations

import pytest
import ray

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray import cluster as clusters
from fedsim.engine.ray.cluster import connect


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers(address):
    with pytest.raises(ConfigError, match=rf"--address {address}: nothing answers there"):
        connect(EngineConfig(address=address))
    assert not ray.is_initialized()


def test_a_working_dir_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"--working-dir .*nowhere: there is no such folder"):
        connect(EngineConfig(working_dir=str(tmp_path / "nowhere")))


def test_serial_on_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--gpus-per-client 1: torch finds no GPU here"):
        fedsim.run(RunConfig(engine={"kind": "serial", "gpus_per_client": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "made"),
    [({}, True), ({"RAY_AUTH_MODE": "token"}, True), ({"RAY_AUTH_TOKEN": "a"}, False),
     ({"RAY_AUTH_TOKEN_PATH": "b"}, False)],
)  # fmt: skip
def test_a_secret_is_made_where_the_user_has_none(given, made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert set(clusters._auth_token()) == ({"RAY_AUTH_TOKEN"} if made else set())
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert clusters._auth_token() == {}
