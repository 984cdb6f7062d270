"""Whatever a run loses, its bytes are those of an undisturbed one, or it ends with the cause."""

from __future__ import annotations

import time

import pytest
import ray
from ray.exceptions import OwnerDiedError

import fedsim
from fedsim.core.errors import WorkerError
from fedsim.engine.ray.executor import RayExecutor
from tests.engine.broken import Owner
from tests.engine.chaos import STATEFUL_ONCE, Orders, bytes_of, config

pytestmark = pytest.mark.ray


def until_lost(ref) -> None:
    while True:
        ray.get(ref)
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("method", STATEFUL_ONCE)
def test_actors_killed_while_training_returning_and_evaluating(
    method, shared_ray, orders, undisturbed, tmp_path
):
    plan = {1: ("train", "SIGKILL"), 2: ("return", "SIGKILL"), 3: ("evaluate", "SIGKILL")}
    watcher = Orders(orders, plan)
    store = fedsim.run(config(method, actors=2), tmp_path / "run", [watcher], shared_ray)
    assert bytes_of(store) == undisturbed(method)
    errors = store.read("errors")
    assert sorted(errors["round"].unique()) == [2, 3, 4]
    assert errors[errors["round"] < 4]["client_id"].notna().all()
    assert errors["client_id"][errors["round"] == 4].isna().all(), "an evaluation has no client"
    assert errors["error"].str.contains("its process died").all()
    assert errors["node"].notna().all()
    assert (errors["attempt"] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "moment"),
    [
        ("fedpac", "train"),
        pytest.param("fedbn", "return", marks=pytest.mark.nightly),
        pytest.param("fedpac", "evaluate", marks=pytest.mark.nightly),
    ],
)
def test_actors_that_fall_silent(method, moment, shared_ray, orders, undisturbed, tmp_path):
    watcher = Orders(orders, {2: (moment, "SIGSTOP")})
    settings = config(method, actors=2, client_timeout=6)
    store = fedsim.run(settings, tmp_path / "run", [watcher], shared_ray)
    assert bytes_of(store) == undisturbed(method)
    assert store.read("errors")["error"].str.contains("has not answered").all()


@pytest.mark.slow
def test_a_client_that_hangs_is_taken_from_its_actor(shared_ray, orders, undisturbed, tmp_path):
    watcher = Orders(orders, {2: ("train", "hang")})
    store = fedsim.run(
        config("fedbn", actors=2, client_timeout=6), tmp_path / "run", [watcher], shared_ray
    )
    assert bytes_of(store) == undisturbed("fedbn")
    assert store.read("errors")["error"].str.contains("beyond the client timeout").all()


@pytest.mark.slow
def test_actors_killed_while_they_are_idle_and_a_lost_object(
    shared_ray, orders, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedsim.engine.ray.dispatch.INLINE", 0)
    executors = []

    class Known(RayExecutor):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            executors.append(self)

    monkeypatch.setattr("fedsim.engine.ray.executor.RayExecutor", Known)

    def kill_idle() -> None:
        pool = executors[0]._pool
        for slot in pool.idle:
            ray.kill(pool._handles[slot])

    def lose_vector() -> None:
        objects = executors[0]._dispatcher.sent._objects
        key, (vector, _) = list(objects.items())[-1]  # the model of the next round
        owner = ray.remote(num_cpus=0)(Owner).remote()
        lost = ray.get(owner.put.remote(vector))[0]
        ray.kill(owner)
        with pytest.raises(OwnerDiedError):
            until_lost(lost)
        objects[key] = (vector, lost)

    watcher = Orders(orders, {2: kill_idle, 4: lose_vector})
    store = fedsim.run(config("fedpac", actors=2), tmp_path / "run", [watcher], shared_ray)
    assert bytes_of(store) == undisturbed("fedpac")
    errors = store.read("errors").set_index("round")["error"]
    assert errors.loc[[3]].str.contains("its process died").all()
    assert errors.loc[[5]].str.contains("object").all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "actors"),
    [
        ("raise", 2),
        ("drop", 1),
        pytest.param("raise", 1, marks=pytest.mark.nightly),
        pytest.param("drop", 2, marks=pytest.mark.nightly),
    ],
)
def test_work_that_is_lost_again_and_again(policy, actors, shared_ray, orders, tmp_path):
    """A client that ends every process it is given to, among others in one call."""
    settings = config(
        "tests.engine.broken:build_deadly",
        rate=1.0,
        actors=actors,
        max_retries=1,
        on_client_failure=policy,
    )
    if policy == "raise":
        with pytest.raises(
            WorkerError, match=r"^round 2, client 2 lost 2 times, the last time: its process died"
        ):
            fedsim.run(settings, tmp_path / "run", session=shared_ray)
        return
    store = fedsim.run(settings, tmp_path / "run", session=shared_ray)
    clients = store.read("clients").set_index(["round", "client_id"])["status"]
    dropped = clients[clients == "dropped"].index.tolist()
    assert dropped == [(2, 2)]
    assert store.read("errors").query("client_id == 2")["attempt"].tolist() == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("build", ["build", "build_late"])
def test_a_failing_client_is_left_out_with_the_same_bytes_everywhere(
    build, shared_ray, orders, tmp_path
):
    def run(name: str, session=None, **engine: object) -> dict[str, bytes]:
        settings = config(
            f"tests.engine.broken:{build}", rate=1.0, on_client_failure="drop", **engine
        )
        store = fedsim.run(settings, tmp_path / name, session=session)
        errors = store.read("errors")
        assert errors["client_id"].tolist() == [2]
        error = errors["error"].iloc[0]
        assert error.startswith("round 2, client 2: ValueError: on purpose (")
        assert "broken.py:" in error
        return bytes_of(store)

    serial = run("serial", kind="serial")
    assert run("one", shared_ray, actors=1) == serial
    assert run("two", shared_ray, actors=2) == serial


@pytest.mark.slow
def test_an_actor_that_cannot_be_built_ends_the_run_with_the_cause(shared_ray, orders, tmp_path):
    with pytest.raises(WorkerError, match=r"failed to start: .*ValueError: not in an actor"):
        fedsim.run(
            config("fedavg", "never_built_in_an_actor"), tmp_path / "run", session=shared_ray
        )


@pytest.mark.slow
def test_actors_that_die_while_they_start_are_not_tried_for_ever(shared_ray, orders, tmp_path):
    settings = config("fedavg", "kills_its_actor", max_retries=1)
    with pytest.raises(WorkerError, match="no client actor comes up: its process died"):
        fedsim.run(settings, tmp_path / "run", session=shared_ray)
