"""With a virtual clock, too, bytes do not depend on the engine or on an interruption."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.config.run import RunConfig
from fedsim.training import driver
from tests.engine.chaos import SHARE
from tests.stopping import Stopper

pytestmark = pytest.mark.ray

FILES = ("rounds.csv", "clients.csv", "classes.csv", "errors.csv", "model.safetensors")


@pytest.mark.slow
def test_serial_and_two_actors_and_a_run_that_goes_on(shared_ray, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{t},{c},{200 * t / (c + 1):.6g}" for t in (1, 3) for c in range(8)]
    trace.write_text("\n".join(["round,client_id,samples_per_second", *rows]) + "\n")
    clock = {"trace": str(trace), "availability": "uniform(0.5, 1)", "work": "uniform(0.4, 1)"}
    clock |= {"deadline": 1.0, "late": "partial"}

    def config(**engine):
        return RunConfig(
            algorithm="fedpac",
            data={"num_clients": 8},
            train={"rounds": 4, "sample_rate": 0.5},
            clock=clock,
            engine=SHARE | engine,
        )

    def contents(store):
        return {name: (store.path / name).read_bytes() for name in FILES}

    serial = fedsim.run(config(kind="serial"), tmp_path / "serial")
    clients = serial.read("clients")
    assert 0 < (clients["status"] == "dropped").sum() < len(clients)
    assert clients["simulated_seconds"].max() <= 1
    two = fedsim.run(config(actors=2), tmp_path / "two", session=shared_ray)
    assert contents(two) == contents(serial)
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(
            config(actors=2),
            tmp_path / "again",
            [Stopper(2, KeyboardInterrupt)],
            session=shared_ray,
        )
    store = driver.resume(tmp_path / "again", session=shared_ray)
    assert contents(store) == contents(serial)
