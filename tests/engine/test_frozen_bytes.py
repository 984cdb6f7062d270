"""Frozen tensors: a run's bytes do not depend on the engine, and no process moves a frozen bit."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.torch import load_file

import fedsim
from fedsim.training.setup import prepare
from tests.unit.test_trainable import config

pytestmark = pytest.mark.ray
FILES = ("rounds.csv", "clients.csv", "model.safetensors")


def test_serial_and_ray_with_one_and_several_actors(shared_ray, tmp_path):
    def run(out, session=None, **engine):
        settings = config("tests.unit.test_trainable:vit", "lora(2)", "scaffold")
        engine = settings.engine.model_copy(update=engine)
        settings = settings.model_copy(update={"engine": engine})
        return settings, fedsim.run(settings, tmp_path / out, session=session)

    settings, reference = run("serial")
    for actors in (1, 3):
        _, store = run(str(actors), shared_ray, kind="ray", actors=actors, cpus_per_client=0.25)
        for file in FILES:
            same = (store.path / file).read_bytes() == (reference.path / file).read_bytes()
            assert same, f"{file} differs between serial and {actors} actors"
    final = load_file(reference.path / "model.safetensors")
    frozen = prepare(settings).frozen
    assert frozen
    assert all(np.array_equal(final[name].numpy(), array) for name, array in frozen.items())
