"""The models that a run leaves: their files, and networks made of these.

``model.safetensors`` holds the global model, whole, so that ``load_state_dict`` of the network
takes it as it is. Counters such as ``num_batches_tracked`` have the value that they had in every
forward pass: the network's initial one, which is 0, since clients do not federate them.
``clients.safetensors`` is there where clients keep tensors of the model to themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsim import models
from fedsim.algorithms.base import Algorithm
from fedsim.config import experiments
from fedsim.config.attack import AttackConfig
from fedsim.config.experiments import Settings
from fedsim.config.resolve import resolve
from fedsim.config.run import RunConfig
from fedsim.config.sections import ClockConfig, EngineConfig
from fedsim.core.errors import ConfigError, StoreError, nearest, spelled
from fedsim.core.files import CLIENTS, MODEL
from fedsim.core.layout import FlatModel, as_tensor, layout_of
from fedsim.core.reading import parse_json
from fedsim.core.types import Layout, ModelSpec, Slot
from fedsim.models.trainable import ALL
from fedsim.models.weights import UNTRAINED
from fedsim.storage import final_models, tensors
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.client_states import ClientStates
from fedsim.storage.final_models import ClientTensors
from fedsim.storage.run_dir import RunStore, RunWriter
from fedsim.training.setup import Setup, algorithm_of

START_WEIGHTS = {"pretrained": False, "weights": None}
"""What of a model's description concerns its start weights, as if there were none."""


def network(model: ModelSpec, algorithm: Algorithm, seed: int) -> nn.Module:
    """The network of a run, without its start weights: nothing is read or downloaded."""
    return models.build(model.without_weights, seed, algorithm.adapt)


def personal_slots(algorithm: Algorithm, layout: Layout) -> list[Slot]:
    """The tensors of which each client has its own."""
    return [slot for slot in layout.slots if algorithm.personal(slot)]


def export_models(setup: Setup, store: RunWriter, state: ServerState, rounds: int) -> None:
    """Writes ``model.safetensors``, and ``clients.safetensors`` where clients have own tensors.

    Args:
        setup: of the run.
        store: of the run, with rounds.csv up to its last round.
        state: after it.
        rounds: that were done.
    """
    evaluated = store.read("rounds")["test_accuracy"].notna().iloc[-1]
    scored = _scored(setup) if evaluated else (f"no: round {rounds} was not evaluated",) * 2
    common = {"algorithm": setup.config.algorithm, "round": str(rounds)}
    model = network(setup.model, setup.algorithm, setup.config.seed)
    flat = FlatModel(model, torch.device("cpu"), frozen=setup.frozen)
    flat.load(as_tensor(state.params))
    tensors_by_name = flat.model.state_dict().items()
    arrays = {name: value.numpy() for name, value in tensors_by_name if isinstance(value, Tensor)}
    metadata = common | {"scored": scored[0]} | Description.of(setup).metadata()
    personal = personal_slots(setup.algorithm, setup.layout)
    if len(personal) == len(setup.layout.slots):
        metadata[UNTRAINED] = f"since all tensors that train are the clients' own, see {CLIENTS}"
    final_models.save_model(store.path, arrays, metadata)
    if personal:
        own, everybody = len(state.clients), setup.partition.num_clients
        said = f"{own} of {everybody}; the others never trained and have the model of {MODEL}"
        metadata = common | {"scored": scored[1], "clients": said}
        final_models.save_clients(store.path, state.params, personal, state.clients, metadata)


def _scored(setup: Setup) -> tuple[str, str]:
    """Whether the models of each of the two files were those that the last round scored."""
    if not setup.personalised:
        return "yes", f"no: no prediction depends on these tensors, {MODEL} was scored"
    when = setup.config.evaluation.personal
    if when == "all_clients":
        return f"no: personalised models were scored, see {CLIENTS}", "yes"
    other = (
        f"no: evaluation.personal={when} scored the models of the last cohort "
        f"{when.removeprefix('cohort_')} its local training, which no file holds"
    )
    return other, other


@dataclass(frozen=True)
class Description:
    """What ``model.safetensors`` says of the network and its inputs; empty in old files.

    Args:
        model: the network.
        classes: their names.
        mean: of images, per channel, of values in 0..1.
        std: of images, per channel, of values in 0..1.
        algorithm: the run's method.
    """

    model: ModelSpec | None = None
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    algorithm: str | None = None

    @classmethod
    def of(cls, setup: Setup) -> Description:
        """That of a run."""
        model = setup.model.without_weights
        pipeline = setup.dataset.pipeline
        normal = () if pipeline is None else (pipeline.mean, pipeline.std)
        return cls(model, setup.dataset.class_names, *normal)

    @classmethod
    def read(cls, run: Path) -> Description:
        """That of a run's file.

        Raises:
            StoreError: the file is missing or damaged.
        """
        said = final_models.metadata_of(run)
        if "model" not in said:
            return cls()
        try:
            model = ModelSpec(**parse_json(said["model"]))
            lists = {name: tuple(parse_json(said[name])) for name in ("classes", "mean", "std")}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{run / MODEL}: its metadata cannot be read ({error})") from error
        return cls(model, algorithm=said.get("algorithm"), **lists)

    def check(self, run: Path, config: RunConfig) -> None:
        """Refuses a config.yaml that was edited since and names another network or method.

        Raises:
            ConfigError: names the key and both values.
        """
        if self.model is None:
            return
        wanted = {"algorithm": (config.algorithm, self.algorithm or config.algorithm)}
        wanted["model.name"] = config.model_name, self.model.name
        for leaf in ("norm", "projection", "trainable"):
            wanted[f"model.{leaf}"] = getattr(config.model, leaf), getattr(self.model, leaf)
        for key, (given, trained) in wanted.items():
            if given != trained:
                raise ConfigError(
                    f"{run / 'config.yaml'} ({key}): {given!r} given, but the model of the run is "
                    f"of {trained!r}, as {MODEL} says; put that back"
                )

    def metadata(self) -> dict[str, str]:
        """As texts of JSON."""
        network: dict[str, Any] = asdict(self)["model"]
        model = {key: value for key, value in network.items() if key not in START_WEIGHTS}
        if model["trainable"] == ALL:  # as earlier versions wrote it
            del model["trainable"]
        lists = {"classes": self.classes, "mean": self.mean, "std": self.std}
        return {name: json.dumps(value) for name, value in {"model": model, **lists}.items()}


def finished_run(run: Path, settings: Settings | None = None) -> RunConfig:
    """The configuration of a finished run, for work in this process without training.

    Args:
        run: its directory.
        settings: those that take the place of the run's.

    Raises:
        ConfigError: no finished run is there, or its configuration cannot be used.
    """
    file = run / "config.yaml"
    if not file.is_file():
        hint = "; name one of the runs in it" if any(run.glob("*/config.yaml")) else ""
        raise ConfigError(f"{run}: holds no run (no config.yaml){hint}")
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


def final_state(
    run: Path, layout: Layout, personal: Sequence[Slot], *, needed: bool
) -> ServerState:
    """The models of a finished run, those of the clients read when they are asked for.

    Args:
        run: its directory.
        layout: of its network.
        personal: the tensors of which each client has its own.
        needed: whether these are needed, or may be missing.

    Raises:
        StoreError: a file is missing or damaged, or does not fit the network.
    """
    params = final_models.load_vector(run, layout)
    if not personal or (not needed and not (run / CLIENTS).exists()):
        return ServerState(params=params)
    return ServerState(params=params, clients=ClientStates(ClientTensors(run, personal)))


def client_number(run: Path, config: RunConfig, client: int | str, flag: str = "--client") -> int:
    """The number of a client that is given by number, or by the name of its site, user or file.

    Raises:
        ConfigError: the run has no such client, or several of this name.
        StoreError: partition.csv is missing or damaged.
    """
    last = config.data.num_clients - 1
    if not isinstance(client, str):
        if not 0 <= client <= last:
            raise ConfigError(f"{flag} {client}: the run has the clients 0 to {last}")
        return client
    table = RunStore(run).read("partition").drop_duplicates("client_id")
    named = table.reindex(columns=["client_id", "name"]).dropna()
    names = [str(name) for name in named["name"]]
    found = [int(k) for k, name in zip(named["client_id"], names, strict=True) if name == client]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(map(str, found))
        raise ConfigError(f"{flag} {client}: the clients {numbers} have this name; give a number")
    numbered = re.fullmatch(r"(?:(?P<name>.*) \()?client (?P<number>\d{1,9})\)?", client)
    if numbered and numbered["name"] in (None, *names):  # as tables of sites call it
        return client_number(run, config, int(numbered["number"]), flag)
    if (meant := spelled(client, names)) is not None:
        return client_number(run, config, meant, flag)
    alike = [name for name in names if name.casefold() == client.casefold()] or names
    said = "have no names" if not names else "have other names" + nearest(client, alike)
    raise ConfigError(f"{flag} {client}: the clients of the run, 0 to {last}, {said}")


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
    if description.model is None:
        raise StoreError(
            f"{path / MODEL}: does not say what network it belongs to; an older fedsim wrote it"
        )
    description.check(path, config)
    algorithm = algorithm_of(config)
    model = network(description.model, algorithm, config.seed)
    arrays = tensors.load(path / MODEL)
    if client is not None:
        client = client_number(path, config, client)
        if personal_slots(algorithm, layout_of(model)):
            arrays |= final_models.own_tensors(path, client)
    try:
        model.load_state_dict({name: torch.from_numpy(a) for name, a in arrays.items()})
    except RuntimeError as error:
        raise StoreError(f"{path / MODEL}: does not fit the network ({error})") from error
    return model.eval()
