"""Models evaluated sample by sample: the same tables on any number of actors, models sent once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import ray

import fedsim
from fedsim.config.run import RunConfig
from fedsim.engine.base import SAMPLES
from fedsim.engine.ray.calls import EvaluationCall
from tests.decomposing import OWN
from tests.engine.chaos import SHARE

pytestmark = pytest.mark.ray

TABLES = (
    *("decomposition.csv", "loss_matrix.csv", "loss_matrix.npz", "cosines.csv", "spectrum.csv"),
    *("evaluations.csv", "rounds.csv", "clients.csv", "classes.csv", "model.safetensors"),
)


def config(method, evaluation=None, **engine):
    return RunConfig(
        algorithm=method,
        data={"num_clients": 8, "min_samples": 4} | OWN,
        train={"rounds": 3, "sample_rate": 0.5},
        evaluation={
            "batch_size": 64,
            "decompose_every": 2,
            "decompose_scope": "population",
            "loss_matrix": True,
            "cosines": True,
            "clients_every": 1,
        }
        | (evaluation or {}),
        engine=engine,
    )


def run(settings, out: Path, session=None) -> dict[str, bytes]:
    store = fedsim.run(settings, out, session=session)
    return {name: (store.path / name).read_bytes() for name in TABLES}


ENGINES = {
    name: {"actors": actors} | SHARE
    for name, actors in (("one", 1), ("two", 2), ("own", "per-client"))
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedpac", "fedld"])
def test_serial_and_ray_with_one_two_and_per_client_actors(method, shared_ray, tmp_path):
    reference = run(config(method, kind="serial"), tmp_path / "serial")
    for name, engine in ENGINES.items():
        got = run(config(method, **engine), tmp_path / name, shared_ray)
        for file, content in reference.items():
            assert got[file] == content, f"{file} differs between serial and {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "evaluation",
    [
        {"decompose_split": "common_test", "batch_size": 7},
        {"decompose_split": "test", "decompose_scope": "cohort", "batch_size": 1000},
        {"decompose_split": "train", "decompose_max_samples": 5},
    ],
)
def test_other_parts_and_batches(evaluation, shared_ray, tmp_path):
    reference = run(config("fedpac", evaluation, kind="serial"), tmp_path / "serial")
    assert (
        run(config("fedpac", evaluation, **ENGINES["two"]), tmp_path / "two", shared_ray)
        == reference
    )


@pytest.mark.slow
def test_each_model_is_put_once_for_all_actors(shared_ray, tmp_path, monkeypatch):
    """Three actors share each model's batches; the new global model is also the next broadcast."""
    puts, tasks = [], []
    original, begin = ray.put, EvaluationCall.begin

    def counting(value):
        puts.append(value)
        return original(value)

    def watched(self, actor, send):
        tasks.append({id(t.model[0]) for t in self.tasks if t.measure == SAMPLES})
        return begin(self, actor, send)

    monkeypatch.setattr(ray, "put", counting)
    monkeypatch.setattr(EvaluationCall, "begin", watched)
    evaluation = {"decompose_every": 1, "clients_every": 0, "batch_size": 16}
    engine = {"actors": 3} | SHARE
    fedsim.run(config("fedavg", evaluation, **engine), tmp_path / "run", session=shared_ray)
    vectors = [value for value in puts if hasattr(value, "nbytes")]
    assert len(vectors) == 1 + 3 * (1 + 4), "the start, and each round's four and their mean"
    assert len({id(value) for value in vectors}) == len(vectors)
    shared = [one & other for one, other in pairwise(filter(None, tasks))]
    assert sum(map(len, shared)) >= 3, "models whose batches two actors share"
