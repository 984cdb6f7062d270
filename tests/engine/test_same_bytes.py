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
from fedsim.testing.rounds import config
from fedsim.training import driver
from fedsim.training.assemble import prepare
from fedsim.training.setup import needs_whole_updates
from tests import texts
from tests.decomposing import OWN
from tests.engine.chaos import SHARE, Orders
from tests.executors import check_executor
from tests.sampling import marked_beside
from tests.stopping import Stopper
from tests.test_seams import BUFFERED
from tests.unit.audit.test_verify import small
from tests.unit.models import test_trainable

pytestmark = pytest.mark.ray

TWO = {"kind": "ray", "actors": 2} | SHARE
TRAIN = {"rounds": 3, "sample_rate": 0.5}


def bytes_of(store: fedsim.RunStore) -> dict[str, bytes]:
    """All results, without times and what was lost."""
    files = [file for kind in ("*.csv", "*.npz", "*.safetensors") for file in store.path.glob(kind)]
    others = ("timings", "errors", "summary")
    return {file.name: file.read_bytes() for file in files if file.stem not in others}


def run(method: str, out: Path, session=None, **engine: object) -> dict[str, bytes]:
    settings = RunConfig(
        algorithm=method,
        data={"num_clients": 8},
        train=TRAIN,
        evaluation={"batch_size": 64},
        engine=SHARE | engine,
    )
    return bytes_of(fedsim.run(settings, out, session=session))


@pytest.mark.parametrize(
    "method",
    ["fedbn", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedavg", "fedpac", "fedld"))],
)
def test_serial_and_ray_with_one_two_and_per_client_actors(method, shared_ray, tmp_path):
    reference = run(method, tmp_path / "serial", kind="serial")
    for actors in (1, 2, "per-client"):
        got = run(method, tmp_path / str(actors), shared_ray, actors=actors)
        assert got == reference, f"with {actors} actors"


SHAPES = {
    "fedld": "stateless",
    "scaffold": "client state",
    "fedbn": "personal slots",
    "fediir": "probe",
    "fedpac": "phases and private answers",
    "fedsr": "adapt",
    "fedadam": "server of its own",
    "pfedla": "models kept by the server",
    "knnper": "predictions that need more than a model",
    "centralized": "a cohort trained as one client",
    "ditto": "a second model of each client",
    "ifca": "models that are made to be scored",
}
"""A method of each structural shape; the others are slow."""


@pytest.mark.parametrize("name", marked_beside(SHAPES, algorithms.names()))
def test_every_method(name, shared_ray, tmp_path):
    reference = bytes_of(fedsim.run(config(name), tmp_path / "serial"))
    on_ray = config(name, engine=TWO)
    assert bytes_of(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


POISSON = TRAIN | {"sample_rate": 0.25, "cohort": "poisson"}
STEPS = TRAIN | {"local_steps": 3, "batch_size": 8}
PARTS = {"decompose_every": 2, "decompose_scope": "population", "loss_matrix": True}
PARTS |= {"cosines": True, "clients_every": 1}
DATA = {"min_samples": 4, "test_fraction": 0.2} | OWN
ASYNC = {"train": {"rounds": 6}, "clock": BUFFERED["clock"] | {"mode": "async"}}


def evaluated(method: str, **evaluation: object) -> tuple[str, str, dict[str, Any]]:
    """A run with everything that is measured."""
    return method, "cnn", {"data": DATA, "evaluation": PARTS | {"every": 1} | evaluation}


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
    "local steps in blocks": ("scaffold", "mlp", {"train": STEPS, "engine": {"client_batch": 2}}),
    "final clients": (
        "local",
        "cnn",
        {
            "data": {"heldout_clients": 2, "client_test_fraction": 0.2, "test_fraction": 0.5},
            "evaluation": {"finetune_epochs": 2},
        },
    ),
    "all parts": evaluated("fedld"),
    "common test": evaluated("fedpac", decompose_split="common_test", batch_size=7),
    "cohort": evaluated("fedpac", decompose_split="test", decompose_scope="cohort"),
    "some samples": evaluated("fedpac", decompose_split="train", decompose_max_samples=5),
    "fedbuff": ("fedavg", "cnn", ASYNC | {"async_": {"buffer": 2, "concurrency": 5}}),
    "fedasync": (
        "fedavg",
        "cnn",
        ASYNC | {"async_": {"buffer": 1, "concurrency": 5, "mixing": 0.6}},
    ),
    "an attack of the user's": ("tests.seams:sign_flip", "cnn", {}),
    "a schedule of the user's": (
        "fedavg",
        "cnn",
        {"train": TRAIN | {"schedule": "tests.seams:power_of_choice"}},
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
    reference = bytes_of(fedsim.run(serial, tmp_path / "serial"))
    assert bytes_of(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


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
    reference = bytes_of(fedsim.run(config(method, "mlp", **sections), tmp_path / "serial"))
    on_ray = config(method, "mlp", **sections, engine=TWO)
    assert bytes_of(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference
    with pytest.raises(KeyboardInterrupt):
        driver.run(on_ray, tmp_path / "stopped", [StopAfter()], session=shared_ray)
    assert bytes_of(fedsim.resume(tmp_path / "stopped", session=shared_ray)) == reference


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "method", "split"),
    [("phrases", "fedbn", "train"), ("moods", "fedpac", "test"), ("numbers", "fedld", "train")],
)
def test_texts(data, method, split, shared_ray, tmp_path):
    evaluation = PARTS | {"decompose_every": 1, "decompose_split": split, "cosines": False}

    def done(out, session=None, **engine):
        settings = texts.config(data, method, evaluation, engine=engine)
        return bytes_of(fedsim.run(settings, tmp_path / out, session=session))

    reference = done("serial", kind="serial")
    for actors, source in ((1, "object_store"), (3, "node")):
        engine = {"actors": actors, "data_from": source} | SHARE
        assert done(str(actors), shared_ray, **engine) == reference, f"with {actors} actors"


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["lora(2)", "head"])
def test_frozen_tensors(trainable, shared_ray, tmp_path, monkeypatch):
    """With the head alone, workers train it on features; each run computes them anew."""
    vit = "tests.unit.models.test_trainable:vit"
    settings = test_trainable.config(vit, trainable, "scaffold")

    def done(out, session=None, **engine):
        monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / f"cache {out}"))
        place = {"engine": settings.engine.model_copy(update=engine)}
        return bytes_of(fedsim.run(settings.model_copy(update=place), tmp_path / out, (), session))

    reference = done("serial")
    for actors, source in ((1, "object_store"), (3, "node")):
        place = {"kind": "ray", "actors": actors, "data_from": source} | SHARE
        assert done(str(actors), shared_ray, **place) == reference, f"with {actors} actors"
    final = load_file(tmp_path / "serial" / "model.safetensors")
    assert (tmp_path / "cache 3").exists() == (trainable == "head")
    frozen = prepare(settings).frozen
    assert frozen
    assert all(np.array_equal(final[name].numpy(), array) for name, array in frozen.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"),
    [("scaffold", {"actors": 2}), ("fedbn", {"actors": 2}), ("scaffold", {"client_batch": 2})],
)
def test_a_run_on_actors_is_verified(name, engine, shared_ray, tmp_path):
    kept = {"checkpoint_every": 1, "keep_every": 2}
    on_ray = small(name, engine={"kind": "ray"} | SHARE | kept | engine)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified
    assert verify(run, rounds=2).verified


METHODS = ("fedavg", "fedprox", "scaffold", "feddyn", "fedld")
ONCE = marked_beside(("fedld",), METHODS, pytest.mark.nightly)
"""One of them, and nightly the others."""


def stacked(method: str, model: str = "cnn", batch: int = 3, **engine: object) -> RunConfig:
    """Seven of eight clients a round, so that a block of one is left over."""
    return RunConfig(
        algorithm=method,
        data={"num_clients": 8},
        model={"name": model},
        train={"rounds": 4, "sample_rate": 0.9, "batch_size": 16},
        evaluation={"batch_size": 64},
        clock={"work": "uniform(0.4, 1)"},
        engine=SHARE | {"client_batch": batch} | engine,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ONCE)
def test_blocks_on_any_actors_and_in_a_run_that_goes_on(method, shared_ray, tmp_path):
    reference = bytes_of(fedsim.run(stacked(method, kind="serial"), tmp_path / "serial"))
    for actors in (1, 2, "per-client"):
        on_ray = stacked(method, actors=actors)
        store = fedsim.run(on_ray, tmp_path / f"{actors}", session=shared_ray)
        assert bytes_of(store) == reference, f"with {actors} actors"
    stopper = [Stopper(2, KeyboardInterrupt)]
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(stacked(method, actors=2), tmp_path / "stopped", stopper, session=shared_ray)
    assert bytes_of(driver.resume(tmp_path / "stopped", session=shared_ray)) == reference


@pytest.mark.slow
def test_actors_of_blocks_killed_while_training_returning_and_evaluating(
    shared_ray, orders, tmp_path
):
    model = "tests.engine.chaos:model"
    reference = bytes_of(fedsim.run(stacked("fedld", model, kind="serial"), tmp_path / "serial"))
    plan = {1: ("train", "SIGKILL"), 2: ("return", "SIGKILL"), 3: ("evaluate", "SIGKILL")}
    settings = stacked("fedld", model, actors=2)
    store = fedsim.run(settings, tmp_path / "run", [Orders(orders, plan)], shared_ray)
    assert bytes_of(store) == reference
    errors = store.read("errors").set_index("round")
    assert set(errors.index) == {2, 3, 4}
    assert errors["error"].str.contains("its process died").all()
    assert (errors["attempt"] == 1).all()
    assert len(errors.loc[[2]]) > 1, "all clients of the lost blocks are named"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_a_client_that_fails_takes_its_block_with_it(policy, shared_ray, orders, tmp_path):
    said = r"^round 2, clients (\d, )*2(, \d)*: ValueError: on purpose \("
    stores = []
    for engine in ({"kind": "serial"}, {"actors": 1}, {"actors": 2}):
        settings = stacked("tests.engine.broken:build", on_client_failure=policy, **engine)
        place = tmp_path / str(engine), (), None if "kind" in engine else shared_ray
        if policy == "drop":
            stores.append(fedsim.run(settings, *place))
            continue
        with pytest.raises(WorkerError, match=said):
            fedsim.run(settings, *place)
    for store in stores:
        errors = store.read("errors")
        assert bytes_of(store) == bytes_of(stores[0])
        assert errors["client_id"].tolist() == stores[0].read("errors")["client_id"].tolist()
        assert (len(errors), 2 in errors["client_id"].tolist()) == (3, True)
        assert errors["error"].str.match(said).all()
