"""Joining, sharing and refusing Ray."""

from __future__ import annotations

import json
import os
import tempfile
from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import ModelConfig
from fedsim.core.errors import ConfigError, WorkerError
from fedsim.engine.base import SAMPLES
from fedsim.engine.ray import dispatch
from fedsim.engine.ray.calls import EvaluationCall
from fedsim.testing.rounds import results
from tests.decomposing import OWN
from tests.engine import chaos
from tests.engine.broken import Holder
from tests.engine.chaos import SHARE
from tests.stopping import Stop, Stopper
from tests.test_seams import BUFFERED

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


def buffered(method: str = "fedavg", *, rounds: int = 8, norm: str = "batch", **engine: object):
    """A buffered run of the small network with the hooks of :mod:`tests.engine.chaos`."""
    return fedsim.RunConfig(
        algorithm=method,
        data={"num_clients": 12},
        model={"name": "tests.engine.chaos:model"},
        train=BUFFERED["train"] | {"rounds": rounds, "momentum": 0.0},
        clock=BUFFERED["clock"],
        engine=SHARE | engine,
    )


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory):
    """The bytes of a run in one process."""
    out = tmp_path_factory.mktemp("serial") / "run"
    return results(fedsim.run(buffered(kind="serial"), out, progress=False))


@pytest.mark.slow
@pytest.mark.parametrize("client_batch", [1, 3])
def test_work_done_early_has_the_same_bytes(tmp_path, shared_ray, monkeypatch, client_batch):
    taken, early = [], dispatch.Dispatcher.early
    hand_out = dispatch.Dispatcher._hand_out

    def early_first(own, waiting):
        hand_out(own, deque(c for c in own._early.values() if not own._is_begun(c)))
        hand_out(own, waiting)

    monkeypatch.setattr(
        dispatch.Dispatcher,
        "early",
        lambda own, block: taken.append(early(own, block)) or taken[-1],
    )
    monkeypatch.setattr(dispatch.Dispatcher, "_hand_out", early_first)
    given = buffered(client_batch=client_batch)
    store = fedsim.run(given, tmp_path / "ray", (), shared_ray, progress=False)
    assert sum(call is not None for call in taken) > 5
    serial = buffered(client_batch=client_batch, kind="serial")
    assert results(store) == results(fedsim.run(serial, tmp_path / "serial", progress=False))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["train", "return"])
def test_lost_work_of_any_version_is_done_again(moment, tmp_path, shared_ray, wanted, orders):
    class Kill(fedsim.Callback):
        def on_round_end(self, round, rows):
            if round in (2, 4):
                chaos.order(orders, moment, "SIGKILL")

    store = fedsim.run(buffered(), tmp_path / "run", [Kill()], shared_ray, progress=False)
    assert results(store) == wanted
    assert len(store.read("errors"))


@pytest.mark.slow
def test_it_resumes_on_ray(tmp_path, shared_ray, wanted):
    with pytest.raises(Stop):
        fedsim.run(buffered(), tmp_path / "run", [Stopper(3)], shared_ray, progress=False)
    store = fedsim.resume(tmp_path / "run", session=shared_ray, progress=False)
    assert results(store) == wanted


@pytest.mark.slow
def test_each_model_is_put_once_for_all_actors(shared_ray, tmp_path, monkeypatch):
    """Three actors share each model's batches; the new global model is also the next broadcast."""
    puts, tasks = [], []
    original, begin = ray.put, EvaluationCall.begin

    def counting(value):
        puts.append(value)
        return original(value)

    def watched(self, actor, send):
        parts = ((model, measure) for model, _, measure, _ in self.tasks)
        tasks.append({id(model[0]) for model, measure in parts if measure == SAMPLES})
        return begin(self, actor, send)

    monkeypatch.setattr(ray, "put", counting)
    monkeypatch.setattr(EvaluationCall, "begin", watched)
    settings = RunConfig(
        data={"num_clients": 8, "min_samples": 4} | OWN,
        train={"rounds": 3, "sample_rate": 0.5},
        evaluation={"decompose_every": 1, "decompose_scope": "population", "batch_size": 16},
        engine={"actors": 3} | SHARE,
    )
    fedsim.run(settings, tmp_path / "run", session=shared_ray)
    vectors = [value for value in puts if hasattr(value, "nbytes")]
    assert len(vectors) == 1 + 3 * (1 + 4), "the start, and each round's four and their mean"
    assert len({id(value) for value in vectors}) == len(vectors)
    shared = [one & other for one, other in pairwise(filter(None, tasks))]
    assert sum(map(len, shared)) >= 3, "models whose batches two actors share"
