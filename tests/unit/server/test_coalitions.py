"""Steps of some of a round's clients: by coefficients as by the rule on fewer updates."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from fedsim import algorithms
from fedsim.core.errors import ConfigError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import RuleState
from fedsim.server.coalitions import Coalitions, Known
from fedsim.server.cohort import Cohort
from fedsim.server.columns import MixedColumns
from tests.algorithms.serving import cohort


def slots(*sizes):
    start, made = 0, []
    for name, shape, options in sizes:
        stop = start + int(np.prod(shape))
        made.append(Slot(name=name, shape=shape, start=start, stop=stop, **options))
        start = stop
    return Layout(tuple(made))


NORM = {"batchnorm": True}
LAYOUT = slots(
    ("l.weight", (3, 2), {}),
    ("n.weight", (3,), NORM),
    ("n.bias", (3,), NORM),
    ("h.weight", (2, 3), {"head": True}),
    ("h.bias", (2,), {"head": True}),
    ("n.running_mean", (3,), {"role": "stat", **NORM}),
)
"""A chain of two layers with BatchNorm, as every method can have it."""
M = 7
SAMPLES = (3, 1, 2, 5, 4, 2, 6)
OUTSIDE = {
    *("coordinate_median", "trimmed_mean", "bulyan", "robfedavg", "matched_mean"),
    *("fedadam", "fedyogi", "fedadagrad", "fedavgm", "slowmo", "scaffold", "fedcm", "feddyn"),
}
"""Methods whose step is no combination of updates by coefficients, or goes on to an optimiser."""
WITH_A_VECTOR = {"centered_clipping"}
"""Rules that add what they keep from the round before."""


def context(round=0):
    return RoundContext(round=round, num_rounds=3, num_clients=10, lr=0.1, seed=4)


def updates_of(seed=0, m=M):
    """(m, D) float64 updates with a common direction, so that some agree and some do not."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(LAYOUT.size) + 2 * rng.standard_normal((m, LAYOUT.size))


def sent(index=range(M), seed=0):
    """The cohort of some clients, with what the methods of the catalogue need beside updates."""
    rng = np.random.default_rng([seed, 1])
    params, reference = rng.standard_normal((2, LAYOUT.size))
    steps = rng.integers(1, 9, M)
    rows = updates_of(seed)
    updates = [
        ClientUpdate(
            client_id=10 + i,
            num_samples=SAMPLES[i],
            num_steps=int(steps[i]),
            delta=rows[i],
            staleness=i % 3,
        )
        for i in index
    ]
    return replace(Cohort.of(updates, LAYOUT, params=params), reference=reference)


def server_of(name, **hyperparameters):
    return replace(algorithms.load(name, hyperparameters).server, exchange=None)


def after_a_round(server):
    """The state that the second round starts from."""
    return server.step(RuleState(), sent(seed=9), context()).state


def sizes_of(server):
    """The sizes of coalitions that a rule can aggregate."""
    found = []
    for k in range(1, M + 1):
        try:
            server.check(k)
        except ConfigError:
            continue
        found.append(k)
    return found


def brute(server, state, coalition, ctx):
    return server.step(state, sent(coalition), ctx).step


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first", [True, False], ids=["first round", "second round"])
@pytest.mark.parametrize("name", algorithms.names())
def test_every_method_on_fewer_updates(name, first):
    server = server_of(name)
    state, ctx = (RuleState(), context()) if first else (after_a_round(server), context(1))
    made = Coalitions(server, state, sent(), ctx)
    assert made.in_span == (name not in OUTSIDE and (first or name not in WITH_A_VECTOR))
    params = slice(0, LAYOUT.num_params)
    whole = brute(server, state, range(M), ctx)[params]
    sizes = sizes_of(server)
    assert {M - 1, M} <= set(sizes)
    for size in {M, M - 1, 4, 1} & set(sizes):
        for coalition in list(combinations(range(M), size))[:8]:
            expected = brute(server, state, coalition, ctx)
            close(made.step(coalition), expected)
            own, moved = expected[params], made.moved(coalition)
            close(moved.distance, np.linalg.norm(own - whole))
            close(moved.along, own @ whole / np.linalg.norm(whole))
            if np.any(own):
                close(moved.cosine, own @ whole / np.linalg.norm(own) / np.linalg.norm(whole))
            if made.in_span:
                combined = made.combination(coalition)
                rows = np.array([update.delta for update in sent().updates])
                for (start, stop), c in zip(combined.ranges, combined.coefficients, strict=True):
                    close(c @ rows[:, start:stop], expected[start:stop])
                    assert not c[sorted({*range(M)} - {*coalition})].any()


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("fedavg", "nnm,krum"),
        ("fedavg", "bucketing,geometric_median"),
        ("fednova", "fedgh"),
        ("fedavg", "norm_clipping,fedld"),
        ("fedavg", "fedgh,fedadam"),
    ],
)
def test_chains_on_fewer_updates(name, server):
    composed = replace(algorithms.compose(name, {}, server=server).server, exchange=None)
    made = Coalitions(composed, RuleState(), sent(), context())
    assert made.in_span == (not composed.optimizers)
    whole = brute(composed, RuleState(), range(M), context())[: LAYOUT.num_params]
    for left_out in range(M):
        coalition = tuple(i for i in range(M) if i != left_out)
        expected = brute(composed, RuleState(), coalition, context())
        close(made.step(coalition), expected)
        distance = np.linalg.norm(expected[: LAYOUT.num_params] - whole)
        close(made.moved(coalition).distance, distance)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedld", {"blocks": "tensor"}),
        ("simagg", {"distance": "signed_sum"}),
        ("fednova", {"gh_on": "delta"}),
        ("fedavg", {"weights": "uniform"}),
    ],
)
def test_variants_on_fewer_updates(name, options):
    server = server_of(name, **options)
    made = Coalitions(server, RuleState(), sent(), context())
    whole = brute(server, RuleState(), range(M), context())[: LAYOUT.num_params]
    assert made.in_span
    for coalition in combinations(range(M), 3):
        own = brute(server, RuleState(), coalition, context())[: LAYOUT.num_params]
        close(made.moved(coalition).distance, np.linalg.norm(own - whole))


def test_two_clients_by_hand():
    # FedAvg of (3, 0) and (0, 4) with 1 and 3 samples: (0.75, 3). Without the second the step is
    # (3, 0): it moves by (2.25, -3), which is 3.75, and makes 2.25 / |(0.75, 3)| along the step
    made = Coalitions(
        server_of("fedavg"), RuleState(), cohort([[3.0, 0.0], [0.0, 4.0]], [1, 3]), context()
    )
    moved = made.moved((0,))
    assert moved.distance == pytest.approx(3.75, abs=1e-12)
    assert moved.along == pytest.approx(2.25 / np.hypot(0.75, 3), abs=1e-12)
    assert moved.cosine == pytest.approx(0.75 / np.hypot(0.75, 3), abs=1e-12)
    nobody = made.moved(())
    assert nobody.distance == pytest.approx(np.hypot(0.75, 3), abs=1e-12)
    assert nobody.along == 0
    assert np.isnan(nobody.cosine)
    assert not made.step(()).any()


class Counted:
    """Updates that count passes over them."""

    def __init__(self, columns):
        self.columns, self.passes = columns, 0

    def __getattr__(self, name):
        if name in ("products", "combine", "map", "rows", "squares"):
            self.passes += 1
        return getattr(self.columns, name)


@pytest.mark.parametrize("name", ["fedgh", "fedld", "krum", "fltrust", "simagg"])
def test_a_rule_in_the_span_reads_the_updates_once(name):
    gathered = sent()
    seen = Counted(gathered.columns)
    made = Coalitions(server_of(name), RuleState(), replace(gathered, columns=seen), context())
    for size in sizes_of(made.server):
        for coalition in combinations(range(M), size):
            made.moved(coalition)
    # the rule's own ranges, and the same with the whole model or with a vector
    assert seen.passes <= 2


def test_products_are_kept_for_each_range_and_vector():
    gathered = sent()
    known, rows = Known(gathered.columns), updates_of()
    where, other = slice(0, 6), slice(6, 20)
    for vector in (rows[0], rows[1], rows[0]):
        first, second = known.products([where, other], vector)
        close(first[:, -1], rows[:, where] @ vector[where])
        close(second[:, -1], rows[:, other] @ vector[other])
    assert not known.products([where])[0][:, -1].any()


def test_updates_that_an_attack_has_mixed():
    # client 0 sends the mean of clients 1 and 2 in place of its own update
    mix = np.eye(M)
    mix[0] = [0, 0.5, 0.5, 0, 0, 0, 0]
    honest = sent()
    attacked = replace(
        honest, columns=MixedColumns(honest.columns, mix, LAYOUT.num_params), _grams={}
    )
    rows = updates_of()
    rows[0, : LAYOUT.num_params] = (rows[1] + rows[2])[: LAYOUT.num_params] / 2
    for name in ("fedgh", "trimmed_mean"):
        server = server_of(name)
        made = Coalitions(server, RuleState(), attacked, context())
        kept = (0, 2, 3, 4, 6)
        some = cohort(rows[list(kept)], [SAMPLES[i] for i in kept], LAYOUT)
        close(made.step(kept), server.step(RuleState(), some, context()).step)


def test_a_rule_that_needs_more_clients_is_refused():
    made = Coalitions(server_of("krum", f=2), RuleState(), sent(), context())
    made.check(M)
    with pytest.raises(ConfigError, match=r"krum\.f: 2 given"):
        made.check(M - 1)
