"""Batches that carry on over rounds do not depend on the engine, nor on where a run was cut."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.client.order import STEPS
from fedsim.testing.rounds import config, results, rounds, small
from tests.engine.chaos import SHARE

TRAIN = {"rounds": 4, "sample_rate": 0.5, "local_steps": 3, "batch_size": 8}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("batch", [1, 2])
def test_serial_and_two_actors(batch, shared_ray, tmp_path):
    serial = config(
        "scaffold", "mlp", train=TRAIN, engine={"kind": "serial", "client_batch": batch}
    )
    reference = results(fedsim.run(serial, tmp_path / "serial"))
    place = {"kind": "ray", "actors": 2, "client_batch": batch} | SHARE
    on_ray = config("scaffold", "mlp", train=TRAIN, engine=place)
    assert results(fedsim.run(on_ray, tmp_path / "ray", session=shared_ray)) == reference


@pytest.mark.integration
@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
def test_rounds_from_a_checkpoint_are_those_of_a_whole_run(shuffle):
    train = TRAIN | {"shuffle": shuffle, "sample_rate": 1.0}
    whole = rounds(small("fednova", "mlp", train=train))
    rest = rounds(small("fednova", "mlp", train=train), start=whole[1].after, first=2)
    np.testing.assert_array_equal(rest[-1].after.params, whole[-1].after.params)
    steps = {c: int(kept[STEPS][0]) for c, kept in whole[-1].after.clients.items()}
    assert set(steps.values()) == {12}


@pytest.mark.integration
def test_stacked_clients_have_the_same_batches():
    alone, block = (
        rounds(small("fedprox", "mlp", train=TRAIN, engine={"kind": "serial", "client_batch": k}))
        for k in (1, 4)
    )
    for one, many in zip(alone, block, strict=True):
        np.testing.assert_allclose(many.after.params, one.after.params, rtol=1e-3, atol=1e-5)


@pytest.mark.integration
def test_a_client_with_less_time_goes_on_where_it_stopped():
    clock = {"work": 0.5, "samples_per_second": 100}
    made = rounds(small("fedavg", "mlp", train=TRAIN | {"sample_rate": 1.0}, clock=clock))
    steps = {int(kept[STEPS][0]) for kept in made[-1].after.clients.values()}
    assert steps == {8}  # 2 of 3 steps in each of four rounds
