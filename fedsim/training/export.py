"""The models that a run leaves: by name, and with what they are.

``model.safetensors`` holds the global model, whole, so that ``load_state_dict`` of the network
takes it as it is. Counters such as ``num_batches_tracked`` have the value that they had in every
forward pass: the network's initial one, which is 0, since clients do not federate them.
``clients.safetensors`` is there where clients keep tensors of the model to themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn

from fedsim import models
from fedsim.algorithms.base import Algorithm
from fedsim.core.layout import FlatModel, as_tensor
from fedsim.core.types import Array, ModelSpec
from fedsim.storage import final_models
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.run_dir import RunStore
from fedsim.training.setup import Setup

NOT_OF_THE_NETWORK = ("pretrained", "weights")
"""What of a model's description is where its start weights came from."""


def network(model: ModelSpec, algorithm: Algorithm, seed: int) -> nn.Module:
    """The network of a run, without its start weights: nothing is read or downloaded."""
    bare = replace(model, pretrained=False, weights=None)
    return models.build(bare, seed, algorithm.adapt)


def export_models(setup: Setup, store: RunStore, state: ServerState, rounds: int) -> None:
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
    flat = FlatModel(network(setup.model, setup.algorithm, setup.config.seed), torch.device("cpu"))
    flat.load(as_tensor(state.params))
    described = common | {"scored": scored[0]} | _described(setup)
    final_models.save_model(store.path, _arrays(flat.model), described)
    personal = [slot for slot in setup.layout.slots if setup.algorithm.personal(slot)]
    if personal:
        own, everybody = len(state.clients), setup.partition.num_clients
        said = f"{own} of {everybody} clients; the others have the model of {final_models.MODEL}"
        metadata = common | {"scored": scored[1], "clients": said}
        final_models.save_clients(store.path, state.params, personal, state.clients, metadata)


def _arrays(model: nn.Module) -> dict[str, Array]:
    """The tensors of a network on the CPU by name; they share its memory."""
    found = model.state_dict().items()
    return {name: value.numpy() for name, value in found if isinstance(value, Tensor)}


def _described(setup: Setup) -> Mapping[str, str]:
    """The network and how its inputs are made, as JSON: what a prediction needs to know."""
    model = {k: v for k, v in asdict(setup.model).items() if k not in NOT_OF_THE_NETWORK}
    found = {"model": json.dumps(model), "classes": json.dumps(setup.dataset.class_names)}
    pipeline = setup.dataset.pipeline
    if pipeline is not None:
        found["normalisation"] = json.dumps({"mean": pipeline.mean, "std": pipeline.std})
    return found


def _scored(setup: Setup) -> tuple[str, str]:
    """Whether the models of each of the two files were those that the last round scored."""
    if not setup.personalised:
        return "yes", f"no: no prediction depends on them, {final_models.MODEL} was scored"
    when = setup.config.evaluation.personal
    if when == "all_clients":
        return f"no: personalised models were scored, see {final_models.CLIENTS}", "yes"
    other = (
        f"no: evaluation.personal={when} scored models of the last cohort {when.removeprefix('cohort_')} its local "
        "training, which no file holds"
    )
    return other, other
