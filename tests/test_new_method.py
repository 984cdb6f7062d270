"""A newcomer adds a method in one file, as its tutorial describes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fedsim
from fedsim.config.run import RunConfig

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "own-method.md"


def recipe() -> str:
    """The Python block of the tutorial."""
    return PAGE.read_text().split('```python title="my_method.py"\n', 1)[1].split("```", 1)[0]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The recipe as a module outside the package."""
    (tmp_path / "toy_method.py").write_text(recipe())
    monkeypatch.syspath_prepend(tmp_path)
    yield "toy_method:build"
    sys.modules.pop("toy_method", None)


def config(algorithm: str, **sections: object) -> RunConfig:
    return RunConfig(
        algorithm=algorithm,
        data={"num_clients": 5},
        train={"rounds": 2, "sample_rate": 1.0},
        engine={"kind": "serial"},
        **sections,
    )


@pytest.mark.slow
def test_the_recipe_runs_and_its_hyperparameter_reaches_the_csv(toy, tmp_path):
    store = fedsim.run(config(toy, **{toy: {"strength": 0.5}}), tmp_path / "out")
    summary = store.read("summary")
    assert summary[f"{toy}.strength"].tolist() == [0.5]
    assert len(store.read("rounds")) == 2


def test_at_strength_zero_the_recipe_is_fedavg(toy, tmp_path):
    ours = fedsim.run(config(toy, **{toy: {"strength": 0.0}}), tmp_path / "toy")
    fedavg = fedsim.run(config("fedavg"), tmp_path / "fedavg")
    assert (ours.path / "rounds.csv").read_bytes() == (fedavg.path / "rounds.csv").read_bytes()
