"""Frozen tensors: a run's bytes do not depend on the engine, and no process moves a frozen bit."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.torch import load_file

import fedsim
from fedsim.training.assemble import prepare
from tests.unit.models.test_trainable import config

pytestmark = pytest.mark.ray
FILES = ("rounds.csv", "clients.csv", "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["lora(2)", "head"])
def test_serial_and_ray_with_one_and_several_actors(trainable, shared_ray, tmp_path, monkeypatch):
    """With the head alone, workers train it on features; each run computes them anew."""

    def run(out, session=None, **engine):
        monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / f"cache {out}"))
        settings = config("tests.unit.models.test_trainable:vit", trainable, "scaffold")
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
