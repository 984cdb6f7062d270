"""pFedLA: layer-wise aggregation, learnt per client (Ma et al., CVPR 2022).

The server keeps every client's model th_j and per client i a hypernetwork psi_i, whose outputs are
the shares alpha_i^{l,j} of client j in layer l of client i's model (rows sum to 1):

    thbar_i^l = sum_j alpha_i^{l,j} th_j^l           what client i trains from
    D_i = th_i - thbar_i                             what its training adds
    psi_i <- psi_i + lr_hn (d thbar_i / d psi_i)^T D_i,   th_i as trained is kept

D_i is a multiple of minus the gradient, so this descends. The hypernetwork is an embedding, three
layers of rectified units and per model layer a linear map to N rectified numbers, divided by their
sum (all zero: client i alone). A layer is a module, its running statistics included. With
``keep_local`` = k (HeurpFedLA) the k layers with the largest share of the client are its own; they
are no mixture, so that psi_i learns nothing from them.

Memory is N models, a round mixes N of them for N clients: for small models and N up to about 50.

:client: SGD from its own mixture of all clients' models
:server: mixes the models by hypernetworks and trains these
:state: server N models (N D) and N hypernetworks; client its mixture (D)
:sends: up the trained model (D), down the mixture (D), instead of a global model
:public code: FL-bench gives +D_i as the gradient to an optimiser that subtracts it, and adds D_i to
    the old model instead of keeping th_i; its layers are tensors
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsim.algorithms.base import Algorithm, every_slot
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator, one_torch_thread
from fedsim.core.settings import Positive
from fedsim.core.types import F64, I64, Array, Layout, RoundContext, Vectors
from fedsim.server import Average, Cohort, Exchanged, Server

DEPTH = 3


def layers_of(layout: Layout) -> dict[str, list[slice]]:
    """The coordinates of each module, in the order of its first slot."""
    layers: dict[str, list[slice]] = {}
    for slot in layout.slots:
        layers.setdefault(slot.name.rpartition(".")[0], []).append(slot.where)
    return layers


@dataclass(frozen=True)
class Shape:
    """Sizes of a hypernetwork: N clients, L layers, width of embedding and hidden layers."""

    clients: int
    layers: int
    width: int

    def cut(self, psi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding (w,), hidden layers (3, w, w + 1) and outputs (L N, w + 1), views of psi.

        The last column of a layer is its bias.
        """
        w = self.width
        hidden = w + DEPTH * w * (w + 1)
        return psi[:w], psi[w:hidden].view(DEPTH, w, w + 1), psi[hidden:].view(-1, w + 1)

    def start(self, seed: int, client: int) -> F64:
        """The weights that client's hypernetwork starts with: uniform up to 1 / sqrt(w)."""
        w = self.width
        size = w + (DEPTH * w + self.layers * self.clients) * (w + 1)
        rng = generator(seed, "pfedla", client)
        return rng.uniform(-1, 1, size) / math.sqrt(w)


def mixing_weights(shape: Shape, psi: Tensor, client: int) -> Tensor:
    """alpha (L, N) of a client, as a function of its hypernetwork."""
    x, hidden, outputs = shape.cut(psi)
    for layer in (*hidden, outputs):
        x = torch.relu(layer[:, :-1] @ x + layer[:, -1])
    raw = x.view(shape.layers, shape.clients)
    total = raw.sum(dim=1, keepdim=True)
    alone = torch.eye(shape.clients, dtype=psi.dtype)[client]
    return torch.where(total > 0, raw / torch.where(total > 0, total, 1.0), alone)


def ascended(shape: Shape, psi: F64, client: int, gain: F64, lr: float) -> F64:
    """psi after a step of ``lr`` up the gradient of ``sum alpha * gain``, gain (L, N)."""
    weights = torch.from_numpy(psi).requires_grad_()
    alpha = mixing_weights(shape, weights, client)
    (gradient,) = torch.autograd.grad(alpha, weights, torch.from_numpy(gain))
    return psi + lr * gradient.numpy()


@dataclass(frozen=True)
class UploadModel(LocalRule):
    """Plain SGD; the trained model goes to the server."""

    needs_sgd = stackable = capturable = gradients_only = True

    def finish(self, env: LocalEnv, s: object) -> Uplink:
        """The whole model (D,)."""
        return Uplink({"model": env.flat.vector()})


@dataclass(frozen=True)
class Mixtures:
    """The server part: hypernetworks, and a mixture for each client."""

    hn_lr: float
    width: int
    keep_local: int

    @one_torch_thread()  # the number of threads can change the last bits of a product
    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
        """Trains the participants' hypernetworks and mixes every client's model anew."""
        layers, n = list(layers_of(cohort.layout).values()), ctx.num_clients + ctx.num_held_out
        shape = Shape(n, len(layers), self.width)
        start = cohort.params
        if start is None:
            raise ConfigError("pfedla needs the model that its clients started from")
        models = np.array(state.get("models", np.tile(start, (n, 1))))
        if "psi" in state:
            psi = np.array(state["psi"])
        else:
            psi = np.stack([shape.start(ctx.seed, i) for i in range(n)])
        offsets = models - start
        for update in cohort.updates:
            i = update.client_id
            alpha, local = self._alpha(shape, psi[i], i)
            gained = update.extras["model"] - _mixed(alpha, models, layers)
            gain = np.stack([_inner(offsets, gained, layer) for layer in layers])
            gain[local] = 0.0
            psi[i] = ascended(shape, psi[i], i, gain, self.hn_lr)
        for update in cohort.updates:
            models[update.client_id] = update.extras["model"]
        private: Mapping[int, Vectors] = {
            i: {"personal": _mixed(self._alpha(shape, psi[i], i)[0], models, layers)}
            for i in range(n)
        }
        return Exchanged({"models": models, "psi": psi}, private=private)

    def _alpha(self, shape: Shape, psi: F64, client: int) -> tuple[F64, I64]:
        """alpha (L, N) of a client's mixture, and the layers that stay its own."""
        alpha = mixing_weights(shape, torch.from_numpy(psi), client).numpy()
        local = np.argsort(-alpha[:, client], kind="stable")[: self.keep_local]
        alpha[local] = np.eye(shape.clients)[client]
        return alpha, local


def _mixed(alpha: F64, models: Array, layers: list[list[slice]]) -> Array:
    """(D,) the mixture of the models (N, D) by the shares (L, N)."""
    mixture = np.empty_like(models[0])
    for row, layer in zip(alpha, layers, strict=True):
        for columns in layer:
            mixture[columns] = row @ models[:, columns]
    return mixture


def _inner(offsets: Array, gained: Array, layer: list[slice]) -> F64:
    """(N,) inner products of each model with what training gained, over a layer, in float64."""
    total = np.zeros(len(offsets))
    for columns in layer:
        total += offsets[:, columns].astype(np.float64) @ gained[columns].astype(np.float64)
    return total


def build(
    hn_lr: Positive = 5e-3,
    width: Annotated[int, Field(ge=1, le=2**20)] = 100,
    keep_local: Annotated[int, Field(ge=0, le=2**20)] = 0,
) -> Algorithm:
    """pFedLA.

    Args:
        hn_lr: learning rate of the hypernetworks, > 0.
        width: of their embedding and hidden layers, >= 1.
        keep_local: layers that stay the client's own (HeurpFedLA), >= 0.
    """
    server = Server(
        Average(),
        exchange=Mixtures(hn_lr, width, keep_local),
        incompatible_reason="mixes its clients' models one by one and has no common step",
        needs_same_start=True,
    )
    return Algorithm(local=UploadModel(), server=server, personal=every_slot)
