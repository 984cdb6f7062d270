"""The models that a finished run left, as networks, and what they predict of new samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedsim import tasks
from fedsim.config import experiments
from fedsim.config.attack import AttackConfig
from fedsim.config.experiments import Settings
from fedsim.config.resolve import resolve
from fedsim.config.run import RunConfig
from fedsim.config.sections import ClockConfig, EngineConfig
from fedsim.core.errors import ConfigError, DivergedError, StoreError
from fedsim.core.files import MODEL
from fedsim.core.layout import Pristine, layout_of
from fedsim.core.rng import seed_for, torch_scope
from fedsim.core.task import Task
from fedsim.core.types import Array, ModelSpec, Pipeline
from fedsim.data.images import decode, grey
from fedsim.data.transforms import Transforms
from fedsim.identity.provenance import Provenance, check_code, code_of
from fedsim.storage import final_models, tensors
from fedsim.storage.final_models import START_WEIGHTS, Description
from fedsim.storage.run_dir import RunStore, client_number
from fedsim.training.assemble import algorithm_of
from fedsim.training.final_models import network, personal_slots

logger = logging.getLogger("fedsim")


def finished_run(run: Path, settings: Settings | None = None) -> RunConfig:
    """The configuration of a finished run, for work in this process without training."""
    file = run / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{run}: holds no run (no config.yaml)")
    if not RunStore(run).finished:
        raise ConfigError(f"{run}: the run is not finished; 'fedsim resume {run}' goes on with it")
    config = resolve(experiments.read(file).settings, settings or {})
    kept = {name: getattr(config.engine, name) for name in ("precision", "deterministic")}
    without: dict[str, object] = {
        "model": config.model.model_copy(update=START_WEIGHTS),
        "evaluation": config.evaluation.model_copy(update={"decompose_every": 0}),
        "engine": EngineConfig(kind="serial", **kept),
        "clock": ClockConfig(),
        "attack": AttackConfig(),
    }
    return config.model_copy(update=without)


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


def check_users_code(run: Path, config: RunConfig, *, accept: bool) -> None:
    """Refuses, or with ``accept`` warns of, the user's functions whose code has changed since."""
    if check_code(run, Provenance.read(run), code_of(config), accept=accept):
        logger.warning("%s: its models were trained with the code before the change", run)


def check_alone(run: Path, config: RunConfig) -> None:
    """Refuses methods whose predictions need more of a run than its files."""
    if algorithm_of(config).predict is not None:
        raise ConfigError(
            f"{run}: with {config.algorithm} predictions depend on the clients' training samples, "
            "which new data do not have; fedsim predict without --data-dir and --images reads them"
        )


@dataclass(frozen=True)
class FinalModel:
    """The final model of a run, in evaluation mode on the CPU, and what it takes."""

    network: nn.Module  # inputs (B, ...) -> (B, C) outputs
    description: Description
    config: RunConfig
    task: Task

    @property
    def spec(self) -> ModelSpec:
        """What the network takes."""
        return self.description.model

    def pixels(self, files: Sequence[Path]) -> Tensor:
        """Image files as the network takes them, (n, channels, size, size)."""
        size, given = self.spec.image_size, self.description
        images = [decode(file, size) for file in files]
        if self.spec.in_channels == 1:
            images = [grey(image) for image in images]
        pipeline = Pipeline(size=size, mean=given.mean, std=given.std)
        return Transforms(pipeline, torch.device("cpu")).test(torch.from_numpy(np.stack(images)))

    def outputs(
        self, inputs: Callable[[slice], Tensor], count: int, size: int | None = None
    ) -> Iterator[Array]:
        """Those of ``count`` samples, of which ``inputs`` gives some, ``size`` at a time."""
        pristine, size = Pristine(self.network), size or self.config.evaluation.batch_size
        for start in range(0, count, size):
            batch = inputs(slice(start, min(start + size, count)))
            pristine.restore()
            self.network.eval()
            seed = seed_for(self.config.seed, "evaluate images", start)
            with torch.no_grad(), torch_scope(seed):
                yield self.network(batch).float().numpy()

    def predict(
        self, inputs: Callable[[slice], Tensor], count: int, where: Callable[[int], str]
    ) -> dict[str, Array]:
        """The columns ``prediction`` (a class's name) and ``probability_<class>``, or those of
        another task; ``where`` says what a sample is in messages."""
        classes = self.description.classes
        outputs = np.concatenate([*self.outputs(inputs, count)])
        columns = columns_of(self.task, outputs, classes, where)
        if self.task.cross_entropy:
            columns["prediction"] = np.array(classes, dtype=object)[columns["prediction"]]
        return columns


def final_model(
    run: Path, client: int | str | None = None, *, accept_changed_code: bool = False
) -> FinalModel:
    """The final model of a finished run, or that of one client, by number or name."""
    config = finished_run(run)
    check_users_code(run, config, accept=accept_changed_code)
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
    name = config.task or description.task or "classification"
    task = tasks.find(name, config.hyperparameters.get(name))
    return FinalModel(network, description, config, task)


def columns_of(
    task: Task, outputs: Array, names: Sequence[str], where: Callable[[int], str]
) -> dict[str, Array]:
    """What a task predicts, by column; one that ends in ``_k`` gets the name of output k, if any.
    A DivergedError where outputs are not finite."""
    finite = np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1)
    if not finite.all():
        raise DivergedError(
            f"{where(int(finite.argmin()))}: the model's outputs are NaN or infinite (of "
            f"{int((~finite).sum())} of {finite.size} samples)"
        )
    columns = {}
    for column, values in task.predict(outputs.astype(np.float64)).items():
        head, _, number = column.rpartition("_")
        known = number.isdecimal() and int(number) < len(names)
        columns[f"{head}_{names[int(number)]}" if known else column] = values
    return columns
