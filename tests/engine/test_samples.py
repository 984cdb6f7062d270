"""Models evaluated sample by sample: the same tables on any number of actors, models sent once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import ray

import fedsim
from fedsim.config.run import RunConfig
from fedsim.core.types import Owned
from fedsim.engine.base import SAMPLES
from fedsim.engine.ray.calls import EvaluationCall, Task, deal
from tests.decomposing import OWN

TABLES = (
    *("decomposition.csv", "loss_matrix.csv", "loss_matrix.npz", "cosines.csv", "spectrum.csv"),
    *("evaluations.csv", "rounds.csv", "clients.csv", "classes.csv", "model.safetensors"),
)


# How jobs are cut up


@pytest.mark.parametrize("seed", range(30))
def test_every_batch_of_every_job_is_done_once_and_in_order(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, size=int(rng.integers(1, 9))).tolist()
    parts = int(rng.integers(1, 20))
    dealt = deal(sizes, parts)
    assert 1 <= len(dealt) <= parts
    done = [
        (job, batch) for own in dealt for job, (start, stop) in own for batch in range(start, stop)
    ]
    assert done == [(job, batch) for job, size in enumerate(sizes) for batch in range(size)]
    assert all(start < stop for own in dealt for _, (start, stop) in own)
    loads = [sum(stop - start for _, (start, stop) in own) for own in dealt]
    assert max(loads) - min(loads) <= 1


def test_shares_by_hand():
    assert deal([4], 1) == [[(0, (0, 4))]]
    assert deal([3, 3], 2) == [[(0, (0, 3))], [(1, (0, 3))]]
    # 7 batches: the first worker has 3, the second 4
    assert deal([5, 2], 2) == [[(0, (0, 3))], [(0, (3, 5)), (1, (0, 2))]]
    assert deal([1, 1], 5) == [[(0, (0, 1))], [(1, (0, 1))]], "nobody gets nothing to do"


class Actor:
    """Takes down what it is told."""

    def __init__(self):
        self.evaluate, self.told = self, []

    def remote(self, tasks, *params):
        self.told.append((tasks, params))
        return "answer"


def test_a_call_sends_each_vector_once():
    vectors = [np.zeros(2), np.ones(2)]
    own = {"personal": np.full(1, 7.0)}
    part = Owned("train", (0, 1))
    jobs = (
        ((vectors[0], {}), part, (0, 2)),
        ((vectors[1], {}), part, (0, 2)),
        ((vectors[0], own), "test", (1, 3)),
    )
    asked = tuple(Task(model=m, part=p, reduction=SAMPLES, batches=b) for m, p, b in jobs)
    sent, actor = [], Actor()

    def send(value):
        sent.append(value)
        return f"object {len(sent)}"

    call = EvaluationCall(position=0, tasks=asked)
    assert call.begin(actor, send) == ["answer"]
    assert [id(value) for value in sent] == [id(v) for v in vectors]
    ((tasks, params),) = actor.told
    assert params == ("object 1", "object 2")
    assert tasks == [
        (0, {}, part, SAMPLES, (0, 2)),
        (1, {}, part, SAMPLES, (0, 2)),
        (0, own, "test", SAMPLES, (1, 3)),
    ]
    assert call.size() == 6.0
    assert str(call) == "evaluation on the clients' own train and the test part"


# On Ray


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
    name: {"actors": actors, "cpus_per_client": 0.25}  # alike, so that they stay warm
    for name, actors in (("one", 1), ("two", 2), ("own", "per-client"))
}


@pytest.mark.ray
@pytest.mark.parametrize("method", ["fedld", "fedpac"])
def test_serial_and_ray_with_one_two_and_per_client_actors(method, plain_ray, tmp_path):
    reference = run(config(method, kind="serial"), tmp_path / "serial")
    for name, engine in ENGINES.items():
        got = run(config(method, **engine), tmp_path / name, plain_ray)
        for file, content in reference.items():
            assert got[file] == content, f"{file} differs between serial and {name}"


@pytest.mark.ray
def test_clients_with_test_images_of_their_own(plain_ray, tmp_path):
    """Pooled over the sites, by the sites' own models."""

    def bytes_of(out, session=None, **engine):
        settings = RunConfig(
            algorithm="fedbn",
            data={"name": "shortcut", "num_clients": 6, "samples_per_client": 20},
            train={"rounds": 2, "sample_rate": 0.5},
            engine=engine,
        )
        store = fedsim.run(settings, tmp_path / out, session=session)
        names = ("rounds.csv", "evaluations.csv", "classes.csv", "partition.csv")
        return {name: (store.path / name).read_bytes() for name in names}

    assert bytes_of("ray", plain_ray, **ENGINES["two"]) == bytes_of("serial", kind="serial")


@pytest.mark.ray
@pytest.mark.parametrize(
    "evaluation",
    [
        {"decompose_split": "common_test", "batch_size": 7},
        {"decompose_split": "test", "decompose_scope": "cohort", "batch_size": 1000},
        {"decompose_split": "train", "decompose_max_samples": 5},
    ],
)
def test_other_parts_and_batches(evaluation, plain_ray, tmp_path):
    reference = run(config("fedpac", evaluation, kind="serial"), tmp_path / "serial")
    assert (
        run(config("fedpac", evaluation, **ENGINES["two"]), tmp_path / "two", plain_ray)
        == reference
    )


@pytest.mark.ray
def test_each_model_is_put_once_for_all_actors(plain_ray, tmp_path, monkeypatch):
    """Three actors share each model's batches; the new global model is also the next broadcast."""
    puts, tasks = [], []
    original, begin = ray.put, EvaluationCall.begin

    def counting(value):
        puts.append(value)
        return original(value)

    def watched(self, actor, send):
        tasks.append({id(t.model[0]) for t in self.tasks if t.reduction == SAMPLES})
        return begin(self, actor, send)

    monkeypatch.setattr(ray, "put", counting)
    monkeypatch.setattr(EvaluationCall, "begin", watched)
    evaluation = {"decompose_every": 1, "clients_every": 0, "batch_size": 16}
    engine = {"actors": 3, "cpus_per_client": 0.25}
    fedsim.run(config("fedavg", evaluation, **engine), tmp_path / "run", session=plain_ray)
    vectors = [value for value in puts if hasattr(value, "nbytes")]
    assert len(vectors) == 1 + 3 * (1 + 4), "the start, and each round's four and their mean"
    assert len({id(value) for value in vectors}) == len(vectors)
    shared = [one & other for one, other in pairwise(filter(None, tasks))]
    assert sum(map(len, shared)) >= 3, "models whose batches two actors share"
