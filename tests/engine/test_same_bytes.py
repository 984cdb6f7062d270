"""A run's bytes do not depend on the engine, the number of actors or their fractions."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsim
from fedsim.config.run import RunConfig
from tests.engine.chaos import SHARE

pytestmark = pytest.mark.ray

TABLES = (
    *("rounds.csv", "clients.csv", "classes.csv", "confusion.csv", "partition.csv"),
    "model.safetensors",
)


def run(method: str, out: Path, session=None, **engine: object) -> dict[str, bytes]:
    config = RunConfig(
        algorithm=method,
        data={"num_clients": 8},
        train={"rounds": 3, "sample_rate": 0.5},
        evaluation={"batch_size": 64},
        engine=SHARE | engine,
    )
    store = fedsim.run(config, out, session=session)
    own = method in ("fedbn", "fedpac")
    extra = ("evaluations.csv", "clients.safetensors") if own else ()
    return {name: (store.path / name).read_bytes() for name in (*TABLES, *extra)}


@pytest.mark.parametrize(
    "method",
    ["fedbn", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedavg", "fedpac", "fedld"))],
)
def test_serial_and_ray_with_one_two_and_per_client_actors(method, shared_ray, tmp_path):
    reference = run(method, tmp_path / "serial", kind="serial")
    engines = {
        "one": {"actors": 1},
        "two": {"actors": 2},
        "own": {"actors": "per-client"},
    }
    for name, engine in engines.items():
        got = run(method, tmp_path / name, shared_ray, **engine)
        for file, content in reference.items():
            assert got[file] == content, f"{file} differs between serial and {name}"


@pytest.mark.slow
def test_images_that_each_node_reads_itself(shared_ray, tmp_path, monkeypatch):
    reference = run("fedavg", tmp_path / "driver", shared_ray)
    assert run("fedavg", tmp_path / "node", shared_ray, data_from="node") == reference
    monkeypatch.setattr("fedsim.training.setup.array_sha256", lambda _: "another")
    with pytest.raises(
        fedsim.core.errors.DataError, match=r"engine\.data_from=node: .* other images"
    ):
        run("fedavg", tmp_path / "other", shared_ray, data_from="node")


@pytest.mark.slow
def test_large_updates_travel_one_by_one_with_the_same_bits(shared_ray, tmp_path, monkeypatch):
    together = run("fedbn", tmp_path / "together", kind="serial")
    monkeypatch.setattr("fedsim.engine.blocks.MAX_CALL", 0)
    assert run("fedbn", tmp_path / "alone", shared_ray) == together


@pytest.mark.slow
def test_an_error_in_a_client_names_round_and_client(shared_ray, tmp_path):
    config = RunConfig(
        algorithm="tests.engine.broken:build",
        data={"num_clients": 4},
        train={"rounds": 3, "sample_rate": 1.0},
        engine=SHARE,
    )
    with pytest.raises(
        fedsim.core.errors.WorkerError,
        match=r"^round 2, client 2: ValueError: on purpose \(.*, in begin\)$",
    ):
        fedsim.run(config, tmp_path / "out", session=shared_ray)


def test_a_placement_that_does_not_fit_is_refused_at_once(tmp_path):
    config = RunConfig(
        engine={"actors": "per-client"}, data={"num_clients": 500, "partition": "iid"}
    )
    with pytest.raises(fedsim.core.errors.ConfigError, match="--actors per-client: 500 actors"):
        fedsim.run(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
