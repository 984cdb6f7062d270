"""Methods whose clients keep something for themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsim
from fedsim import algorithms
from fedsim.algorithms.fedpac import head_weights, solve_simplex, statistics
from fedsim.algorithms.pfedla import Mixtures, Shape, ascended, layers_of, mixing_weights
from fedsim.core.errors import ConfigError
from fedsim.core.layout import select
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot, Training
from fedsim.engine.base import OUTPUTS
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.testing.rounds import NUM_CLIENTS, config
from fedsim.training.assemble import prepare
from tests.algorithms.cases import assert_step, draw, every_cohort, every_input
from tests.algorithms.training import CLASSES, context, train, worker
from tests.oracles import losses, rules


@every_input
@every_cohort
def test_server_oracle(sampler, m):
    g, n, _ = draw(sampler, m)
    assert_step(fedsim.aggregate(g, n, "fedbn"), rules.mean(g, n), g)


def test_after_a_round_only_the_norms_differ_between_clients():
    w = worker("fedbn")
    mask = select(w.flat.layout, algorithms.load("fedbn").personal)
    reports, deltas = train(w)
    assert np.all(deltas[:, mask] == 0)
    assert np.all(np.abs(deltas[:, ~mask]).max(axis=1) > 0)
    own = [r.state["personal"] for r in reports]
    assert all(len(state) == mask.sum() for state in own)
    assert not np.array_equal(own[0], own[1])
    assert not np.array_equal(own[0], own[2])


def test_the_first_update_is_that_of_fedavg_outside_the_norms():
    w = worker("fedbn")
    mask = select(w.flat.layout, algorithms.load("fedbn").personal)
    _, deltas = train(w)
    _, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(deltas[:, ~mask], expected[:, ~mask])


def test_a_client_resumes_with_its_own_norms_and_the_newest_rest():
    # lr 0 and frozen statistics: what goes in comes out. Client 0's state is from its first round.
    w = worker("fedbn")
    reports, deltas = train(w)
    start = w.flat.vector()
    still = worker("fedbn", training=Training(batch_size=8, weight_decay=0.0, frozen_bn=True))
    moved = start + deltas.mean(axis=0)
    again, nothing = train(still, (0,), 5, 0.0, moved, {0: reports[0].state})
    np.testing.assert_array_equal(again[0].state["personal"], reports[0].state["personal"])
    assert np.all(nothing == 0)
    mask = select(w.flat.layout, algorithms.load("fedbn").personal)
    own = moved.copy()
    own[mask] = reports[0].state["personal"]
    np.testing.assert_array_equal(
        still.evaluate(moved, reports[0].state, "test", OUTPUTS),
        worker("fedavg").evaluate(own, {}, "test", OUTPUTS),
    )


@pytest.mark.parametrize(
    ("model", "selection"),
    [
        ({"name": "mlp"}, "module"),
        ({"name": "cnn"}, "name"),  # features.1, ... by name
        ({"name": "cnn", "norm": "group"}, "module"),
    ],
)
def test_a_model_of_which_nothing_stays_on_the_clients_is_refused(model, selection):
    config = fedsim.RunConfig(algorithm="fedbn", model=model, fedbn={"bn_selection": selection})
    with pytest.raises(ConfigError, match=r"clients keep to themselves .* no such tensor"):
        prepare(config)


def clients(m, seed=0, classes=3, d=4, spread=0.3):
    rng = np.random.default_rng([seed, m])
    return spread * rng.normal(size=(m, classes * d)), rng.uniform(0.05, 0.5, size=m)


def test_statistics_by_hand():
    # Class 0: features 1 and 3, class 1: 2 (one sample), class 2: none; n = 3.
    # H = (2/3 * 2, 1/3 * 2, 0). V = 1/3 * [2/3 * (1 + 9)/2 - 4/9 * 4 + 1/3 * 4 - 1/9 * 4]
    #   = 1/3 * [10/3 - 16/9 + 4/3 - 4/9] = 1/3 * 22/9 = 22/27.
    h, v = statistics(np.array([[1.0], [3.0], [2.0]]), np.array([0, 0, 1]), 3)
    np.testing.assert_allclose(h, [[4 / 3], [2 / 3], [0.0]], rtol=1e-14)
    assert v == pytest.approx(22 / 27, rel=1e-14)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_statistics_oracle(n):
    rng = np.random.default_rng(n)
    features, labels = rng.normal(size=(n, 5)), rng.integers(0, 3, size=n)
    h, v = statistics(features, labels, 4)
    expected_h, expected_v = losses.statistics(features, labels, 4)
    np.testing.assert_allclose(h, expected_h, rtol=0, atol=1e-13)
    assert v == pytest.approx(expected_v, rel=1e-12, abs=1e-15)


def test_published_example():
    # h = (1, 1.2, 3), V = (.1, .2, .3): entries are 0 or above 1e-3, so the cut changes nothing.
    expected = [
        [0.7058823529, 0.2941176471, 0.0],
        [0.6260032103, 0.2937399679, 0.08025682183],
        [0.0, 0.08021390374, 0.9197860963],
    ]
    alpha = head_weights(np.array([[1.0], [1.2], [3.0]]), np.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(alpha, expected, rtol=1.5e-9, atol=1e-10)


def test_program_by_hand():
    # P = diag(1, 3): a = (3/4, 1/4). P = [[1, 2], [2, 5]]: on a + b = 1 the value
    # 1 + 2 b + 2 b^2 grows with b >= 0, so (1, 0).
    np.testing.assert_allclose(solve_simplex(np.diag([1.0, 3.0])), [0.75, 0.25], rtol=1e-10)
    np.testing.assert_allclose(
        solve_simplex(np.array([[1.0, 2.0], [2.0, 5.0]])), [1, 0], atol=1e-12
    )
    # P = 0: every point is optimal; the middle.
    np.testing.assert_allclose(solve_simplex(np.zeros((4, 4))), np.full(4, 0.25), rtol=1e-15)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0])
def test_program_oracle(m, spread):
    h, v = clients(m, spread=spread)
    for i in range(m):
        p = losses.quadratic(h, v, i)
        np.testing.assert_allclose(
            solve_simplex(p), losses.simplex_by_enumeration(p), rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_head_weights_oracle(m):
    h, v = clients(m, spread=0.1)
    alpha = head_weights(h, v)
    np.testing.assert_allclose(alpha, losses.head_weights(h, v), rtol=0, atol=1e-9)
    np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-12)


def test_small_weights_are_cut_and_the_rest_renormalised():
    # Equal H: a_j = (1/V_j) / sum(1/V) = (1, 1, 1/1000) / 2.001; the last, 5e-4, is cut to 0.
    alpha = head_weights(np.ones((3, 2)), np.array([1.0, 1.0, 1000.0]))
    assert np.all(alpha[:, 2] == 0)
    np.testing.assert_allclose(alpha[:, :2], 0.5, rtol=1e-9)


def test_equal_statistics_weigh_by_precision():
    # All H equal: D_i = 0 and a_j is proportional to 1 / V_j: (2, 1, 4) / 7.
    alpha = head_weights(np.ones((3, 4)), np.array([0.5, 1.0, 0.25]))
    np.testing.assert_allclose(alpha, np.tile([2 / 7, 1 / 7, 4 / 7], (3, 1)), rtol=1e-9)


def test_exact_statistics_keep_every_client_its_own_head():
    h, _ = clients(5, spread=1.0)
    np.testing.assert_allclose(head_weights(h, np.full(5, 1e-9)), np.eye(5), atol=1e-6)


def test_no_variance_and_no_difference_still_give_weights():
    alpha = head_weights(np.ones((4, 2)), np.zeros(4))
    assert np.all(np.isfinite(alpha))
    np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-12)
    assert alpha.min() >= 0


def parts(w):
    """Masks (D,) of the head and of the extractor's parameters, running statistics excluded."""
    head = select(w.flat.layout, lambda slot: slot.head)
    return head, ~head & select(w.flat.layout, lambda slot: slot.role == "param")


def end(w, start, report, delta):
    """The client's model after training, (D,)."""
    head, _ = parts(w)
    vector = start + delta
    vector[head] = report.state["personal"]
    return vector


def test_each_phase_trains_its_part_alone():
    start = worker("fedpac").flat.vector()
    w = worker("fedpac", head_lr=0.0)
    w_head, w_body = parts(w)
    reports, deltas = train(w)
    for report, delta in zip(reports, deltas, strict=True):
        np.testing.assert_array_equal(report.state["personal"], start[w_head])
        assert np.abs(delta[w_body]).max() > 0
        assert np.all(delta[w_head] == 0)
    w = worker("fedpac", head_lr=0.1)
    reports, deltas = train(w, lr=0.0)
    for report, delta in zip(reports, deltas, strict=True):
        assert not np.array_equal(report.state["personal"], start[w_head])
        assert np.all(delta[w_body] == 0)


def test_the_head_epoch_leaves_the_extractor_and_its_statistics():
    w = worker("fedpac", training=Training(local_epochs=0, batch_size=8))
    start = w.flat.vector()
    reports, deltas = train(w)
    assert np.all(deltas == 0)
    for report in reports:
        assert not np.array_equal(report.state["personal"], start[parts(w)[0]])


def test_uploads_are_the_statistics_before_and_the_prototypes_after_training():
    w = worker("fedpac", model="mlp")
    start = w.flat.vector()
    reports, deltas = train(w, (1,))
    index = w.spec.partition.train[1]
    x, y = w.spec.dataset.x[index], w.spec.dataset.y[index]

    def features(vector):
        hidden, bias = vector[: 64 * 64].reshape(64, 64), vector[64 * 64 : 64 * 65]
        pixels = (x.reshape(len(x), 64) / 255 - 0.5) / 0.5
        return np.maximum(pixels @ hidden.T.astype(np.float64) + bias, 0)

    extras = reports[0].extras
    h, v = losses.statistics(features(start), y, CLASSES)
    np.testing.assert_allclose(extras["H"], h, rtol=0, atol=1e-5)
    assert extras["V"].item() == pytest.approx(v, rel=1e-4)
    after = features(end(w, start, reports[0], deltas[0]))
    means = np.array([after[y == k].mean(axis=0) for k in range(CLASSES)])
    np.testing.assert_allclose(extras["prototypes"], means, rtol=0, atol=1e-5)
    assert extras["counts"].tolist() == [int((y == k).sum()) for k in range(CLASSES)]
    np.testing.assert_array_equal(extras["head"], reports[0].state["personal"])


def test_the_prototype_term_pulls_features_to_the_global_prototypes():
    w = worker("fedpac", model="mlp")
    start = w.flat.vector()
    target = {"prototypes": np.full((CLASSES, 64), 2.0), "known": np.ones(CLASSES, dtype=bool)}
    away, _ = train(w, (0,), params=start, lr=0.5)
    near, _ = train(w, (0,), params=start, lr=0.5, downlink=target)
    off, _ = train(
        worker("fedpac", model="mlp", lam=0.0), (0,), params=start, lr=0.5, downlink=target
    )

    def distance(reports):
        return np.abs(reports[0].extras["prototypes"] - 2.0).mean()

    assert distance(near) < distance(away)
    np.testing.assert_array_equal(off[0].extras["prototypes"], away[0].extras["prototypes"])


def uploaded(client, prototypes, counts, h, v, head, size):
    extras = {
        "prototypes": np.array(prototypes, dtype=np.float64),
        "counts": np.array(counts),
        "H": np.array(h, dtype=np.float64),
        "V": np.array([v]),
        "head": np.array(head, dtype=np.float32),
    }
    return ClientUpdate(
        client_id=client,
        num_samples=sum(counts),
        num_steps=1,
        delta=np.zeros(size, dtype=np.float32),
        extras=extras,
    )


def test_the_server_combines_prototypes_by_counts_and_heads_by_weights():
    # Class 0: (1 * 2 + 3 * 6) / 4 = 5; class 1 only client 7: 9; class 2: nobody.
    # H = 1, 1.2, 3 and V = .1, .2, .3 are example E1 with heads 1, 10, 100 (one feature, one row):
    # 0.70588.. + 2.94117.. = 3.647058823, 0.6260032103 + 2.937399679 + 8.025682183 = 11.58908507,
    # 0.8021390374 + 91.97860963 = 92.78074867.
    w = worker("fedpac", model="logistic")
    size = w.flat.layout.size
    cohort = Cohort.of(
        [
            uploaded(2, [[2], [0], [0]], [1, 0, 0], [[1.0], [0], [0]], 0.1, [1.0], size),
            uploaded(4, [[6], [0], [0]], [3, 0, 0], [[1.2], [0], [0]], 0.2, [10.0], size),
            uploaded(7, [[0], [9], [0]], [0, 5, 0], [[3.0], [0], [0]], 0.3, [100.0], size),
        ],
        w.flat.layout,
    )
    server = algorithms.load("fedpac").server
    step = server.step(RuleState(), cohort, context())
    assert step.downlink["prototypes"][:2].tolist() == [[5.0], [9.0]]
    assert step.downlink["known"].tolist() == [True, True, False]
    heads = [step.private[client]["personal"].item() for client in (2, 4, 7)]
    assert heads == pytest.approx([3.647058823, 11.58908507, 92.78074867], rel=1e-6)
    # Next round only class 2 is seen: the others are kept.
    later = Cohort.of(
        [uploaded(3, [[0], [0], [4]], [0, 0, 2], [[1.0], [0], [0]], 0.1, [1.0], size)],
        w.flat.layout,
    )
    step = server.step(step.state, later, context(1))
    assert step.downlink["prototypes"].tolist() == [[5.0], [9.0], [4.0]]
    assert step.downlink["known"].tolist() == [True, True, True]
    assert step.private[3]["personal"].tolist() == [1.0]


LAYOUT = Layout(
    (
        Slot(name="a.weight", shape=(2, 2), start=0, stop=4),
        Slot(name="a.bias", shape=(2,), start=4, stop=6),
        Slot(name="b.weight", shape=(3,), start=6, stop=9),
        Slot(name="a.running_mean", shape=(1,), start=9, stop=10, role="stat"),
    )
)
CLIENTS, WIDTH = 4, 5
SHAPE = Shape(CLIENTS, 2, WIDTH)
COLUMNS = [[0, 1, 2, 3, 4, 5, 9], [6, 7, 8]]


def shares(shape, psi, client):
    """alpha (L, N) for the hypernetwork psi, both arrays."""
    return mixing_weights(shape, torch.from_numpy(np.array(psi)), client).numpy()


def cut(psi):
    """The parts of the hypernetwork psi, as views of the array."""
    return [part.numpy() for part in SHAPE.cut(torch.from_numpy(psi))]


def pfedla_context(round=0):
    return RoundContext(round=round, num_rounds=10, num_clients=CLIENTS, lr=0.1, seed=3)


def update(client, trained):
    return ClientUpdate(
        client_id=client,
        num_samples=1,
        num_steps=1,
        delta=np.zeros(10, np.float32),
        extras={"model": trained},
    )


def exchange(trained, state=None, start=None, **options):
    start = np.arange(10.0, dtype=np.float32) if start is None else start
    rule = Mixtures(options.get("lr", 0.1), WIDTH, options.get("keep_local", 0))
    updates = [update(c, m) for c, m in trained.items()]
    return rule(Cohort.of(updates, LAYOUT, params=start), state or {}, pfedla_context())


def trained_models(seed=0, clients=range(CLIENTS)):
    rng = np.random.default_rng(seed)
    return {c: rng.normal(size=10).astype(np.float32) for c in clients}


def test_a_layer_is_a_module_with_its_statistics():
    found = layers_of(LAYOUT)
    assert list(found) == ["a", "b"]
    assert found["a"] == [slice(0, 4), slice(4, 6), slice(9, 10)]


@pytest.mark.parametrize("client", range(CLIENTS))
def test_shares_against_the_oracle(client):
    psi = SHAPE.start(0, client)
    alpha = shares(SHAPE, psi, client)
    expected = rules.shares(torch.from_numpy(psi), client, CLIENTS, 2, WIDTH)
    np.testing.assert_allclose(alpha, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-14)
    assert (alpha >= 0).all()


def test_a_row_without_shares_is_the_client_alone():
    psi = SHAPE.start(0, 1)
    _, _, outputs = cut(psi)
    outputs[:CLIENTS] = -1.0  # layer a: every output is cut off
    alpha = shares(SHAPE, psi, 1)
    assert alpha[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    gain = np.random.default_rng(0).normal(size=(2, CLIENTS))
    after = cut(ascended(SHAPE, psi, 1, gain, 0.1))[2]
    np.testing.assert_array_equal(after[:CLIENTS], outputs[:CLIENTS])


@pytest.mark.parametrize("seed", range(5))
def test_three_rounds_against_the_oracle(seed):
    # Clients 0 and 2 take part, then 1 and 2, then all.
    start = np.random.default_rng(seed).normal(size=10).astype(np.float32)
    psi = [torch.from_numpy(SHAPE.start(3, c)) for c in range(CLIENTS)]
    models = [torch.from_numpy(start).double() for _ in range(CLIENTS)]
    state = {}
    for t, cohort in enumerate(([0, 2], [1, 2], range(CLIENTS))):
        trained = trained_models(10 * seed + t, cohort)
        answer = exchange(trained, state, start)
        state = answer.state
        ends = {c: torch.from_numpy(m).double() for c, m in trained.items()}
        for c, end in ends.items():
            psi[c] = rules.step(psi[c], c, end, models, COLUMNS, 0.1, WIDTH)
        for c, end in ends.items():
            models[c] = end
        for c in range(CLIENTS):
            np.testing.assert_allclose(state["psi"][c], psi[c], rtol=1e-6, atol=1e-7)
            alpha = rules.shares(psi[c], c, CLIENTS, 2, WIDTH)
            mixed = rules.mixture(alpha, models, COLUMNS)
            np.testing.assert_allclose(answer.private[c]["personal"], mixed, rtol=1e-5, atol=1e-6)


def test_shares_of_the_client_alone_are_local_training():
    # Every output but the client's own is cut off: its mixture is what it trained.
    trained = trained_models()
    state = exchange(trained).state
    psi = np.array(state["psi"])
    _, _, outputs = cut(psi[2])
    outputs[:] = 0.0
    outputs[[2, CLIENTS + 2], -1] = 1.0
    answer = exchange({0: trained[0]}, {"models": state["models"], "psi": psi})
    np.testing.assert_array_equal(answer.private[2]["personal"], trained[2])


def test_layers_that_stay_local():
    trained = trained_models()
    none, one, all_ = (exchange(trained, keep_local=k).private for k in (0, 1, 2))
    for client in range(CLIENTS):
        own = trained[client]
        np.testing.assert_array_equal(all_[client]["personal"], own)
        kept = [np.array_equal(one[client]["personal"][c], own[c]) for c in COLUMNS]
        assert sum(kept) == 1
        alpha = shares(SHAPE, exchange(trained).state["psi"][client], client)
        assert kept[int(alpha[:, client].argmax())]
        assert not np.array_equal(none[client]["personal"], own)


def test_nothing_is_learnt_from_layers_that_stay_local():
    # They are constants of the mixture: torch's derivative has nothing for them.
    state = exchange(trained_models()).state
    psi = torch.from_numpy(np.array(state["psi"][1])).requires_grad_()
    models = torch.from_numpy(np.array(state["models"], np.float64))
    alpha = rules.shares(psi, 1, CLIENTS, 2, WIDTH)
    own = int(alpha[:, 1].argmax())
    alone = torch.eye(CLIENTS, dtype=torch.float64)[1]
    rows = torch.stack([alone if layer == own else alpha[layer] for layer in range(2)])
    end = trained_models(5)[1]
    mixed = rules.mixture(rows, models, COLUMNS)
    pull = torch.from_numpy(end).double() - mixed.detach()
    expected = (psi + 0.1 * torch.autograd.grad(mixed, psi, pull)[0]).detach()
    found = exchange({1: end}, state, keep_local=1).state["psi"][1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    mixed_all = exchange({1: end}, state).state["psi"][1]
    assert np.abs(found - mixed_all).max() > 1e-3


@pytest.fixture(scope="module")
def settings():
    """Full batches, so that the order of samples is only a matter of rounding."""
    train = {"rounds": 3, "sample_rate": 1.0, "batch_size": 50, "local_epochs": 2, "lr": 0.1}
    return {"model": "cnn", "train": train | {"momentum": 0.9}}


@pytest.mark.integration
def test_it_equals_separate_runs(settings, tmp_path):
    together = fedsim.run(config("local", **settings), tmp_path / "local")
    split = together.read("split")
    for client in (0, 3, NUM_CLIENTS - 1):
        file = tmp_path / f"{client}.csv"
        own = (split["part"] != "train") | (split["client_id"] == client)
        split[own].assign(client_id=split["client_id"].where(split["part"] != "train", 0)).to_csv(
            file, index=False, float_format="%.0f"
        )
        data = {"partition_file": str(file), "num_clients": 1}
        alone = fedsim.run(config("fedavg", data=data, **settings), tmp_path / str(client))
        found = fedsim.load_model(together.path, client=client).state_dict()
        wanted = fedsim.load_model(alone.path).state_dict()
        for name, tensor in wanted.items():
            np.testing.assert_allclose(found[name], tensor, rtol=0, atol=2e-5, err_msg=name)
