"""Joining, sharing and refusing Ray."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, WorkerError
from fedsim.engine.ray import cluster as clusters
from fedsim.engine.ray.cluster import connect
from tests.engine.broken import Holder

pytestmark = pytest.mark.ray


@pytest.fixture
def ray_folder(monkeypatch):
    """A short temporary directory of its own for Ray."""
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield folder


def config(algorithm="fedavg", rounds=2, clients=4, **engine):
    return RunConfig(
        algorithm=algorithm,
        data={"num_clients": clients},
        train={"rounds": rounds, "sample_rate": 1.0},
        engine=engine,
    )


def rounds_of(store):
    return (store.path / "rounds.csv").read_bytes()


def test_a_run_of_its_own_ends_what_it_started(ray_folder, tmp_path):
    with pytest.raises(WorkerError, match=r"^round 2, client 2: ValueError: on purpose$"):
        fedsim.run(config("tests.engine.broken:build"), tmp_path / "broken")
    assert not ray.is_initialized()


def test_on_a_ray_that_others_use_too(ray_folder, tmp_path, monkeypatch):
    serial = fedsim.run(config(kind="serial"), tmp_path / "serial")
    puts = []
    original = ray.put

    def counting(value):
        puts.append(value)
        return original(value)

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        holder = ray.remote(num_cpus=2)(Holder).remote()
        ray.get(holder.ping.remote())
        monkeypatch.setattr(ray, "put", counting)
        ours = fedsim.run(config(), tmp_path / "ray")  # 4 actors wanted, room for 2
        assert ray.get(holder.ping.remote()), "the connection stays the caller's"
        with pytest.raises(ConfigError, match=r"engine\.address: this process is connected"):
            fedsim.run(config(address="127.0.0.1:1"), tmp_path / "address")
    finally:
        ray.shutdown()
    assert rounds_of(ours) == rounds_of(serial)
    vectors = [value for value in puts if hasattr(value, "nbytes")]
    assert len(vectors) == 3, "the start and the result of each of two rounds, once each"


def test_the_ray_of_a_run_listens_on_this_machine_alone(ray_folder):
    end = connect(EngineConfig())
    try:
        assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
        token = (Path.home() / ".ray" / "auth_token").exists()
        assert token or os.environ["RAY_AUTH_TOKEN"] or os.environ["RAY_AUTH_MODE"]
    finally:
        end()


def test_joining_a_cluster_by_its_address(ray_folder, tmp_path):
    (Path(ray_folder) / "ray").mkdir()
    serial = fedsim.run(config(kind="serial"), tmp_path / "serial")
    head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": f"{ray_folder}/h"}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        joined = fedsim.run(config(address=cluster.address), tmp_path / "joined")
    finally:
        cluster.shutdown()
    assert rounds_of(joined) == rounds_of(serial)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers(address):
    with pytest.raises(ConfigError, match=rf"--address {address}: nothing answers there"):
        connect(EngineConfig(address=address))
    assert not ray.is_initialized()


def test_a_working_dir_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"--working-dir .*nowhere: there is no such folder"):
        connect(EngineConfig(working_dir=str(tmp_path / "nowhere")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_an_actor_without_the_gpu_that_ray_promised_is_refused(ray_folder, tmp_path):
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(ConfigError, match=r"cannot use it; --gpus-per-client 0"):
            fedsim.run(config(gpus_per_client=0.5), tmp_path / "run")
    finally:
        ray.shutdown()


def test_serial_on_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--gpus-per-client 1: torch finds no GPU here"):
        fedsim.run(config(kind="serial", gpus_per_client=1), tmp_path / "run")
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
    assert set(clusters._token()) == ({"RAY_AUTH_TOKEN"} if made else set())
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert clusters._token() == {}
