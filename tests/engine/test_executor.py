"""Joining, sharing and refusing Ray."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import ModelConfig
from fedsim.core.errors import ConfigError, WorkerError
from tests.engine.broken import Holder
from tests.engine.chaos import SHARE

pytestmark = pytest.mark.ray


@pytest.fixture
def ray_folder(the_ray, monkeypatch):
    """A short temporary directory for a Ray of the test's own."""
    the_ray.stop()
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


@pytest.mark.slow
def test_a_run_of_its_own_ends_what_it_started(ray_folder, tmp_path):
    place = r"\(.*broken\.py:\d+, in begin\)$"
    with pytest.raises(WorkerError, match=rf"^round 2, client 2: ValueError: on purpose {place}"):
        fedsim.run(config("tests.engine.broken:build"), tmp_path / "broken")
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ray", "serial"])
@pytest.mark.parametrize(
    ("by_exit", "said"), [(True, "SystemExit: 0"), (False, "Ending: on purpose")]
)
def test_a_method_cannot_end_the_process(kind, by_exit, said, shared_ray, tmp_path):
    settings = config("tests.engine.broken:build_leaving", kind=kind, **SHARE)
    options = {"tests.engine.broken:build_leaving": {"by_exit": by_exit}}
    settings = settings.model_copy(update={"hyperparameters": options})
    with pytest.raises(WorkerError, match=rf"^round 2, client 2: {said} \(.*broken\.py"):
        fedsim.run(settings, tmp_path / "leaving", session=shared_ray if kind == "ray" else None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_operations_without_a_deterministic_kernel_are_named_once(shared_ray, tmp_path, caplog):
    model = {"model": ModelConfig(name="tests.engine.broken:putting")}
    for name, kind in (("serial", "serial"), ("ray", "ray"), ("again", "ray")):
        caplog.clear()
        settings = config(kind=kind, **SHARE).model_copy(update=model)
        session = None if kind == "serial" else shared_ray
        store = fedsim.run(settings, tmp_path / name, session=session)
        assert json.loads((store.path / "env.json").read_text())["device"]["nondeterministic"] == [
            "put_"
        ]
        assert [r.message for r in caplog.records if "deterministic kernel" in r.message] == [
            "these operations have no deterministic kernel on this device, their bits may differ "
            "from run to run: put_"
        ]


@pytest.mark.slow
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


def test_the_ray_of_a_run_listens_on_this_machine_alone(shared_ray):
    assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
    token = (Path.home() / ".ray" / "auth_token").exists()
    assert token or os.environ["RAY_AUTH_TOKEN"] or os.environ["RAY_AUTH_MODE"]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_an_actor_without_the_gpu_that_ray_promised_is_refused(ray_folder, tmp_path):
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(ConfigError, match=r"cannot use it; --gpus-per-client 0"):
            fedsim.run(config(gpus_per_client=0.5), tmp_path / "run")
    finally:
        ray.shutdown()
