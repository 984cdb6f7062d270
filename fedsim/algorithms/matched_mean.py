"""Matched mean: channels are matched before averaging (after FedMA, Wang et al., ICLR 2020).

A hidden layer's channels may be put in another order Pi_l without changing the function:
``W_l <- Pi_l W_l Pi_{l-1}^T``, bias and BatchNorm with them. Per client i, and r the client with
the most samples (the lowest id on ties):

    Pi_1..Pi_{L-1} = argmax <w_r, Pi w_i>, one layer at a time (Hungarian assignment of the inner
                     products of incoming and outgoing weights) until nothing changes
    w <- sum_i p_i Pi_i w_i

It starts from the identity and from a pass that looks at incoming weights alone, and takes what is
more similar in the end, the identity's on ties. Clients that start from the same weights rarely
move their channels: the share that did is reported as ``moved_share``, and at 0 this is FedAvg bit
for bit. FedMA's growing layers, its prior and its retraining layer by layer are left out, as is
GAMF's matching of all clients at once.

:client: plain SGD
:server: mean after permuting each client's channels to those of the client with most samples
:state: none
:sends: nothing more
:public code: IBM/FedMA matches layer by layer in as many rounds, with a Beta-Bernoulli prior and
    growing layers, in networks without BatchNorm
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linear_sum_assignment
from torch import nn

from fedsim.algorithms.base import Algorithm
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.layout import frozen_names
from fedsim.core.types import F64, I64, Array, Layout, RoundContext, Vectors
from fedsim.models.chain import chain
from fedsim.server import Average, Cohort, Reduced, Server, Weights

SWEEPS = 100
"""Passes over the layers at most; each but the last gains similarity, and few are needed."""
GAIN = 1e-9
"""Smaller relative gains in similarity are rounding."""


def check(model: nn.Module) -> nn.Module:
    """The model."""
    if len(chain(model, "algorithm=matched_mean")) < 2:
        raise ConfigError(
            "algorithm=matched_mean permutes the channels of hidden layers; the model has none, so "
            "that this is fedavg"
        )
    if frozen_names(model):
        raise ConfigError(
            "algorithm=matched_mean permutes channels in all tensors, none of which may be frozen: "
            "model.trainable must be all"
        )
    return model


@dataclass(frozen=True)
class Layer:
    """A layer in a vector: weights (outputs, inputs' channels, rest), and vectors (outputs,).

    ``counted`` are statistics, which move but do not decide.
    """

    weight: slice
    shape: tuple[int, int, int]
    trained: list[slice] = field(default_factory=list)
    counted: list[slice] = field(default_factory=list)

    def weights(self, vector: Array) -> Array:
        """The weights in a vector (D,)."""
        return vector[self.weight].reshape(self.shape)


def layers_of(layout: Layout) -> tuple[Layer, ...]:
    """The layers of a chain, read off the order of its slots: a weight, then its vectors."""
    layers: list[Layer] = []
    of_module: dict[str, Layer] = {}
    for slot in layout.slots:
        module = slot.name.rpartition(".")[0]
        if slot.role == "stat":
            of_module[module].counted.append(slot.where)
        elif len(slot.shape) > 1:
            outputs, inputs = slot.shape[0], layers[-1].shape[0] if layers else slot.shape[1]
            rest = (slot.stop - slot.start) // (outputs * inputs)
            layers.append(Layer(slot.where, (outputs, inputs, rest)))
        else:
            layers[-1].trained.append(slot.where)
            of_module[module] = layers[-1]
    return tuple(layers)


@dataclass(frozen=True)
class Pair:
    """Two models (D,) of one chain; ``orders`` has for each layer's inputs or outputs an order.

    ``orders[l]`` (channels,) are the other's channels in the reference's places, those of the
    inputs first; inputs and outputs of the model stay where they are.
    """

    layers: tuple[Layer, ...]
    reference: F64
    other: F64

    @property
    def identity(self) -> list[I64]:
        """The orders that move no channel."""
        first = np.arange(self.layers[0].shape[1])
        return [first, *(np.arange(layer.shape[0]) for layer in self.layers)]

    def permuted(self, orders: Sequence[I64]) -> F64:
        """The other model with its channels in that order."""
        out = self.other.copy()
        for layer, before, order in zip(self.layers, orders, orders[1:], strict=False):
            out[layer.weight] = layer.weights(self.other)[order][:, before].ravel()
            for columns in (*layer.trained, *layer.counted):
                out[columns] = self.other[columns][order]
        return out

    def incoming(self, at: int, orders: Sequence[I64]) -> F64:
        """(c, c) inner products of what leads to channels of layer ``at``: reference by other."""
        layer, channels = self.layers[at], self.layers[at].shape[0]
        other = layer.weights(self.other)[:, orders[at]].reshape(channels, -1)
        products = layer.weights(self.reference).reshape(channels, -1) @ other.T
        return sum((np.outer(self.reference[v], self.other[v]) for v in layer.trained), products)

    def outgoing(self, at: int, orders: Sequence[I64]) -> F64:
        """(c, c) the same of what leads from channels of layer ``at``."""
        after, channels = self.layers[at + 1], self.layers[at].shape[0]
        other = after.weights(self.other)[orders[at + 2]].swapaxes(0, 1).reshape(channels, -1)
        reference = after.weights(self.reference).swapaxes(0, 1).reshape(channels, -1)
        return reference @ other.T

    def forward(self) -> list[I64]:
        """Orders by incoming weights alone, layer after layer."""
        orders = self.identity
        for at in range(len(self.layers) - 1):
            orders[at + 1] = assigned(self.incoming(at, orders), orders[at + 1])
        return orders

    def settled(self, start: Sequence[I64]) -> list[I64]:
        """The orders after sweeps over the hidden layers, until nothing changes."""
        orders = list(start)
        for _ in range(SWEEPS):
            before = list(orders)
            for at in range(len(self.layers) - 1):
                similarity = self.incoming(at, orders) + self.outgoing(at, orders)
                orders[at + 1] = assigned(similarity, orders[at + 1])
            if all(a is b for a, b in zip(before, orders, strict=True)):
                break
        return orders

    def similarity(self, orders: Sequence[I64]) -> float:
        """``<w_r, Pi w_i>`` over the parameters."""
        moved = self.permuted(orders)
        each = ((layer.weight, *layer.trained) for layer in self.layers)
        return sum(float(self.reference[w] @ moved[w]) for some in each for w in some)

    def best(self) -> list[I64]:
        """The more similar result of both starts."""
        still, ahead = self.settled(self.identity), self.settled(self.forward())
        gain = self.similarity(ahead) - self.similarity(still)
        return ahead if gain > GAIN * abs(self.similarity(still)) else still


def assigned(similarity: F64, order: I64) -> I64:
    """(c,) the assignment of most similarity (c, c); ``order`` itself where it is as good."""
    rows = np.arange(len(order))
    best = linear_sum_assignment(similarity, maximize=True)[1]
    gain = similarity[rows, best].sum() - similarity[rows, order].sum()
    return best if gain > GAIN * np.abs(similarity).max() else order


@dataclass(frozen=True)
class MatchedMean:
    """The mean of the clients' models after matching."""

    weights: Weights

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        if cohort.params is None:
            raise ContractError("matched_mean needs the global vector that the updates start from")
        start, layers = cohort.params.astype(np.float64), layers_of(cohort.layout)
        rows, most = cohort.rows, int(np.argmax(cohort.num_samples))
        reference, moved, updates = start + rows[most], [0], []
        for update, row in zip(cohort.updates, rows, strict=True):
            pair = Pair(layers, reference, start + row)
            orders = pair.best()
            apart = [int((o != i).sum()) for o, i in zip(orders, pair.identity, strict=True)]
            delta = (pair.permuted(orders) - start).astype(row.dtype) if any(apart) else row
            updates.append(replace(update, delta=delta))
            moved.append(sum(apart))
        matched = Cohort.of(updates, cohort.layout, params=cohort.params)
        channels = (len(rows) - 1) * sum(layer.shape[0] for layer in layers[:-1])
        metrics = {"moved_share": sum(moved) / max(channels, 1)}
        return replace(Average(self.weights)(matched, state, ctx), metrics=metrics)


def build(weights: Weights = "samples") -> Algorithm:
    """Matched mean.

    Args:
        weights: client weights by samples, or uniform.
    """
    reason = "matches the channels of its clients' models, for which it needs all of their weights"
    server = Server(
        MatchedMean(weights),
        incompatible_reason=reason,
        needs_same_start=True,
        needs_whole_updates=True,
    )
    return Algorithm(server=server, adapt=check)
