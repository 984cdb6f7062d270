"""A client's work as a pure function, and the executor that runs it in this process."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.client.trainer import mean_loss
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import DivergedError, WorkerError
from fedsim.core.types import (
    ClientUpdate,
    Layout,
    ModelSpec,
    Owned,
    Partition,
    Pipeline,
    Slot,
    Training,
)
from fedsim.engine.base import OUTPUTS, SCORES
from fedsim.engine.blocks import Stacking
from fedsim.engine.devices import client_device, torch_flags
from fedsim.engine.results import judged, read
from fedsim.engine.serial import SerialExecutor
from fedsim.engine.transfer import KEPT, Samples, Staged, Vectors
from fedsim.engine.worker import Worker, num_batches
from fedsim.metrics.scores import score
from tests.algorithms.training import context, dataset, train, worker
from tests.tasks import models, run, tasks

CPU = torch.device("cpu")


def rebuilt(w, **changes):
    return Worker(replace(w.spec, **changes), CPU)


def dropout_worker(name="fedavg", augment="crop_flip"):
    """Dropout and augmentation draw from the global generators; clients 0 and 1 share data."""
    w = worker(name)
    data = replace(dataset(), pipeline=Pipeline(size=8, mean=(0.5,), std=(0.5,), augment=augment))
    same = w.spec.partition.train[0]
    return rebuilt(
        w,
        dataset=data,
        partition=Partition(train=(same, same, w.spec.partition.train[1])),
        model=ModelSpec(name="cnn_reddi", num_classes=3, in_channels=1, image_size=8),
    )


def bits(result):
    reports, deltas = result
    states = [{k: np.asarray(v).tobytes() for k, v in r.state.items()} for r in reports]
    return [r.train_loss for r in reports], deltas.tobytes(), states


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedpac", "fedld"])
def test_the_same_call_twice_and_after_other_clients_gives_the_same_bits(method):
    w = worker(method)
    start = w.flat.vector()
    first = bits(train(w, (1,), params=start))
    assert bits(train(w, (1,), params=start)) == first
    train(w, (0, 2), round=4, lr=0.5, params=start + 1)
    w.evaluate(start, {}, "test", SCORES)
    assert bits(train(w, (1,), params=start)) == first
    assert bits(train(worker(method), (1,), params=start)) == first


def test_dropout_and_augmentation_hang_on_seed_round_and_client():
    w = dropout_worker()
    start = w.flat.vector()
    first = bits(train(w, (0,), params=start))
    train(w, (2,), params=start)
    torch.rand(11)
    assert bits(train(w, (0,), params=start)) == first
    assert bits(train(dropout_worker(), (2, 0), params=start))[0][1] == first[0][0]
    assert bits(train(w, (1,), params=start))[1] != first[1]
    assert bits(train(w, (0,), round=1, params=start))[1] != first[1]
    assert bits(run(w, [0], replace(context(), seed=1), start))[1] != first[1]


@dataclass(frozen=True)
class Draws(LocalRule):
    """Uploads what the global generator gives."""

    def finish(self, env, s):
        return Uplink({"drawn": torch.rand(4).numpy()})


def test_clients_rounds_and_seeds_have_global_streams_of_their_own():
    w = rebuilt(worker("fedavg"), algorithm=Algorithm(local=Draws()))
    start = w.flat.vector()
    drawn = [
        run(w, [client], replace(context(round), seed=seed), start)[0][0].extras["drawn"]
        for client in (0, 1)
        for round in (0, 1)
        for seed in (0, 1)
    ]
    assert len({d.tobytes() for d in drawn}) == 8


class ForgetsTraining(nn.Module):
    """Dropout that is on in evaluations too, and a state of them."""

    def __init__(self, classes, channels, size):
        super().__init__()
        self.head = nn.Linear(channels * size * size, classes)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.batches = self.batches + 1
        return self.head(functional.dropout(x.flatten(1), 0.5)) * self.batches


def own(network, **changes):
    spec = ModelSpec(
        name=f"{__name__}:{network.__name__}", num_classes=3, in_channels=1, image_size=8
    )
    return rebuilt(worker("fedavg"), model=spec, **changes)


def test_what_an_evaluation_draws_hangs_on_seed_part_and_batch():
    w = own(ForgetsTraining, batch_size=8)
    start = w.flat.vector()
    logits = w.evaluate(start, {}, "test", OUTPUTS)
    before = torch.random.get_rng_state()
    w.evaluate(start + 1, {}, Owned("train", (0, 1)), OUTPUTS)
    assert torch.equal(torch.random.get_rng_state(), before)
    last = num_batches(w.spec, "test")
    cut = [w.evaluate(start, {}, "test", OUTPUTS, (a, b)) for a, b in ((1, last), (0, 1))]
    np.testing.assert_array_equal(np.concatenate(cut[::-1]), logits)
    other = own(ForgetsTraining, batch_size=8, seed=1).evaluate(start, {}, "test", OUTPUTS)
    assert not np.array_equal(other, logits)
    assert not np.array_equal(logits[:8], logits[8:16])


class Keeps(nn.Module):
    """In evaluation mode it keeps what it makes of a parameter until ``train`` is called."""

    def __init__(self, classes, channels, size):
        super().__init__()
        self.head = nn.Linear(channels * size * size, classes)
        self.kept = None

    def train(self, mode=True):
        self.kept = None
        return super().train(mode)

    def forward(self, x):
        if self.training or self.kept is None:
            self.kept = self.head.weight * 2
        return functional.linear(x.flatten(1), self.kept)


def test_models_one_after_another_are_evaluated_by_their_own_values():
    w = own(Keeps)
    start = w.flat.vector()
    logits = w.evaluate(start, {}, "test", OUTPUTS)
    np.testing.assert_allclose(w.evaluate(2 * start, {}, "test", OUTPUTS), 2 * logits, rtol=1e-6)


def test_global_generators_are_left_alone():
    w = dropout_worker()
    before = torch.random.get_rng_state()
    legacy = np.random.get_state()[1].copy()  # noqa: NPY002
    train(w)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


def test_reports_and_deltas_come_in_the_order_asked_for():
    w = worker("fedavg")
    start = w.flat.vector()
    reports, deltas = train(w, (2, 0), params=start)
    assert [(r.client_id, r.num_samples) for r in reports] == [(2, 10), (0, 30)]
    # batches of 8: 10 = 8 + 2; 30 = 3 * 8 + 6
    assert [r.num_steps for r in reports] == [2, 4]
    assert (deltas.shape, deltas.dtype) == ((2, w.flat.layout.size), np.float32)
    np.testing.assert_array_equal(train(w, (0,), params=start)[1][0], deltas[1])
    assert all(dict(r.state) == {} and dict(r.extras) == {} for r in reports)


def test_delta_is_local_minus_global_statistics_included():
    w = worker("fedavg")
    start = w.flat.vector()
    _, deltas = train(w, (0,), params=start, lr=1e-12)
    params = w.flat.layout.num_params
    np.testing.assert_allclose(deltas[0, :params], 0, atol=1e-9)
    assert np.abs(deltas[0, params:]).max() > 0.01


def test_inputs_are_taken_and_left():
    w = worker("fedbn")
    start = w.flat.vector()
    own = np.full(len(w.personal), 0.5, np.float32)
    before = start.copy()
    train(w, params=start)
    np.testing.assert_array_equal(start, before)
    start.flags.writeable = own.flags.writeable = False
    train(w, params=start, states={0: {"personal": own}})
    np.testing.assert_array_equal(start, before)
    assert np.all(own == 0.5)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_any_grouping_of_clients_gives_the_same_bits(method):
    w = worker(method)
    start = w.flat.vector()
    own = {1: {"personal": np.full(len(w.personal), 0.5, np.float32)}} if len(w.personal) else {}
    (_, a), (_, b) = (train(w, group, params=start, states=own) for group in ((0, 1, 2), (2, 1)))
    np.testing.assert_array_equal(a[[2, 1]], b)
    alone = [train(w, (c,), params=start, states=own)[1][0] for c in (0, 1, 2)]
    np.testing.assert_array_equal(a, alone)


def test_personal_slots_stay_on_the_client():
    w = worker("fedbn")
    start = w.flat.vector()
    mask = np.concatenate([np.full(s.stop - s.start, s.batchnorm) for s in w.flat.layout.slots])
    (report,), deltas = train(w, (0,), params=start)
    assert np.all(deltas[0, mask] == 0.0)
    assert np.abs(deltas[0, ~mask]).max() > 0
    own = report.state["personal"]
    assert (own.shape, own.dtype) == ((mask.sum(),), np.float32)
    assert not np.array_equal(own, start[mask])
    # what a plain client learns in the same round is what stays here
    _, plain = train(worker("fedavg"), (0,), params=start)
    np.testing.assert_allclose(own, start[mask] + plain[0, mask], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(deltas[0, ~mask], plain[0, ~mask])


def test_personal_state_is_loaded_where_training_starts():
    w = worker("fedbn", training=Training(local_epochs=1, batch_size=8, weight_decay=0.0))
    start = w.flat.vector()
    (report,), _ = train(w, (0,), params=start)
    own = report.state["personal"]
    before = own.copy()
    moved = start.copy()
    moved[w.personal.numpy()] = own
    (resumed,), deltas = train(w, (0,), round=1, params=start, states={0: report.state})
    np.testing.assert_array_equal(own, before)
    (other,), others = train(w, (0,), round=1, params=moved)
    np.testing.assert_array_equal(deltas, others)
    np.testing.assert_array_equal(resumed.state["personal"], other.state["personal"])
    # its own state is meant for client 0 alone
    _, ignored = train(w, (1,), round=1, params=start, states={0: report.state})
    _, without = train(w, (1,), round=1, params=start)
    np.testing.assert_array_equal(ignored, without)


def test_returned_arrays_are_not_views_of_the_model():
    w = worker("fedbn")
    start = w.flat.vector()
    (report,), deltas = train(w, (0,), params=start)
    kept, own = deltas.copy(), report.state["personal"].copy()
    train(w, (1,), params=start + 1)
    np.testing.assert_array_equal(deltas, kept)
    np.testing.assert_array_equal(report.state["personal"], own)


def test_logits_are_those_of_eval_mode_in_fixed_batches():
    w = worker("fedavg")
    start = w.flat.vector()
    whole = w.evaluate(start, {}, "test", OUTPUTS)
    train(w, params=start)
    assert w.evaluate(start, {}, "test", OUTPUTS).tobytes() == whole.tobytes()
    parts = [w.evaluate(start, {}, "test", OUTPUTS, (i, i + 1)) for i in range(2)]
    assert [len(p) for p in parts] == [32, 28]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    data = w.spec.dataset
    w.flat.load(torch.from_numpy(start))
    with torch.no_grad():
        x = (torch.from_numpy(data.x[data.test]).float() / 255 - 0.5) / 0.5
        expected = w.flat.model.eval()(x)
    np.testing.assert_allclose(whole, expected.numpy(), rtol=1e-4, atol=1e-5)
    assert (whole.shape, whole.dtype) == ((60, 3), np.float32)


def test_scores_are_those_of_the_loaded_model():
    w = worker("fedbn")
    start = w.flat.vector()
    (report,), _ = train(w, (0,), params=start)
    for state in ({}, report.state):
        logits = w.evaluate(start, state, "test", OUTPUTS)
        expected = score(logits, w.spec.dataset.y)
        assert w.evaluate(start, state, "test", SCORES) == expected
    assert w.evaluate(start, {}, "test", SCORES) != expected
    loss = functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(w.spec.dataset.y))
    assert expected.loss == pytest.approx(loss.item(), rel=1e-5)


def test_a_single_sample_client_trains():
    w = rebuilt(worker("fedavg"), partition=Partition(train=(np.array([4]), np.array([1, 2]))))
    (report, _), deltas = train(w, (0, 1))
    assert (report.num_samples, report.num_steps) == (1, 1)
    assert np.isfinite(deltas).all()


def nowhere(env):
    """A result without anything bad."""
    return Uplink()


def in_upload(env):
    return Uplink({"fine": np.zeros(2), "c": np.array([1.0, np.nan])}, {"h": np.array([np.inf])})


def in_state(env):
    env.flat.flat[0] = torch.inf
    return Uplink(state={"h": np.array([np.inf])})


def in_update(env):
    env.flat.flat[-1] = torch.nan
    env.flat.flat[env.flat.layout.slots[2].start] = torch.inf
    return Uplink()


@dataclass(frozen=True)
class Spoils(LocalRule):
    """Its ``finish`` writes something that is not finite."""

    how: Callable[[LocalEnv], Uplink]
    factor: float = 1.0

    def loss(self, env, s, x, y):
        objective, ce = super().loss(env, s, x, y)
        return objective, ce * self.factor

    def finish(self, env, s):
        return self.how(env)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Spoils(nowhere), None),
        (Spoils(in_upload), "tensor upload c"),
        (Spoils(in_state), "tensor own h"),
        (Spoils(in_update), "tensor features.1.bias"),
        (Spoils(nowhere, torch.nan), "the training loss"),
        (Spoils(in_update, torch.inf), "tensor features.1.bias and the training loss"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_report_says_what_diverged(rule, expected, apart):
    spec = replace(worker("fedavg").spec, algorithm=Algorithm(local=rule))
    (report,), _ = train(Worker(spec, CPU, apart=apart), (1,))
    assert report.diverged == expected


APART = {
    "plain": {},
    "staged": {},
    "stacked": {"stacking": Stacking(clients=2, width=8, batchnorm=True)},
}


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "scaffold", "fedld"])
@pytest.mark.parametrize("way", APART)
def test_memory_that_is_apart_changes_no_bit(method, way, monkeypatch):
    """The path of a GPU, here on the CPU: deltas stay there, and what is read is read once."""
    if way == "staged":
        monkeypatch.setattr("fedsim.engine.transfer.PART", sys.maxsize)
    spec = replace(worker(method).spec, **APART[way])
    here, apart = Worker(spec, CPU), Worker(spec, CPU, apart=True)
    monkeypatch.setattr(apart, "room", sys.maxsize)
    start = here.flat.vector()
    work = here.spec.blocks(tasks([0, 1, 2], context()))
    results = [w.run(work, models(context(), start), {}) for w in (here, apart, apart)]
    assert bits(results[0]) == bits(results[1]) == bits(results[2])
    for got in results[1:]:
        assert [r.diverged for r in got[0]] == [None] * 3
    states = {report.client_id: report.state for report in results[0][0]}
    again = [w.run(work, models(context(), start), states) for w in (here, apart)]
    assert bits(again[0]) == bits(again[1])
    scores = [w.evaluate(start, {}, "test", SCORES) for w in (here, apart)]
    assert scores[0] == scores[1]


def test_gradients_that_a_failed_client_left_behind_are_forgotten():
    w = worker("fedavg")
    start = w.flat.vector()
    expected = bits(train(w, (1,), params=start))
    for _, parameter in w.flat.params:
        parameter.grad = torch.ones_like(parameter)
    assert bits(train(w, (1,), params=start)) == expected


def test_a_client_without_a_step_has_not_diverged():
    w = rebuilt(worker("fedavg"), training=Training(local_epochs=0))
    (report,), deltas = train(w, (1,))
    assert np.isnan(report.train_loss)
    assert report.diverged is None
    assert not deltas.any()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_cpu_computes_in_float32(precision):
    w = worker("fedavg")
    start = w.flat.vector()
    other = rebuilt(w, precision=precision, deterministic=False)
    assert bits(train(other, params=start)) == bits(train(w, params=start))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("method", ["fedavg", "fedpac"])
def test_lower_precision_trains_about_the_same_on_a_gpu_and_repeats_its_bits(method, precision):
    restore = torch_flags()
    try:
        spec, start = worker(method).spec, worker(method).flat.vector()
        gpu = client_device(gpu=True)
        exact, lower, again = (
            train(Worker(replace(spec, precision=p), gpu), params=start)
            for p in ("float32", precision, precision)
        )
    finally:
        restore()
    assert lower[1].tobytes() == again[1].tobytes()
    assert lower[1].tobytes() != exact[1].tobytes()
    # bfloat16 has 8 bits: an update of a few steps agrees in direction, not in digits
    for a, b in zip(exact[1], lower[1], strict=True):
        assert a @ b > 0.95 * np.linalg.norm(a) * np.linalg.norm(b)
    for a, b in zip(exact[0], lower[0], strict=True):
        assert b.train_loss == pytest.approx(a.train_loss, rel=0.05)
        assert b.diverged is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedld"])
def test_a_gpu_gives_the_same_bits_wherever_samples_and_deltas_are(method, monkeypatch):
    restore = torch_flags()
    try:
        spec, start = worker(method).spec, worker(method).flat.vector()
        gpu = client_device(gpu=True)
        resident = Worker(spec, gpu)
        assert resident.samples.x.device == gpu
        monkeypatch.setattr("fedsim.engine.transfer.PART", sys.maxsize)
        staged = Worker(spec, gpu)  # its deltas go to the host one by one
        assert staged.samples.x.device == CPU
        assert bits(train(resident, params=start)) == bits(train(staged, params=start))
        monkeypatch.setattr(staged, "room", sys.maxsize)
        assert bits(train(resident, params=start)) == bits(train(staged, params=start))
        assert resident.evaluate(start, {}, "test", SCORES) == staged.evaluate(
            start, {}, "test", SCORES
        )
    finally:
        restore()


@pytest.fixture
def executor():
    done = SerialExecutor(worker("fedbn").spec)
    yield done
    done.close()


@pytest.mark.integration
def test_serial_results_are_sorted_and_those_of_the_worker(executor):
    w = worker("fedbn")
    start = w.flat.vector()
    sent = models(context(), start)
    executor.broadcast(sent)
    own = {"personal": np.full(len(w.personal), 0.5, np.float32)}
    results = executor.run(tasks([2, 0, 1], context()), sent, {1: own})
    reports, deltas = train(w, states={1: own}, params=start)
    assert [r.client_id for r in results] == [0, 1, 2]
    for result, report, delta in zip(results, reports, deltas, strict=True):
        np.testing.assert_array_equal(result.delta, delta)
        np.testing.assert_array_equal(result.state["personal"], report.state["personal"])
        assert result.num_samples == report.num_samples
        assert result.num_steps == report.num_steps
        assert result.train_loss == report.train_loss
    jobs = [((start, {}), "test"), ((start, own), "test")]
    assert executor.evaluate(jobs, SCORES) == [w.evaluate(*m, p, SCORES) for m, p in jobs]


@pytest.mark.integration
@pytest.mark.parametrize("most", [1, 2, 9])
def test_serial_gives_the_server_what_is_on_its_device(executor, most, monkeypatch):
    w = worker("fedbn")
    start = w.flat.vector()
    sent = models(context(), start)
    monkeypatch.setattr("fedsim.engine.blocks.MAX_CALL", most * start.nbytes)
    executor._worker = Worker(w.spec, CPU, apart=True)
    updates = executor.run(tasks([2, 0, 1], context()), sent, {})
    assert executor.columns(updates, sent, {}) is None, "the server computes on the CPU"
    executor._at_server = True
    updates = executor.run(tasks([2, 0, 1], context()), sent, {})
    _, deltas = train(w, params=start)
    updates[1] = replace(updates[1], delta=updates[1].delta + 1)  # as where it was rebased
    columns = executor.columns(updates[::-1], sent, {})
    deltas[1] += 1
    assert columns.matrix.numpy().tobytes() == deltas.tobytes()
    assert np.stack(columns.rows).tobytes() == deltas.tobytes()
    assert executor.columns(updates, sent, {}) is None, "and the memory is free again"


@pytest.mark.integration
def test_serial_drops_the_client_that_fails_alone():
    spec = replace(worker("fedavg").spec, algorithm=Algorithm(local=Fails(KeyError("gone"))))
    done = SerialExecutor(spec, EngineConfig(kind="serial", on_client_failure="drop"))
    try:
        sent = models(context(), worker("fedavg").flat.vector())
        updates = done.run(tasks([0, 1, 2], context()), sent, {})
        assert [u.client_id for u in updates] == [0, 1]
        assert [i.client_id for i in done.incidents()] == [2]
    finally:
        done.close()


def test_serial_takes_the_configured_threads_and_gives_them_back():
    before = torch.get_num_threads()
    spec = replace(worker("fedavg").spec, threads=before + 1)
    done = SerialExecutor(spec)
    try:
        assert torch.get_num_threads() == before + 1
    finally:
        done.close()
    assert torch.get_num_threads() == before


@dataclass(frozen=True)
class Fails(LocalRule):
    error: Exception

    def begin(self, env):
        if env.client_id == 2:
            raise self.error


@pytest.mark.integration
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (KeyError("gone"), WorkerError, "round 4, client 2: KeyError: 'gone'"),
        (RuntimeError("out of memory"), WorkerError, "round 4, client 2: RuntimeError: out of mem"),
        (DivergedError("said so"), DivergedError, "said so"),
    ],
)
def test_a_failure_names_round_and_client_and_keeps_its_cause(error, kind, message):
    spec = replace(worker("fedavg").spec, algorithm=Algorithm(local=Fails(error)))
    done = SerialExecutor(spec)
    try:
        ctx = context(round=3)
        sent = models(ctx, worker("fedavg").flat.vector())
        with pytest.raises(kind, match=message) as caught:
            done.run(tasks([0, 1, 2], ctx), sent, {})
    finally:
        done.close()
    assert error in (caught.value, caught.value.__cause__)


D = 6

LAYOUT = Layout(
    (Slot(name="body", shape=(4,), start=0, stop=4), Slot(name="head", shape=(2,), start=4, stop=6))
)


def update(client, steps, **changes):
    return ClientUpdate(client_id=client, num_samples=9, num_steps=steps, **changes)


def batches(*values):
    return [torch.tensor(v) for v in values], [7, 2, 5][: len(values)]


RESULTS = {
    "finite": (update(0, 3), batches(0.1, 2.3, 1 / 3), np.linspace(-1, 1, D)),
    "overflows": (update(1, 1), batches(0.7), np.full(D, 3e38)),
    "no step": (update(2, 0), ([], []), np.zeros(D)),
    "a loss": (update(3, 2), batches(1.0, math.inf), np.ones(D)),
    "a tensor": (update(4, 1), batches(0.5), np.array([1, 1, 1, 1, 1, math.nan])),
    "both": (update(5, 1), batches(math.nan), np.array([math.inf, 1, 1, 1, 1, -math.inf])),
    "an upload": (update(6, 1, extras={"c": np.array([math.inf])}), batches(0.5), np.ones(D)),
}

DIVERGED = {
    "a loss": "the training loss",
    "a tensor": "tensor head",
    "both": "tensor body and the training loss",
    "an upload": "tensor upload c",
}


@pytest.mark.parametrize("names", [list(RESULTS), ["finite"], ["no step"], ["both", "finite"]])
def test_at_once_as_one_after_another(names):
    updates, losses, deltas = zip(*(RESULTS[name] for name in names), strict=True)
    rows = torch.from_numpy(np.stack(deltas).astype(np.float32))
    alone = [
        judged(
            replace(u, train_loss=mean_loss([float(v) for v in own[0]], own[1])),
            row.numpy(),
            LAYOUT,
        )
        for u, own, row in zip(updates, losses, rows, strict=True)
    ]
    together = read(updates, losses, rows, LAYOUT)
    assert [u.diverged for u in together] == [DIVERGED.get(name) for name in names]
    assert [u.diverged for u in alone] == [u.diverged for u in together]
    np.testing.assert_array_equal(
        [u.train_loss for u in together], [u.train_loss for u in alone], strict=True
    )


def test_losses_that_were_read_stay():
    done = [update(0, 1, train_loss=0.25), update(1, 1)]
    both = read(done, [None, batches(4.0)], torch.zeros(2, D), LAYOUT)
    assert [u.train_loss for u in both] == [0.25, 4.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
@pytest.mark.parametrize("most", [None, 0, 1 << 20])
def test_samples_are_those_of_the_index_wherever_they_are(dtype, most):
    x = torch.arange(60).reshape(20, 3).to(dtype)
    y = torch.arange(20)
    samples = Samples(x, y, CPU, most)
    for index in ([3, 0, 3], [19], list(range(20)), [], [7, 6]):
        picked = torch.tensor(index, dtype=torch.int64)
        for got in (samples(picked), (samples.inputs(picked), samples.labels(picked))):
            for mine, whole in zip(got, (x, y), strict=True):
                assert mine.dtype == whole.dtype
                assert torch.equal(mine, whole[picked])


def test_samples_are_resident_where_they_fit_to_the_byte():
    x, y = torch.zeros(10, 3, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64)
    meta = torch.device("meta")  # holds no values, but says where a tensor is
    assert Samples(x, y, meta, 110).x.device == meta
    assert Samples(x, y, CPU, 109).x is x
    assert Samples(x, y, CPU, None).x is x, "on the CPU nothing is copied"


def test_a_batch_does_not_change_when_the_buffer_takes_the_next():
    x = torch.arange(12.0).reshape(6, 2)
    staged = Staged(x, CPU)
    first = staged(torch.tensor([5, 4]))
    staged(torch.tensor([0, 1]))
    assert torch.equal(first, x[[5, 4]])


def test_a_vector_is_copied_once_while_it_is_the_same():
    vectors = Vectors(CPU, apart=True)
    one, other = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    copy = vectors(one)
    assert copy.tolist() == [0, 1, 2]
    assert copy.data_ptr() != one.ctypes.data
    assert vectors(other).tolist() == [1, 1, 1]
    assert vectors(one) is copy
    assert vectors(one.copy()) is not copy, "another array, even of one version"
    for i in range(KEPT):
        vectors(np.full(3, i, np.float32))
    assert vectors(one) is not copy, "the oldest is let go of"


def test_shared_memory_is_known_again_only_where_nobody_can_write():
    vectors = Vectors(CPU, apart=True)
    memory = np.arange(4, dtype=np.float32)
    fixed = memory.tobytes()

    def again():
        return np.frombuffer(fixed, np.float32)  # as Ray does for each call

    assert vectors(again()) is vectors(again())
    assert vectors(again()[:2]) is not vectors(again())
    assert vectors(memory[:]) is not vectors(memory[:])
