"""The final scores of clients, held out or fine-tuned: the same bytes in one process and on Ray."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.testing.rounds import config, results
from tests.engine.chaos import SHARE

pytestmark = pytest.mark.ray


def settings(name, **engine):
    return config(
        name,
        data={"heldout_clients": 2, "client_test_fraction": 0.2, "test_fraction": 0.5},
        evaluation={"finetune_epochs": 2},
        engine=SHARE | engine,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_serial_and_ray(name, shared_ray, tmp_path):
    serial = fedsim.run(settings(name), tmp_path / "serial")
    on_ray = fedsim.run(settings(name, kind="ray", actors=2), tmp_path / "ray", session=shared_ray)
    assert results(on_ray) == results(serial)
    tables = [store.path / "final_clients.csv" for store in (serial, on_ray)]
    assert tables[0].read_bytes() == tables[1].read_bytes()
