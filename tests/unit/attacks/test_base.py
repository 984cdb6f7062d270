"""Attacks of single clients and of colluding ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from fedsim import algorithms
from fedsim.attacks import omniscient
from fedsim.attacks.alie import Alie, alie_z
from fedsim.attacks.backdoor import Backdoor
from fedsim.attacks.base import (
    AttackedCohort,
    AttackedSamples,
    AttackedUpdates,
    Malicious,
    draw_malicious,
)
from fedsim.attacks.gaussian import Gaussian
from fedsim.attacks.ipm import Ipm
from fedsim.attacks.label_flip import LabelFlip
from fedsim.attacks.mimic import Mimic
from fedsim.attacks.min_max import MinMax, Perturbed
from fedsim.attacks.min_sum import MinSum
from fedsim.attacks.sign_flip import scaled
from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, ClientUpdate, Layout, RoundContext, Slot, Triggered
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.server.gram import shares
from tests.oracles import rules

BASE_CTX = RoundContext(round=2, num_rounds=5, num_clients=6, lr=0.1, seed=3)
LAYOUT = Layout(
    (
        Slot(name="a", shape=(2,), start=0, stop=2),
        Slot(name="head", shape=(1,), start=2, stop=3, head=True),
        Slot(name="mean", shape=(1,), start=3, stop=4, role="stat"),
    )
)
BAD = Malicious(frozenset([1, 4]), start=2)
DELTA = np.array([1.0, -2.0, 0.5, 7.0])


def task(client=1, round=2):
    return ClientTask(client=client, ctx=replace(BASE_CTX, round=round))


def shared(slot):
    return False


def test_sign_flip_by_hand():
    flip = AttackedUpdates(BAD, partial(scaled, factor=-3.0))
    np.testing.assert_array_equal(flip(DELTA, {}, task(), LAYOUT).delta, [-3, 6, -1.5, 7])
    for honest in (task(client=0), task(round=1)):
        np.testing.assert_array_equal(flip(DELTA, {}, honest, LAYOUT).delta, DELTA)


def test_gaussian_noise_takes_the_place_of_what_is_sent():
    noise = AttackedUpdates(BAD, Gaussian(lambda slot: slot.head, scale=2.0))
    delta = DELTA * [1, 1, 0, 1]
    first, again = (noise(delta, {}, task(), LAYOUT).delta for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first[2:].tolist() == [0, 7]
    others = [noise(delta, {}, other, LAYOUT).delta for other in (task(4), task(round=3))]
    assert all((other[:2] != first[:2]).all() for other in others)
    np.testing.assert_array_equal(noise(delta, {}, task(0), LAYOUT).delta, delta)


def test_gaussian_noise_has_its_standard_deviation():
    wide = Layout((Slot(name="a", shape=(4000,), start=0, stop=4000),))
    sent = Gaussian(shared, scale=0.3)(np.ones(4000), task(), wide)
    assert kstest(sent / 0.3, "norm").pvalue > 1e-3


def test_label_flip_by_hand():
    x, y = torch.zeros(4, 1), torch.tensor([0, 3, 9, -1])
    flip = LabelFlip(10)

    def flipped(flip, who):
        same, labels = AttackedSamples(BAD, flip)(x, y, who)
        assert same is x
        return labels

    assert flipped(flip, task()).tolist() == [9, 6, 0, -1]
    assert flipped(LabelFlip(10, source=3, target=8), task()).tolist() == [0, 8, 9, -1]
    assert flipped(LabelFlip(10, source=0, target=0), task()).tolist() == [0, 3, 9, -1]
    assert flipped(flip, task(client=2)) is y
    assert flipped(flip, task(round=1)) is y


def test_backdoor_by_hand():
    x = torch.arange(6 * 2 * 3 * 3, dtype=torch.uint8).view(6, 2, 3, 3)
    y = torch.tensor([0, 1, 2, 1, 0, 2])
    given = x.clone(), y.clone()
    door = AttackedSamples(BAD, Backdoor(Triggered(target=0, pixels=2), share=0.5))
    sent, labels = door(x, y, task())
    changed = (sent != x).flatten(1).any(dim=1)
    assert changed.sum() == 2  # of the four of another class
    assert (y[changed] != 0).all()
    assert torch.equal(labels, torch.where(changed, 0, y))
    assert (sent[changed][:, :, 1:, 1:] == 255).all()
    assert torch.equal(sent[changed][:, :, 0], x[changed][:, :, 0])
    assert torch.equal(sent[changed][:, :, :, 0], x[changed][:, :, :, 0])
    later = door(x, y, task(round=4))
    assert torch.equal(sent, later[0])
    assert torch.equal(labels, later[1])
    all_of_one = Backdoor(Triggered(target=0, source=2, pixels=1), share=1.0)
    assert all_of_one(x, y, task())[1].tolist() == [0, 1, 0, 1, 0, 0]
    for honest in (task(client=2), task(round=1)):
        same = door(x, y, honest)
        assert same[0] is x
        assert same[1] is y
    assert torch.equal(x, given[0])
    assert torch.equal(y, given[1])


def test_who_is_malicious():
    clients = [0, 2, 3, 5, 7, 8, 9, 11, 12, 14]
    drawn = {share: draw_malicious(clients, share, 5) for share in (0, 0.09, 0.2, 0.3, 0.7, 1)}
    assert [len(each) for each in drawn.values()] == [0, 0, 2, 3, 7, 10]
    assert set(drawn[0.2]) < set(drawn[0.3]) < set(drawn[0.7]) < set(drawn[1]) == set(clients)
    assert len({draw_malicious(clients, 0.3, seed) for seed in range(9)}) > 5
    counts = np.bincount([c for s in range(400) for c in draw_malicious(range(10), 0.3, s)])
    assert ((counts > 80) & (counts < 160)).all()


@pytest.mark.parametrize(("fraction", "clients", "n"), [(0.29, 100, 29), (0.1, 50, 5), (0.2, 5, 1)])
def test_fractions_are_rounded_down(fraction, clients, n):
    assert len(draw_malicious(range(clients), fraction, 0)) == n


OMNISCIENT_CTX = RoundContext(round=2, num_rounds=5, num_clients=20, lr=0.1, seed=0)
KINDS = (Alie, Ipm, Mimic, MinMax, MinSum, Perturbed)


def layout(params, stats=0):
    slots = (Slot(name="a", shape=(params,), start=0, stop=params),)
    stat = Slot(name="mean", shape=(stats,), start=params, stop=params + stats, role="stat")
    return Layout((*slots, stat) if stats else slots)


def cohort(rows, stats=0):
    sent = [
        ClientUpdate(client_id=i, num_samples=i + 1, num_steps=1, delta=np.asarray(row))
        for i, row in enumerate(rows)
    ]
    return Cohort.of(sent, layout(len(rows[0]) - stats, stats))


def draw(m, d, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=d) + rng.normal(size=(m, d)) * rng.uniform(0.3, 2, size=(m, 1))
    return x.astype(dtype)


def sent(attack, rows, stats=0, ctx=OMNISCIENT_CTX):
    return np.array(attack(cohort(rows, stats), {}, ctx).cohort.rows)


def of(kind, bad, start=0, **options):
    if kind is Perturbed:
        options = {"bound": MinMax(), **options}
    return by(bad, kind(**options), start)


def by(bad, attack, start=0):
    return AttackedCohort(Malicious(frozenset(bad), start), attack)


def test_by_hand():
    # benign (1, 0), (3, 0), (2, 3): mean (2, 1), standard deviations 1 and sqrt(3)
    rows = np.array([[1.0, 0.0], [9.0, 9.0], [3.0, 0.0], [2.0, 3.0]])
    got = {kind: sent(of(kind, [1]), rows) for kind in (Mimic, MinMax, MinSum)}
    got |= {Alie: sent(of(Alie, [1], z=2.0), rows), Ipm: sent(of(Ipm, [1], scale=3.0), rows)}
    for all_sent in got.values():
        np.testing.assert_array_equal(all_sent[[0, 2, 3]], rows[[0, 2, 3]])
    np.testing.assert_allclose(got[Mimic][1], [1, 0], rtol=1e-12)
    np.testing.assert_allclose(got[Ipm][1], [-6, -3], rtol=1e-12)
    np.testing.assert_allclose(got[Alie][1], [2 - 2, 1 - 2 * np.sqrt(3)], atol=1e-12)
    # |mu - x_i| = sqrt(2), sqrt(2), 2: gamma of min_sum is sqrt(2)
    unit = np.array([2, 1]) / np.sqrt(5)
    np.testing.assert_allclose(got[MinSum][1], [2, 1] - np.sqrt(2) * unit, rtol=1e-12)
    # largest squared distance 10; (3, 0) is met first at gamma 1.8..: |(2,1) - g p - (3,0)|^2 = 10
    gamma = -1 / np.sqrt(5) + np.sqrt(1 / 5 + 10 - 2)
    other = 2 * -2 / np.sqrt(5) * 0.5 + np.sqrt((2 / np.sqrt(5)) ** 2 + 10 - 4)
    np.testing.assert_allclose(got[MinMax][1], [2, 1] - min(gamma, other) * unit, rtol=1e-12)


@pytest.mark.parametrize(
    ("n", "f", "z"), [(20, 5, 0.2533), (50, 10, 0.2533), (50, 12, 0.3360), (10, 2, 0.0)]
)
def test_the_z_of_alie(n, f, z):
    assert alie_z(n, f) == pytest.approx(z, abs=5e-5)
    supporters = n // 2 + 1 - f
    assert alie_z(n, f) == pytest.approx(norm.ppf((n - f - supporters) / (n - f)), abs=1e-9)


def test_the_z_of_alie_is_finite_whoever_is_in_the_cohort():
    found = [alie_z(n, f) for n in range(2, 30) for f in range(1, n)]
    assert np.isfinite(found).all()


@pytest.mark.parametrize("seed", range(5))
def test_against_the_oracle(seed):
    rows, bad = draw(11, 13, seed), [2, 3, 8]
    benign = [row.tolist() for i, row in enumerate(rows) if i not in bad]
    wanted = {
        Alie: rules.alie(benign, 11, 3),
        Ipm: rules.ipm(benign, 0.5),
        Mimic: benign[0],
        MinMax: rules.min_max(benign),
        MinSum: rules.min_sum(benign),
    }
    for kind, vector in wanted.items():
        got = sent(of(kind, bad), rows)
        for i in bad:
            np.testing.assert_allclose(got[i], vector, rtol=1e-9, atol=1e-9, err_msg=kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
def test_only_malicious_parameters_change_and_only_from_the_start(kind):
    rows = draw(6, 9, dtype=np.float32)
    got = sent(of(kind, [0, 4]), rows, stats=3)
    np.testing.assert_array_equal(got[[1, 2, 3, 5]], rows[[1, 2, 3, 5]])
    np.testing.assert_array_equal(got[:, 6:], rows[:, 6:])
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[0, :6], got[4, :6])
    late = of(kind, [0, 4], start=3)
    np.testing.assert_array_equal(sent(late, rows), rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cohort_of_one_kind_stays_and_small_ones_are_finite(kind):
    rows = draw(3, 4)
    for bad in ([], [0, 1, 2], [7]):
        np.testing.assert_array_equal(sent(of(kind, bad), rows), rows)
    for bad in ([0], [0, 1]):
        assert np.isfinite(sent(of(kind, bad), rows)).all()
    assert not sent(of(kind, [0]), np.zeros((3, 4))).any()


@pytest.mark.parametrize("kind", KINDS)
def test_scale_and_permutation(kind):
    rows, bad = draw(7, 5), [1, 5]
    whole = sent(of(kind, bad), rows)
    np.testing.assert_allclose(sent(of(kind, bad), 4 * rows), 4 * whole, rtol=1e-9)
    if kind is not Mimic:  # copies the first benign client
        order = np.array([3, 1, 6, 0, 4, 5, 2])
        np.testing.assert_allclose(sent(of(kind, bad), rows[order])[1], whole[1], rtol=1e-9)


@pytest.mark.parametrize("kind", [Ipm, Mimic, MinMax, MinSum])
def test_in_the_span_as_on_vectors(kind):
    """Gram matrices, norms and sums follow from the coefficients; statistics are not touched."""
    rows = draw(6, 9)
    attacked = of(kind, [0, 4])(cohort(rows, stats=3), {}, OMNISCIENT_CTX).cohort
    explicit = cohort(attacked.rows, stats=3)
    ranges = [slice(0, 4), slice(2, 8), slice(6, 9), slice(0, 9)]
    vector = np.arange(9.0)
    for own, other in zip(attacked.grams(ranges), explicit.grams(ranges), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-12)
    for own, other in zip(
        attacked.grams_with(vector, ranges), explicit.grams_with(vector, ranges), strict=True
    ):
        np.testing.assert_allclose(own[1], other[1], rtol=1e-9, atol=1e-12)
    for where in ranges:
        np.testing.assert_allclose(attacked.norms(where), explicit.norms(where), rtol=1e-9)
    c = shares(attacked.num_samples, "samples")
    for parts in ([slice(0, 9)], [slice(0, 2), slice(2, 6), slice(6, 9)]):
        steps = [each.step([c] * len(parts), parts) for each in (attacked, explicit)]
        np.testing.assert_allclose(*steps, rtol=1e-9, atol=1e-12)


def test_perturbations_by_hand():
    # known (0, 1), (4, 3): mu (2, 2), standard deviations sqrt(8) and sqrt(2); u_i = 5 for both
    rows = np.array([[0.0, 1.0], [9.0, 9.0], [4.0, 3.0]])
    for bound, kind, expected in (
        (MinSum(), "sign", [2, 2] - np.sqrt(5 / 2) * np.ones(2)),
        (MinSum(), "std", [2, 2] - np.sqrt(5 / 10) * np.sqrt([8, 2])),
        # b_i = <mu - x_i, p> = 3 and -3 for the sign, c = 2, apart - u = 15: -3 + sqrt(9 + 30)
        (MinMax(), "sign", [2, 2] - (np.sqrt(39) - 3) / 2 * np.ones(2)),
    ):
        attack = by([1], Perturbed(bound, kind))
        np.testing.assert_allclose(sent(attack, rows)[1], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("knows", ["benign", "own"])
def test_directions_bounds_and_knowledge_against_the_oracle(seed, knows, monkeypatch):
    """Bisection, in plain float64; blocks of 5 coordinates."""
    monkeypatch.setattr(omniscient, "BLOCK", 5)
    rows, bad = draw(11, 13, seed), [2, 3, 8]
    x = [row.tolist() for i, row in enumerate(rows) if (i in bad) == (knows == "own")]
    directions = {"std": rules.std, "sign": rules.sign}
    wanted = {}
    for name, p in directions.items():
        wanted[Perturbed(MinMax(), name, knows=knows)] = rules.min_max(x, p)
        for bound, most in (("min", min), ("max", max)):
            wanted[Perturbed(MinSum(bound), name, knows=knows)] = rules.min_sum(x, p, most)
    wanted[MinSum("max", knows=knows)] = rules.min_sum(x, bound=max)
    wanted[MinMax(knows=knows)] = rules.min_max(x)
    wanted[Ipm(0.5, knows=knows)] = rules.ipm(x, 0.5)
    wanted[Alie(knows=knows)] = rules.alie(x, 11, 3)
    for attack, vector in wanted.items():
        got = sent(by(bad, attack), rows)
        for i in bad:
            np.testing.assert_allclose(got[i], vector, rtol=1e-9, atol=1e-9, err_msg=str(attack))
        np.testing.assert_array_equal(np.delete(got, bad, 0), np.delete(rows, bad, 0))


@pytest.mark.parametrize("perturbation", ["unit_vec", "std", "sign"])
def test_no_start_value_limits_the_length(perturbation):
    """As far as the bound allows, for updates of any size: gamma grows with them."""
    rows = 1e4 * draw(6, 9)
    attack = MinMax() if perturbation == "unit_vec" else Perturbed(MinMax(), perturbation)
    vector, known = sent(by([0], attack), rows)[0], rows[1:]
    apart = ((known[:, None] - known) ** 2).sum(axis=2).max()
    np.testing.assert_allclose(((vector - known) ** 2).sum(axis=1).max(), apart, rtol=1e-9)


def over_rounds(attack, rounds):
    """Which row the first, malicious client copies in each round, and the last state."""
    state, copied = {}, []
    for number, rows in enumerate(rounds):
        ctx = RoundContext(round=number, num_rounds=9, num_clients=20, lr=0.1, seed=0)
        received = attack(cohort(rows), state, ctx)
        state = received.state
        same = [i for i in range(1, len(rows)) if (received.cohort.rows[0] == rows[i]).all()]
        copied += same
    assert len(copied) == len(rounds)
    return copied, state


def test_mimic_copies_along_the_direction_of_largest_variance():
    # the benign updates differ along the first axis alone, so that z is its unit vector or minus it
    rows = [[9.0, 9.0], [1.0, 5.0], [2.0, 5.0], [4.0, 5.0]]
    copied, state = over_rounds(by([0], Mimic(2)), [rows] * 4)
    np.testing.assert_allclose(np.abs(state["z"]), [1, 0], atol=1e-12)
    assert copied == ([3] * 4 if state["z"][0] > 0 else [1] * 4)
    assert state["counts"].tolist() == [2, copied[-1]]


@pytest.mark.parametrize("seed", range(5))
def test_the_warm_up_of_mimic_against_the_oracle(seed):
    rounds = [draw(6, 5, seed=10 * seed + t) for t in range(6)]
    copied, state = over_rounds(by([0], Mimic(4)), rounds)
    z = generator(0, "mimic", 0).standard_normal(5)
    expected, direction = rules.mimic([x[1:] for x in rounds], z, 4)
    assert copied == [i + 1 for i in expected]
    np.testing.assert_allclose(state["z"], direction, rtol=1e-9, atol=1e-12)


def test_mimic_without_its_client_copies_along_z():
    rows = np.array([[9.0, 9.0], [1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    attack = by([0], Mimic(1))
    state = {"z": np.array([1.0, 0.0]), "mu": np.zeros(2), "counts": np.array([1, 7])}
    received = attack(cohort(rows), state, OMNISCIENT_CTX)
    np.testing.assert_array_equal(received.cohort.rows[0], rows[3])
    assert received.state is state
    unattacked = by([0], Mimic(1), start=5)(cohort(rows), state, OMNISCIENT_CTX)
    assert unattacked.state is state


@pytest.mark.parametrize(
    ("value", "factor"),
    [
        (lambda x: -x, 0.0),
        # 10, not 30; by steps of 16, 12.8, ... the first from there that is nearer to 13 is 15.24
        (lambda x: -abs(x - 13), 10 + 20 * 0.8**6),
        (lambda x: x, 10 * (2**19 - 1)),  # of a rule without bound: 19 doublings
    ],
)
def test_the_line_search_by_hand(value, factor):
    assert omniscient.line_maximum(value) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "server"), [(Ipm, "nnm,krum"), (Alie, "trimmed_mean")])
def test_the_factor_against_the_servers_rule(kind, server, seed):
    """That of the oracle, in each round anew; the rule sees it, and the log has it."""
    rows, bad = draw(11, 13, seed), [2, 3, 8]
    honest = [row.tolist() for i, row in enumerate(rows) if i not in bad]
    steps = {"trimmed_mean": lambda x: rules.trimmed_mean(x, 3)}
    steps["nnm,krum"] = lambda x: rules.krum(rules.nnm(x, 3), 3)
    forms = {Ipm: partial(rules.ipm, honest), Alie: partial(rules.alie, honest, 11, 3)}
    sent_by = forms[kind]
    tau = rules.strongest(sent_by, steps[server], honest, 3)
    options = {name: {"f": 3} for name in server.split(",")}
    method = algorithms.compose("fedavg", options, server=server)
    attacked = replace(method.server, attack=by(bad, kind("auto")))
    step = attacked.step(RuleState(), cohort(rows), OMNISCIENT_CTX)
    assert step.metrics["attack_scale"] == pytest.approx(tau, rel=1e-9)
    np.testing.assert_allclose(step.sent.rows[2], sent_by(tau), rtol=1e-9, atol=1e-9)
    given = replace(method.server, attack=by(bad, kind(tau)))
    other = given.step(RuleState(), cohort(rows), OMNISCIENT_CTX)
    np.testing.assert_array_equal(step.step, other.step)
