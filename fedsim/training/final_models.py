"""The models that a run leaves: their files, and what these say of the network.

``model.safetensors`` holds the global model, whole, as ``load_state_dict`` of the network takes it;
counters such as ``num_batches_tracked`` have the network's initial value. Where clients keep
tensors of the model to themselves there is ``clients.safetensors``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsim import models
from fedsim.algorithms.base import Algorithm
from fedsim.core.files import CLIENTS, MODEL
from fedsim.core.layout import FlatModel, as_tensor
from fedsim.core.types import Layout, ModelSpec, Slot
from fedsim.models.weights import UNTRAINED
from fedsim.storage import final_models
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.final_models import Description
from fedsim.storage.run_dir import RunWriter
from fedsim.training.setup import Setup


def network(model: ModelSpec, algorithm: Algorithm, seed: int) -> nn.Module:
    """The network of a run, without its start weights: nothing is read or downloaded."""
    return models.build(model.without_weights, seed, algorithm.adapt)


def personal_slots(algorithm: Algorithm, layout: Layout) -> list[Slot]:
    """The tensors of which each client has its own."""
    return [slot for slot in layout.slots if algorithm.owned(slot)]


def export_models(setup: Setup, store: RunWriter, state: ServerState, rounds: int) -> None:
    """Writes ``model.safetensors``, and ``clients.safetensors`` where clients have own tensors."""
    evaluated = store.read("rounds")["test_loss"].notna().iloc[-1]
    scored = _scored(setup) if evaluated else (f"no: round {rounds} was not evaluated",) * 2
    common = {"algorithm": setup.config.algorithm, "round": str(rounds)}
    model = network(setup.model, setup.algorithm, setup.config.seed)
    flat = FlatModel(model, torch.device("cpu"), frozen=setup.frozen)
    flat.load(as_tensor(state.params))
    tensors_by_name = flat.model.state_dict().items()
    arrays = {name: value.numpy() for name, value in tensors_by_name if isinstance(value, Tensor)}
    metadata = common | {"scored": scored[0]} | _description(setup).metadata()
    personal = personal_slots(setup.algorithm, setup.layout)
    if all(map(setup.algorithm.personal, setup.layout.slots)):
        metadata[UNTRAINED] = f"since all tensors that train are the clients' own, see {CLIENTS}"
    final_models.save_model(store.path, arrays, metadata)
    if personal:
        clients = f"{len(state.clients)} of {setup.partition.num_clients}"
        clients += f"; the others never trained and have the model of {MODEL}"
        metadata = common | {"scored": scored[1], "clients": clients}
        final_models.save_clients(store.path, state.params, personal, state.clients, metadata)


def _scored(setup: Setup) -> tuple[str, str]:
    """Whether the models of each of the two files were those that the last round scored."""
    if setup.algorithm.predict is not None:
        return ("no: what was scored also depends on the clients' training samples",) * 2
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


def _description(setup: Setup) -> Description:
    """What the file says of the network and its inputs."""
    pipeline = setup.dataset.pipeline
    mean, std = ((), ()) if pipeline is None else (pipeline.mean, pipeline.std)
    task = None if setup.task.cross_entropy else setup.task.name
    spec, names = setup.model.without_weights, setup.dataset.class_names
    return Description(spec, names, mean, std, task=task)
