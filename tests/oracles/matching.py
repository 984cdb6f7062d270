"""Perceptrons whose hidden units change places, and the best places by trying all.

A network is a list of (weight (out, in), bias (out,)) as nested float64 arrays.
"""

from __future__ import annotations

from itertools import permutations, product


def reordered(network, orders):
    """The network with hidden layer l's unit ``orders[l][k]`` in place k."""
    before = list(range(network[0][0].shape[1]))
    out = []
    for (weight, bias), order in zip(network, [*orders, range(len(network[-1][1]))], strict=True):
        new, shifts = weight.copy(), bias.copy()
        for place, unit in enumerate(order):
            shifts[place] = bias[unit]
            for column, earlier in enumerate(before):
                new[place, column] = weight[unit, earlier]
        out.append((new, shifts))
        before = list(order)
    return out


def similarity(a, b):
    """Sum of the products of all weights."""
    return sum(float((w * v).sum() + (s * t).sum()) for (w, s), (v, t) in zip(a, b, strict=True))


def best_orders(reference, network):
    """The orders of the hidden layers with the largest similarity to the reference."""
    widths = [len(bias) for _, bias in network[:-1]]
    return max(
        product(*(permutations(range(width)) for width in widths)),
        key=lambda orders: similarity(reference, reordered(network, orders)),
    )
