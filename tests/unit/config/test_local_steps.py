"""``train.local_steps`` and ``train.shuffle``: what is refused, with the keys named."""

from __future__ import annotations

import pytest

from fedsim import algorithms
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import Training
from fedsim.testing.rounds import small
from fedsim.training.assemble import prepare


def test_workers_are_told():
    config = RunConfig(train={"local_steps": 9, "sample_rate": 1.0, "shuffle": "dataloader"})
    assert (config.training.local_steps, config.training.shuffle) == (9, "dataloader")
    again = RunConfig.model_validate(config.model_dump(by_alias=True))
    assert again == config


def test_other_work_of_the_clients_and_the_server():
    training = Training(local_steps=9, shuffle="dataloader")
    works = algorithms.load("fltrust").works(training, finetune_epochs=3)
    assert (works["root"].training.local_steps, works["root"].training.shuffle) == (9, "fedsim")
    tuned = works["finetune"].training
    assert (tuned.local_steps, tuned.local_epochs) == (None, 3)


@pytest.mark.parametrize(
    ("method", "sections", "message"),
    [
        ("fedpac", {}, r"\(train.local_steps\) cannot be combined with local training in phases"),
        ("centralized", {"train": {"sample_rate": 0.5}}, "pooled training .* below 1"),
        (
            "fedavg",
            {"dp": {"level": "example", "clip": 1.0}},
            "cannot be combined with privacy of samples",
        ),
        (
            "fedavg",
            {"train": {"shuffle": "dataloader"}, "data": {"heldout_clients": 1}},
            "train.shuffle=dataloader cannot be combined with data.heldout_clients",
        ),
    ],
)
def test_combinations_that_are_refused(method, sections, message):
    train = {"local_steps": 3, "sample_rate": 1.0} | sections.get("train", {})
    with pytest.raises(ConfigError, match=message):
        prepare(small(method, "mlp", **sections | {"train": train}))
