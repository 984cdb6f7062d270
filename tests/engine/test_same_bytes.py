"""A run's bytes do not depend on the engine, the number of actors or their fractions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import fedsim
from fedsim import algorithms
from fedsim.audit.verify import verify
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError, WorkerError
from fedsim.engine.base import Executor
from fedsim.engine.registry import load
from fedsim.testing.methods import StopAfter
from fedsim.testing.rounds import config, results
from fedsim.training import driver
from fedsim.training.assemble import prepare
from fedsim.training.setup import needs_whole_updates
from tests import texts
from tests.engine.chaos import SHARE
from tests.executors import check_executor
from tests.sampling import marked_beside
from tests.unit.audit.test_verify import small
from tests.unit.models import test_trainable

pytestmark = pytest.mark.ray

TWO = {"kind": "ray", "actors": 2} | SHARE
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
    for actors in (1, 2, "per-client"):
        got = run(method, tmp_path / str(actors), shared_ray, actors=actors)
        for file, content in reference.items():
            assert got[file] == content, f"{file} differs between serial and {actors} actors"


SHAPES = {
    "fedld": "stateless",
    "scaffold": "client state",
    "fedbn": "personal slots",
    "fediir": "probe",
    "fedpac": "phases and private answers",
    "fedsr": "adapt",
    "fedadam": "server of its own",
    "pfedla": "models kept by the server",
    "centralized": "a cohort trained as one client",
}
"""A method of each structural shape; the others are slow."""


@pytest.mark.parametrize("name", marked_beside(SHAPES, algorithms.names()))
def test_every_method(name, shared_ray, tmp_path):
    reference = results(fedsim.run(config(name), tmp_path / "serial"))
    on_ray = config(name, engine=TWO)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


TRAIN = {"rounds": 3, "sample_rate": 0.5}
POISSON = TRAIN | {"sample_rate": 0.25, "cohort": "poisson"}
STEPS = TRAIN | {"local_steps": 3, "batch_size": 8}
SECTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{
        f"attack {name}": ("fedavg", "cnn", {"attack": {"name": name, "fraction": 0.5}})
        for name in ("gaussian", "backdoor", "alie", "min_max")
    },
    **{
        f"compress {name}": ("fedbn", "cnn", {"compress": {"name": name, **more}})
        for name, more in (
            ("top_k", {"error_feedback": "ef21"}),
            ("random_k", {"error_feedback": "ef14"}),
            ("qsgd", {}),
            ("power_sgd", {}),
        )
    },
    "power_of_choice": ("fedbn", "cnn", {"train": TRAIN | {"selection": "power_of_choice"}}),
    "oort": (
        "fedavg",
        "cnn",
        {"train": TRAIN | {"selection": "oort"}, "clock": {"download_mb_s": 1}},
    ),
    "noise of samples": ("scaffold", "mlp", {"dp": {"level": "example", "clip": 1.0}}),
    "noise of users": (
        "scaffold",
        "mlp",
        {
            "train": POISSON,
            "dp": {"level": "user", "quantile": 0.5, "count_noise": 2.0, "clip_control": 5.0},
        },
    ),
    "local steps": ("scaffold", "mlp", {"train": STEPS}),
    "local steps in blocks": (
        "scaffold",
        "mlp",
        {"train": STEPS, "engine": {"client_batch": 2}},
    ),
    "final clients": (
        "local",
        "cnn",
        {
            "data": {"heldout_clients": 2, "client_test_fraction": 0.2, "test_fraction": 0.5},
            "evaluation": {"finetune_epochs": 2},
        },
    ),
}
"""Settings by what they are about: method, model, sections."""


@pytest.mark.slow
@pytest.mark.parametrize("about", SECTIONS)
def test_every_section(about, shared_ray, tmp_path):
    method, model, sections = SECTIONS[about]
    sections = {"train": TRAIN} | sections
    engine = sections.pop("engine", {})
    serial = config(method, model, **sections, engine={"kind": "serial"} | engine)
    on_ray = config(method, model, **sections, engine=TWO | engine)
    stores = (
        fedsim.run(serial, tmp_path / "serial"),
        fedsim.run(on_ray, tmp_path / "ray", session=shared_ray),
    )
    one, other = map(results, stores)
    assert one == other


TRACED = {"availability": "uniform(0.5, 1)", "work": "uniform(0.4, 1)"}
BANDED = {"level": "user", "clip": 1.0, "clip_control": 5.0, "mechanism": "banded", "bands": 3}
INTERRUPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a virtual clock": (
        "fedpac",
        {"train": {"rounds": 4, "sample_rate": 0.5}, "clock": TRACED | {"deadline": 1.0}},
    ),
    "banded noise": (
        "scaffold",
        {"train": {"rounds": 5, "sample_rate": 0.25, "selection": "round_robin"}, "dp": BANDED},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("about", INTERRUPTED)
def test_a_run_that_goes_on(about, shared_ray, tmp_path):
    method, sections = INTERRUPTED[about]
    if "clock" in sections:
        rows = [f"{t},{c},{200 * t / (c + 1):.6g}" for t in (1, 3) for c in range(8)]
        trace = tmp_path / "trace.csv"
        trace.write_text("\n".join(["round,client_id,samples_per_second", *rows]) + "\n")
        clock = sections["clock"] | {"late": "partial", "trace": str(trace)}
        sections = sections | {"clock": clock}
    reference = results(fedsim.run(config(method, "mlp", **sections), tmp_path / "serial"))
    on_ray = config(method, "mlp", **sections, engine=TWO)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
    with pytest.raises(KeyboardInterrupt):
        driver.run(on_ray, tmp_path / "stopped", [StopAfter()], session=shared_ray)
    assert results(fedsim.resume(tmp_path / "stopped", session=shared_ray)) == reference


@pytest.mark.slow
@pytest.mark.parametrize("actors", [1, 2])
def test_the_contract_of_executors(actors, shared_ray):
    def make(*given: Any, session: Any, **more: Any) -> Executor:
        return load("ray")(*given, session=shared_ray, **more)

    check_executor(make, actors=actors)


@pytest.mark.slow
def test_images_that_each_node_reads_itself(shared_ray, tmp_path, monkeypatch):
    reference = run("fedavg", tmp_path / "driver", shared_ray)
    assert run("fedavg", tmp_path / "node", shared_ray, data_from="node") == reference
    monkeypatch.setattr("fedsim.training.setup.array_sha256", lambda _: "another")
    with pytest.raises(DataError, match=r"engine\.data_from=node: .* other images"):
        run("fedavg", tmp_path / "other", shared_ray, data_from="node")


@pytest.mark.slow
def test_large_updates_travel_one_by_one_with_the_same_bits(shared_ray, tmp_path, monkeypatch):
    together = run("fedbn", tmp_path / "together", kind="serial")
    monkeypatch.setattr("fedsim.engine.blocks.MAX_CALL", 0)
    assert run("fedbn", tmp_path / "alone", shared_ray) == together


@pytest.mark.slow
def test_an_error_in_a_client_names_round_and_client(shared_ray, tmp_path):
    broken = RunConfig(
        algorithm="tests.engine.broken:build",
        data={"num_clients": 4},
        train={"rounds": 3, "sample_rate": 1.0},
        engine=SHARE,
    )
    message = r"^round 2, client 2: ValueError: on purpose \(.*, in begin\)$"
    with pytest.raises(WorkerError, match=message):
        fedsim.run(broken, tmp_path / "out", session=shared_ray)


def test_a_placement_that_does_not_fit_is_refused_at_once(tmp_path):
    config = RunConfig(
        engine={"actors": "per-client"}, data={"num_clients": 500, "partition": "iid"}
    )
    with pytest.raises(ConfigError, match="--actors per-client: 500 actors"):
        fedsim.run(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("robfedavg", {}, "algorithm=robfedavg"),
        ("fedprox", {"server": "robfedavg"}, "server=robfedavg"),
        ("fedavg", {"attack": {"name": "alie"}}, "attack.name=alie"),
        ("fedavg", {"attack": {"name": "min_max"}}, None),
    ],
)
def test_rules_that_read_whole_updates_leave_none_on_the_nodes(name, changes, said):
    sections = {key: value for key, value in changes.items() if key != "server"}
    given = config(name, **sections).model_copy(update={"server": changes.get("server")})
    assert needs_whole_updates(prepare(given)) == said


OF_TEXTS = (
    *("rounds.csv", "clients.csv", "evaluations.csv", "decomposition.csv", "loss_matrix.csv"),
    *("partition.csv", "model.safetensors"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "method", "split"),
    [
        ("phrases", "fedbn", "train"),
        ("moods", "fedpac", "test"),
        ("phrases", "fedavg", "test"),
        ("numbers", "fedld", "train"),
    ],
)
def test_texts(data, method, split, shared_ray, tmp_path):
    def bytes_of(out, session=None, **engine):
        evaluation = {
            "decompose_every": 1,
            "decompose_split": split,
            "decompose_scope": "population",
            "loss_matrix": True,
            "clients_every": 1,
        }
        settings = texts.config(data, method, evaluation, engine=engine)
        store = fedsim.run(settings, tmp_path / out, session=session)
        return {name: (store.path / name).read_bytes() for name in OF_TEXTS}

    reference = bytes_of("serial", kind="serial")
    for actors, source in ((1, "object_store"), (3, "node")):
        engine = {"actors": actors, "cpus_per_client": 0.25, "data_from": source}
        got = bytes_of(str(actors), shared_ray, **engine)
        for file, content in reference.items():
            assert got[file] == content, f"{file} differs between serial and {actors} actors"


FILES = ("rounds.csv", "clients.csv", "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["lora(2)", "head"])
def test_frozen_tensors(trainable, shared_ray, tmp_path, monkeypatch):
    """With the head alone, workers train it on features; each run computes them anew."""

    def run(out, session=None, **engine):
        monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / f"cache {out}"))
        settings = test_trainable.config(
            "tests.unit.models.test_trainable:vit", trainable, "scaffold"
        )
        engine = settings.engine.model_copy(update=engine)
        settings = settings.model_copy(update={"engine": engine})
        return settings, fedsim.run(settings, tmp_path / out, session=session)

    settings, reference = run("serial")
    for actors, source in ((1, "object_store"), (3, "node")):
        place = {"kind": "ray", "actors": actors, "cpus_per_client": 0.25, "data_from": source}
        _, store = run(str(actors), shared_ray, **place)
        for file in FILES:
            same = (store.path / file).read_bytes() == (reference.path / file).read_bytes()
            assert same, f"{file} differs between serial and {actors} actors"
    final = load_file(reference.path / "model.safetensors")
    assert (tmp_path / "cache 3").exists() == (trainable == "head")
    frozen = prepare(settings).frozen
    assert frozen
    assert all(np.array_equal(final[name].numpy(), array) for name, array in frozen.items())


KEPT = {"checkpoint_every": 1, "keep_every": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedbn"])
def test_a_run_on_actors_is_verified(name, shared_ray, tmp_path):
    on_ray = small(name, engine={"kind": "ray", "actors": 2} | SHARE | KEPT)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified
    assert verify(run, rounds=2).verified


@pytest.mark.slow
def test_a_run_of_stacked_clients_is_verified(shared_ray, tmp_path):
    on_ray = small("scaffold", engine={"kind": "ray", "client_batch": 2} | SHARE | KEPT)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified
