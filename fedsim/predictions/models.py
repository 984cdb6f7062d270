"""The models that a finished run left, as networks and as a state to evaluate."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedsim.config import experiments
from fedsim.config.attack import AttackConfig
from fedsim.config.experiments import Settings
from fedsim.config.resolve import resolve
from fedsim.config.run import RunConfig
from fedsim.config.sections import ClockConfig, EngineConfig
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.files import MODEL
from fedsim.core.layout import layout_of
from fedsim.storage import final_models, tensors
from fedsim.storage.final_models import START_WEIGHTS, Description
from fedsim.storage.run_dir import RunStore, client_number
from fedsim.training.assemble import algorithm_of
from fedsim.training.final_models import network, personal_slots


def finished_run(run: Path, settings: Settings | None = None) -> RunConfig:
    """The configuration of a finished run, for work in this process without training."""
    file = run / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{run}: holds no run (no config.yaml)")
    if not RunStore(run).finished:
        raise ConfigError(f"{run}: the run is not finished; 'fedsim resume {run}' goes on with it")
    config = resolve(experiments.read(file).settings, settings or {})
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=START_WEIGHTS),
            "evaluation": config.evaluation.model_copy(update={"decompose_every": 0}),
            "engine": EngineConfig(
                kind="serial",
                precision=config.engine.precision,
                deterministic=config.engine.deterministic,
            ),
            "clock": ClockConfig(),
            "attack": AttackConfig(),
        }
    )


def load_model(run: Path | str, client: int | str | None = None) -> nn.Module:
    """The final model of a finished run, or that of one client, in evaluation mode on the CPU.

    It takes samples as the evaluation does: images (B, channels, H, W) float32, values in 0..1 less
    the mean and divided by the standard deviation; features (B, d) float32; tokens (B, T) int64.
    ``client`` is a client's number, or its name. One that never trained has the global model.

    Raises:
        ConfigError: no finished run, or no such client.
        StoreError: a file of the run is missing or damaged, or was written by a version of fedsim
            that did not say what network it belongs to.
    """
    path = Path(run)
    config = finished_run(path)
    description = Description.read(path)
    description.check(path, config)
    algorithm = algorithm_of(config)
    model = network(description.model, algorithm, config.seed)
    arrays = tensors.load(path / MODEL)
    if client is not None:
        client = client_number(path, config.data.num_clients, client)
        if personal_slots(algorithm, layout_of(model)):
            arrays |= final_models.own_tensors(path, client)
    try:
        model.load_state_dict({name: torch.from_numpy(a) for name, a in arrays.items()})
    except RuntimeError as error:
        raise StoreError(f"{path / MODEL}: does not fit the network ({error})") from error
    return model.eval()
