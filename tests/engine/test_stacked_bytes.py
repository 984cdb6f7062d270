"""With ``engine.client_batch``, too, bytes depend on no engine, number of actors or loss."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.config.run import RunConfig
from fedsim.core.errors import WorkerError
from fedsim.training import driver
from tests.engine.chaos import SHARE, TABLES, Orders
from tests.sampling import marked_beside
from tests.stopping import Stopper

pytestmark = pytest.mark.ray

METHODS = ("fedavg", "fedprox", "scaffold", "feddyn", "fedld")
ONCE = marked_beside(("fedld",), METHODS, pytest.mark.nightly)
"""One of them, and nightly the others."""


def config(method: str, model: str = "cnn", batch: int = 3, **engine: object) -> RunConfig:
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


def bytes_of(store: fedsim.RunStore) -> dict[str, bytes]:
    return {name: (store.path / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory):
    """The bytes of a run in one process, computed when first asked for."""
    known: dict[tuple[str, str], dict[str, bytes]] = {}

    def of(method: str, model: str = "cnn") -> dict[str, bytes]:
        if (method, model) not in known:
            out = tmp_path_factory.mktemp(method) / "run"
            store = fedsim.run(config(method, model, kind="serial"), out)
            known[method, model] = bytes_of(store)
        return known[method, model]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_one_and_per_client_actors(method, shared_ray, serial, tmp_path):
    engines = {"one": {"actors": 1}, "own": {"actors": "per-client"}}
    for name, engine in engines.items():
        store = fedsim.run(config(method, **engine), tmp_path / name, session=shared_ray)
        assert bytes_of(store) == serial(method), name


@pytest.mark.slow
@pytest.mark.parametrize("method", ONCE)
def test_two_actors_and_a_run_that_goes_on(method, shared_ray, serial, tmp_path):
    store = fedsim.run(config(method, actors=2), tmp_path / "two", session=shared_ray)
    assert bytes_of(store) == serial(method)
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(
            config(method, actors=2), stopped, [Stopper(2, KeyboardInterrupt)], session=shared_ray
        )
    assert bytes_of(driver.resume(stopped, session=shared_ray)) == serial(method)


@pytest.mark.slow
@pytest.mark.parametrize("method", ONCE)
def test_actors_killed_while_training_returning_and_evaluating(
    method, shared_ray, orders, serial, tmp_path
):
    model = "tests.engine.chaos:model"
    plan = {1: ("train", "SIGKILL"), 2: ("return", "SIGKILL"), 3: ("evaluate", "SIGKILL")}
    settings = config(method, model, actors=2)
    store = fedsim.run(settings, tmp_path / "run", [Orders(orders, plan)], shared_ray)
    assert bytes_of(store) == serial(method, model)
    errors = store.read("errors").set_index("round")
    assert set(errors.index) == {2, 3, 4}
    assert errors["error"].str.contains("its process died").all()
    assert (errors["attempt"] == 1).all()
    assert len(errors.loc[[2]]) > 1, "all clients of the lost blocks are named"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_a_client_that_fails_takes_its_block_with_it(policy, shared_ray, orders, tmp_path):
    def run(name: str, session=None, **engine: object) -> fedsim.RunStore:
        settings = config("tests.engine.broken:build", on_client_failure=policy, **engine)
        return fedsim.run(settings, tmp_path / name, session=session)

    what = r"round 2, clients (\d, )*2(, \d)*: ValueError: on purpose \("
    runs = (
        {"kind": "serial"},
        {"actors": 1, "session": shared_ray},
        {"actors": 2, "session": shared_ray},
    )
    if policy == "raise":
        for i, engine in enumerate(runs):
            with pytest.raises(WorkerError, match=f"^{what}"):
                run(str(i), **engine)
        return
    first, *others = (run(str(i), **engine) for i, engine in enumerate(runs))
    lost = first.read("errors")["client_id"].tolist()
    assert len(lost) == 3
    assert 2 in lost
    assert first.read("errors")["error"].str.match(what).all()
    for other in others:
        assert bytes_of(other) == bytes_of(first)
        assert other.read("errors")["client_id"].tolist() == lost
