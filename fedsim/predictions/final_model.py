"""The final model of a run with what it takes, for samples that are not of the run's data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn

from fedsim import tasks
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DivergedError
from fedsim.core.layout import Pristine, layout_of
from fedsim.core.rng import seed_for, torch_scope
from fedsim.core.task import Task
from fedsim.core.types import F64, Array, ModelSpec
from fedsim.identity.provenance import Provenance, check_code, code_of
from fedsim.predictions.models import finished_run, load_model
from fedsim.storage.final_models import Description
from fedsim.storage.run_dir import RunStore, client_number
from fedsim.training.assemble import algorithm_of
from fedsim.training.final_models import personal_slots

logger = logging.getLogger("fedsim")


@dataclass(frozen=True)
class FinalModel:
    """The final model of a run, in evaluation mode on the CPU, and what it takes."""

    network: nn.Module  # inputs (B, ...) -> (B, C) logits
    spec: ModelSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    config: RunConfig
    task: Task

    def predict(
        self, inputs: Callable[[slice], Tensor], count: int, where: Callable[[int], str]
    ) -> dict[str, Array]:
        """The columns ``prediction`` (a class's name) and ``probability_<class>``, or those of the
        task, of ``count`` samples, of which ``inputs`` gives some, and ``where`` says what they are
        in messages."""
        pristine, size, batches = Pristine(self.network), self.config.evaluation.batch_size, []
        for start in range(0, count, size):
            batch = inputs(slice(start, min(start + size, count)))
            pristine.restore()
            self.network.eval()
            seed = seed_for(self.config.seed, "evaluate images", start)
            with torch.no_grad(), torch_scope(seed):
                batches.append(self.network(batch))
        logits = torch.cat(batches).float().numpy()
        if not self.task.cross_entropy:
            return columns_of(self.task, logits, self.classes, where)
        chances = probabilities(logits, where)
        names = np.array(self.classes, dtype=object)
        columns: dict[str, Any] = {"prediction": names[logits.argmax(axis=1)]}
        return columns | {f"probability_{c}": chances[:, k] for k, c in enumerate(self.classes)}


def final_model(
    run: Path, client: int | str | None = None, *, accept_changed_code: bool = False
) -> FinalModel:
    """The final model of a finished run, or that of one client, by number or name."""
    config = finished_run(run)
    if client is not None:
        client = client_number(run, config.data.num_clients, client)
    if check_code(run, Provenance.read(run), code_of(config), accept=accept_changed_code):
        logger.warning("%s: its models were trained with the code before the change", run)
    check_alone(run, config)
    description = Description.read(run)
    network, algorithm = load_model(run, client), algorithm_of(config)
    own = personal_slots(algorithm, layout_of(network)) and not algorithm.one_model
    if client is None and own:
        table = RunStore(run).read("partition").drop_duplicates("client_id").set_index("client_id")
        names = table["name"].dropna().head(10).items() if "name" in table else ()
        listed = ", ".join(f"{number} {name}" for number, name in names)
        raise ConfigError(
            f"{run}: with {config.algorithm} each client has a model of its own; choose one by "
            f"--client K, 0 to {config.data.num_clients - 1}{listed and f' ({listed})'}"
        )
    normal = description.mean, description.std
    name = config.task or description.task
    task = tasks.find(name or "classification", config.hyperparameters.get(name or ""))
    return FinalModel(network, description.model, description.classes, *normal, config, task)


def check_alone(run: Path, config: RunConfig) -> None:
    """Refuses methods whose predictions need more of a run than its files."""
    if algorithm_of(config).predict is not None:
        raise ConfigError(
            f"{run}: with {config.algorithm} predictions depend on the clients' training samples, "
            "which new data do not have; fedsim predict without --data-dir and --images reads them"
        )


def columns_of(
    task: Task, outputs: Array, names: Sequence[str], where: Callable[[int], str]
) -> dict[str, Array]:
    """What a task predicts, by column; one that ends in ``_k`` gets the name of output k."""
    _check(outputs, where)
    columns = {}
    for column, values in task.predict(outputs.astype(np.float64)).items():
        head, _, number = column.rpartition("_")
        known = number.isdecimal() and int(number) < len(names)
        columns[f"{head}_{names[int(number)]}" if known else column] = values
    return columns


def probabilities(logits: Array, name: Callable[[int], str]) -> F64:
    """(n, C) softmax of logits (n, C)."""
    _check(logits, name)
    chances: F64 = softmax(logits.astype(np.float64), axis=1)
    return chances


def _check(logits: Array, name: Callable[[int], str]) -> None:
    """Refuses outputs that are not finite."""
    finite = np.isfinite(logits.reshape(len(logits), -1)).all(axis=1)
    if not finite.all():
        raise DivergedError(
            f"{name(int(finite.argmin()))}: the model's outputs are NaN or infinite (of "
            f"{int((~finite).sum())} of {finite.size} samples)"
        )
